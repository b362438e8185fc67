//! An endpoint as the flags ask for it, and its end.

use futures_util::FutureExt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use whimbrel::{Endpoint, OpenSockets};
use whimbrel_access::Intents;
use whimbrel_base::{EndpointId, Name, SecretKey, Ticket, TicketSecret, UnixTime};
use whimbrel_names::{KnownPeers, NameResolver, Origin, Pin, ServiceAddress, TrustNews};
use whimbrel_portmap::{Mapped, PortMap};
use whimbrel_steering::Steering;
use whimbrel_transport::{
    Config, Connection, ConnectionEvent, Events, ManualMonitor, Target, Timeouts, TlsSessions, Watch,
};

use crate::appointed::Appointed;
use crate::devices::Devices;
use crate::dns::Dns;
use crate::failure::Failure;
use crate::groups::Groups;
use crate::lan::Lan;
use crate::options::Globals;
use crate::steering::Steered;
use crate::{identity, limits, output, places, proxy};

mod by_ticket;
mod peer;
mod personal;

pub(crate) use self::by_ticket::name_of_nobody;
pub(crate) use self::peer::Peer;
use self::personal::Place;

/// How long connections may take to end.
const CLOSE_LIMIT: Duration = Duration::from_millis(1500);
/// So often a lasting outage is logged.
const OUTAGE_NEWS: Duration = Duration::from_secs(3600);

/// An endpoint with its name service.
pub(crate) struct Network {
    pub(crate) endpoint: Endpoint,
    pub(crate) service: Option<ServiceAddress>,
    /// The local network, with `--lan`.
    pub(crate) lan: Option<Arc<Lan>>,
    /// Who owns the names that this user has met.
    pub(crate) known: KnownPeers,
    /// Moves the endpoint by hand, with `--address`.
    pub(crate) manual: Option<ManualMonitor>,
    /// Limits of what is sent.
    pub(crate) limits: Option<PathBuf>,
    pub(crate) key: SecretKey,
    /// Whom the user gave names to, if the key is the user's.
    pub(crate) devices: Option<Devices>,
    /// What this device renews for its user, likewise.
    pub(crate) appointed: Option<Appointed>,
    /// The groups that the user has made, likewise.
    pub(crate) groups: Option<Groups>,
    /// Ports of the router that lead here.
    ports: Mutex<Option<PortMap>>,
    /// Has a manager choose among this host's networks.
    steering: Option<(Steering, Intents)>,
    quiet: bool,
}

/// What a command asks for beyond the flags.
#[derive(Default)]
pub(crate) struct Wish {
    pub(crate) config: Config,
    /// Bind to this address only.
    pub(crate) ip: Option<IpAddr>,
    /// Used if `--port` is not given.
    pub(crate) port: u16,
    /// Where else it is reached.
    pub(crate) advertise: Vec<SocketAddr>,
    /// Used instead of others.
    pub(crate) sockets: Option<OpenSockets>,
    /// What clients have tickets for since before.
    pub(crate) sessions: Option<TlsSessions>,
    /// Has a manager choose among this host's networks for what is dialled.
    pub(crate) steered: Option<Steered>,
}

/// Remembers the keys that flags say.
pub(crate) fn pin(known: &KnownPeers, globals: &Globals) -> Result<()> {
    for Pin { name, key } in &globals.pin {
        known.pin(name, *key, Origin::Hand, now())?;
    }
    Ok(())
}

impl Network {
    /// Binds, with this user's key.
    pub(crate) async fn of_user(globals: &Globals, wish: Wish) -> Result<Self> {
        let identity = identity::of_user(globals)?;
        let devices = Some(Devices::beside(&identity.file));
        let appointed = Some(Appointed::beside(&identity.file));
        let groups = Some(Groups::beside(&identity.file));
        Ok(Self { devices, appointed, groups, ..Self::start(globals, identity.key, wish).await? })
    }

