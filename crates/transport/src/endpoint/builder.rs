//! How an endpoint is set up.

use futures_util::FutureExt;
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::watch;
use whimbrel_base::SecretKey;
use whimbrel_proto::punching::Allowance;
use whimbrel_proto::{HandoverMode, SchedulerKind};

use super::follow::{bind_error, follow_addresses};
use super::plain::PROXY_TURNS;
use super::{Endpoint, Guard};
use crate::announce::Announcements;
use crate::carrier::Carriers;
use crate::carrier::quic::QuicConfig;
use crate::coming::Coming;
use crate::config::Config;
use crate::deciding::Deciding;
use crate::endpoint_core::{EndpointCore, lock};
use crate::error::BindError;
use crate::half_open::HalfOpen;
use crate::life::Life;
use crate::listeners::Listeners;
use crate::monitor::AddressMonitor;
use crate::observed::Observed;
use crate::observing;
use crate::pace::Pace;
use crate::places::Places;
use crate::policy::PathPolicy;
use crate::registry::Registry;
use crate::resolver::Resolver;
use crate::sockets::{self, BindPlan, OpenSockets, Sockets};
use crate::stun::StunServer;
use crate::tls::{self, TlsIdentity, TlsSessions};

/// Tries to bind to a port that was free.
const PORT_TRIES: usize = 5;

/// Sets an [`Endpoint`] up.
#[derive(Default)]
pub struct Builder {
    key: Option<SecretKey>,
    ip: Option<IpAddr>,
    port: u16,
    open: Option<OpenSockets>,
    sessions: Option<TlsSessions>,
    monitor: Option<Arc<dyn AddressMonitor>>,
    resolver: Option<Arc<dyn Resolver>>,
    config: Config,
    handover: Option<HandoverMode>,
    scheduler: Option<SchedulerKind>,
    paths: Option<PathPolicy>,
    advertised: Vec<SocketAddr>,
}

impl Builder {
    /// The identity. By default a fresh one, which can't have names registered for it.
    #[must_use]
    pub fn secret_key(mut self, key: SecretKey) -> Self {
        self.key = Some(key);
        self
    }

    /// The port for TCP and UDP; any free one by default.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// Binds to one address only, for dialling too. By default an endpoint uses all its host's addresses, so
    /// that it can move.
    #[must_use]
    pub fn ip(mut self, ip: IpAddr) -> Self {
        self.ip = Some(ip);
        self
    }

    /// Uses these sockets, which are open already, and their port, instead of binding others. Wins over
    /// [`port`](Self::port) and [`ip`](Self::ip).
    #[must_use]
    pub fn sockets(mut self, open: OpenSockets) -> Self {
        self.open = Some(open);
        self
    }

    /// Remembers the TLS sessions of an endpoint that [passed them on](crate::Leaving::pass_on): its clients come back
    /// with their tickets.
    #[must_use]
    pub fn sessions(mut self, sessions: TlsSessions) -> Self {
        self.sessions = Some(sessions);
        self
    }

    /// Where addresses come from; the kernel by default.
    #[must_use]
    pub fn monitor(mut self, monitor: impl AddressMonitor) -> Self {
        self.monitor = Some(Arc::new(monitor));
        self
    }

    /// How names are resolved; by default only tickets can be dialled.
    #[must_use]
    pub fn resolver(mut self, resolver: Arc<dyn Resolver>) -> Self {
        self.resolver = Some(resolver);
        self
    }

    /// Limits and times.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// How connections use several paths; `single` by default. Wins over the [config](Self::config).
    #[must_use]
    pub fn handover(mut self, mode: HandoverMode) -> Self {
        self.handover = Some(mode);
        self
    }

    /// How data is shared out among the paths; `earliest-arrival` by default. Wins over the
    /// [config](Self::config).
    #[must_use]
    pub fn scheduler(mut self, kind: SchedulerKind) -> Self {
        self.scheduler = Some(kind);
        self
    }

    /// Which paths connections should have: a [`Policy`](crate::Policy), or one with interfaces of your own
    /// choice. Unless a [mode](Self::handover) is set, the policy's own holds. Wins over the
    /// [config](Self::config).
    #[must_use]
    pub fn paths(mut self, policy: impl Into<PathPolicy>) -> Self {
        self.paths = Some(policy.into());
        self
    }

    /// Where else the endpoint is reached, such as at the outside of a gateway that passes a port on: it is told
    /// to others before the addresses of this host. Port 0 stands for the endpoint's own port.
    #[must_use]
    pub fn advertise(mut self, addresses: impl IntoIterator<Item = SocketAddr>) -> Self {
        self.advertised.extend(addresses);
        self
    }

    /// The config with what was set beside it.
    fn merged(&self) -> Config {
        let mut config = self.config.clone();
        if let Some(paths) = &self.paths {
            config.handover = paths.policy.mode();
            config.paths = paths.clone();
        }
        config.handover = self.handover.unwrap_or(config.handover);
        config.scheduler = self.scheduler.unwrap_or(config.scheduler);
        config
    }

    /// Which carriers to dial with; TCP and QUIC by default.
    #[must_use]
    pub fn carriers(mut self, carriers: Carriers) -> Self {
        self.config.carriers = carriers;
        self
    }

