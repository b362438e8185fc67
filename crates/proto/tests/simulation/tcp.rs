//! A TCP-like sender over an emulated link, for one direction of a carrier: a short unsent queue, a window
//! with slow start and halving, a bottleneck with a rate and a drop-tail queue, and loss that holds up what
//! comes behind it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::rng::Rng;

const PACKET: usize = 1448;
/// Headers of TCP, IP and Ethernet.
const HEADERS: usize = 66;
const INITIAL_WINDOW: f64 = 10.0 * PACKET as f64;
/// Cubic's factor on loss.
const BACK_OFF: f64 = 0.7;

/// One direction of a link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    /// Bits a second.
    pub(crate) rate: u64,
    /// One way.
    pub(crate) delay: Duration,
    /// How long the queue before the bottleneck may become.
    pub(crate) queue: Duration,
    /// Packets lost of each thousand.
    pub(crate) loss: u64,
    /// Bytes that pass at once after a pause (a token bucket).
    pub(crate) burst: usize,
}

impl Link {
    /// `mbit` Mbit/s with a round trip of `rtt` milliseconds, and a queue of one round trip, at least 20 ms.
    pub(crate) fn new(mbit: u64, rtt: u64) -> Self {
        let delay = Duration::from_micros(rtt * 500);
        Self { rate: mbit * 1_000_000, delay, queue: Duration::from_millis(rtt.max(20)), loss: 0, burst: 0 }
    }

    fn serialization(&self, bytes: usize) -> Duration {
        Duration::from_nanos((bytes as u64 * 8).saturating_mul(1_000_000_000) / self.rate)
    }
}

#[derive(Debug)]
pub(crate) struct Tcp {
    pub(crate) link: Link,
    unsent: VecDeque<u8>,
    window: f64,
    threshold: f64,
    in_flight: usize,
    /// When acknowledgements come, and for how many bytes.
    acks: VecDeque<(Instant, usize)>,
    /// The bottleneck is busy until then; a burst passes so much earlier as its bytes take.
    busy: Option<Instant>,
    /// No second reduction before this.
    recovered: Option<Instant>,
    /// In order: nothing arrives before this.
    last_arrival: Option<Instant>,
    rng: Rng,
}

impl Tcp {
    pub(crate) fn new(link: Link) -> Self {
        Self {
            link,
            unsent: VecDeque::new(),
            window: INITIAL_WINDOW,
            threshold: f64::MAX,
            in_flight: 0,
            acks: VecDeque::new(),
            busy: None,
            recovered: None,
            last_arrival: None,
            rng: Rng::new(link.rate ^ link.delay.as_micros() as u64),
        }
    }

    pub(crate) fn write(&mut self, bytes: &[u8]) {
        self.unsent.extend(bytes);
    }

    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    pub(crate) fn next_ack(&self) -> Option<Instant> {
        self.acks.front().map(|(at, _)| *at)
    }

    /// Takes acknowledgements and sends what the window allows. Returns what arrives when.
    pub(crate) fn run(&mut self, now: Instant) -> Vec<(Instant, Vec<u8>)> {
        while let Some(&(at, bytes)) = self.acks.front()
            && at <= now
        {
            self.acks.pop_front();
            self.acknowledged(bytes);
        }
        let mut arrivals = Vec::new();
        while !self.unsent.is_empty() && (self.in_flight + PACKET) as f64 <= self.window {
            let packet: Vec<u8> = self.unsent.drain(..PACKET.min(self.unsent.len())).collect();
            arrivals.push((self.send(now, packet.len()), packet));
        }
        arrivals
    }

    /// Sends a datagram past what is unsent. Returns when it arrives; `None` if it is lost.
    pub(crate) fn pass(&mut self, now: Instant, bytes: usize) -> Option<Instant> {
        let start = self.busy.map_or(now, |busy| busy.max(now));
        let lost = self.rng.below(1000) < self.link.loss || start - now > self.link.queue;
        let done = start + self.link.serialization(bytes + HEADERS);
        self.busy = Some(done);
        (!lost).then_some(done + self.link.delay)
    }

    fn acknowledged(&mut self, bytes: usize) {
        self.in_flight -= bytes;
        let grown = if self.window < self.threshold {
            bytes as f64
        } else {
            // Faster than Reno, as Cubic is.
            3.0 * (PACKET * bytes) as f64 / self.window
        };
        self.window += grown;
    }

    fn send(&mut self, now: Instant, bytes: usize) -> Instant {
        let rtt = self.link.delay * 2;
        let start = self.busy.map_or(now, |busy| busy.max(now));
        let lost = self.rng.below(1000) < self.link.loss;
        let done = start + self.link.serialization(bytes + HEADERS);
        self.busy = Some(done);
        let early = self.link.serialization(self.link.burst);
        let queued = (start - now).saturating_sub(early);
        let overflows = queued > self.link.queue;
        let sent = done.checked_sub(early).unwrap_or(done).max(now);
        let mut arrival = sent + self.link.delay;
        if lost || overflows {
            // It goes again a round trip later, and the reader waits for it; packets behind it arrive all the
            // same.
            arrival += rtt;
            if self.recovered.is_none_or(|at| at <= now) {
                self.window = (self.window * BACK_OFF).max(2.0 * PACKET as f64);
                self.threshold = self.window;
                self.recovered = Some(now + rtt + queued);
            }
        }
        self.in_flight += bytes;
        let acked = arrival + self.link.delay;
        let place = self.acks.partition_point(|(at, _)| *at <= acked);
        self.acks.insert(place, (acked, bytes));
        let arrival = self.last_arrival.map_or(arrival, |last| arrival.max(last));
        self.last_arrival = Some(arrival);
        arrival
    }
}
