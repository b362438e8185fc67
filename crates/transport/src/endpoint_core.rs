//! What an endpoint is made of. Whatever works for one holds this, and is above it.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::watch;
use whimbrel_base::address::AddressScope;
use whimbrel_base::{EndpointId, Name, SecretKey};
use whimbrel_proto::punching::Allowance;
use whimbrel_proto::{HandoverMode, MAX_NOTICE_ADDRESSES, Pool, Side};

use crate::aliases::Aliases;
use crate::announce::Announcements;
use crate::bulletin::Bulletin;
use crate::carrier::quic::{Fronting, QuicConfig};
use crate::carrier::{Reach, Sizes};
use crate::coming::Coming;
use crate::config::Config;
use crate::deciding::Deciding;
use crate::distance::Distances;
use crate::front::Front;
use crate::half_open::HalfOpen;
use crate::handshakes::Handshakes;
use crate::life::Life;
use crate::listeners::Listeners;
use crate::locator::Locator;
use crate::locked::asks_the_kernel;
use crate::monitor::{AddressMonitor, AddressSet, LocalAddress};
use crate::observed::Observed;
use crate::pace::Pace;
use crate::places::{Places, public};
use crate::policy::PathPolicy;
use crate::registry::Registry;
use crate::resolver::Resolver;
use crate::shared::Shared;
use crate::signal::Received;
use crate::sockets::{BindPlan, Sockets};
use crate::stun::StunServer;
use crate::tls::TlsIdentity;

/// What all handles of an endpoint, its tasks and its connections share.
pub(crate) struct EndpointCore {
    pub(crate) id: EndpointId,
    pub(crate) key: Arc<SecretKey>,
    /// The key was made for this endpoint and is gone with it.
    pub(crate) is_fleeting: bool,
    pub(crate) tls: TlsIdentity,
    pub(crate) quic: Arc<QuicConfig>,
    pub(crate) reach: Arc<Reach>,
    pub(crate) sizes: Arc<Sizes>,
    /// By which tokens servers are found behind relays.
    pub(crate) aliases: Arc<Aliases>,
    /// How far relays are.
    pub(crate) distances: Arc<Distances>,
    pub(crate) notice_pace: Pace,
    /// Answers to STUN requests.
    pub(crate) stun: StunServer,
    /// Where relays see this endpoint's UDP sockets.
    pub(crate) observed: Observed,
    /// One search for a port at a time, and so many.
    pub(crate) searches: tokio::sync::Mutex<Allowance>,
    /// Plain connections that are being opened through the HTTP proxy.
    pub(crate) proxy_turns: Arc<tokio::sync::Semaphore>,
    pub(crate) config: Config,
    /// Of connections for which nothing else is set.
    pub(crate) policy: Arc<PathPolicy>,
    /// How connections that are dialled from now on use their paths, if that was said since the endpoint was
    /// bound.
    pub(crate) dialled: Mutex<Option<(PathPolicy, HandoverMode)>>,
    pub(crate) announcements: Arc<Announcements>,
    /// What those hear who listen to the endpoint.
    pub(crate) bulletin: Arc<Bulletin>,
    /// What is known of the Wi-Fi of the host's addresses.
    pub(crate) received: Arc<Received>,
    pub(crate) plan: BindPlan,
    pub(crate) monitor: Arc<dyn AddressMonitor>,
    pub(crate) addresses: watch::Receiver<Arc<AddressSet>>,
    /// The addresses that the sockets were bound for last.
    pub(crate) bound: watch::Sender<Arc<AddressSet>>,
    /// Addresses that this host had and lost.
    pub(crate) lost: Mutex<HashSet<IpAddr>>,
    /// Where else this endpoint is reached.
    pub(crate) places: Places,
    /// Sees TCP connections before this endpoint does.
    pub(crate) front: OnceLock<Arc<dyn Front>>,
    /// Sees datagrams before this endpoint does.
    pub(crate) datagram_front: Fronting,
    pub(crate) sockets: Mutex<Sockets>,
    pub(crate) resolver: Mutex<Option<Arc<dyn Resolver>>>,
    /// Memory for the streams of all connections.
    pub(crate) pool: Pool,
    pub(crate) registry: Registry,
    /// Where its tasks run.
    pub(crate) runtime: Handle,
    pub(crate) listeners: Listeners,
    pub(crate) deciding: Deciding,
    pub(crate) coming: Coming,
    pub(crate) half_open: HalfOpen,
    pub(crate) handshakes: Arc<Handshakes>,
    pub(crate) life: Life,
    /// New connections carry journals.
    pub(crate) journals: AtomicBool,
}

