//! What the network says of datagrams that a socket with many other ends has sent (ICMP).
//!
//! The kernel queues it in the room of what comes in, and has another call fail for it. Anybody can say it to
//! a port that is known. So a task takes it out as soon as it is there, whether the socket is used or not;
//! what failed for it is done again; and where too much is said, the kernel is asked to say nothing for a
//! while.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quinn::udp::Transmit;
use tokio::io::Interest;
use tokio::sync::Notify;

use super::Open;
use super::places::{Places, QUOTED};
use super::refusals::{Told, is_of_its_own, told};
use crate::carrier::sys::{queue_errors, take_queued_error};

/// What is taken out in one turn; where more is queued, that is a flood.
const MOST: usize = 64;
/// What is heard within [`SPAN`]; more is a flood.
const MOST_IN_SPAN: usize = 256;
const SPAN: Duration = Duration::from_secs(1);
/// Nothing is heard for so long after a flood.
const DEAF: Duration = Duration::from_secs(1);
/// A datagram is sent so often for what is said of others meanwhile; after that nothing is said.
const TRIES: u32 = 4;

/// What is heard at such a socket.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    places: Arc<Places>,
    /// How many messages were heard.
    heard: AtomicU64,
    lately: Mutex<Lately>,
    /// The kernel was asked to say nothing.
    is_deaf: AtomicBool,
    deafened: Notify,
}

/// How many messages were heard, since when.
#[derive(Debug, Default)]
struct Lately {
    since: Option<Instant>,
    heard: usize,
}

impl Lately {
    /// So many more were heard. True if that is a flood.
    fn add(&mut self, heard: usize, now: Instant) -> bool {
        let begins = self.since.is_none_or(|since| now.saturating_duration_since(since) >= SPAN);
        if begins {
            *self = Self { since: Some(now), heard: 0 };
        }
        self.heard += heard;
        self.heard > MOST_IN_SPAN
    }
}

impl Hearing {
    /// Has the kernel queue what it hears, if it can; otherwise nothing is heard.
    pub(super) fn ask_for(socket: &socket2::Socket) -> Arc<Self> {
        // An owner of the socket before this one may have left something there.
        let emptied = queue_errors(socket, false).and_then(|()| socket.take_error());
        if let Err(error) = emptied.and_then(|_| queue_errors(socket, true)) {
            tracing::debug!(%error, "no ICMP is heard on this socket");
        }
        Arc::default()
    }

    pub(super) fn places(&self) -> &Arc<Places> {
        &self.places
    }

    /// How many messages were heard until now.
    pub(super) fn heard(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Whether a call has failed for what was said of an earlier datagram. `before` is what was
    /// [heard](Self::heard) before it.
    pub(super) fn explains(&self, open: &Open, before: u64) -> bool {
        self.hear(open) || self.heard() != before
    }

    /// Takes out what is queued. True if anything of ICMP was.
    fn hear(&self, open: &Open) -> bool {
        let mut quoted = [0; QUOTED];
        let (mut heard, mut is_all) = (0, false);
        for _ in 0..MOST {
            // `WouldBlock`: that was all.
            let Ok(queued) = take_queued_error(&open.io, &mut quoted) else {
                is_all = true;
                break;
            };
            let Some(queued) = queued else { continue };
            let told = told(&queued);
            if told == Told::Nothing {
                continue;
            }
            heard += 1;
            self.heard.fetch_add(1, Ordering::Relaxed);
            if let Some(to) = queued.to.filter(|_| told == Told::Unreachable) {
                self.places.refuse(to, &quoted[..queued.quoted.min(QUOTED)]);
            }
        }
        let is_flood = heard > 0 && self.lately().add(heard, Instant::now());
        if is_flood || !is_all {
            self.deafen(open);
        }
        heard > 0
    }

    /// Throws away what is queued, and hears nothing more for a while.
    fn deafen(&self, open: &Open) {
        let pending = queue_errors(&open.io, false).and_then(|()| open.io.take_error());
        if !self.is_deaf.swap(true, Ordering::Relaxed) {
            tracing::debug!(?pending, "a flood of ICMP: nothing of it is heard for a while");
            self.deafened.notify_one();
        }
    }

    fn listen_again(&self, open: &Open) {
        *self.lately() = Lately::default();
        self.is_deaf.store(false, Ordering::Relaxed);
        if let Err(error) = queue_errors(&open.io, true) {
            tracing::debug!(%error, "no ICMP is heard on this socket any more");
        }
    }

    fn lately(&self) -> MutexGuard<'_, Lately> {
        self.lately.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram, if the kernel takes it now, whatever is said of others.
    ///
    /// # Errors
    /// `WouldBlock` alone: what cannot be sent is lost, as datagrams are.
    pub(super) fn send(&self, open: &Open, transmit: &Transmit<'_>) -> io::Result<()> {
        for _ in 0..TRIES {
            let before = self.heard();
            let error = match open.try_send(transmit) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => error,
                sent => return sent,
            };
            if !self.explains(open, before) {
                // If the error is not the datagram's own, there was no room to queue what it is of: once
                // more.
                return if is_of_its_own(&error) { Ok(()) } else { open.send_or_lose(transmit) };
            }
        }
        self.deafen(open);
        open.send_or_lose(transmit)
    }
}

