//! A simulated carrier: one in-order byte channel in each direction.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use whimbrel_base::EndpointId;
use whimbrel_proto::{PathId, Side};

use super::rng::Rng;
use super::tcp::{Link, Tcp};

/// What one end of a carrier is to its driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Server: nothing was heard on it yet.
    Fresh,
    /// Belongs to a path of the connection.
    Attached,
    /// Closed here, or seen to be closed.
    Gone,
}

/// Bytes on their way in one direction.
#[derive(Debug, Default)]
pub(crate) struct Pipe {
    queue: VecDeque<(Instant, Vec<u8>)>,
    /// Arrived, but not a whole segment yet.
    pub(crate) inbox: Vec<u8>,
    /// Bytes that the sender's socket holds or that are under way.
    pub(crate) queued: usize,
    pub(crate) delivered: u64,
    pub(crate) sent: u64,
    /// Where whole segments end, counted in bytes sent.
    pub(crate) boundaries: Vec<u64>,
    /// The carrier breaks when so many bytes were delivered.
    pub(crate) cut_after: Option<u64>,
    /// Swallows everything.
    pub(crate) dead: bool,
    /// The sender closed: its last byte is followed by the end.
    closed_at: Option<Instant>,
    /// Datagrams under way beside them.
    pub(crate) air: Vec<(Instant, Vec<u8>)>,
    /// What limits it; without, there is only a delay.
    tcp: Option<Box<Tcp>>,
}

impl Pipe {
    /// A carrier with the limits of TCP over a link.
    pub(crate) fn over(link: Link) -> Self {
        Self { tcp: Some(Box::new(Tcp::new(link))), ..Self::default() }
    }

    /// Bytes that fill the sender's socket.
    pub(crate) fn backlog(&self) -> usize {
        self.tcp.as_ref().map_or(self.queued, |tcp| tcp.unsent())
    }

    /// When a datagram arrives that leaves now and takes `free` without a link; `None` if a link loses it.
    pub(crate) fn pass(&mut self, now: Instant, bytes: usize, free: Instant) -> Option<Instant> {
        self.tcp.as_mut().map_or(Some(free), |tcp| tcp.pass(now, bytes))
    }

    /// Lets TCP send what it may.
    pub(crate) fn run(&mut self, now: Instant) {
        if let Some(tcp) = self.tcp.as_mut().filter(|_| !self.dead) {
            self.queue.extend(tcp.run(now));
        }
    }

    /// Takes bytes for delivery at `at` or, if others are before them, right behind those.
    pub(crate) fn push(&mut self, at: Instant, bytes: &[u8], fragments: Option<&mut Rng>) {
        self.sent += bytes.len() as u64;
        self.boundaries.push(self.sent);
        self.queued += bytes.len();
        if self.dead {
            return;
        }
        if let Some(tcp) = &mut self.tcp {
            return tcp.write(bytes);
        }
        let at = self.queue.back().map_or(at, |(last, _)| at.max(*last));
        let Some(rng) = fragments else {
            self.queue.push_back((at, bytes.to_vec()));
            return;
        };
        let (mut rest, mut at) = (bytes, at);
        while !rest.is_empty() {
            let n = 1 + rng.below(rest.len().min(3000) as u64) as usize;
            self.queue.push_back((at, rest[..n].to_vec()));
            at += Duration::from_micros(rng.below(400));
            rest = &rest[n..];
        }
    }

    pub(crate) fn close(&mut self, at: Instant) {
        let at = self.queue.back().map_or(at, |(last, _)| at.max(*last));
        self.closed_at.get_or_insert(at);
    }

    /// Drops what is under way and whatever follows.
    pub(crate) fn kill(&mut self) {
        self.queue.clear();
        self.air.clear();
        self.dead = true;
    }

    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        if self.dead {
            return None;
        }
        let end = self.closed_at.filter(|_| self.is_flushed());
        let arrival = self.queue.front().map(|(at, _)| *at).or(end);
        let ack = self.tcp.as_ref().and_then(|tcp| tcp.next_ack());
        let air = self.air.iter().map(|(at, _)| *at).min();
        [arrival, ack, air].into_iter().flatten().min()
    }

    /// Takes out the datagrams that have arrived by `now`.
    pub(crate) fn land(&mut self, now: Instant) -> Vec<Vec<u8>> {
        let mut landed: Vec<_> = self.air.extract_if(.., |(at, _)| *at <= now).collect();
        landed.sort_by_key(|(at, _)| *at);
        landed.into_iter().map(|(_, bytes)| bytes).collect()
    }

    /// Moves what has arrived by `now` into the inbox; true when the cutting point was reached.
    pub(crate) fn arrive(&mut self, now: Instant) -> bool {
        while let Some((at, bytes)) = self.queue.front() {
            if *at > now {
                break;
            }
            let room = self.cut_after.map_or(u64::MAX, |cut| cut - self.delivered);
            let n = (bytes.len() as u64).min(room) as usize;
            self.inbox.extend_from_slice(&bytes[..n]);
            self.delivered += n as u64;
            self.queued -= bytes.len();
            self.queue.pop_front();
            if self.cut_after == Some(self.delivered) {
                return true;
            }
        }
        false
    }

    /// The sender's socket holds nothing more.
    fn is_flushed(&self) -> bool {
        self.tcp.as_ref().is_none_or(|tcp| tcp.unsent() == 0)
    }

    pub(crate) fn is_at_end(&self, now: Instant) -> bool {
        !self.dead && self.is_flushed() && self.queue.is_empty() && self.closed_at.is_some_and(|at| at <= now)
    }
}

