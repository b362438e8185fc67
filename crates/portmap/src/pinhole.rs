//! Has a router's firewall let peers in at this host's own IPv6 addresses.

mod gates;

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use crab_nat::InternetProtocol;
use futures_util::FutureExt;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;
use whimbrel_base::random_bytes;
use whimbrel_transport::{CarrierKind, Endpoint, Watched};

use self::gates::{Gate, gates};
use crate::favour::Favour;
use crate::mapping::MapError;
use crate::news::{Mapped, Pinholes};
use crate::pcp::{Granted, LONGEST, MapRequest, Nonce, PcpError};
use crate::router::LIFETIME;
use whimbrel_base::order;

/// For the first request and for those that follow it: a router is one hop away, and may be slow with its firewall.
const PATIENCE: [Duration; 4] = [
    Duration::from_millis(250),
    Duration::from_millis(500),
    Duration::from_millis(1000),
    Duration::from_millis(2000),
];
/// Half of this after a router has answered to some requests and not to others, these are made anew.
const BUSY: Duration = Duration::from_secs(30);
/// For so long a router may keep what a trial does not give back.
const TRIAL: Duration = Duration::from_secs(60);
/// Both carriers' ways.
const PROTOCOLS: [InternetProtocol; 2] = [InternetProtocol::Tcp, InternetProtocol::Udp];

/// An endpoint's port, let in at the host's own global IPv6 addresses by the routers that they are behind.
pub(crate) struct LettingIn {
    endpoint: Endpoint,
    port: NonZeroU16,
    nonce: Nonce,
    news: Arc<Watched<Mapped>>,
    /// All that was asked for. To give back what was refused does no harm.
    asked: Vec<Pinhole>,
}

impl LettingIn {
    pub(crate) fn new(
        endpoint: Endpoint,
        port: NonZeroU16,
        nonce: Nonce,
        news: Arc<Watched<Mapped>>,
    ) -> Self {
        Self { endpoint, port, nonce, news, asked: Vec::new() }
    }

    fn tell(&self, pinholes: Pinholes) {
        self.news.update(|mapped| mapped.pinholes = pinholes);
    }

    async fn open(&mut self) -> Result<(Vec<SocketAddr>, Duration), MapError> {
        let gates = gates_of(&self.endpoint);
        // What belongs to an address that is gone cannot be given back from there.
        self.asked = pinholes(&gates, &PROTOCOLS, self.port, self.nonce);
        ask_all(&self.asked, LIFETIME).await
    }
}

impl Favour for LettingIn {
    async fn ask(&mut self) -> Result<Duration, MapError> {
        match self.open().await {
            Ok((open, lifetime)) => {
                self.tell(Pinholes::Open(open));
                Ok(lifetime)
            }
            Err(error) => {
                self.tell(match error {
                    MapError::NoGate => Pinholes::Needless,
                    _ => Pinholes::Closed(error.to_string()),
                });
                Err(error)
            }
        }
    }

    async fn give_back(self) {
        self.tell(Pinholes::Unknown);
        give_all_back(&self.asked).await;
    }
}

/// Asks the routers of this host's global IPv6 addresses whether they would let peers in over a carrier, by having
/// them do it for a moment, at the port of an `endpoint` that nobody is to reach. Where they would. Takes four seconds,
/// and as many to give back what was opened, at most.
///
/// # Errors
/// If there are none, or they do not say so.
pub async fn probe(endpoint: &Endpoint, carrier: CarrierKind) -> Result<Vec<SocketAddr>, MapError> {
    let Some(port) = NonZeroU16::new(endpoint.port()) else { return Err(MapError::NoGate) };
    let protocol = match carrier {
        CarrierKind::Quic => InternetProtocol::Udp,
        _ => InternetProtocol::Tcp,
    };
    // Another one than the endpoint's own: what a command that runs has asked for stays.
    let nonce = std::array::from_fn(|_| u32::from_be_bytes(random_bytes()));
    let tried = pinholes(&gates_of(endpoint), &[protocol], port, nonce);
    let (open, _) = ask_all(&tried, TRIAL).await?;
    give_all_back(&tried).await;
    Ok(open)
}

/// The gates of those addresses at which the endpoint says that it is reached.
fn gates_of(endpoint: &Endpoint) -> Vec<Gate> {
    let stated = endpoint.addr().addrs;
    gates(|own| stated.iter().any(|place| place.ip() == IpAddr::V6(own)))
}

