//! Racing over addresses (Happy Eyeballs, RFC 8305): the first carrier that stands wins.

mod nearness;
mod proxy;
mod quic;
mod race;
mod tcp;

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use whimbrel_base::EndpointId;
use whimbrel_base::address::AddressScope;
use whimbrel_proto::PathId;

pub use proxy::HttpProxy;
pub(crate) use quic::{found, punched};
pub(crate) use race::Race;
pub(crate) use tcp::round_trip;

use self::nearness::near_first;
use self::tcp::TcpChannel;
use crate::aliases::Aliases;
use crate::carrier::quic::{QuicCarrier, QuicChannel, QuicConfig};
use crate::carrier::{CarrierKind, Carriers, Reach, Sizes, TcpCarrier};
use crate::locator::{Extent, Locator};
use crate::locked::asks_the_kernel;
use crate::monitor::{AddressSet, LocalAddress};
use crate::path_io::PathIo;
use crate::tls::PeerClients;
use crate::whereabouts::is_dialable;

/// More combinations than this are not worth trying at once.
const MAX_CANDIDATES: usize = 32;
/// A round trip that is worth a second socket.
const FAR: Duration = Duration::from_millis(5);
/// What may be sent before the answer: TLS early data, and together with the ClientHello no more than a first
/// TCP window (ten segments, RFC 6928).
const EARLY_LIMIT: u64 = 12_500;
/// Without early data there is no reason to hold back what the receiver must take anyway.
const UNANSWERED_LIMIT: u64 = 64 * 1024;

/// One way to try: from where (`None`: as the kernel's routes say) to where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) local: Option<LocalAddress>,
    pub(crate) remote: Locator,
}

impl Candidate {
    /// Whether it may lead between these places. Where routes choose, they may choose what another candidate
    /// binds.
    pub(crate) fn may_lead(&self, from: IpAddr, to: Locator) -> bool {
        self.remote == to && self.local.as_ref().is_none_or(|local| local.ip == from)
    }
}

/// How large the packets of a carrier may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SegmentSize {
    /// As the links at both ends say.
    Usual,
    /// So small that they pass everywhere.
    Small,
}

/// Whom to dial, and as whom.
#[derive(Debug)]
pub(crate) struct Dialler {
    pub(crate) peer: EndpointId,
    /// How it is dialled over TCP.
    pub(crate) clients: Arc<PeerClients>,
    /// What it names to relays.
    pub(crate) aliases: Arc<Aliases>,
    pub(crate) quic: Arc<QuicConfig>,
    pub(crate) carriers: Carriers,
    pub(crate) reach: Arc<Reach>,
    pub(crate) sizes: Arc<Sizes>,
    /// What a round trip to the peer took lately.
    pub(crate) rtt: Option<Duration>,
    /// After so long without an answer TCP begins again, beside what waits. `None`: when the kernel does.
    pub(crate) again: Option<Duration>,
    /// The addresses of this host: what is dialled there has no way to go.
    pub(crate) here: Arc<AddressSet>,
    /// Is asked for places besides.
    pub(crate) proxy: Option<Arc<HttpProxy>>,
}

impl Dialler {
    /// Whether an address belongs to this host.
    pub(crate) fn is_here(&self, ip: IpAddr) -> bool {
        ip.is_loopback() || self.here.contains(ip)
    }

    /// Whether both carriers are dialled at once, so that QUIC's 0-RTT data saves a round trip.
    fn opens_with_quic(&self, remote: Locator) -> bool {
        let is_far = self.rtt.is_none_or(|rtt| rtt >= FAR);
        self.carriers == Carriers::Auto && is_far && !self.is_here(remote.ip())
    }
}

/// A carrier that stands.
pub(crate) struct Dialled {
    carrier: Carrier,
    pub(crate) segments: SegmentSize,
    /// How long it took. `None` if nothing was heard from there yet: only an answer will tell that the peer
    /// can be reached on it.
    pub(crate) rtt: Option<Duration>,
    pub(crate) local: SocketAddr,
    pub(crate) way: Candidate,
    /// The key that is at its other end, or nothing.
    pub(crate) peer: EndpointId,
}

