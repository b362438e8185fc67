//! What the network says of datagrams that a socket with one other end has sent (ICMP).
//!
//! The kernel tells it as the error of whatever is done with the socket next. It does not call that readable, so
//! where nothing comes it is the next datagram that brings it to light.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use quinn::udp::Transmit;

use super::Open;

/// Whether the network says by this that nobody is reached at the other end: *port unreachable*, or *prohibited*.
/// (`NetworkUnreachable` is mostly this host's own word: it has no route.)
pub(super) fn is_said_by(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable)
}

/// Sends a datagram, if the kernel takes it now, and notes what is said of earlier ones.
///
/// # Errors
/// `WouldBlock` alone: what cannot be sent is lost, as datagrams are.
pub(super) fn send(open: &Open, transmit: &Transmit<'_>, is_refused: &AtomicBool) -> io::Result<()> {
    match open.try_send(transmit) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
            if is_said_by(&error) {
                is_refused.store(true, Ordering::Relaxed);
            }
            // The error is mostly that of an earlier one, and told once: this one has not left for it. If the error
            // is its own, it comes again, and quinn logs it now and then.
            open.send(transmit)
        }
        sent => sent,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::poll_fn;
    use std::io::IoSliceMut;
    use std::net::{SocketAddr, UdpSocket};
    use std::time::{Duration, Instant};

    use quinn::AsyncUdpSocket as _;
    use quinn::udp::RecvMeta;
    use socket2::{Domain, Socket, Type};

    use super::super::QuicSocket;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn that_nobody_listens_is_heard_by_sending_and_what_is_sent_leaves_all_the_same() {
        let nobody = UdpSocket::bind("127.0.231.1:0").unwrap();
        let at = nobody.local_addr().unwrap();
        drop(nobody);
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 231, 2], 0)).into()).unwrap();
        socket.connect(&at.into()).unwrap();
        let socket = QuicSocket::dialling(socket).unwrap();
        let transmit =
            Transmit { destination: at, ecn: None, contents: b"anybody?", segment_size: None, src_ip: None };
        let begun = Instant::now();
        while !socket.is_refused() {
            assert!(begun.elapsed() < LIMIT, "nothing is heard");
            // The runtime takes a socket that was opened just now for full.
            let _ = socket.try_send(&transmit);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // What the last one came to is still to be told.
        let peer = UdpSocket::bind(at).unwrap();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        socket.try_send(&transmit).unwrap();
        let mut buffer = [0; 64];
        let (length, from) = peer.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"anybody?");
        // What comes from there shows that somebody is there.
        assert!(socket.is_refused());
        peer.send_to(b"here", from).unwrap();
        let received = poll_fn(|cx| {
            let mut bufs = [IoSliceMut::new(&mut buffer)];
            socket.poll_recv(cx, &mut bufs, &mut [RecvMeta::default()])
        });
        assert_eq!(tokio::time::timeout(LIMIT, received).await.unwrap().unwrap(), 1);
        assert!(!socket.is_refused());
    }
}
