//! What the network says of datagrams that a socket with one other end has sent (ICMP).
//!
//! The kernel queues it, and tells it as the error of whatever is done with the socket next. It does not call
//! that readable, so where nothing comes it is the next datagram that brings it to light.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use quinn::udp::Transmit;
use rustix::io::Errno;

use super::Open;
use crate::carrier::sys::{QueuedError, queue_errors, take_queued_error};

/// What the queue may hold. A datagram that was sent causes one error at most, and routers limit how many
/// they send. But anybody who knows the ports can fill it: it shares its room with what comes in, and each
/// error that is left there fails another call.
const MOST: usize = 64;

/// ICMP's *destination unreachable*, and its code that tells of nothing but a packet's size.
const UNREACHABLE_V4: u8 = 3;
const TOO_LARGE_V4: u8 = 4;
const UNREACHABLE_V6: u8 = 1;

/// What the queue holds of earlier datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Told {
    Nothing,
    /// An error that does not mean *unreachable*, or one of another place.
    Other,
    /// The place is unreachable, as a host or router says.
    Unreachable,
}

/// Has the kernel queue what it hears, if it can; otherwise only what it makes an error unasked is heard.
pub(super) fn ask_for(socket: &socket2::Socket) {
    if let Err(error) = queue_errors(socket, true) {
        tracing::debug!(%error, "only some of ICMP is heard on this socket");
    }
}

/// Whether the network says that nobody is reached at the other end, by the error that something came to and
/// what is queued beside it. Empties the queue.
pub(super) fn is_said_by(open: &Open, error: &io::Error) -> bool {
    means_unreachable(empty(open), error)
}

/// Where the queue is not there, or was emptied by another thread, the error itself is all that there is.
/// (`NetworkUnreachable` is mostly this host's own word then: it has no route.)
fn means_unreachable(told: Told, error: &io::Error) -> bool {
    let by_itself =
        || matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::HostUnreachable);
    told == Told::Unreachable || (told == Told::Nothing && by_itself())
}

fn empty(open: &Open) -> Told {
    let mut told = Told::Nothing;
    for _ in 0..MOST {
        match take_queued_error(&open.io, &mut []) {
            Ok(queued) => told = told.max(queued.map_or(Told::Nothing, |queued| meaning(&queued, open.peer))),
            // `WouldBlock`: that was all.
            Err(_) => return told,
        }
    }
    ask_no_more(open);
    told
}

/// Throws away what is queued. From here on only what the kernel makes an error unasked is heard, one at a
/// time.
fn ask_no_more(open: &Open) {
    let pending = queue_errors(&open.io, false).and_then(|()| open.io.take_error());
    tracing::debug!(peer = ?open.peer, ?pending, "a flood of ICMP: only some of it is heard from here on");
}

/// What an error means, wherever the datagram went that it is of.
pub(super) fn told(queued: &QueuedError) -> Told {
    let is_unreachable = match queued.origin {
        libc::SO_EE_ORIGIN_ICMP => queued.kind == UNREACHABLE_V4 && queued.code != TOO_LARGE_V4,
        libc::SO_EE_ORIGIN_ICMP6 => queued.kind == UNREACHABLE_V6,
        // This host's own word, of a datagram that is larger than its link takes.
        _ => return Told::Nothing,
    };
    if is_unreachable { Told::Unreachable } else { Told::Other }
}

/// What an error means for a socket whose other end is `peer`.
fn meaning(queued: &QueuedError, peer: Option<SocketAddr>) -> Told {
    // Of an address of a link, which link is not part of what is quoted.
    let place = |at: SocketAddr| (at.ip().to_canonical(), at.port());
    let is_of_peer = peer.is_some() && queued.to.map(place) == peer.map(place);
    match told(queued) {
        Told::Unreachable if !is_of_peer => Told::Other,
        told => told,
    }
}

/// Sends a datagram, if the kernel takes it now, and notes what is said of earlier ones.
///
/// # Errors
/// `WouldBlock` alone: what cannot be sent is lost, as datagrams are.
pub(super) fn send(open: &Open, transmit: &Transmit<'_>, is_refused: &AtomicBool) -> io::Result<()> {
    let error = match open.try_send(transmit) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => error,
        sent => return sent,
    };
    let told = empty(open);
    if means_unreachable(told, &error) {
        is_refused.store(true, Ordering::Relaxed);
    }
    if told == Told::Nothing && is_of_its_own(&error) {
        return Ok(());
    }
    // The error is mostly that of an earlier one, and told once: this one has not left for it. If the error
    // is its own, it comes again, and quinn logs it now and then.
    open.send_or_lose(transmit)
}

