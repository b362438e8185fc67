//! Has a router's firewall let peers in at this host's own IPv6 addresses.

mod gates;

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crab_nat::InternetProtocol;
use futures_util::FutureExt;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use whimbrel_base::random_bytes;
use whimbrel_transport::{CarrierKind, Endpoint, Watched};

use self::gates::{Gate, gates};
use crate::device::UpnpError;
use crate::favour::Favour;
use crate::firewall::{Firewall, LetIn};
use crate::mapping::MapError;
use crate::news::{Mapped, Pinholes};
use crate::pcp::{self, Granted, LONGEST, MapRequest, Nonce, PcpError, PcpRefusal};
use crate::router::LIFETIME;
use whimbrel_base::order;

/// For the first request and for those that follow it: a router is one hop away, and may be slow with its
/// firewall.
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
/// In seconds, the shortest that can be asked for: of what a router does not take back.
const SHORTEST: u32 = 1;
/// Both carriers' ways.
const PROTOCOLS: [InternetProtocol; 2] = [InternetProtocol::Tcp, InternetProtocol::Udp];

/// An endpoint's port, let in at the host's own global IPv6 addresses by the routers that they are behind.
pub(crate) struct LettingIn {
    endpoint: Endpoint,
    port: NonZeroU16,
    nonce: Nonce,
    news: Arc<Watched<Mapped>>,
    /// All that was asked for. To give back what was refused does no harm.
    asked: Vec<Asked>,
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
        let mut asked = all_of(&gates, &PROTOCOLS, self.port, self.nonce);
        for again in &mut asked {
            let before = self.asked.iter().find(|before| before.pinhole.is(&again.pinhole));
            again.let_in = before.and_then(|before| before.let_in.clone());
        }
        self.asked = asked;
        ask_all(&mut self.asked, LIFETIME).await
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
        give_all_back(self.asked).await;
    }
}

/// Asks the routers of this host's global IPv6 addresses whether they would let peers in over a carrier, by
/// having them do it for a moment, at the port of an `endpoint` that nobody is to reach. Where they would.
/// Takes five seconds at most, and to give back what was opened one by UPnP and eight by PCP.
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
    let mut tried = all_of(&gates_of(endpoint), &[protocol], port, nonce);
    let (open, _) = ask_all(&mut tried, TRIAL).await?;
    give_all_back(tried).await;
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

/// A pinhole that was asked for.
struct Asked {
    pinhole: Pinhole,
    /// What the router let in when it was asked by UPnP: given back by UPnP too.
    let_in: Option<LetIn>,
}

/// A pinhole that a router has opened.
struct Opened {
    lifetime: Duration,
    let_in: Option<LetIn>,
}

/// Why it has not.
struct Refused {
    pcp: PcpError,
    upnp: UpnpError,
}

fn all_of(gates: &[Gate], protocols: &[InternetProtocol], port: NonZeroU16, nonce: Nonce) -> Vec<Asked> {
    let of = |gate: &Gate| {
        let gate = *gate;
        let pinhole = move |protocol: &InternetProtocol| Pinhole { gate, protocol: *protocol, port, nonce };
        protocols.iter().map(move |protocol| Asked { pinhole: pinhole(protocol), let_in: None })
    };
    gates.iter().flat_map(of).collect()
}