    /// Binds. The name service is asked when it is first needed.
    pub(crate) async fn start(globals: &Globals, key: SecretKey, wish: Wish) -> Result<Self> {
        let carriers = globals.carrier.unwrap_or(wish.config.carriers);
        // The log says once that a peer is out of reach: no need to wake up for it again and again, unless the
        // command wants to.
        let mut timeouts = wish.config.timeouts;
        if timeouts.unreachable_every == Timeouts::default().unreachable_every {
            timeouts.unreachable_every = OUTAGE_NEWS;
        }
        let http_proxy = proxy::of_environment(globals.quiet).await;
        let mut builder = Endpoint::builder()
            .identity(key.clone())
            .port(globals.port.unwrap_or(wish.port))
            .advertise(wish.advertise)
            .config(Config { carriers, timeouts, http_proxy, ..wish.config });
        if let Some(ip) = wish.ip {
            builder = builder.ip(ip);
        }
        if let Some(sockets) = wish.sockets {
            builder = builder.sockets(sockets);
        }
        if let Some(sessions) = wish.sessions {
            builder = builder.sessions(sessions);
        }
        if let Some(file) = &globals.limits {
            // A mistake is told before anything is begun.
            limits::check(file)?;
        }
        let steered = wish.steered;
        if steered.is_some() && !globals.address.is_empty() {
            return Err(Failure::usage(
                "--address says addresses, and the manager knows interfaces: leave --address or --intent out",
            ));
        }
        let manual =
            (!globals.address.is_empty()).then(|| ManualMonitor::new(globals.address.iter().copied()));
        if let Some(monitor) = &manual {
            builder = builder.monitor(monitor.clone());
        }
        let known = known_peers(globals)?;
        pin(&known, globals)?;
        if let Some(service) = &globals.names {
            builder = builder.names(service.clone()).known_peers(known.clone());
        }
        let proof = Dns::proof(&globals.prove_domain, globals.dns)?;
        let endpoint = builder.bind().await?;
        if let (Some(resolver), Some(proof)) = (endpoint.names(), proof) {
            resolver.require_proof(proof);
        }
        let steering = match steered {
            Some(steered) => {
                let intents = steered.intents;
                Some((steered.start(endpoint.transport(), globals.quiet).await, intents))
            }
            None => None,
        };
        let lan = if globals.lan { Some(Lan::start(&endpoint, &known, globals)?) } else { None };
        Ok(Self {
            endpoint,
            service: globals.names.clone(),
            lan,
            known,
            manual,
            limits: globals.limits.clone(),
            key,
            devices: None,
            appointed: None,
            groups: None,
            ports: Mutex::default(),
            steering,
            quiet: globals.quiet,
        })
    }

    /// Has the router pass this endpoint's port on until the network is closed. How that stands.
    pub(crate) fn map_port(&self) -> Watch<Mapped> {
        let ports = PortMap::start(self.endpoint.transport().clone(), &self.key);
        let news = ports.news();
        *self.ports() = Some(ports);
        news
    }

    fn ports(&self) -> MutexGuard<'_, Option<PortMap>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn id(&self) -> EndpointId {
        self.endpoint.id()
    }

    /// The name service.
    pub(crate) fn resolver(&self) -> Result<&NameResolver> {
        self.endpoint.names().ok_or_else(|| {
            Failure::usage(
                "no name service is configured; give one with --names SERVICE or `names = \"…\"` in the \
                 configuration file, or use a ticket",
            )
        })
    }

    /// The owner of a user name, as far as it was met.
    pub(crate) fn owner_of(&self, user: &Name) -> Result<Option<EndpointId>> {
        Ok(self.known.pins()?.owner(user).map(|owner| owner.key))
    }

    pub(crate) fn has_names(&self) -> bool {
        self.endpoint.names().is_some()
    }

    /// Whether anybody can be asked for a name, or told one.
    pub(crate) fn resolves(&self) -> bool {
        self.has_names() || self.lan.is_some()
    }

    /// Fails if nobody can be asked for a name, or told one.
    pub(crate) fn needs_to_resolve(&self) -> Result<()> {
        if self.resolves() {
            return Ok(());
        }
        Err(Failure::usage(
            "no name service is configured; give one with --names SERVICE or `names = \"…\"` in the configuration \
             file, or use a ticket, or --lan where both are in one network",
        ))
    }

    /// A ticket to this endpoint.
    pub(crate) fn ticket(&self, name: Option<Name>, secret: Option<TicketSecret>) -> Ticket {
        let ticket = self.endpoint.ticket(name);
        match secret {
            Some(secret) => ticket.with_secret(secret),
            None => ticket,
        }
    }

    /// Ends all connections in order.
    pub(crate) async fn close(&self) {
        let ports = self.ports().take();
        tokio::join!(self.endpoint.close(CLOSE_LIMIT), async {
            if let Some(ports) = ports {
                ports.close().await;
            }
        });
        if let Some(lan) = &self.lan {
            lan.close().await;
        }
    }
}

/// The known peers of this user. What is new is told.
pub(crate) fn known_peers(globals: &Globals) -> Result<KnownPeers> {
    let directory = places::config()?;
    identity::private_directory(&directory)?;
    let quiet = globals.quiet;
    Ok(KnownPeers::in_file(directory.join("known_peers")).telling(move |news| {
        if let TrustNews::NewEndpoint { name, id, .. } = news {
            output::note(quiet, format!("{name} has another key than before, signed by its owner: {id}"));
        }
    }))
}

fn now() -> UnixTime {
    SystemTime::now().into()
}

