//! Tells what is the relay's of what comes over TCP.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use socket2::SockRef;
use whimbrel_base::RelayToken;
use whimbrel_transport::{Front, Fronted, Look};

use super::{Shared, lock};
use crate::hello::{self, Hello};
use crate::spare::{OFFER, OFFERS};
use crate::splice::tune_accepted;

/// What sees each TCP connection first.
pub(super) struct Door(pub(super) Arc<Shared>);

/// What a connection is, by its first bytes.
enum Kind {
    Partial,
    Spare,
    Client(RelayToken),
    Other,
}

fn kind(first: &[u8]) -> Kind {
    if first.starts_with(OFFERS) || OFFERS.starts_with(first) {
        return if first.len() < OFFER { Kind::Partial } else { Kind::Spare };
    }
    match hello::read(first) {
        Hello::Partial => Kind::Partial,
        Hello::Named(name) => name.parse().map_or(Kind::Other, Kind::Client),
        Hello::Other => Kind::Other,
    }
}

impl Front for Door {
    fn prepare(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
        tune_accepted(SockRef::from(&socket))
    }

    fn look(&self, first: &[u8]) -> Look {
        match kind(first) {
            Kind::Partial => Look::More,
            Kind::Spare | Kind::Client(_) => Look::Take,
            Kind::Other => Look::Pass,
        }
    }

    fn take(&self, fronted: Fronted) {
        let shared = self.0.clone();
        match kind(&fronted.first) {
            Kind::Spare => shared.offered(fronted),
            Kind::Client(token) => shared.client(token, fronted),
            Kind::Partial | Kind::Other => {}
        }
    }

    fn leave(&self, fronted: Fronted) {
        lock(&self.0.leftovers).strangers.push(fronted);
    }
}

#[cfg(all(test, target_os = "linux"))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use whimbrel_transport::{Allow, Endpoint, ListenOptions, OpenSockets};

    use super::*;
    use crate::splice::tune;

    const LIMIT: Duration = Duration::from_secs(20);

    /// Takes whatever comes.
    struct Taker(mpsc::UnboundedSender<Fronted>);

    impl Front for Taker {
        fn prepare(&self, socket: BorrowedFd<'_>) -> io::Result<()> {
            tune_accepted(SockRef::from(&socket))
        }

        fn look(&self, _: &[u8]) -> Look {
            Look::Take
        }

        fn take(&self, fronted: Fronted) {
            self.0.send(fronted).unwrap();
        }
    }

    /// Whether nothing is delayed, and idle peers are asked; how long nothing may be acknowledged, and how
    /// much may wait unsent.
    fn options(socket: &TcpStream) -> (bool, bool, Option<Duration>, u32) {
        let socket = SockRef::from(socket);
        let (nodelay, keepalive) = (socket.tcp_nodelay().unwrap(), socket.keepalive().unwrap());
        (nodelay, keepalive, socket.tcp_user_timeout().unwrap(), socket.tcp_notsent_lowat().unwrap())
    }

    /// When an endpoint's front is set, and where it listens.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Case {
        FirstTheFront,
        FirstTheListener,
        /// Before that, on a listener on which somebody waits.
        HandedOver,
    }

    /// A listener with nothing set on it, and the socket for datagrams beside it.
    fn handed_over() -> (std::net::TcpListener, UdpSocket) {
        loop {
            let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            // The same port may be taken for UDP.
            if let Ok(udp) = UdpSocket::bind(tcp.local_addr().unwrap()) {
                return (tcp, udp);
            }
        }
    }

    /// The options of what is taken, of three that come one after the other.
    async fn taken(case: Case) -> Vec<(bool, bool, Option<Duration>, u32)> {
        let (builder, mut waiting) = (Endpoint::builder(), Vec::new());
        let builder = if case == Case::HandedOver {
            let (tcp, udp) = handed_over();
            let mut client = TcpStream::connect(tcp.local_addr().unwrap()).await.unwrap();
            client.write_all(b"?").await.unwrap();
            waiting.push(client);
            builder.sockets(OpenSockets::new(vec![tcp], vec![udp]).unwrap())
        } else {
            builder.ip([127, 0, 0, 1].into())
        };
        let endpoint = builder.bind().await.unwrap();
        let (taken, mut came) = mpsc::unbounded_channel();
        let taker = Arc::new(Taker(taken));
        if case != Case::FirstTheListener {
            endpoint.set_front(taker.clone());
        }
        let _listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        // The first one stays.
        endpoint.set_front(taker);
        let mut all = Vec::new();
        while all.len() < 3 {
            if waiting.is_empty() {
                let mut client = TcpStream::connect(("127.0.0.1", endpoint.port())).await.unwrap();
                client.write_all(b"?").await.unwrap();
                waiting.push(client);
            }
            let fronted: Fronted = tokio::time::timeout(LIMIT, came.recv()).await.unwrap().unwrap();
            all.push(options(&fronted.socket));
            waiting.clear();
        }
        all
    }

    /// The first one because it is set up by itself, those after it by what they have from the listener.
    #[tokio::test]
    async fn a_socket_that_comes_to_a_relay_is_set_up_like_one_that_is_handed_over_to_it() {
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = TcpStream::connect(plain.local_addr().unwrap()).await.unwrap();
        let before = options(&other);
        tune(&other).unwrap();
        let expected = options(&other);
        assert_ne!(expected, before);
        for case in [Case::FirstTheFront, Case::FirstTheListener, Case::HandedOver] {
            assert_eq!(taken(case).await, [expected; 3], "{case:?}");
        }
    }
}