enum Carrier {
    Tcp(Box<TcpChannel>),
    Quic(Box<QuicChannel>),
}

impl Dialled {
    /// This side's address and the place that it leads to.
    pub(crate) fn between(&self) -> (IpAddr, Locator) {
        (self.local.ip().to_canonical(), self.way.remote)
    }

    pub(crate) fn kind(&self) -> CarrierKind {
        match &self.carrier {
            Carrier::Tcp(channel) => channel.kind,
            Carrier::Quic(_) => CarrierKind::Quic,
        }
    }

    /// What a round trip to the peer takes, as far as that is known by now.
    pub(crate) fn peer_rtt(&self) -> Option<Duration> {
        let extent = match &self.carrier {
            Carrier::Tcp(..) => self.way.remote.tcp_extent(),
            Carrier::Quic(_) => Extent::EndToEnd,
        };
        self.rtt.filter(|_| extent == Extent::EndToEnd)
    }

    /// It can be written to before anything was heard from the peer.
    pub(crate) fn is_early(&self) -> bool {
        self.rtt.is_none()
    }

    /// How many bytes may be sent on it before the peer answers.
    pub(crate) fn early_limit(&mut self) -> u64 {
        let has_ticket = match &mut self.carrier {
            Carrier::Tcp(channel) => channel.tls.early_room() > 0,
            Carrier::Quic(quic) => quic.early.is_some(),
        };
        if has_ticket { EARLY_LIMIT } else { UNANSWERED_LIMIT }
    }

    /// Goes on with the handshake until this side may speak; its last words leave with what it says then.
    /// Cancel-safe.
    pub(crate) async fn shake_hands(&mut self) -> io::Result<()> {
        match &mut self.carrier {
            Carrier::Tcp(channel) => channel.shake_hands().await,
            // It was complete before, or will be while data is on its way.
            Carrier::Quic(_) => Ok(()),
        }
    }

    /// Makes it a path.
    pub(crate) fn into_path(self, id: PathId) -> PathIo {
        let Self { carrier, local, way: Candidate { remote, .. }, .. } = self;
        match carrier {
            Carrier::Tcp(channel) => {
                let TcpChannel { socket, tls, kind, read } = *channel;
                PathIo::tcp(id, local, remote, TcpCarrier::new(id, kind, socket, tls, read))
            }
            Carrier::Quic(channel) => {
                let has_own_socket = channel.has_own_socket();
                let path = PathIo::quic(id, local, remote, QuicCarrier::new(id, *channel));
                path.following_routes(!has_own_socket)
            }
        }
    }
}

/// Which ways to try, best first. A pure function.
///
/// Local addresses in `avoid` (of suspect paths) come last. With `exclusive`, only the given local
/// addresses may be used; otherwise the kernel's own choice is tried too.
pub(crate) fn candidates(
    local: &AddressSet,
    remote: &[Locator],
    avoid: &[IpAddr],
    exclusive: bool,
) -> Vec<Candidate> {
    let mut ways = Vec::new();
    for remote in near_first(remote, local).into_iter().filter(|remote| is_dialable(remote.address())) {
        let from_routes = Candidate { local: None, remote };
        let bound: Vec<Candidate> = local
            .addresses
            .iter()
            .filter(|l| fits(l, remote, local, exclusive))
            .map(|l| Candidate { local: Some(l.clone()), remote })
            .collect();
        let avoided = |c: &Candidate| c.local.as_ref().is_some_and(|l| avoid.contains(&l.ip));
        let (last, first): (Vec<_>, Vec<_>) = bound.into_iter().partition(avoided);
        let family_exists = local.addresses.iter().any(|l| l.ip.is_ipv4() == remote.ip().is_ipv4());
        let mut mine = Vec::new();
        if !exclusive && avoid.is_empty() && family_exists {
            mine.push(from_routes.clone());
        }
        mine.extend(first);
        if !exclusive && !avoid.is_empty() {
            mine.push(from_routes);
        }
        mine.extend(last);
        ways.push(mine);
    }
    // First the best way to each remote address, then the second best, …
    let mut ways: Vec<_> = ways.into_iter().map(Vec::into_iter).collect();
    let mut ordered = Vec::new();
    loop {
        let round: Vec<Candidate> = ways.iter_mut().filter_map(Iterator::next).collect();
        if round.is_empty() || ordered.len() >= MAX_CANDIDATES {
            ordered.truncate(MAX_CANDIDATES);
            return ordered;
        }
        ordered.extend(round);
    }
}