/// Hears what is said, until its task is aborted.
pub(super) async fn heed(open: Arc<Open>, hearing: Arc<Hearing>) {
    loop {
        tokio::select! {
            ready = open.io.ready(Interest::ERROR) => {
                if ready.is_err() {
                    // The runtime is gone.
                    return;
                }
                // There is another event when more is queued.
                let _ = open.io.try_io(Interest::ERROR, || {
                    hearing.hear(&open);
                    Err::<(), _>(io::ErrorKind::WouldBlock.into())
                });
            }
            () = hearing.deafened.notified() => {
                tokio::time::sleep(DEAF).await;
                hearing.listen_again(&open);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::poll_fn;
    use std::io::IoSliceMut;
    use std::net::{Ipv4Addr, SocketAddr, UdpSocket};

    use quinn::AsyncUdpSocket as _;
    use quinn::udp::RecvMeta;
    use socket2::{Domain, SockRef, Socket, Type};

    use super::super::{Fronting, QuicSocket};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(30);

    /// A socket that listens at an address of this host, and a place at the same address where nobody does.
    fn listening(last: u8) -> (Arc<QuicSocket>, SocketAddr) {
        let at = SocketAddr::from((Ipv4Addr::new(127, 0, 232, last), 0));
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket.bind(&at.into()).unwrap();
        let nobody = UdpSocket::bind(at).unwrap().local_addr().unwrap();
        (QuicSocket::listening(socket, Fronting::default()).unwrap().0, nobody)
    }

    /// A packet with a short header, for whoever is called so.
    fn packet(id: u8) -> Vec<u8> {
        [&[0x41_u8][..], &[id; 8], b"protected"].concat()
    }

    fn transmit(destination: SocketAddr, contents: &[u8]) -> Transmit<'_> {
        Transmit { destination, ecn: None, contents, segment_size: None, src_ip: None }
    }

    /// Sends once the runtime knows that the socket takes something: it takes one that was opened just now
    /// for full.
    async fn send(socket: &QuicSocket, to: SocketAddr, contents: &[u8]) {
        let begun = Instant::now();
        while let Err(error) = socket.try_send(&transmit(to, contents)) {
            assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
            assert!(begun.elapsed() < LIMIT, "nothing is sent");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Sends past what hears, until more is said than may be, and something is pending.
    fn flood(open: &Open, nobody: SocketAddr) {
        let (socket, begun, mut told) = (SockRef::from(&open.io), Instant::now(), 0);
        while told < MOST + 8 {
            assert!(begun.elapsed() < LIMIT, "{told} were told");
            // It fails for one before, which leaves the queue as it is.
            let failed = socket.send_to(b"anybody?", &nobody.into()).err().map(|error| error.kind());
            told += usize::from(failed == Some(io::ErrorKind::ConnectionRefused));
        }
        // Taking one error out makes the next one pending.
        assert!(take_queued_error(&open.io, &mut []).unwrap().is_some());
    }

    #[tokio::test]
    async fn of_a_place_where_nobody_listens_it_is_told_although_the_socket_is_not_used_any_more() {
        let (socket, nobody) = listening(1);
        let (hint, other) = (socket.hint(nobody).unwrap(), socket.hint(socket.address()).unwrap());
        let task = tokio::spawn(socket.heed());
        send(&socket, nobody, &packet(7)).await;
        let (open, begun) = (socket.open().unwrap(), Instant::now());
        while !hint.is_refused() {
            assert!(begun.elapsed() < LIMIT, "nothing is told");
            tokio::time::sleep(Duration::from_millis(50)).await;
            // The kernel says so much a second. What is sent past what hears brings nothing to light.
            let _ = SockRef::from(&open.io).send_to(&packet(7), &nobody.into());
        }
        task.abort();
        let _ = task.await;
        assert!(!other.is_refused(), "of another place");
        // A peer that is heard is in reach again.
        let peer = UdpSocket::bind(nobody).unwrap();
        peer.send_to(b"here", socket.address()).unwrap();
        assert_eq!(receive(&socket).await, b"here");
        assert!(!hint.is_refused());
    }

    /// What comes next.
    async fn receive(socket: &QuicSocket) -> Vec<u8> {
        let (mut buffer, mut meta) = ([0; 64], [RecvMeta::default()]);
        let received = poll_fn(|cx| socket.poll_recv(cx, &mut [IoSliceMut::new(&mut buffer)], &mut meta));
        assert_eq!(tokio::time::timeout(LIMIT, received).await.unwrap().unwrap(), 1);
        buffer[..meta[0].len].to_vec()
    }

    /// Each datagram is sent behind one to a port that is closed.
    #[tokio::test]
    async fn what_is_sent_to_others_leaves_although_somebody_is_said_to_be_out_of_reach() {
        let (socket, nobody) = listening(3);
        let (open, hearing) = (socket.open().unwrap(), socket.hearing.clone().unwrap());
        let peer = UdpSocket::bind((Ipv4Addr::new(127, 0, 232, 4), 0)).unwrap();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        let at = peer.local_addr().unwrap();
        let begun = Instant::now();
        let mut sent = 0_u32;
        while hearing.heard() < 40 {
            assert!(begun.elapsed() < LIMIT, "{} were heard", hearing.heard());
            let _ = SockRef::from(&open.io).send_to(&packet(1), &nobody.into());
            send(&socket, at, &sent.to_be_bytes()).await;
            let mut buffer = [0; 64];
            let length = peer.recv(&mut buffer).unwrap();
            assert_eq!(&buffer[..length], &sent.to_be_bytes());
            sent += 1;
        }
    }

    #[tokio::test]
    async fn a_flood_ends_in_a_while_of_silence_and_what_comes_and_goes_meanwhile_gets_through() {
        let (socket, nobody) = listening(5);
        let (open, hearing) = (socket.open().unwrap(), socket.hearing.clone().unwrap());
        let peer = UdpSocket::bind((Ipv4Addr::new(127, 0, 232, 6), 0)).unwrap();
        peer.set_read_timeout(Some(LIMIT)).unwrap();
        let at = peer.local_addr().unwrap();
        flood(&open, nobody);
        peer.send_to(b"here", socket.address()).unwrap();
        assert_eq!(receive(&socket).await, b"here");
        assert!(hearing.is_deaf.load(Ordering::Relaxed), "it is too much");
        assert!(take_queued_error(&open.io, &mut []).is_err(), "it is thrown away");
        send(&socket, at, b"there").await;
        let mut buffer = [0; 64];
        assert_eq!(peer.recv(&mut buffer).unwrap(), 5);
        // While the socket is deaf it does not hear that a peer is out of reach; later it does.
        let (hint, before) = (socket.hint(nobody).unwrap(), hearing.heard());
        send(&socket, nobody, &packet(7)).await;
        assert!(!hearing.explains(&open, before));
        let task = tokio::spawn(socket.heed());
        let begun = Instant::now();
        while !hint.is_refused() {
            assert!(begun.elapsed() < LIMIT, "nothing is heard any more");
            send(&socket, nobody, &packet(7)).await;
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        task.abort();
    }

    #[test]
    fn what_is_heard_within_a_second_is_bounded() {
        let (mut lately, begun) = (Lately::default(), Instant::now());
        assert!(!lately.add(MOST_IN_SPAN, begun));
        assert!(lately.add(1, begun + SPAN / 2));
        assert!(!lately.add(MOST_IN_SPAN, begun + SPAN), "another second");
        assert!(lately.add(1, begun + SPAN));
    }
}
