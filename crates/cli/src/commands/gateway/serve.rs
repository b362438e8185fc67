//! `whimbrel gateway serve`: the server in the middle.

use futures_util::FutureExt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use whimbrel_base::Name;
use whimbrel_proxy::{
    GatewayServer, Guard, Joined, Pattern, PublishSettings, Quota, Rules, Served, SessionSettings,
};
use whimbrel_relay::Keeper;
use whimbrel_transport::{Connection, Stream};

use super::publishing::{PublishFlags, Publishing};
use crate::access::{Access, AllowFlags, Guests};
use crate::failure::Failure;
use crate::halt::{Halter, Tie};
use crate::local::LocalSocket;
use crate::manager::Ready;
use crate::multipath::PathFlags;
use crate::network::{Network, log_events};
use crate::options::{Globals, after, duration};
use crate::relaying::ReachFlags;
use crate::serving::Start;
use crate::status::{About, Reporter};
use crate::takeover::{Estate, Inherited, Served as Handed, TakeOver, Woken};
use crate::tunnel::{HALT_LIMIT, Halted, Tunnel};
use crate::{files, metrics, output, reload, serving};

const COMMAND: &str = "gateway serve";

/// Connect peers that are let in to hosts of the internet, until stopped
// In one line, since the whole is to fit a screen.
#[derive(Args)]
#[command(long_about = "\
Connect peers to hosts of the internet. Publishing: `whimbrel help publishing`")]
#[command(after_help = after("\
Examples:
  whimbrel gateway serve gate.home.ada@example.org --allow ID
  whimbrel gateway serve --ticket --secret --port 443 --to 192.168.1.0/24:80"))]
pub(super) struct Serve {
    /// The name to be reached under; not needed with --ticket
    name: Option<Name>,
    #[command(flatten)]
    allow: AllowFlags,
    /// Let through as well: HOST, *.DOMAIN or NET
    #[arg(long, value_name = "WHAT[:PORT]")]
    to: Vec<Pattern>,
    /// Let nothing else through
    #[arg(long, requires = "to")]
    only: bool,
    /// Connections at once for one peer, and for all
    #[arg(long, value_names = ["EACH", "ALL"], num_args = 2, default_values_t = [256, 4096])]
    most: Vec<u16>,
    /// Break a connection idle for so long
    #[arg(long, value_name = "TIME", default_value = "124m", value_parser = duration)]
    idle: Duration,
    /// Keep what no device has for so long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    hold: Duration,
    /// Print a ticket; alone it lets nobody in
    #[arg(long)]
    ticket: bool,
    #[command(flatten)]
    publishing: PublishFlags,
    #[command(flatten)]
    reach: ReachFlags,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    paths: PathFlags,
    /// Serve GET /metrics there, for Prometheus
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Print a JSON object once it can be reached
    #[arg(long)]
    json: bool,
}

impl Serve {
    /// Connections at once, for one and for all.
    fn most(&self) -> (usize, usize) {
        let most = |at: usize| self.most.get(at).copied().map_or(usize::MAX, usize::from);
        (most(0), most(1))
    }
}

pub(super) async fn run(globals: &Globals, args: Serve) -> Result<()> {
    args.allow.check(args.ticket, args.name.as_ref())?;
    if args.name.is_none() && !args.ticket {
        return Err(Failure::usage(
            "under which name? Give a NAME, or --ticket; see `whimbrel gateway serve --help`",
        ));
    }
    files::raise_limit();
    let wish = (args.reach.apply(args.paths.config()), args.reach.advertised());
    let (flag, name) = (&args.take_over, args.name.as_ref());
    let serve = async |network: &Network, inherited| serve(globals, &args, network, inherited).await;
    serving::until_taken_over(globals, flag, COMMAND, name, wish, serve).await
}

async fn serve(
    globals: &Globals,
    args: &Serve,
    network: &Network,
    inherited: Option<Inherited>,
) -> Result<Handed> {
    let name = args.name.as_ref();
    let before = inherited.as_ref().map(|inherited| inherited.estate.before.clone()).unwrap_or_default();
    let is_told = inherited.as_ref().is_some_and(Inherited::is_own);
    let access = Access::open(&args.allow, name, network, globals.quiet, before).await?;
    let secret = access.secret();
    let publishing = args.publishing.start(publish_settings(args)).await?;
    let start = if inherited.is_some() { Start::GoingOn } else { Start::Anew };
    let figures = metrics::listen(args.metrics, start == Start::GoingOn).await?;
    let waking = match inherited {
        Some(inherited) => Some(inherited.ready(network).await?),
        None => None,
    };
    let mut guests = serving::listen(globals, network, name, args.ticket, access.clone(), start).await?;
    let halter = Halter::new();
    let service = Service { server: server(args, &publishing), tie: halter.tie(), idle: args.idle };
    if let Some(waking) = waking {
        let (connections, woken) = waking.begin()?;
        service.go_on(connections, woken, &guests);
    }
    let (counting, handshakes) = (service.server.clone(), network.endpoint.transport().handshakes());
    let text = move || metrics::of_gateway(&counting.stats()) + &metrics::of_endpoint(&handshakes());
    let metrics = metrics::serve(figures, text);
    let keeper = args.reach.start(network, name, args.ticket && !is_told, globals.quiet).await?;
    let ticket = args.ticket.then(|| network.ticket(args.name.clone(), secret).to_string());
    let shown = name.map(ToString::to_string);
    let about = About::new(COMMAND, shown).handing_over().relayed(keeper.as_ref().map(Keeper::news));
    let mut reporter = Reporter::start(network, about, globals.quiet)?;
    let reachable = format!("gateway for {}", name.map_or("this ticket".to_owned(), ToString::to_string));
    let _reloading = reload::follow_access(&globals.source, &reachable, &args.allow, &access, network)?;
    let ready = Ready::tell(&reachable);
    if !is_told {
        let told = tell(globals, args, network, reachable, (ticket, &publishing));
        start.needs(told)?;
    }
    let (asker, leaving) = loop {
        tokio::select! {
            connection = guests.accept() => match connection {
                Some(connection) => service.serve(connection),
                None => return Ok(Handed::Ended),
            },
            // Clients of what it publishes would break: their sockets are not handed over.
            asker = reporter.asked() => if args.publishing.is_used() {
                asker.refuse(PUBLISHES.into()).await;
            } else {
                match network.endpoint.transport().stop_listening() {
                    Ok(leaving) => break (asker, leaving),
                    Err(error) => asker.refuse(error.to_string()).await,
                }
            },
        }
    };
    drop(metrics);
    ready.leave();
    let server = service.server.clone();
    drop(service);
    let halted = halter.halt(HALT_LIMIT).await;
    let sessions = server.halt(HALT_LIMIT).await;
    let estate = Estate::of(leaving, &guests.leave(), halted).await.with_sessions(sessions);
    Ok(Handed::Left(asker, Box::new(estate.with_access(access.known()))))
}

