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
    use std::time::Duration;

    use tokio::io::AsyncWriteExt as _;
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::mpsc;
    use whimbrel_transport::{Allow, Endpoint, ListenOptions};

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

    /// What comes to an endpoint, whose front is set before it listens or afterwards.
    async fn came(is_first: bool) -> Fronted {
        let endpoint = Endpoint::builder().ip([127, 0, 0, 1].into()).bind().await.unwrap();
        let (taken, mut came) = mpsc::unbounded_channel();
        let taker = Arc::new(Taker(taken));
        if is_first {
            endpoint.set_front(taker.clone());
        }
        let _listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        // The first one stays.
        endpoint.set_front(taker);
        let mut client = TcpStream::connect(("127.0.0.1", endpoint.port())).await.unwrap();
        client.write_all(b"?").await.unwrap();
        tokio::time::timeout(LIMIT, came.recv()).await.unwrap().unwrap()
    }

    /// By what it has from the endpoint's listener alone.
    #[tokio::test]
    async fn a_socket_that_comes_to_a_relay_is_set_up_like_one_that_is_handed_over_to_it() {
        let plain = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let other = TcpStream::connect(plain.local_addr().unwrap()).await.unwrap();
        let before = options(&other);
        tune(&other).unwrap();
        for is_first in [true, false] {
            let came = options(&came(is_first).await.socket);
            assert_ne!(came, before);
            assert_eq!(came, options(&other));
        }
    }
}