/// What is asked of one router for one of this host's addresses.
#[derive(Clone, Copy)]
struct Pinhole {
    gate: Gate,
    protocol: InternetProtocol,
    port: NonZeroU16,
    nonce: Nonce,
}

fn pinholes(gates: &[Gate], protocols: &[InternetProtocol], port: NonZeroU16, nonce: Nonce) -> Vec<Pinhole> {
    let of = |gate: &Gate| {
        let gate = *gate;
        protocols.iter().map(move |protocol| Pinhole { gate, protocol: *protocol, port, nonce })
    };
    gates.iter().flat_map(of).collect()
}

/// Asks for all of them at once: where peers are let in, and for how long.
async fn ask_all(pinholes: &[Pinhole], lifetime: Duration) -> Result<(Vec<SocketAddr>, Duration), MapError> {
    let mut asking = JoinSet::new();
    for &pinhole in pinholes {
        asking.spawn(async move { (pinhole, pinhole.ask(lifetime).await) });
    }
    let (mut open, mut soonest, mut last) = (Vec::new(), None, MapError::NoGate);
    let mut is_busy = false;
    while let Some(asked) = asking.join_next().await {
        match asked {
            Ok((pinhole, Ok(lifetime))) => {
                soonest = Some(soonest.map_or(lifetime, |soonest: Duration| soonest.min(lifetime)));
                open.push(SocketAddr::V6(pinhole.place()));
            }
            Ok((Pinhole { gate, .. }, Err(why))) => {
                is_busy |= matches!(why, PcpError::Silent);
                last = MapError::Closed { router: *gate.router.ip(), own: gate.own, why };
            }
            // One that panicked has said so.
            Err(_) => {}
        }
    }
    order::by(&mut open, Ord::cmp);
    open.dedup();
    let soonest = soonest.map(|lifetime| if is_busy { lifetime.min(BUSY) } else { lifetime });
    soonest.map(|lifetime| (open, lifetime)).ok_or(last)
}

async fn give_all_back(pinholes: &[Pinhole]) {
    let mut giving = JoinSet::new();
    for &pinhole in pinholes {
        giving.spawn(FutureExt::boxed(async move {
            if let Err(why) = pinhole.exchange(0).await {
                tracing::debug!("the router goes on letting in at {} for a while: {why}", pinhole.place());
            }
        }));
    }
    giving.join_all().await;
}

impl Pinhole {
    fn place(&self) -> SocketAddrV6 {
        SocketAddrV6::new(self.gate.own, self.port.get(), 0, 0)
    }

    /// For how long peers are let in. Takes four seconds at most.
    async fn ask(&self, lifetime: Duration) -> Result<Duration, PcpError> {
        let granted = self.exchange(lifetime.as_secs() as u32).await?;
        if granted.at != self.place() {
            // That place would not be told to peers.
            let _ = self.exchange(0).await;
            return Err(PcpError::Translated(granted.at));
        }
        Ok(granted.lifetime)
    }

    async fn exchange(&self, lifetime: u32) -> Result<Granted, PcpError> {
        let Self { gate, protocol, port, nonce } = *self;
        let request = MapRequest { own: gate.own, nonce, protocol, port, lifetime };
        let socket = towards(gate.own, gate.router).await?;
        let packet = request.encode();
        for patience in PATIENCE {
            socket.send(&packet).await?;
            if let Ok(answer) = timeout(patience, next_answer(&socket, &request)).await {
                return answer;
            }
        }
        Err(PcpError::Silent)
    }
}

/// A socket that hears the router alone, and speaks from the address that is to be reached.
async fn towards(own: Ipv6Addr, router: SocketAddrV6) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddrV6::new(own, 0, 0, 0)).await?;
    socket.connect(SocketAddr::V6(router)).await?;
    Ok(socket)
}

/// The first datagram that answers. Cancel-safe.
async fn next_answer(socket: &UdpSocket, request: &MapRequest) -> Result<Granted, PcpError> {
    let mut datagram = [0; LONGEST + 1];
    loop {
        let size = socket.recv(&mut datagram).await?;
        if let Some(answer) = request.answer(&datagram[..size]) {
            return answer;
        }
    }
}
