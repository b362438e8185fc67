//! What routers say of a path over QUIC (ICMP), truly or not, while its client says something all the time.

use std::net::{IpAddr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use crate::lab_support::net::{Family, LIMIT, Routed, Watch};
use crate::lab_support::paths::newest;
use crate::lab_support::{ms, secs};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_lab::{Host, require};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Connection, ConnectionEvent, DownCause, Endpoint, HandoverMode,
    ListenOptions, Listener, PathInfo, Timeouts,
};

/// A connection whose client has two interfaces, of which its path uses one.
struct Talk {
    client: Connection,
    path: PathInfo,
    /// What the server has heard, in bytes.
    heard: Arc<AtomicU64>,
    _server: Connection,
    _listener: Listener,
    _endpoints: [Endpoint; 2],
    net: Routed,
}

impl Talk {
    fn begin(family: Family) -> Self {
        let net = Routed::new(family, true);
        let called = net.server.endpoint();
        let options = ListenOptions::unnamed().allow(Allow::Any);
        let mut listener = net.server.wait(called.listen(options)).unwrap();
        let caller = net.client.endpoint_with(|builder| {
            builder.carriers(Carriers::Only(CarrierKind::Quic)).handover(HandoverMode::Single)
        });
        let client = net.client.wait(caller.connect(called.addr())).unwrap();
        let server = net.server.wait(listener.accept()).unwrap();
        // No machine is so busy that a path of this test falls silent for it.
        let patient = Timeouts { suspect_least: secs(1), ..Timeouts::default() };
        client.set_timeouts(patient).unwrap();
        let mut says = net.client.wait(client.open_stream()).unwrap();
        net.client.wait(says.write_all(&[0])).unwrap();
        let mut hears = net.server.wait(server.accept_stream()).unwrap();
        let heard = Arc::new(AtomicU64::new(0));
        let counted = heard.clone();
        // Both end with the connection.
        drop(net.client.runtime.spawn(async move {
            while says.write_all(&[0]).await.is_ok() {
                tokio::time::sleep(ms(5)).await;
            }
        }));
        drop(net.server.runtime.spawn(async move {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = hears.read(&mut bytes).await {
                counted.fetch_add(count as u64, Ordering::Relaxed);
            }
        }));
        let path = newest(&client);
        let endpoints = [caller, called];
        Self { client, path, heard, _server: server, _listener: listener, _endpoints: endpoints, net }
    }

    /// The router's interface to which the path's packets come.
    fn inner(&self) -> &'static str {
        if self.path.local.ip() == self.net.client.family.ip(1, 10) { "lan0" } else { "lan1" }
    }

    /// Nothing of UDP gets through there any more. The client is told so if there is a `word` for it, one of
    /// nftables' own.
    fn cut(&self, word: Option<&str>) {
        let inner = self.inner();
        let verdict = word.map_or("drop".into(), |word| format!("reject with icmpx type {word}"));
        let rules = format!(
            "add table inet cut
             add chain inet cut through {{ type filter hook forward priority 0; policy accept; }}
             add rule inet cut through oifname \"{inner}\" meta l4proto udp drop
             add rule inet cut through iifname \"{inner}\" meta l4proto udp {verdict}"
        );
        self.net.router.nft(rules).unwrap();
    }

    /// Why the path ended that was cut so.
    fn cause(&self, word: Option<&str>) -> DownCause {
        let mut watch = Watch::new(&self.client);
        self.cut(word);
        let is_end = |event: &ConnectionEvent| match event {
            ConnectionEvent::PathDown { path, .. } => *path == self.path.id,
            _ => false,
        };
        let ConnectionEvent::PathDown { cause, .. } = self.net.client.wait(watch.next(is_end)) else {
            panic!("no end")
        };
        cause
    }

    /// Waits until the server has heard so much more.
    fn goes_on(&self, bytes: u64) {
        let wanted = self.heard.load(Ordering::Relaxed) + bytes;
        let began = Instant::now();
        while self.heard.load(Ordering::Relaxed) < wanted {
            assert!(began.elapsed() < LIMIT, "the server hears nothing");
            std::thread::sleep(ms(5));
        }
    }
}

#[test]
fn a_path_over_quic_to_which_a_router_has_no_way_is_told_as_unreachable() {
    if !require!() {
        return;
    }
    let words = [
        (Family::V4, "host-unreachable"),
        (Family::V4, "no-route"),
        (Family::V6, "host-unreachable"),
        (Family::V6, "no-route"),
        (Family::V6, "admin-prohibited"),
    ];
    for (family, word) in words {
        let talk = Talk::begin(family);
        assert_eq!(talk.cause(Some(word)), DownCause::Unreachable, "{family:?}, {word}");
        // By the other interface.
        talk.goes_on(1);
    }
}

/// Ends what goes on beside a test, however that ends.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Why a path ends that falls silent while a router says again and again that nobody is reached at the
/// server's port, or so many ports beside it. Before that it lives, whatever is said.
fn beside_a_liar(ports_beside: u16) -> DownCause {
    let talk = Talk::begin(Family::V4);
    let (SocketAddr::V4(from), SocketAddr::V4(to)) = (talk.path.local, talk.path.remote.address()) else {
        panic!("a path of IPv4")
    };
    let to = SocketAddrV4::new(*to.ip(), to.port().wrapping_add(ports_beside));
    let (over, said) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let until = Until(&over);
        scope.spawn(|| lie(&talk.net.router, from, to, &over, &said));
        let began = Instant::now();
        while said.load(Ordering::Relaxed) < 50 {
            assert!(began.elapsed() < LIMIT, "nothing is said");
            std::thread::sleep(ms(5));
        }
        talk.goes_on(20);
        assert_eq!(newest(&talk.client).id, talk.path.id, "it lives");
        let cause = talk.cause(None);
        drop(until);
        cause
    })
}

/// Says from a router that a datagram did not reach its host, until it is over.
fn lie(router: &Host, from: SocketAddrV4, to: SocketAddrV4, over: &AtomicBool, said: &AtomicU64) {
    let message = host_unreachable(from, to);
    router.run(|| {
        let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
        let client = SocketAddr::from((IpAddr::from(*from.ip()), 0)).into();
        while !over.load(Ordering::Relaxed) {
            socket.send_to(&message, &client).unwrap();
            said.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(ms(10));
        }
    });
}

/// ICMP's *host unreachable* (RFC 792), of a datagram that went from there to there.
fn host_unreachable(from: SocketAddrV4, to: SocketAddrV4) -> Vec<u8> {
    let mut message = vec![3, 1, 0, 0, 0, 0, 0, 0];
    // The headers of IPv4 and UDP are quoted, and some of what follows.
    message.extend([0x45, 0, 0, 36, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend(from.ip().octets());
    message.extend(to.ip().octets());
    message.extend(from.port().to_be_bytes());
    message.extend(to.port().to_be_bytes());
    message.extend([0, 16, 0, 0]);
    message.extend([0; 8]);
    let sum = checksum(&message);
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    message
}

/// Of an even number of bytes (RFC 1071).
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let sum = words.sum::<u32>();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) + (sum >> 16)) as u16
}

/// The first shows that it is believed where it could be true: of a path that is silent, and of its ports.
#[test]
fn a_liar_ends_no_path_over_quic_that_lives_and_of_other_ports_it_is_not_believed_at_all() {
    if require!() {
        assert_eq!(beside_a_liar(0), DownCause::Unreachable);
        assert_eq!(beside_a_liar(1), DownCause::Silent);
    }
}
