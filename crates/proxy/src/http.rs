//! A forward proxy for HTTP/1.1 (RFC 9110, RFC 9112), for any browser and any program that knows proxies; and
//! for HTTP/2 (RFC 9113) where TLS ends in it, towards clients and servers.
//!
//! Over plain HTTP each object is a message with intents. Where several networks lead to its server, the
//! first bytes are asked for by a range, which says how large it is, and the rest comes as the manager's
//! policy says: over one network, or in parts over several. A tunnel (CONNECT) is a connection with intents.
//! Where the user wants that, HTTPS of hosts that are named ends here, and its objects are as those over
//! plain HTTP.
//!
//! ```text
//! serve, watched      clients' connections, their number and their limits
//! speaking, clock     HTTP on them, and the time for it
//! answer              what becomes of a request
//! target, fields      where it leads; what goes on of its head (pure)
//! pseudonym           the proxy's name in it
//! by_host             servers of peers, told apart by `Host` (crate::publishing)
//! own_key             which requests may use the user's key (pure)
//! origins, line       connections to servers
//! speaker, moving     HTTP on one of those, and what a request carries
//! multiplexed, tasks  HTTP/2, several requests at once
//! decided             what the manager says of a message
//! turns               how many objects of a server come at a time
//! exchange, passing   a request and its answer, passed on once
//! download            the two-step download
//! late, present       networks that come while an object is passed on; which there are
//! validator           which parts belong together (pure)
//! object              what can be fetched in ranges
//! fetch, worker       ranges over several connections
//! assembly, budget    put together in order, in bounded memory (pure)
//! body, sending       what the client reads
//! problem, pages      what is wrong with a request, and how that is told
//! tunnel, rewound     bytes in both directions
//! intercepted         HTTPS that ends here, if it is meant to (crate::intercept)
//! secured             its connections to servers, which show who they are first
//! recent              what was learnt of servers
//! transfer, flushed   answers inside that can go on at another device
//! web_object          what that needs to know of one
//! web_rest            the other device: the rest of one
//! ```

mod answer;
mod answers;
mod assembly;
mod body;
mod budget;
pub(crate) mod by_host;
mod clock;
mod decided;
mod download;
mod exchange;
mod fetch;
mod fields;
mod flushed;
mod intercepted;
mod late;
mod line;
mod moving;
mod multiplexed;
mod object;
mod origins;
mod own_key;
mod pages;
mod passing;
mod present;
mod problem;
mod pseudonym;
mod recent;
mod rewound;
mod rooms;
mod secured;
mod sending;
mod serve;
mod settings;
mod sizes;
mod speaker;
mod speaking;
mod target;
mod tasks;
mod transfer;
mod tunnel;
mod turns;
mod validator;
mod watched;
mod web_object;
mod web_rest;
mod worker;

use crate::{Interception, NetworkTraffic, Upstream};
use answers::Answers;
use budget::Budget;
use futures_util::future::BoxFuture;
use intercepted::Intercepting;
use origins::Origins;
use pseudonym::Pseudonym;
use recent::Recent;
use secured::Secured;
use sizes::Sizes;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tunnel::Passed;
use turns::Rules;

pub use settings::HttpSettings;
pub use transfer::{Halted, StaysHere, WebTransfer};
pub use validator::read_anything as read_anything_as_part;
pub use web_object::WebObject;
pub use web_rest::{NoWebRest, WebOrigins, WebRest};

/// Servers of which something is remembered.
const REMEMBERED: usize = 1024;
/// That a server has no ranges is believed for so long.
const WITHOUT_RANGES: Duration = Duration::from_secs(600);
/// In `Via` where TLS ends here: the same for all users. Loops are not found by it, and there are none: the
/// server at the end would have to show a certificate.
const INSIDE: &str = "whimbrel";
/// How much passed in tunnels to a server, and how large its objects were, is remembered for so long.
const SIZES: Duration = Duration::from_secs(24 * 3600);

/// A proxy for HTTP. Clones are the same one.
#[derive(Clone)]
pub struct HttpProxy {
    proxy: Arc<Proxy>,
}

/// What a proxy has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HttpStats {
    /// Clients' connections that are open.
    pub connections: u64,
    /// Requests, CONNECT included.
    pub requests: u64,
    /// Tunnels.
    pub tunnels: u64,
    /// Requests that the proxy answered itself because something was wrong: with them, with their server or
    /// on the way there.
    pub failed: u64,
}

/// What all its parts share.
struct Proxy {
    origins: Arc<Origins>,
    settings: HttpSettings,
    /// For all that is fetched ahead of its reader.
    budget: Arc<Budget>,
    /// Its name in `Via`, which no other proxy has.
    pseudonym: Pseudonym,
    /// Servers that have no ranges, or none that can be put together.
    without_ranges: Arc<Recent<()>>,
    /// What is to be expected of the next tunnel to a server.
    tunnels: Recent<Passed>,
    /// How large the next object of a server may be.
    sizes: Sizes,
    /// How long the first bytes of its objects take.
    answers: Recent<Answers>,
    counts: Arc<Counts>,
    /// What ends tunnels here. It has a proxy of its own for what comes in them.
    intercepting: Option<Intercepting>,
}