/// Asks for all of them at once: where peers are let in, and for how long.
async fn ask_all(asked: &mut [Asked], lifetime: Duration) -> Result<(Vec<SocketAddr>, Duration), MapError> {
    let mut asking = JoinSet::new();
    for (at, Asked { pinhole, .. }) in asked.iter().enumerate() {
        let pinhole = *pinhole;
        asking.spawn(async move { (at, pinhole.ask(lifetime).await) });
    }
    let (mut open, mut soonest, mut last) = (Vec::new(), None, MapError::NoGate);
    // By PCP, and by UPnP.
    let (mut opens, mut is_silent) = ([false; 2], [false; 2]);
    while let Some(answered) = asking.join_next().await {
        // One that panicked has said so.
        let Ok((at, answer)) = answered else { continue };
        let Asked { pinhole, let_in } = &mut asked[at];
        match answer {
            Ok(opened) => {
                let lifetime = opened.lifetime;
                soonest = Some(soonest.map_or(lifetime, |soonest: Duration| soonest.min(lifetime)));
                open.push(SocketAddr::V6(pinhole.place()));
                opens[usize::from(opened.let_in.is_some())] = true;
                *let_in = opened.let_in;
            }
            Err(Refused { pcp, upnp }) => {
                is_silent[0] |= matches!(pcp, PcpError::Silent);
                is_silent[1] |= matches!(upnp, UpnpError::Silent);
                let Gate { router, own } = pinhole.gate;
                last = MapError::Closed { router: *router.ip(), own, why: pcp, upnp };
            }
        }
    }
    // One that does not know a protocol at all is silent as well, which is no reason to ask it so often.
    let is_busy = (opens[0] && is_silent[0]) || (opens[1] && is_silent[1]);
    order::by(&mut open, Ord::cmp);
    open.dedup();
    let soonest = soonest.map(|lifetime| if is_busy { lifetime.min(BUSY) } else { lifetime });
    soonest.map(|lifetime| (open, lifetime)).ok_or(last)
}

async fn give_all_back(asked: Vec<Asked>) {
    let mut giving = JoinSet::new();
    for Asked { pinhole, let_in } in asked {
        giving.spawn(FutureExt::boxed(async move {
            let given = match let_in {
                Some(let_in) => let_in.close().await.map_err(|why| why.to_string()),
                None => pinhole.give_back_by_pcp().await.map_err(|why| why.to_string()),
            };
            if let Err(why) = given {
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

    /// Whether both are one port at one address of this host, behind one router.
    fn is(&self, other: &Self) -> bool {
        let place = |pinhole: &Self| (pinhole.gate, pcp::number(pinhole.protocol), pinhole.port);
        place(self) == place(other)
    }

    /// Asks by PCP, and by UPnP what that did not open. Takes five seconds at most.
    async fn ask(&self, lifetime: Duration) -> Result<Opened, Refused> {
        let Self { gate, protocol, port, .. } = *self;
        // Looked for while PCP may still be answered, so that nobody waits for one after the other. A router
        // that answers to PCP immediately is not bothered.
        let search = async {
            sleep(PATIENCE[0]).await;
            Firewall::find(gate.own, gate.router).await
        };
        let mut by_pcp = pin!(self.ask_by_pcp(lifetime));
        let mut search = pin!(search);
        let mut found = None;
        let pcp = loop {
            tokio::select! {
                biased;
                asked = &mut by_pcp => match asked {
                    Ok(lifetime) => return Ok(Opened { lifetime, let_in: None }),
                    Err(why) => break why,
                },
                firewall = &mut search, if found.is_none() => found = Some(firewall),
            }
        };
        let firewall = match found {
            Some(firewall) => firewall,
            None => search.await,
        };
        let opened = match firewall {
            Ok(firewall) => firewall.open(protocol, port, lifetime).await,
            Err(why) => Err(why),
        };
        match opened {
            Ok(let_in) => Ok(Opened { lifetime, let_in: Some(let_in) }),
            Err(upnp) => Err(Refused { pcp, upnp }),
        }
    }

    /// For how long peers are let in. Takes four seconds at most.
    async fn ask_by_pcp(&self, lifetime: Duration) -> Result<Duration, PcpError> {
        let granted = self.exchange(lifetime.as_secs() as u32).await?;
        if granted.at != self.place() {
            // That place would not be told to peers.
            let _ = self.exchange(0).await;
            return Err(PcpError::Translated(granted.at));
        }
        Ok(granted.lifetime)
    }

    /// Tells the router that it is no longer needed. Takes eight seconds at most, four where it is silent.
    ///
    /// miniupnpd (2.3.1, on nftables) keeps the nonce in the description of its rule, which it loses when it
    /// is asked once more. From then on it refuses to close the pinhole, and still changes its lifetime: it
    /// is asked to forget it as soon as it can, within two minutes by default. A router that refuses because
    /// the pinhole is somebody else's refuses that too.
    async fn give_back_by_pcp(&self) -> Result<(), PcpError> {
        match self.exchange(0).await {
            Err(PcpError::Refused(PcpRefusal(pcp::NOT_AUTHORIZED))) => {
                self.exchange(SHORTEST).await.map(drop)
            }
            answered => answered.map(drop),
        }
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