impl EndpointCore {
    pub(crate) fn addresses(&self) -> Arc<AddressSet> {
        self.addresses.borrow().clone()
    }

    /// The addresses to dial from, and whether no others may be used.
    pub(crate) fn sources(&self) -> (Arc<AddressSet>, bool) {
        let set = self.addresses();
        match self.plan.only() {
            Some(ips) => (Arc::new(self.only(&set, ips)), true),
            None => (set, self.is_exclusive()),
        }
    }

    fn only(&self, set: &AddressSet, ips: &[IpAddr]) -> AddressSet {
        let mut addresses: Vec<LocalAddress> =
            set.addresses.iter().filter(|address| ips.contains(&address.ip)).cloned().collect();
        for &ip in ips {
            if !addresses.iter().any(|address| address.ip == ip) && self.has(set, ip) {
                addresses.push(LocalAddress { ip, interface: None });
            }
        }
        AddressSet { addresses, without_link: set.without_link.clone(), ..*set }
    }

    /// Changes once the sockets have followed the addresses, so that others can be told.
    pub(crate) fn bound_watch(&self) -> watch::Receiver<Arc<AddressSet>> {
        self.bound.subscribe()
    }

    pub(crate) fn is_exclusive(&self) -> bool {
        self.monitor.is_exclusive()
    }

    pub(crate) fn resolver(&self) -> Option<Arc<dyn Resolver>> {
        lock(&self.resolver).clone()
    }

    /// Where this endpoint is, as it tells others: at most `max` addresses, places behind relays among them.
    pub(crate) fn stated(&self, max: usize) -> Vec<SocketAddr> {
        self.stated_in(&self.addresses(), max)
    }

    /// As [`stated`](Self::stated), but a new address counts only from when we are heard there.
    pub(crate) fn stated_at(&self, max: usize) -> Vec<SocketAddr> {
        self.stated_in(&self.bound.borrow(), max)
    }

    fn stated_in(&self, set: &AddressSet, max: usize) -> Vec<SocketAddr> {
        self.places.stated(self.of_the_host(set), max)
    }

    /// Where this endpoint's own sockets are reached, as others are told.
    fn of_the_host(&self, set: &AddressSet) -> Vec<SocketAddr> {
        // Peers elsewhere dial that first, and those nearby what is near them.
        let open = self.observed.open().filter(|at| match AddressScope::of(at.ip()) {
            AddressScope::Global => true,
            AddressScope::Private => self.config.private_addresses,
            // Whatever relays say, nobody elsewhere dials that.
            _ => false,
        });
        open.into_iter().chain(self.told_in(set)).collect()
    }

    /// Of where others may reach this endpoint's sockets, what they are told.
    fn told_in(&self, set: &AddressSet) -> Vec<SocketAddr> {
        let own = self.reachable_in(set);
        if self.config.private_addresses { own } else { public(own) }
    }

    /// Tells peers and publishers that it is reached elsewhere now.
    pub(crate) fn tell_places(&self) {
        // Publishers look at where the endpoint is whenever this changes.
        self.bound.send_modify(|_| {});
        self.tell_peers();
    }

    /// Tells all peers where this endpoint is reached.
    pub(crate) fn tell_peers(&self) {
        let of_the_host = self.of_the_host(&self.addresses());
        for shared in self.registry.all() {
            self.tell_places_to(&shared, of_the_host.clone());
        }
    }

    /// Tells a peer where this endpoint is reached.
    pub(crate) fn tell_peer(&self, shared: &Shared) {
        // Looked up before anything is locked: what an interface is, the kernel may have to be asked.
        self.tell_places_to(shared, self.of_the_host(&self.addresses()));
    }

    /// A client is also told by which tokens of its own it finds this endpoint behind relays.
    fn tell_places_to(&self, shared: &Shared, of_the_host: Vec<SocketAddr>) {
        shared.with(|state| {
            let told = match state.engine.side() {
                Side::Client => self.places.stated(of_the_host, MAX_NOTICE_ADDRESSES),
                Side::Server => {
                    state.with_told(|told| self.places.stated_to(told, of_the_host, MAX_NOTICE_ADDRESSES))
                }
            };
            state.engine.set_notice_addresses(told);
        });
    }

    /// A client has come. If that was through a relay, the tokens that it had been told may be used up: it is told
    /// others.
    pub(crate) fn renew_aliases(&self, shared: &Shared, is_relayed: bool) {
        if self.places.relayed().is_empty() {
            return;
        }
        if is_relayed {
            shared.lock().with_told(Vec::clear);
        }
        self.tell_peer(shared);
    }

