//! Decides what becomes of each packet of one direction, and when. Knows neither clock nor sockets.
//!
//! Packets pass four stages in order: chance (loss, blackhole), the queue, the server (one packet at a time,
//! at the link's rate or trace), and the flight (delay). Packets never overtake each other. Times count from
//! the link's start.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::trace::BYTES_PER_CHANCE;
use crate::{Capacity, Queue, Rate, Shape, Stats, Trace};

/// A flight may hold this much at most, so that a mistaken delay cannot eat the machine's memory.
const MAX_FLYING_BYTES: usize = 256 << 20;

/// `Queue::Time` never means less than this, or a slow link could carry nothing.
const MIN_QUEUE_BYTES: usize = 10 * 1500;

/// Anything that has a size.
pub(crate) trait Packet {
    /// Bytes of the IP packet.
    fn size(&self) -> usize;
}

struct Timed<P> {
    /// Arrival in the queue, end of service, or start of flight, by stage.
    at: Duration,
    packet: P,
}

/// One direction of a link.
pub(crate) struct Shaper<P> {
    shape: Shape,
    random: fastrand::Rng,
    waiting: VecDeque<Timed<P>>,
    waiting_bytes: usize,
    server: Server,
    serving: Option<Timed<P>>,
    last_served: Duration,
    /// When the last packet went into flight.
    last_sent: Option<Duration>,
    flying: VecDeque<Timed<P>>,
    flying_bytes: usize,
    stats: Stats,
}

impl<P: Packet> Shaper<P> {
    pub(crate) fn new(shape: Shape, seed: u64) -> Self {
        Self {
            server: Server::new(&shape, Duration::ZERO),
            shape,
            random: fastrand::Rng::with_seed(seed),
            waiting: VecDeque::new(),
            waiting_bytes: 0,
            serving: None,
            last_served: Duration::ZERO,
            last_sent: None,
            flying: VecDeque::new(),
            flying_bytes: 0,
            stats: Stats::default(),
        }
    }

    pub(crate) fn shape(&self) -> &Shape {
        &self.shape
    }

    pub(crate) fn stats(&self) -> Stats {
        self.stats
    }

    /// Changes the settings. A packet in service starts its service again if the capacity changes.
    pub(crate) fn set_shape(&mut self, now: Duration, shape: Shape) {
        self.serve(now);
        if shape.burst != self.shape.burst || !is_same(&shape.capacity, &self.shape.capacity) {
            self.server = Server::new(&shape, now);
            self.last_served = now;
            if let Some(serving) = &mut self.serving {
                serving.at = self.server.serve(now, serving.packet.size());
            }
        }
        self.shape = shape;
    }

    /// Takes in a packet.
    pub(crate) fn offer(&mut self, now: Duration, packet: P) {
        self.serve(now);
        if self.shape.blackhole || self.shape.largest.is_some_and(|largest| packet.size() > largest) {
            self.stats.swallowed += 1;
        } else if self.shape.loss > 0.0 && self.random.f64() < self.shape.loss {
            self.stats.lost += 1;
        } else if self.is_full(packet.size()) {
            self.stats.overflowed += 1;
        } else {
            self.waiting_bytes += packet.size();
            self.waiting.push_back(Timed { at: now, packet });
            self.serve(now);
        }
    }

    /// Gives out the next packet that has arrived at the other end.
    pub(crate) fn take_due(&mut self, now: Duration) -> Option<P> {
        self.serve(now);
        while self.flying.front().is_some_and(|flying| flying.at + self.shape.delay <= now) {
            let Timed { packet, .. } = self.flying.pop_front()?;
            self.flying_bytes -= packet.size();
            if !self.shape.blackhole {
                self.stats.packets += 1;
                self.stats.bytes += packet.size() as u64;
                return Some(packet);
            }
            self.stats.swallowed += 1;
        }
        None
    }