/// Connects, and logs from then on what happens underneath.
pub(crate) async fn connect(network: &Network, peer: &Peer) -> Result<Connection> {
    match peer {
        Peer::Personal(personal) => {
            let peer = match personal.place(network).await? {
                Place::Name(name) => Peer::Name(name),
                Place::Key(id) => Peer::Key(id),
            };
            connect_to(network, &peer).await
        }
        peer => connect_to(network, peer).await,
    }
}

/// Connects to a device that is found by its key, and there to the program that listens under this name, or
/// without one: others with the same key do not answer in its place.
///
/// # Errors
/// When it cannot be found or reached, or no such program answers there.
pub(crate) async fn connect_to_listener(
    network: &Network,
    device: EndpointId,
    listener: Name,
) -> Result<Connection> {
    network.needs_to_resolve()?;
    dial(network, Target::listener(device, listener), &Peer::Key(device)).await
}

async fn connect_to(network: &Network, peer: &Peer) -> Result<Connection> {
    match peer {
        Peer::Name(_) | Peer::Key(_) => network.needs_to_resolve()?,
        Peer::Pinned(Pin { name, key }) => {
            network.needs_to_resolve()?;
            network.known.pin(name, *key, Origin::Hand, now())?;
        }
        Peer::Ticket(ticket) => by_ticket::judge(network, ticket).await?,
        // It stands for one of the others by now.
        Peer::Personal(_) => {}
    }
    let target = peer.target().ok_or_else(|| Failure::usage(format!("{peer} is no peer by itself")))?;
    let user = peer.name().map(Name::user);
    let before = user.as_ref().map_or(Ok(None), |user| network.owner_of(user))?;
    let connection = dial(network, target, peer).await?;
    if let Some(user) = user.filter(|_| before.is_none())
        && let Ok(Some(key)) = network.owner_of(&user)
    {
        let by_itself = network.lan.as_ref().is_some_and(|lan| lan.has_met(&user));
        let how = if by_itself { ", by nobody's word but its own in this network" } else { "" };
        let text = format!("{user} is met for the first time{how}; its owner's key is remembered: {key}");
        output::note(network.quiet, text);
    }
    Ok(connection)
}

async fn dial(network: &Network, target: Target, peer: &Peer) -> Result<Connection> {
    let connection = network.endpoint.connect(target).await.map_err(|error| told_once(error, peer))?;
    if let Some((steering, intents)) = &network.steering {
        // The manager shows the name then.
        steering.intend(&connection, *intents);
    }
    tokio::spawn(FutureExt::boxed(log_events(connection.events(), peer.to_string())));
    Ok(connection)
}

/// Says to whom there is no connection, unless the error says so itself: an id is long.
fn told_once(error: whimbrel::ConnectError, peer: &Peer) -> anyhow::Error {
    let names_it = error.to_string().contains(&peer.to_string());
    let error = anyhow::Error::from(error);
    if names_it { error } else { error.context(format!("cannot connect to {peer}")) }
}

/// Logs a connection's moves until it ends.
pub(crate) async fn log_events(mut events: Events, peer: String) {
    while let Some(event) = events.next().await {
        match event {
            ConnectionEvent::PathUp { local, remote, recovery: Some(took), .. } => {
                tracing::info!(%peer, %local, %remote, ?took, "connected again");
            }
            ConnectionEvent::PathUp { local, remote, .. } => {
                tracing::info!(%peer, %local, %remote, "path up")
            }
            ConnectionEvent::PathSuspect { path } => {
                tracing::info!(%peer, path, "path makes no progress")
            }
            ConnectionEvent::PathSignal { path, dbm, is_weak } => {
                tracing::info!(%peer, path, ?dbm, is_weak, "the signal of the path's Wi-Fi changed");
            }
            ConnectionEvent::PathDown { local, remote, cause, .. } => {
                tracing::info!(%peer, %local, %remote, %cause, "path down");
            }
            ConnectionEvent::Unreachable { lasts } if lasts.is_zero() => {
                tracing::info!(%peer, "no path works; the connection waits");
            }
            ConnectionEvent::Unreachable { lasts } => tracing::debug!(%peer, ?lasts, "still out of reach"),
            // The path that came up says so.
            ConnectionEvent::Reachable { .. } => {}
            ConnectionEvent::HandoverChanged(mode) => {
                tracing::info!(%peer, %mode, "the peer set the mode")
            }
            ConnectionEvent::PriorityChanged { path, priority } => {
                tracing::info!(%peer, path, ?priority, "the peer set a path's priority");
            }
            ConnectionEvent::Closed { code, reason } => {
                tracing::info!(%peer, %code, reason, "connection over");
                return;
            }
            event => tracing::info!(%peer, ?event, "something else happened"),
        }
    }
}
