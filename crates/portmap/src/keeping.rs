//! Keeps a port of the router for as long as an endpoint wants it.

use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::time::Duration;

use aws_lc_rs::hmac;
use crab_nat::InternetProtocol;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use whimbrel_base::{AddressScope, SecretKey};
use whimbrel_transport::{Endpoint, Watch, Watched};

use crate::mapping::{MapError, Mapping, Nonce, Protocol};
use crate::router::{Router, routers};

/// Between attempts while no router passes the port on.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// A router that was restarted has forgotten all: it is asked again this often, however long it promises.
const AGAIN: Duration = Duration::from_secs(600);
const SOONEST: Duration = Duration::from_secs(15);
/// A new address is followed by its routes within this.
const SETTLE: Duration = Duration::from_millis(300);
/// Giving ports back does not hold up an end for longer.
const PARTING: Duration = Duration::from_secs(1);

/// How it stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mapped {
    /// Where the router is reached for this endpoint: one address, or one for each of TCP and UDP.
    pub places: Vec<SocketAddr>,
    /// How the router was asked.
    pub by: Option<Protocol>,
    /// Why there is none, once that is known.
    pub problem: Option<String>,
}

/// What the nonce of an endpoint's mappings is derived from, beside its key.
const NONCE: &[u8] = b"whimbrel port map v1";

/// Keeps an endpoint's port mapped until it is closed or dropped. Dropped, it leaves the port to the router, which
/// forgets it within an hour.
#[derive(Debug)]
pub struct PortMap {
    news: Watch<Mapped>,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl PortMap {
    /// Asks this host's router for the endpoint's port, as the holder of its `key`: a process that comes after this
    /// one may go on with what it left. Must run inside a tokio runtime; asking goes on in the
    /// background.
    ///
    /// ```no_run
    /// # // Not run: it would ask the router of whoever runs the tests for a port.
    /// # async fn example(endpoint: whimbrel_transport::Endpoint, key: whimbrel_base::SecretKey) {
    /// let ports = whimbrel_portmap::PortMap::start(endpoint, &key);
    /// let mapped = ports.news().wait_for(|mapped| !mapped.places.is_empty()).await;
    /// # let _ = mapped;
    /// ports.close().await;
    /// # }
    /// ```
    pub fn start(endpoint: Endpoint, key: &SecretKey) -> Self {
        let mapped = Watched::new(Mapped::default());
        let news = mapped.watch();
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(keep(endpoint, nonce(key), mapped, stopped));
        Self { news, stop: Some(stop), task }
    }

    /// How it stands, now and as it changes.
    pub fn news(&self) -> Watch<Mapped> {
        self.news.clone()
    }

    /// Gives the port back. Waits a second at most.
    pub async fn close(mut self) {
        if let Some(stop) = self.stop.take() {
            // One that has ended holds nothing.
            let _ = stop.send(());
        }
        if timeout(PARTING, &mut self.task).await.is_err() {
            tracing::debug!("the router does not answer: it keeps the port for a while");
        }
    }
}

impl Drop for PortMap {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a router passes on for the endpoint.
struct Held {
    router: Router,
    ports: Vec<Mapping>,
}

/// Always the same: a router that has kept a mapping for another nonce refuses to change it.
fn nonce(key: &SecretKey) -> Nonce {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key.to_bytes()), NONCE);
    let mut words =
        tag.as_ref().chunks_exact(4).map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
    std::array::from_fn(|_| words.next().unwrap_or_default())
}