/// Why a gateway is not taken over.
const PUBLISHES: &str =
    "a gateway that publishes servers cannot be taken over; stop it, and start the newer one";

/// What connects, by the rules.
fn server(args: &Serve, publishing: &Publishing) -> GatewayServer {
    let outside = args.reach.advertised().iter().map(SocketAddr::ip).collect();
    let guard = Guard::new(Rules::new(args.to.clone(), args.only)).with_outside(outside);
    let (each, all) = args.most();
    let mut sessions = SessionSettings::default();
    (sessions.hold, sessions.idle) = (args.hold, args.idle);
    let server = GatewayServer::new(guard, Quota::new(each, all)).with_sessions(sessions);
    server.with_publications(publishing.publications.clone())
}

fn publish_settings(args: &Serve) -> PublishSettings {
    let mut settings = PublishSettings::default();
    (settings.each, settings.all) = args.most();
    settings.idle = args.idle;
    settings
}

fn tell(
    globals: &Globals,
    args: &Serve,
    network: &Network,
    reachable: String,
    (ticket, publishing): (Option<String>, &Publishing),
) -> Result<()> {
    if args.json {
        return output::json(&json!({
            "id": network.id().to_string(), "name": args.name.as_ref().map(ToString::to_string),
            "ticket": ticket, "port": network.endpoint.port(),
            "public_tls": publishing.tls, "public_http": publishing.http,
        }));
    }
    output::note(globals.quiet, reachable);
    for at in &publishing.tls {
        output::note(globals.quiet, format!("TLS for published hosts on {at}"));
    }
    for at in &publishing.http {
        output::note(globals.quiet, format!("HTTP for published hosts on {at}"));
    }
    ticket.map_or(Ok(()), output::line)
}

/// What serves each connection.
#[derive(Clone)]
struct Service {
    server: GatewayServer,
    tie: Tie<Halted>,
    /// Places must come back from peers that have gone. If nothing else is said, it is the least for which
    /// NAT gateways must keep theirs (RFC 5382, REQ-5).
    idle: Duration,
}

impl Service {
    /// Serves what another instance served before. A request that had no answer yet has none: its stream
    /// ends, and its peer may ask again.
    fn go_on(&self, connections: Vec<Connection>, woken: Woken, guests: &Guests) {
        for (session, streams) in woken.gateway {
            if let Err(error) = self.server.go_on(session, streams) {
                tracing::info!(%error, "a session breaks");
            }
        }
        for tunnel in woken.tunnels {
            let (service, peer) = (self.clone(), tunnel.read.stream().peer_id());
            let place = self.server.keep_place(peer);
            tokio::spawn(FutureExt::boxed(async move {
                if let Err(error) = service.carry(tunnel).await {
                    tracing::debug!(peer = %peer.short(), %error, "a connection broke");
                }
                drop(place);
            }));
        }
        for connection in connections {
            guests.welcome(connection.clone());
            self.serve(connection);
        }
    }

    fn serve(&self, connection: Connection) {
        tokio::spawn(FutureExt::boxed(log_events(connection.events(), connection.peer_id().short())));
        tokio::spawn(FutureExt::boxed(self.clone().serve_connection(connection)));
    }

    async fn serve_connection(self, connection: Connection) {
        loop {
            tokio::select! {
                stream = connection.accept_stream() => match stream {
                    Ok(stream) => drop(tokio::spawn(FutureExt::boxed(self.clone().serve_stream(stream)))),
                    Err(_) => return,
                },
                () = self.tie.is_to_halt() => return,
            }
        }
    }

    async fn carry(&self, tunnel: Tunnel) -> io::Result<()> {
        tunnel.with_idle_limit(self.idle).run(&self.tie).await
    }

    async fn serve_stream(self, stream: Stream) {
        let peer = stream.peer_id().short();
        let served = tokio::select! {
            served = self.server.serve(stream) => served,
            () = self.tie.is_to_halt() => return,
        };
        match served {
            Ok(Served::Joined(stream, Joined { socket, to, place })) => {
                tracing::info!(%peer, %to, "connected");
                if let Err(error) = self.carry(Tunnel::new(LocalSocket::Tcp(socket), stream)).await {
                    tracing::debug!(%peer, %to, %error, "a connection broke");
                }
                drop(place);
            }
            Ok(Served::Session(to)) => tracing::info!(%peer, %to, "connected, in a session"),
            Ok(_) => tracing::debug!(%peer, "a request was answered"),
            Err(error) => tracing::info!(%peer, %error, "a request was declined"),
        }
    }
}