    /// Where others may reach this endpoint's sockets, if these are the host's addresses.
    pub(crate) fn reachable_in(&self, set: &AddressSet) -> Vec<SocketAddr> {
        let permitted = |ip: &IpAddr| {
            let mut same = set.addresses.iter().filter(|address| address.ip == *ip);
            self.policy.interfaces.is_empty() || same.any(|a| self.policy.permits(&self.policy.interface(a)))
        };
        self.plan
            .reachable(set)
            .into_iter()
            .filter(permitted)
            .map(|ip| SocketAddr::new(ip, self.plan.port))
            .collect()
    }

    /// What a new connection's tasks and handles will share.
    pub(crate) fn shared(&self, engine: whimbrel_proto::Connection, remote: Vec<Locator>) -> Arc<Shared> {
        let shared =
            Shared::new(engine, self.key.clone(), remote, self.policy.clone(), self.announcements.clone());
        shared.tell_endpoint(self.bulletin.clone());
        shared.follow_signals(self.received.clone());
        shared.learn_into(self.aliases.clone());
        shared
    }

    pub(crate) fn update_announcements(&self, set: &AddressSet) {
        // Name services and relays hear them, too.
        self.announcements.update(set, &self.told_in(set), &self.policy);
    }

    pub(crate) fn engine_config(&self, target: Option<&Name>) -> whimbrel_proto::Config {
        let mut config = self.config.engine(&self.pool);
        config.params.target = target.map(ToString::to_string);
        config.params.notice_addresses = self.notice_addresses();
        config.params.journals = self.journals.load(Ordering::Relaxed);
        config
    }

    /// Where notices are heard, as peers are told.
    pub(crate) fn notice_addresses(&self) -> Vec<SocketAddr> {
        self.stated(MAX_NOTICE_ADDRESSES)
    }

    /// Sends a datagram from the sockets of the target's family, when it is its turn among all notices. What
    /// cannot be sent then is lost, as datagrams are.
    pub(crate) async fn send_notice(&self, datagram: &[u8], target: SocketAddr) {
        let of_family = || {
            let mut sockets: Vec<_> =
                lock(&self.sockets).bound.values().map(|bound| bound.udp.clone()).collect();
            sockets.retain(|socket| socket.address().is_ipv4() == target.is_ipv4());
            sockets
        };
        let turns = u32::try_from(of_family().len()).unwrap_or(u32::MAX);
        self.notice_pace.turn(turns).await;
        // It may have waited: these are the present ones.
        for socket in of_family() {
            if let Err(error) = socket.send_to(datagram, target) {
                tracing::debug!(%target, %error, "cannot send a notice now");
            }
        }
    }

    /// The port of the sockets.
    pub(crate) fn port(&self) -> u16 {
        self.plan.port
    }

    pub(crate) fn shut(&self) {
        self.life.close();
        self.listeners.clear();
        self.stop_if_done();
    }

    /// Once the endpoint is closed, its sockets go with its last connection: until then they are
    /// needed to move.
    pub(crate) fn stop_if_done(&self) {
        if self.life.is_closed() && self.registry.is_empty() {
            lock(&self.sockets).abort();
            self.life.end_tasks();
        }
    }

    /// Once the endpoint is closed and its last connection gone: returns when its port is free again.
    pub(crate) async fn unbind(&self) {
        if !self.life.is_closed() || !self.registry.is_empty() {
            return;
        }
        let bound = lock(&self.sockets).take_all();
        for bound in bound {
            bound.close().await;
        }
    }

    /// Whether nobody else can reach this host for now. Addresses that were given by hand are meant as they
    /// are.
    pub(crate) fn is_cut_off(&self, set: &AddressSet) -> bool {
        set.is_cut_off() && !self.is_exclusive()
    }

    pub(crate) fn has(&self, set: &AddressSet, ip: IpAddr) -> bool {
        // All of 127/8 belongs to every host, although only 127.0.0.1 is listed. A path that is at no address in
        // particular, because a relay's packets follow this host, stays.
        set.contains(ip) || ip.is_unspecified() || (ip.is_loopback() && !self.is_exclusive())
    }

    /// Whether the address is known to be gone. A new path that was being made meanwhile may still be on it,
    /// and what gave up the others has not seen it: whoever adds a path asks afterwards.
    pub(crate) fn has_lost(&self, ip: IpAddr) -> bool {
        // It may be back already and not told of yet: the kernel knows.
        let is_back = || {
            asks_the_kernel();
            !self.is_exclusive() && std::net::UdpSocket::bind((ip, 0)).is_ok()
        };
        let is_lost = lock(&self.lost).contains(&ip);
        is_lost && !is_back()
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