async fn keep(endpoint: Endpoint, nonce: Nonce, mapped: Watched<Mapped>, mut stopped: oneshot::Receiver<()>) {
    let Some(port) = NonZeroU16::new(endpoint.port()) else { return };
    let mut addresses = endpoint.watch_addresses();
    let (mut held, mut pause): (Option<Held>, _) = (None, FIRST_PAUSE);
    loop {
        let asked = tokio::select! {
            asked = ask(&mut held, port, nonce) => asked,
            // What was asked for and not answered is forgotten by the router in time.
            _ = &mut stopped => break,
        };
        let next = match asked {
            Ok((now, lifetime)) => {
                pause = FIRST_PAUSE;
                tell(&endpoint, &mapped, now);
                (lifetime / 2).clamp(SOONEST, AGAIN)
            }
            Err(error) => {
                tracing::debug!("no port of a router: {error}");
                tell(&endpoint, &mapped, Mapped { problem: Some(error.to_string()), ..Mapped::default() });
                let longer = (pause * 2).min(LONGEST_PAUSE);
                std::mem::replace(&mut pause, longer)
            }
        };
        tokio::select! {
            () = sleep(next) => {}
            changed = addresses.changed() => {
                if changed.is_none() {
                    break;
                }
                sleep(SETTLE).await;
                pause = FIRST_PAUSE;
            }
            _ = &mut stopped => break,
        }
    }
    tell(&endpoint, &mapped, Mapped::default());
    for port in held.into_iter().flat_map(|held| held.ports) {
        port.give_back().await;
    }
}

fn tell(endpoint: &Endpoint, mapped: &Watched<Mapped>, now: Mapped) {
    endpoint.set_mapped(now.places.clone());
    mapped.set(now);
}

/// Asks the router that passes the port on to go on, or whichever there is now. How that stands, and for how long.
async fn ask(
    held: &mut Option<Held>,
    port: NonZeroU16,
    nonce: Nonce,
) -> Result<(Mapped, Duration), MapError> {
    let routers = routers();
    if let Some(held) = held
        && routers.contains(&held.router)
        && held.renew(port, nonce).await.is_ok()
    {
        return Ok((held.told(), held.soonest_end()));
    }
    *held = None;
    let mut last = MapError::NoRouter;
    for router in routers {
        match Held::ask(router, port, nonce).await {
            Ok(now) => {
                let held = held.insert(now);
                return Ok((held.told(), held.soonest_end()));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

impl Held {
    async fn ask(router: Router, port: NonZeroU16, nonce: Nonce) -> Result<Self, MapError> {
        let over = |protocol| Mapping::ask(router, protocol, port, nonce);
        let (tcp, udp) = tokio::join!(over(InternetProtocol::Tcp), over(InternetProtocol::Udp));
        let ports = match (tcp, udp) {
            (Err(error), Err(_)) => return Err(error),
            // One of the two is enough to be reached.
            (tcp, udp) => tcp.into_iter().chain(udp).collect::<Vec<_>>(),
        };
        let held = Self { router, ports };
        match held.hidden_at() {
            Some(ip) => {
                for port in held.ports {
                    port.give_back().await;
                }
                Err(MapError::Hidden(ip))
            }
            None => Ok(held),
        }
    }

    async fn renew(&mut self, port: NonZeroU16, nonce: Nonce) -> Result<(), MapError> {
        for mapping in &mut self.ports {
            *mapping = Mapping::ask(self.router, mapping.protocol(), port, nonce).await?;
        }
        match self.hidden_at() {
            Some(ip) => Err(MapError::Hidden(ip)),
            None => Ok(()),
        }
    }

    /// The router's address, if it leads nowhere.
    fn hidden_at(&self) -> Option<IpAddr> {
        let ips = self.ports.iter().map(|port| port.outside.ip());
        ips.into_iter().find(|ip| AddressScope::of(*ip) != AddressScope::Global)
    }

    fn soonest_end(&self) -> Duration {
        self.ports.iter().map(|port| port.lifetime).min().unwrap_or_default()
    }

    fn told(&self) -> Mapped {
        let mut places: Vec<SocketAddr> = self.ports.iter().map(|port| port.outside).collect();
        places.dedup();
        Mapped { places, by: self.ports.first().map(|port| port.by), problem: None }
    }
}