#[derive(Default)]
struct Counts {
    connections: AtomicU64,
    requests: AtomicU64,
    tunnels: AtomicU64,
    failed: AtomicU64,
}

impl HttpProxy {
    /// A proxy that reaches servers in this way.
    pub fn new(upstream: Arc<dyn Upstream>, settings: HttpSettings) -> Self {
        Self { proxy: Arc::new(Proxy::new(upstream, settings)) }
    }

    /// The same, for which HTTPS of some hosts ends here. It must serve nobody but the user whose browser
    /// trusts the key.
    pub fn intercepting(
        upstream: Arc<dyn Upstream>,
        settings: HttpSettings,
        interception: Interception,
    ) -> Self {
        let proxy = Proxy::new(Arc::clone(&upstream), settings);
        let secured = Arc::new(Secured::new(interception.servers));
        let inside = Arc::new(proxy.over_tls(upstream, Arc::clone(&secured)));
        let intercepting = Intercepting::new(interception.hosts, interception.authority, secured, inside);
        Self { proxy: Arc::new(Proxy { intercepting: Some(intercepting), ..proxy }) }
    }

    /// Answers of HTTPS that ends here which are under way to programs of this host, from now on: each can go
    /// on at another device. `None` if none ends here, or they are told already.
    pub fn transfers(&self) -> Option<mpsc::Receiver<WebTransfer>> {
        self.proxy.intercepting.as_ref()?.transfers()
    }

    /// Serves the clients of this socket until it is dropped, and their connections with it.
    // Made here, and not inlined: async code of this crate that another one polls is compiled there once
    // more.
    #[inline(never)]
    pub fn serve(&self, listener: TcpListener) -> BoxFuture<'_, ()> {
        Box::pin(serve::serve(&self.proxy, listener))
    }

    /// What it has done so far.
    pub fn stats(&self) -> HttpStats {
        let counts = &self.proxy.counts;
        HttpStats {
            connections: counts.connections.load(Ordering::Relaxed),
            requests: counts.requests.load(Ordering::Relaxed),
            tunnels: counts.tunnels.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
        }
    }

    /// What has passed over each network that the manager chose. A connection over several counts for its
    /// first; tunnels in a session, which can go on at another device, don't count.
    pub fn networks(&self) -> Vec<NetworkTraffic> {
        self.proxy.origins.networks().traffic()
    }
}

impl Proxy {
    fn new(upstream: Arc<dyn Upstream>, settings: HttpSettings) -> Self {
        // Different in each process, which is all that it has to be.
        let random = RandomState::new().build_hasher().finish();
        let mut settings = settings;
        // It is kept until it is whole.
        settings.first_step = settings.first_step.min(settings.window);
        settings.longest_first = settings.longest_first.min(settings.window);
        Self {
            origins: Origins::new(upstream, turns(&settings)),
            budget: Budget::new(settings.windows),
            settings,
            pseudonym: Pseudonym::new(format!("whimbrel-{random:016x}")),
            without_ranges: Arc::new(Recent::new(REMEMBERED, WITHOUT_RANGES)),
            tunnels: Recent::new(REMEMBERED, SIZES),
            sizes: Sizes::new(REMEMBERED, SIZES),
            answers: Recent::new(REMEMBERED, SIZES),
            counts: Arc::default(),
            intercepting: None,
        }
    }

    /// One that speaks TLS to its servers. It has the same counts and memory.
    fn over_tls(&self, upstream: Arc<dyn Upstream>, secured: Arc<Secured>) -> Self {
        Self {
            origins: self.origins.over_tls(upstream, turns(&self.settings), secured),
            budget: Arc::clone(&self.budget),
            settings: self.settings.clone(),
            pseudonym: Pseudonym::new(INSIDE),
            without_ranges: Arc::new(Recent::new(REMEMBERED, WITHOUT_RANGES)),
            tunnels: Recent::new(REMEMBERED, SIZES),
            sizes: Sizes::new(REMEMBERED, SIZES),
            answers: Recent::new(REMEMBERED, SIZES),
            counts: Arc::clone(&self.counts),
            intercepting: None,
        }
    }

    /// Closes connections to servers that have been idle for too long.
    fn tidy(&self) {
        self.origins.tidy();
        if let Some(intercepting) = &self.intercepting {
            intercepting.tidy();
        }
    }
}

fn turns(settings: &HttpSettings) -> Rules {
    Rules {
        each: settings.turns,
        here: settings.turns_here,
        rest: settings.turn_rest,
        limit: settings.turn_limit,
    }
}