/// Our address on a way: the one that is bound, or the one that routes choose. Sends nothing.
pub(crate) fn source(way: &Candidate) -> Option<IpAddr> {
    if let Some(local) = &way.local {
        return Some(local.ip);
    }
    let any: SocketAddr =
        if way.remote.ip().is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    asks_the_kernel();
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(way.remote.address()).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Whether an address can be the source for a remote one.
pub(crate) fn fits(local: &LocalAddress, remote: Locator, all: &AddressSet, exclusive: bool) -> bool {
    if local.ip.is_ipv4() != remote.ip().is_ipv4() || !is_dialable(remote.address()) {
        return false;
    }
    if exclusive {
        return true;
    }
    // What is on this host is reached through the loopback interface; routes know best.
    if all.contains(remote.ip()) {
        return false;
    }
    let scope = |ip| AddressScope::of(ip);
    !matches!(scope(local.ip), AddressScope::Loopback | AddressScope::LinkLocal)
        && !matches!(scope(remote.ip()), AddressScope::Loopback | AddressScope::LinkLocal)
}

/// Binds to the interface too, so that the path really uses it, whatever the routes prefer.
fn bind_device<'s>(socket: impl Into<SockRef<'s>>, local: &LocalAddress) {
    #[cfg(target_os = "linux")]
    if let Some(interface) = &local.interface
        && let Err(error) = socket.into().bind_device(Some(interface.as_bytes()))
    {
        // Older kernels allow it to root only; the source address alone often suffices.
        tracing::debug!(%interface, %error, "cannot bind to the interface");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, local);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::TcpSocket;
    use whimbrel_base::SecretKey;

    use super::*;
    use crate::tls::TlsIdentity;

    fn set(addresses: &[(&str, &str)]) -> AddressSet {
        let addresses = addresses.iter().map(|(ip, interface)| LocalAddress {
            ip: ip.parse().unwrap(),
            interface: Some((*interface).into()),
        });
        AddressSet { addresses: addresses.collect(), ..AddressSet::default() }
    }

    fn at(text: &str) -> Locator {
        Locator::Direct(text.parse().unwrap())
    }

    fn names(ways: &[Candidate]) -> Vec<String> {
        let interface = |c: &Candidate| c.local.as_ref().and_then(|l| l.interface.clone());
        ways.iter().map(|c| interface(c).map_or("routes".into(), |i| i.to_string())).collect()
    }

    #[test]
    fn routes_come_first_on_a_healthy_host() {
        let local = set(&[("127.0.0.1", "lo"), ("10.0.0.2", "wifi0"), ("10.1.0.2", "lte0")]);
        let ways = candidates(&local, &[at("192.0.2.1:1")], &[], false);
        assert_eq!(names(&ways), ["routes", "wifi0", "lte0"]);
    }

    #[test]
    fn another_interface_than_the_suspect_one_comes_first() {
        let local = set(&[("10.0.0.2", "wifi0"), ("10.1.0.2", "lte0")]);
        let ways = candidates(&local, &[at("192.0.2.1:1")], &["10.0.0.2".parse().unwrap()], false);
        assert_eq!(names(&ways), ["lte0", "routes", "wifi0"]);
    }

    #[test]
    fn a_remote_on_this_host_is_left_to_the_routes() {
        let local = set(&[("127.0.0.1", "lo"), ("10.0.0.2", "eth0")]);
        for remote in ["127.0.0.1:1", "10.0.0.2:1"] {
            assert_eq!(names(&candidates(&local, &[at(remote)], &[], false)), ["routes"]);
        }
    }

    #[test]
    fn what_nobody_can_listen_at_is_not_dialled() {
        let local = set(&[("10.0.0.2", "eth0")]);
        for remote in ["0.0.0.0:22", "192.0.2.1:0", "224.0.0.1:5353", "255.255.255.255:9"] {
            for exclusive in [true, false] {
                assert!(candidates(&local, &[at(remote)], &[], exclusive).is_empty(), "{remote}");
                assert!(!fits(&local.addresses[0], at(remote), &local, exclusive), "{remote}");
            }
        }
    }

    #[test]
    fn an_exclusive_monitor_allows_its_own_addresses_only() {
        let local = set(&[("127.0.0.2", "a")]);
        assert_eq!(names(&candidates(&local, &[at("127.0.0.9:1")], &[], true)), ["a"]);
        assert!(candidates(&set(&[]), &[at("127.0.0.9:1")], &[], true).is_empty());
    }

    pub(super) fn somebody() -> Dialler {
        let (ours, theirs) = (SecretKey::generate(), SecretKey::generate());
        let tls = TlsIdentity::new(&ours).unwrap();
        let quic = Arc::new(QuicConfig::new(&ours, &tls, Duration::from_secs(60)).unwrap());
        let (carriers, reach) = (Carriers::Only(CarrierKind::Tcp), Arc::default());
        Dialler {
            peer: theirs.id(),
            clients: tls.clients,
            aliases: Arc::default(),
            quic,
            carriers,
            reach,
            sizes: Arc::default(),
            rtt: None,
            again: None,
            here: Arc::default(),
            proxy: None,
        }
    }

    #[tokio::test]
    async fn the_port_that_a_path_is_dialled_from_can_still_be_listened_on() {
        let remote = TcpSocket::new_v4().unwrap();
        remote.bind("127.0.171.1:0".parse().unwrap()).unwrap();
        let remote = remote.listen(4).unwrap();
        let local = LocalAddress { ip: "127.0.171.2".parse().unwrap(), interface: None };
        let way = Candidate { local: Some(local), remote: remote.local_addr().unwrap().into() };
        let dialled = Race::new(somebody(), vec![way]).next().await.unwrap();
        crate::sockets::listener(dialled.local, CarrierKind::Tcp).unwrap();
    }

    /// The answer over QUIC and the socket of TCP come at the same instant, one round trip after both began.
    #[tokio::test]
    async fn tcp_that_stands_and_was_not_looked_at_yet_is_still_under_way() {
        let remote = TcpSocket::new_v4().unwrap();
        remote.bind("127.0.171.3:0".parse().unwrap()).unwrap();
        let remote = remote.listen(4).unwrap();
        let way = Candidate { local: None, remote: remote.local_addr().unwrap().into() };
        let who = Dialler { carriers: Carriers::Auto, ..somebody() };
        // Behind another way, so that TCP begins in a task of its own.
        let other = Candidate { local: None, remote: at("127.0.171.4:9") };
        let mut race = Race::new(who, vec![other, way.clone()]);
        race.failed();
        race.failed();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let between = (source(&way).unwrap(), way.remote);
        assert!(race.narrow_to_tcp(between));
        assert_eq!(race.next().await.unwrap().kind(), CarrierKind::Tcp);
        assert!(!race.narrow_to_tcp(between), "it was given away");
    }

    #[test]
    fn what_routes_choose_may_be_what_was_bound() {
        let (one, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let bound =
            Candidate { local: Some(LocalAddress { ip: one, interface: None }), remote: at("192.0.2.9:1") };
        let routed = Candidate { local: None, ..bound.clone() };
        assert!(bound.may_lead(one, bound.remote) && !bound.may_lead(other, bound.remote));
        assert!(routed.may_lead(one, bound.remote) && routed.may_lead(other, bound.remote));
        assert!(!routed.may_lead(one, at("192.0.2.8:1")));
    }

    #[test]
    fn every_remote_gets_its_best_way_before_any_gets_its_second() {
        let local = set(&[("10.0.0.2", "a"), ("fd00::2", "b")]);
        let remotes = ["192.0.2.1:1", "[2001:db8::1]:1"].map(at);
        let ways = candidates(&local, &remotes, &[], false);
        assert_eq!(ways[0].remote, remotes[0]);
        assert_eq!(ways[1].remote, remotes[1]);
    }
}