    /// Binds the sockets and starts to watch addresses. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`BindError`] when a socket cannot be bound or addresses cannot be watched.
    pub async fn bind(self) -> Result<Endpoint, BindError> {
        tls::prepare();
        let config = self.merged();
        let is_fleeting = self.key.is_none();
        let key = self.key.unwrap_or_else(SecretKey::generate);
        let monitor = match self.monitor {
            Some(monitor) => monitor,
            None => system_monitor().await.map_err(BindError::Monitor)?,
        };
        let mut open = self.open;
        let plan = match &open {
            Some(open) if open.is_fixed() => BindPlan { ips: open.ips(), port: open.port() },
            open => BindPlan {
                ips: self.ip.into_iter().collect(),
                port: open.as_ref().map_or(self.port, OpenSockets::port),
            },
        };
        let mut addresses = monitor.watch().0;
        let set = addresses.borrow_and_update().clone();
        let ips = plan.addresses(&set, monitor.is_exclusive());
        let tls = TlsIdentity::new(&key)?;
        if let Some(sessions) = &self.sessions {
            tls.remember(sessions);
        }
        let quic = Arc::new(QuicConfig::new(&key, &tls, self.config.timeouts.heartbeat)?);
        let advertised = self.advertised;
        let mut tries = PORT_TRIES;
        loop {
            let port = match plan.port {
                0 => sockets::free_port(&ips).map_err(bind_error)?,
                port => port,
            };
            let inner = Arc::new(EndpointCore {
                id: key.id(),
                is_fleeting,
                tls: tls.clone(),
                quic: quic.clone(),
                reach: Arc::default(),
                sizes: Arc::default(),
                aliases: Arc::default(),
                distances: Arc::default(),
                notice_pace: Pace::default(),
                stun: StunServer::default(),
                observed: Observed::default(),
                searches: tokio::sync::Mutex::new(Allowance::of_searches()),
                proxy_turns: Arc::new(tokio::sync::Semaphore::new(PROXY_TURNS)),
                key: Arc::new(key.clone()),
                policy: Arc::new(config.paths.clone()),
                dialled: Mutex::default(),
                announcements: Arc::new(Announcements::default()),
                bulletin: Arc::default(),
                received: Arc::default(),
                config: config.clone(),
                plan: BindPlan { port, ..plan.clone() },
                monitor: monitor.clone(),
                bound: watch::Sender::new(set.clone()),
                addresses: addresses.clone(),
                lost: Mutex::new(HashSet::new()),
                places: Places::new(advertised.iter().map(|address| with_port(*address, port)).collect()),
                front: OnceLock::new(),
                datagram_front: Arc::default(),
                sockets: Mutex::new(Sockets::with(open.take())),
                resolver: Mutex::new(self.resolver.clone()),
                pool: whimbrel_proto::Pool::default(),
                registry: Registry::new(config.limits()),
                runtime: tokio::runtime::Handle::current(),
                listeners: Listeners::default(),
                deciding: Deciding::default(),
                coming: Coming::default(),
                half_open: HalfOpen::default(),
                handshakes: Arc::default(),
                life: Life::default(),
                journals: AtomicBool::new(false),
            });
            inner.update_announcements(&set);
            let bound = lock(&inner.sockets).bind(&inner, &inner.quic, &ips, port);
            tries -= 1;
            match bound {
                Ok(()) => {
                    let tasks = [
                        tokio::spawn(FutureExt::boxed(follow_addresses(inner.clone()))),
                        tokio::spawn(FutureExt::boxed(observing::ask(inner.clone()))),
                        tokio::spawn(FutureExt::boxed(observing::measure(inner.clone()))),
                        tokio::spawn(FutureExt::boxed(observing::try_gateways(inner.clone()))),
                    ];
                    tasks.iter().for_each(|task| inner.life.keep(task.abort_handle()));
                    return Ok(Endpoint { guard: Arc::new(Guard(inner)) });
                }
                // A port that was found free can be taken meanwhile, or still be held by a child
                // process that was just being started: any other will do.
                Err((_, error)) if is_taken(&error) && plan.port == 0 && tries > 0 => {
                    lock(&inner.sockets).abort();
                }
                Err(error) => return Err(bind_error(error)),
            }
        }
    }
}

fn with_port(address: SocketAddr, port: u16) -> SocketAddr {
    if address.port() == 0 { SocketAddr::new(address.ip(), port) } else { address }
}

fn is_taken(error: &std::io::Error) -> bool {
    error.kind() == std::io::ErrorKind::AddrInUse
}

#[cfg(target_os = "linux")]
async fn system_monitor() -> std::io::Result<Arc<dyn AddressMonitor>> {
    Ok(Arc::new(crate::monitor::NetlinkMonitor::start().await?))
}

#[cfg(not(target_os = "linux"))]
async fn system_monitor() -> std::io::Result<Arc<dyn AddressMonitor>> {
    Err(std::io::Error::new(
        std::io::ErrorKind::Unsupported,
        "no address monitor exists for this system yet; set one by hand",
    ))
}