/// Whether an error is that of the very datagram that is sent, which is lost: it is too large for the link,
/// or the link's queue is full. (Of the latter the kernel tells only those who ask for errors.)
pub(super) fn is_of_its_own(error: &io::Error) -> bool {
    let errors = [Errno::MSGSIZE, Errno::NOBUFS];
    errors.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::poll_fn;
    use std::io::IoSliceMut;
    use std::net::{Ipv4Addr, UdpSocket};
    use std::sync::Arc;
    use std::task::{Context, Waker};
    use std::time::{Duration, Instant};

    use quinn::AsyncUdpSocket as _;
    use quinn::udp::RecvMeta;
    use socket2::{Domain, Socket, Type};
    use tokio::io::Interest;

    use super::super::QuicSocket;
    use super::super::poller::registered_again;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn transmit(destination: SocketAddr) -> Transmit<'static> {
        Transmit { destination, ecn: None, contents: b"anybody?", segment_size: None, src_ip: None }
    }

    /// A socket whose other end is a place where nobody listens.
    fn dialling_nobody(last: u8) -> (Arc<QuicSocket>, SocketAddr) {
        let nobody = UdpSocket::bind((Ipv4Addr::new(127, 0, 231, last), 0)).unwrap();
        let at = nobody.local_addr().unwrap();
        drop(nobody);
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 231, last + 1], 0)).into()).unwrap();
        socket.connect(&at.into()).unwrap();
        (QuicSocket::dialling(socket).unwrap(), at)
    }

    async fn send_until_refused(socket: &QuicSocket, to: SocketAddr) {
        let begun = Instant::now();
        while !socket.is_refused() {
            assert!(begun.elapsed() < LIMIT, "nothing is heard");
            // The runtime takes a socket that was opened just now for full.
            let _ = socket.try_send(&transmit(to));
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// What comes next.
    async fn receive(socket: &QuicSocket) -> Vec<u8> {
        let (mut buffer, mut meta) = ([0; 64], [RecvMeta::default()]);
        let received = poll_fn(|cx| socket.poll_recv(cx, &mut [IoSliceMut::new(&mut buffer)], &mut meta));
        assert_eq!(tokio::time::timeout(LIMIT, received).await.unwrap().unwrap(), 1);
        buffer[..meta[0].len].to_vec()
    }

    #[tokio::test]
    async fn that_nobody_listens_is_heard_by_sending_and_what_is_sent_leaves_all_the_same() {
        let (socket, at) = dialling_nobody(1);
        send_until_refused(&socket, at).await;
        // What the last one came to is still to be told.
        let peer = UdpSocket::bind(at).unwrap();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        socket.try_send(&transmit(at)).unwrap();
        let mut buffer = [0; 64];
        let (length, from) = peer.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"anybody?");
        // What comes from there shows that somebody is there.
        assert!(socket.is_refused());
        peer.send_to(b"here", from).unwrap();
        assert_eq!(receive(&socket).await, b"here");
        assert!(!socket.is_refused());
    }

    /// Sends until more errors are queued than may be, and one is pending.
    fn flood(open: &Open) {
        let socket = socket2::SockRef::from(&open.io);
        let begun = Instant::now();
        let mut told = 0;
        while told < MOST + 8 {
            assert!(begun.elapsed() < LIMIT, "{told} were told");
            // It fails with the error of one before, which leaves the queue as it is.
            let failed = socket.send(b"anybody?").err().map(|error| error.kind());
            told += usize::from(failed == Some(io::ErrorKind::ConnectionRefused));
        }
        let _ = socket.send(b"anybody?");
    }

    #[tokio::test]
    async fn what_comes_is_read_however_many_refusals_are_queued_before_it() {
        let (socket, at) = dialling_nobody(3);
        flood(&socket.open().unwrap());
        let peer = UdpSocket::bind(at).unwrap();
        peer.send_to(b"here", socket.address()).unwrap();
        assert_eq!(receive(&socket).await, b"here");
        assert!(!socket.is_refused());
    }

    #[tokio::test]
    async fn what_is_sent_leaves_however_many_refusals_are_queued_before_it() {
        let (socket, at) = dialling_nobody(7);
        send_until_refused(&socket, at).await;
        flood(&socket.open().unwrap());
        let peer = UdpSocket::bind(at).unwrap();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        socket.try_send(&transmit(at)).unwrap();
        let mut buffer = [0; 64];
        let (length, _) = peer.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"anybody?");
    }

    #[tokio::test]
    async fn a_flood_of_refusals_is_believed_and_thrown_away_and_no_other_one_is_queued() {
        let (socket, _) = dialling_nobody(9);
        let open = socket.open().unwrap();
        flood(&open);
        assert_eq!(empty(&open), Told::Unreachable);
        flood(&open);
        assert_eq!(empty(&open), Told::Nothing);
    }

    #[tokio::test]
    async fn a_socket_that_was_told_of_an_error_tells_by_a_copy_when_it_takes_more() {
        let (socket, at) = dialling_nobody(11);
        send_until_refused(&socket, at).await;
        let open = socket.open().unwrap();
        let told = open.io.ready(Interest::ERROR);
        assert!(tokio::time::timeout(LIMIT, told).await.unwrap().unwrap().is_error());
        let begun = Instant::now();
        loop {
            // What was sent last may be told of a little later.
            empty(&open);
            let copy = registered_again(&open).unwrap();
            let ready = copy.ready(Interest::WRITABLE);
            let ready = tokio::time::timeout(LIMIT, ready).await.unwrap().unwrap();
            if ready.is_writable() && !ready.is_write_closed() {
                break;
            }
            assert!(begun.elapsed() < LIMIT, "a copy tells no more than the socket");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The runtime takes it for writable from then on.
    #[tokio::test]
    async fn whoever_waits_for_a_full_socket_that_was_told_of_an_error_does_not_spin() {
        let (socket, at) = dialling_nobody(5);
        send_until_refused(&socket, at).await;
        let open = socket.open().unwrap();
        let told = open.io.ready(Interest::ERROR);
        assert!(tokio::time::timeout(LIMIT, told).await.unwrap().unwrap().is_error());
        let mut poller = socket.clone().create_io_poller();
        open.full.store(true, Ordering::Relaxed);
        assert!(poller.as_mut().poll_writable(&mut Context::from_waker(Waker::noop())).is_pending());
        let taken = poll_fn(|cx| poller.as_mut().poll_writable(cx));
        tokio::time::timeout(LIMIT, taken).await.unwrap().unwrap();
        assert!(!open.full.load(Ordering::Relaxed));
    }

    #[test]
    fn only_a_word_of_icmp_that_nobody_is_reached_at_the_very_place_counts() {
        let at = |address: &str| address.parse::<SocketAddr>().unwrap();
        let (v4, v6) = (at("192.0.2.1:443"), at("[2001:db8::1]:443"));
        let said = |origin, kind, code, to| QueuedError { origin, kind, code, to: Some(to), quoted: 0 };
        let (icmp, icmp6) = (libc::SO_EE_ORIGIN_ICMP, libc::SO_EE_ORIGIN_ICMP6);
        // Network, host, port; prohibited, of a network, of a host, by a filter.
        for code in [0, 1, 3, 9, 10, 13] {
            assert_eq!(meaning(&said(icmp, 3, code, v4), Some(v4)), Told::Unreachable, "{code}");
        }
        // No route, prohibited, address, port.
        for code in [0, 1, 3, 4] {
            assert_eq!(meaning(&said(icmp6, 1, code, v6), Some(v6)), Told::Unreachable, "{code}");
        }
        assert_eq!(meaning(&said(icmp, 3, 4, v4), Some(v4)), Told::Other, "too large for a link");
        assert_eq!(meaning(&said(icmp, 11, 0, v4), Some(v4)), Told::Other, "it went too far");
        assert_eq!(meaning(&said(icmp6, 2, 0, v6), Some(v6)), Told::Other, "too large for a link");
        for other in ["192.0.2.1:444", "192.0.2.2:443"] {
            assert_eq!(meaning(&said(icmp, 3, 1, at(other)), Some(v4)), Told::Other, "{other}");
        }
        assert_eq!(meaning(&said(icmp, 3, 1, v4), None), Told::Other);
        let unnamed = QueuedError { to: None, ..said(icmp, 3, 1, v4) };
        assert_eq!(meaning(&unnamed, Some(v4)), Told::Other);
        let mapped = at("[::ffff:192.0.2.1]:443");
        assert_eq!(meaning(&said(icmp, 3, 1, v4), Some(mapped)), Told::Unreachable);
        assert_eq!(meaning(&said(libc::SO_EE_ORIGIN_LOCAL, 0, 0, v4), Some(v4)), Told::Nothing);
    }

    #[test]
    fn an_error_alone_counts_only_where_nothing_is_queued_beside_it() {
        let error = io::Error::from_raw_os_error;
        assert!(means_unreachable(Told::Nothing, &error(libc::EHOSTUNREACH)));
        assert!(means_unreachable(Told::Nothing, &error(libc::ECONNREFUSED)));
        assert!(!means_unreachable(Told::Nothing, &error(libc::ENETUNREACH)), "this host has no route");
        assert!(!means_unreachable(Told::Other, &error(libc::EHOSTUNREACH)), "of another place");
        assert!(means_unreachable(Told::Unreachable, &error(libc::ENETUNREACH)));
        assert!(is_of_its_own(&error(libc::ENOBUFS)) && is_of_its_own(&error(libc::EMSGSIZE)));
        assert!(!is_of_its_own(&error(libc::ECONNREFUSED)));
    }
}
