//! What a link does to packets: its settings and counters.

use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use crate::{Rate, Trace};

/// How much a link carries.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Capacity {
    /// As much as the machine can.
    #[default]
    Unlimited,
    /// A steady rate.
    Rate(Rate),
    /// What a recorded link carried. The trace starts when it is set.
    Trace(Arc<Trace>),
}

impl Capacity {
    /// The rate in the long run; `None` means unlimited.
    pub fn mean_rate(&self) -> Option<Rate> {
        match self {
            Self::Unlimited => None,
            Self::Rate(rate) => Some(*rate),
            Self::Trace(trace) => Some(trace.mean_rate()),
        }
    }
}

/// How much may wait before a link of limited capacity; what comes on top is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Queue {
    /// That many packets.
    Packets(usize),
    /// That many bytes.
    Bytes(usize),
    /// What the link carries in that time at its mean rate, but at least ten full packets.
    Time(Duration),
}

impl Default for Queue {
    fn default() -> Self {
        Self::Time(Duration::from_millis(100))
    }
}

/// A radio that sleeps when it has had nothing to send, as those of cellular networks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wake {
    /// So long after the last packet it falls asleep. Before the first one it is asleep.
    pub after: Duration,
    /// So long the packet that wakes it has to wait, and all behind it.
    pub takes: Duration,
}

/// What one direction of a link does to packets.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Shape {
    /// Time under way, on top of waiting and sending. A change holds for packets already under way.
    pub delay: Duration,
    /// How much the link carries.
    pub capacity: Capacity,
    /// Bytes that pass without taking their time after the link was idle, as behind a token bucket. Only a
    /// steady rate has it.
    pub burst: usize,
    /// How much may wait for that.
    pub queue: Queue,
    /// Whether and how it sleeps.
    pub wake: Option<Wake>,
    /// Chance of each packet to be lost, from 0 to 1.
    pub loss: f64,
    /// Whether everything is swallowed, packets under way included.
    pub blackhole: bool,
    /// Larger packets are swallowed without the sender being told, as behind a router whose ICMP is dropped.
    /// In bytes, with the IP header. `None`: all pass.
    pub largest: Option<usize>,
}

/// Directions of a link. Forward is from the first host given to the second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the first host to the second.
    Forward,
    /// From the second host to the first.
    Backward,
    /// Both ways.
    Both,
}

impl Direction {
    pub(crate) fn includes_forward(self) -> bool {
        self != Self::Backward
    }

    pub(crate) fn includes_backward(self) -> bool {
        self != Self::Forward
    }
}

/// How to build a link. The default one is unlimited, without delay or loss, with an MTU of 1500.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkSpec {
    pub(crate) forward: Shape,
    pub(crate) backward: Shape,
    pub(crate) mtu: u16,
    pub(crate) names: [Option<String>; 2],
    pub(crate) seed: u64,
    pub(crate) grain: Duration,
}

impl Default for LinkSpec {
    fn default() -> Self {
        let [forward, backward] = [Shape::default(), Shape::default()];
        Self { forward, backward, mtu: 1500, names: [None, None], seed: 1, grain: Duration::ZERO }
    }
}

impl LinkSpec {
    /// One-way delay of each direction; a round trip takes twice as long.
    pub fn delay(self, delay: Duration) -> Self {
        self.both(|shape| shape.delay = delay)
    }

    /// Rate of each direction.
    pub fn rate(self, rate: Rate) -> Self {
        self.both(|shape| shape.capacity = Capacity::Rate(rate))
    }

    /// Bytes that each direction lets through at once after it was idle; see [`Shape::burst`].
    pub fn burst(self, bytes: usize) -> Self {
        self.both(|shape| shape.burst = bytes)
    }

    /// Recorded capacity, used in each direction.
    pub fn trace(self, trace: Trace) -> Self {
        let trace = Arc::new(trace);
        self.both(|shape| shape.capacity = Capacity::Trace(trace.clone()))
    }

    /// Queue before each direction.
    pub fn queue(self, queue: Queue) -> Self {
        self.both(|shape| shape.queue = queue)
    }

    /// Chance of each packet to be lost, in each direction.
    pub fn loss(self, loss: f64) -> Self {
        self.both(|shape| shape.loss = loss)
    }

    /// Changes the direction from the first host to the second.
    pub fn forward(mut self, change: impl FnOnce(&mut Shape)) -> Self {
        change(&mut self.forward);
        self
    }

    /// Changes the direction from the second host to the first.
    pub fn backward(mut self, change: impl FnOnce(&mut Shape)) -> Self {
        change(&mut self.backward);
        self
    }

    /// Largest IP packet.
    pub fn mtu(mut self, mtu: u16) -> Self {
        self.mtu = mtu;
        self
    }

    /// Names of the interfaces at the first and second host, instead of `eth0`, `eth1`, …
    pub fn interface_names(mut self, first: &str, second: &str) -> Self {
        self.names = [Some(first.into()), Some(second.into())];
        self
    }

    /// Where the random losses start from. The same seed and packets give the same losses.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Looks at packets only this often, so that thousands a second cost few wake-ups. Packets may come later
    /// than the delay says by up to twice as much. By default each one is carried at its own moment.
    pub fn grain(mut self, grain: Duration) -> Self {
        self.grain = grain;
        self
    }

    fn both(mut self, change: impl Fn(&mut Shape)) -> Self {
        change(&mut self.forward);
        change(&mut self.backward);
        self
    }
}

/// What became of a direction's packets. Packets neither delivered nor dropped are still under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Packets delivered.
    pub packets: u64,
    /// Bytes delivered, without Ethernet headers.
    pub bytes: u64,
    /// Packets lost by chance.
    pub lost: u64,
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Packets swallowed by a blackhole, or by an end whose cable was pulled.
    pub swallowed: u64,
}

impl Stats {
    /// All packets that were not delivered and never will be.
    pub fn dropped(&self) -> u64 {
        self.lost + self.overflowed + self.swallowed
    }
}

impl Add for Stats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            packets: self.packets + other.packets,
            bytes: self.bytes + other.bytes,
            lost: self.lost + other.lost,
            overflowed: self.overflowed + other.overflowed,
            swallowed: self.swallowed + other.swallowed,
        }
    }
}
