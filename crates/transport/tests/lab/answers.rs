//! Networks in which something accepts connections that is not the peer: only an answer ends the race.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::time::{Duration, Instant};

use whimbrel_base::EndpointAddr;
use whimbrel_lab::{Block, Host, require};
use whimbrel_transport::{CarrierKind, Connection, Endpoint, PathState};

use crate::lab_support::net::{Family, Routed};
use crate::lab_support::traffic::{Echo, Server};
use crate::lab_support::{ms, secs};

/// What is promised: two seconds and three round trips of 20 ms.
const PROMISE: Duration = Duration::from_millis(2060);
/// Where the router sends what it takes for itself.
const PORTAL: u16 = 8080;

/// What is wrong with the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// A portal accepts TCP for the server, and talks HTTP.
    Portal,
    /// TCP connects, and is reset when the ClientHello passes.
    HelloReset,
    /// UDP gets through, TCP is dropped.
    UdpOnly,
    /// TCP gets through, UDP is dropped.
    TcpOnly,
    /// The server's first address accepts TCP and takes datagrams, and says nothing.
    FirstIsSilent,
}

/// Rules of the router's own, as nftables read them.
fn rules(router: &Host, rules: &str) {
    let output = router.command("nft").arg(rules).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The router answers for the server itself.
fn redirect(router: &Host, server: IpAddr, protocol: &str) {
    let name = format!("test_{protocol}");
    rules(
        router,
        &format!(
            "table inet {name} {{ chain inward {{
               type nat hook prerouting priority dstnat; policy accept;
               ip daddr {server} meta l4proto {protocol} redirect to :{PORTAL}
             }}
}}"
        ),
    );
}

impl Trouble {
    fn begin(self, net: &Routed, server: SocketAddr) {
        match self {
            Self::Portal => {
                redirect(&net.router, server.ip(), "tcp");
                let listener = listen(&net.router);
                std::thread::spawn(move || {
                    listener.incoming().flatten().for_each(|mut socket| {
                        let mut request = [0; 64];
                        let _ = socket.read(&mut request);
                        let _ = socket.write_all(b"HTTP/1.1 302 Found\r\nLocation: http://portal/\r\n\r\n");
                    })
                });
            }
            Self::HelloReset => {
                let port = server.port();
                rules(
                    &net.router,
                    &format!(
                        "table inet test_reset {{ chain forward {{
                           type filter hook forward priority filter; policy accept;
                           tcp dport {port} tcp flags & psh == psh reject with tcp reset
                         }}
}}"
                    ),
                );
            }
            Self::UdpOnly => net.router.block(Block::TcpPort(server.port())).unwrap(),
            Self::TcpOnly => net.router.block(Block::Udp).unwrap(),
            Self::FirstIsSilent => {
                redirect(&net.router, server.ip(), "tcp");
                redirect(&net.router, server.ip(), "udp");
                let (listener, socket) =
                    (listen(&net.router), net.router.run(|| UdpSocket::bind(("0.0.0.0", PORTAL))));
                std::thread::spawn(move || {
                    let held: Vec<_> = listener.incoming().collect();
                    drop((held, socket));
                });
            }
        }
    }

    fn carrier(self) -> Option<CarrierKind> {
        match self {
            Self::Portal | Self::HelloReset | Self::UdpOnly => Some(CarrierKind::Quic),
            Self::TcpOnly => Some(CarrierKind::Tcp),
            Self::FirstIsSilent => None,
        }
    }
}

fn listen(router: &Host) -> TcpListener {
    router.run(|| TcpListener::bind(("0.0.0.0", PORTAL))).unwrap()
}

/// A server with two addresses, at both of which the client may reach it.
struct Place {
    net: Routed,
    server: Server,
    first: SocketAddr,
    addr: EndpointAddr,
}