    /// When the next packet arrives at the other end.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let next = self.flying.front().or(self.serving.as_ref())?;
        Some(next.at.saturating_add(self.shape.delay))
    }

    /// Counts a packet that had no end to go to.
    pub(crate) fn count_swallowed(&mut self) {
        self.stats.swallowed += 1;
    }

    /// Moves packets on from the queue through the server into flight.
    fn serve(&mut self, now: Duration) {
        loop {
            if self.serving.is_none() {
                let Some(Timed { at, packet }) = self.waiting.pop_front() else {
                    return;
                };
                self.waiting_bytes -= packet.size();
                let start = self.awake_from(at.max(self.last_served));
                let served = self.server.serve(start, packet.size());
                self.serving = Some(Timed { at: served, packet });
            }
            let Some(served) = self.serving.take_if(|serving| serving.at <= now) else {
                return;
            };
            self.last_served = served.at;
            self.last_sent = Some(served.at);
            self.fly(served);
        }
    }

    /// When a packet can be sent whose turn comes at `start`.
    fn awake_from(&self, start: Duration) -> Duration {
        let Some(wake) = self.shape.wake else { return start };
        let is_asleep = self.last_sent.is_none_or(|last| start.saturating_sub(last) >= wake.after);
        if is_asleep { start + wake.takes } else { start }
    }

    fn fly(&mut self, served: Timed<P>) {
        if self.flying_bytes + served.packet.size() > MAX_FLYING_BYTES {
            self.stats.overflowed += 1;
            return;
        }
        self.flying_bytes += served.packet.size();
        self.flying.push_back(served);
    }

    /// A packet that finds the server idle needs no place in the queue.
    fn is_full(&self, size: usize) -> bool {
        let Some(rate) = self.shape.capacity.mean_rate() else {
            return false;
        };
        if self.serving.is_none() {
            return false;
        }
        match self.shape.queue {
            Queue::Packets(limit) => self.waiting.len() >= limit,
            Queue::Bytes(limit) => self.waiting_bytes + size > limit,
            Queue::Time(limit) => self.waiting_bytes + size > rate.bytes_in(limit).max(MIN_QUEUE_BYTES),
        }
    }
}

/// Whether nothing changes. A trace set again starts again, even an equal one.
fn is_same(one: &Capacity, other: &Capacity) -> bool {
    match (one, other) {
        (Capacity::Trace(one), Capacity::Trace(other)) => Arc::ptr_eq(one, other),
        _ => one == other,
    }
}

/// Sends one packet after the other at the link's capacity.
enum Server {
    Unlimited,
    Steady(Rate),
    Bucket(Bucket),
    Recorded(Playback),
}

impl Server {
    fn new(shape: &Shape, now: Duration) -> Self {
        match &shape.capacity {
            Capacity::Unlimited => Self::Unlimited,
            Capacity::Rate(rate) if shape.burst > 0 => Self::Bucket(Bucket::new(*rate, shape.burst)),
            Capacity::Rate(rate) => Self::Steady(*rate),
            Capacity::Trace(trace) => Self::Recorded(Playback::new(trace.clone(), now)),
        }
    }

    /// When a packet is through whose turn comes at `start`.
    fn serve(&mut self, start: Duration, size: usize) -> Duration {
        match self {
            Self::Unlimited => start,
            Self::Steady(rate) => start.saturating_add(rate.time_for(size)),
            Self::Bucket(bucket) => bucket.serve(start, size),
            Self::Recorded(playback) => playback.serve(start, size),
        }
    }
}

/// A token bucket, full at first.
struct Bucket {
    rate: Rate,
    /// How long the rate takes to fill it.
    depth: Duration,
    /// When it will be full again.
    full_at: Duration,
}

impl Bucket {
    fn new(rate: Rate, burst: usize) -> Self {
        Self { rate, depth: rate.time_for(burst), full_at: Duration::ZERO }
    }

    /// A packet passes as soon as there are tokens for all of it.
    fn serve(&mut self, start: Duration, size: usize) -> Duration {
        self.full_at = self.full_at.max(start).saturating_add(self.rate.time_for(size));
        start.max(self.full_at.saturating_sub(self.depth))
    }
}

/// A trace being played.
struct Playback {
    trace: Arc<Trace>,
    began: Duration,
    /// Number of the first chance not yet used.
    next: u64,
    /// What the chance before it has left over, for packets that are already waiting.
    left: usize,
}

impl Playback {
    fn new(trace: Arc<Trace>, began: Duration) -> Self {
        Self { trace, began, next: 0, left: 0 }
    }

    fn serve(&mut self, start: Duration, size: usize) -> Duration {
        if self.next == 0 || self.time_of(self.next - 1) < start {
            // Chances that pass while nothing waits are gone.
            self.left = 0;
            self.next = self.next.max(self.trace.first_chance_from(start.saturating_sub(self.began)));
        }
        while self.left < size {
            self.left += BYTES_PER_CHANCE;
            self.next += 1;
        }
        self.left -= size;
        self.time_of(self.next - 1)
    }

    fn time_of(&self, number: u64) -> Duration {
        self.began + self.trace.time_of_chance(number)
    }
}

#[cfg(test)]
mod tests;