/// A simulated TCP connection between the two engines.
#[derive(Debug)]
pub(crate) struct Carrier {
    pub(crate) path: PathId,
    pub(crate) up: Pipe,
    pub(crate) down: Pipe,
    pub(crate) delay: Duration,
    pub(crate) stalled: bool,
    pub(crate) client: End,
    pub(crate) server: End,
    /// When each end's kernel tells that the carrier broke.
    pub(crate) client_notices: Option<Instant>,
    pub(crate) server_notices: Option<Instant>,
    pub(crate) early_limit: u64,
    /// Its path begins with OPEN, not with JOIN.
    pub(crate) by_open: bool,
    pub(crate) answered: bool,
    pub(crate) opened: Instant,
    /// The client's key, and the server's as the client expects it; `None`: those of the beginning.
    pub(crate) ids: Option<(EndpointId, EndpointId)>,
}

impl Carrier {
    pub(crate) fn new(path: PathId, delay: Duration, early_limit: u64, now: Instant) -> Self {
        Self {
            path,
            up: Pipe::default(),
            down: Pipe::default(),
            delay,
            stalled: false,
            client: End::Attached,
            server: End::Fresh,
            client_notices: None,
            server_notices: None,
            early_limit,
            by_open: false,
            answered: false,
            opened: now,
            ids: None,
        }
    }

    pub(crate) fn end(&self, side: Side) -> End {
        match side {
            Side::Client => self.client,
            Side::Server => self.server,
        }
    }

    pub(crate) fn end_mut(&mut self, side: Side) -> &mut End {
        match side {
            Side::Client => &mut self.client,
            Side::Server => &mut self.server,
        }
    }

    /// The pipe that `side` writes to.
    pub(crate) fn outgoing(&mut self, side: Side) -> &mut Pipe {
        match side {
            Side::Client => &mut self.up,
            Side::Server => &mut self.down,
        }
    }

    /// The pipe that `side` reads from.
    pub(crate) fn incoming(&self, side: Side) -> &Pipe {
        match side {
            Side::Client => &self.down,
            Side::Server => &self.up,
        }
    }

    pub(crate) fn incoming_mut(&mut self, side: Side) -> &mut Pipe {
        match side {
            Side::Client => &mut self.down,
            Side::Server => &mut self.up,
        }
    }

    pub(crate) fn notice(&self, side: Side) -> Option<Instant> {
        match side {
            Side::Client => self.client_notices,
            Side::Server => self.server_notices,
        }
    }

    pub(crate) fn notice_at(&mut self, side: Side, at: Instant) {
        let slot = match side {
            Side::Client => &mut self.client_notices,
            Side::Server => &mut self.server_notices,
        };
        *slot = Some(slot.map_or(at, |earlier| earlier.min(at)));
    }

    /// When something happens here next.
    pub(crate) fn next_event(&self) -> Option<Instant> {
        let arrivals = [Side::Client, Side::Server].into_iter().filter_map(|side| {
            let open = self.end(side) != End::Gone && !self.stalled;
            open.then(|| self.incoming(side).next_arrival()).flatten()
        });
        let notices = [Side::Client, Side::Server]
            .into_iter()
            .filter_map(|side| (self.end(side) != End::Gone).then(|| self.notice(side)).flatten());
        arrivals.chain(notices).min()
    }

    /// The same carrier with the limits of TCP, over a link for each direction.
    pub(crate) fn over(path: PathId, up: Link, down: Link, early_limit: u64, now: Instant) -> Self {
        let bare = Self::new(path, up.delay, early_limit, now);
        Self { up: Pipe::over(up), down: Pipe::over(down), ..bare }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.client == End::Gone && self.server == End::Gone
    }
}