impl Place {
    fn new() -> Self {
        let net = Routed::new(Family::V4, false);
        let second = Family::V4.ip(9, 77);
        net.server.host.add_address("eth0", &format!("{second}/24")).unwrap();
        let server = Server::start(&net.server, net.server.endpoint());
        let at = |ip| SocketAddr::new(ip, server.endpoint.port());
        let first = at(net.server.ip());
        let addr = EndpointAddr::new(server.endpoint.id(), vec![first, at(second)]);
        Self { net, server, first, addr }
    }

    /// Where the client is told that the server is.
    fn addr(&self, trouble: Trouble) -> EndpointAddr {
        let mut addr = self.addr.clone();
        if trouble != Trouble::FirstIsSilent {
            addr.addrs.truncate(1);
        }
        addr
    }

    fn check(&self, trouble: Trouble, connection: &Connection) {
        let mut paths = connection.stats().paths;
        paths.retain(|path| path.state == PathState::Active);
        if let Some(carrier) = trouble.carrier() {
            assert_eq!(paths.last().unwrap().carrier, carrier);
        } else {
            assert_ne!(paths.last().unwrap().remote.address(), self.first);
        }
    }
}

fn connects(place: &Place, trouble: Trouble, client: &Endpoint) -> Duration {
    let began = Instant::now();
    let connection = place.net.client.wait(client.connect(place.addr(trouble))).unwrap();
    place.net.client.wait(Echo::open(&connection));
    let took = began.elapsed();
    place.check(trouble, &connection);
    took
}

/// Connects for the first time, and once more: what failed is not tried first again.
fn first_connect(trouble: Trouble) {
    let place = Place::new();
    trouble.begin(&place.net, place.first);
    let client = place.net.client.endpoint();
    let took = connects(&place, trouble, &client);
    eprintln!("{trouble:?}: connected after {took:?}");
    assert!(took < PROMISE, "{took:?}");
    // A QUIC handshake that nobody answers has failed after three seconds, a TCP connection after ten.
    let known_after = match trouble {
        Trouble::UdpOnly => secs(11),
        Trouble::TcpOnly => secs(4),
        _ => ms(300),
    };
    std::thread::sleep(known_after);
    let took = connects(&place, trouble, &client);
    eprintln!("{trouble:?}: once more after {took:?}");
    assert!(took < ms(250), "{took:?}: less than the pause between two attempts");
}

/// Moves while the network gets into trouble.
fn join(trouble: Trouble) {
    let place = Place::new();
    let net = &place.net;
    let client = net.client.endpoint();
    let connection = net.client.wait(client.connect(place.addr(trouble))).unwrap();
    let mut echo = net.client.wait(Echo::open(&connection));
    if trouble != Trouble::FirstIsSilent {
        // The server has told both of its addresses.
        net.server.host.del_address("eth0", &format!("{}/24", Family::V4.ip(9, 77))).unwrap();
        net.client.wait(echo.say(b"here"));
    }
    trouble.begin(net, place.first);
    let began = Instant::now();
    net.client.move_on();
    net.client.settle(&client);
    net.client.wait(echo.say(b"there"));
    let took = began.elapsed();
    eprintln!("{trouble:?}: joined after {took:?}");
    place.check(trouble, &connection);
    assert!(took < PROMISE, "{took:?}");
    drop(place.server);
}

macro_rules! troubles {
    ($($connects:ident $joins:ident: $trouble:ident;)*) => {
        $(#[test]
        fn $connects() {
            if require!() {
                first_connect(Trouble::$trouble);
            }
        }

        #[test]
        fn $joins() {
            if require!() {
                join(Trouble::$trouble);
            }
        })*
    };
}

troubles! {
    a_client_connects_where_a_portal_answers_tcp a_client_moves_to_where_a_portal_answers_tcp: Portal;
    a_client_connects_where_client_hello_is_reset a_client_moves_to_where_client_hello_is_reset: HelloReset;
    a_client_connects_where_only_udp_passes a_client_moves_to_where_only_udp_passes: UdpOnly;
    a_client_connects_where_only_tcp_passes a_client_moves_to_where_only_tcp_passes: TcpOnly;
    a_client_connects_although_the_first_address_is_silent
        a_client_moves_although_the_first_address_is_silent: FirstIsSilent;
}
