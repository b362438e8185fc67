//! What is known of how fast one path is, and whether its carrier takes more.

use std::time::{Duration, Instant};

use super::outgoing::{Delivery, Sent};
use crate::rate::Rate;
use crate::rtt::{Lowest, Rtt};
use crate::scheduler::{CHUNK, SMALL_CHUNK, bytes_in, expected_rate};

/// A chunk should not take longer on the only path.
const LONE_CHUNK_TIME: Duration = Duration::from_millis(2);

/// Measured round trips and rates, and whether the carrier takes more.
#[derive(Debug)]
pub(crate) struct Figures {
    rtt: Rtt,
    base_rtt: Lowest,
    rate: Rate,
    /// The carrier takes more, as far as the driver said.
    room: bool,
    /// When, counted in chunks over all paths, the path last carried stream data.
    last_used: u64,
}

impl Figures {
    /// `hint` is what opening the carrier took.
    pub(crate) fn new(now: Instant, hint: Option<Duration>) -> Self {
        Self {
            rtt: Rtt::new(hint),
            base_rtt: Lowest::new(hint, now),
            rate: Rate::new(now),
            room: true,
            last_used: 0,
        }
    }

    pub(crate) fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    pub(crate) fn srtt(&self) -> Duration {
        self.rtt.smoothed()
    }

    pub(crate) fn base_rtt(&self) -> Duration {
        self.base_rtt.get()
    }

    /// Bytes a second that were seen to be delivered.
    pub(crate) fn rate(&self) -> Option<u64> {
        self.rate.get()
    }

    pub(crate) fn is_growing(&self) -> bool {
        self.rate.is_growing()
    }

    pub(crate) fn has_room(&self) -> bool {
        self.room
    }

    pub(crate) fn set_room(&mut self, room: bool) {
        self.room = room;
    }

    pub(crate) fn last_used(&self) -> u64 {
        self.last_used
    }

    pub(crate) fn note_used(&mut self, chunk: u64) {
        self.last_used = chunk;
    }

    /// Learns from the acknowledgement of `newest`, which the peer held back for `delay`.
    pub(crate) fn measure(&mut self, now: Instant, newest: &Sent, delay: Duration, delivery: &Delivery) {
        let elapsed = now.saturating_duration_since(newest.at);
        self.rtt.sample(elapsed, delay);
        self.base_rtt.sample(now, elapsed, delay);
        self.rate.sample(now, delivery.bytes, delivery.interval, delivery.full, self.base_rtt.get());
    }

    fn expected_rate(&self) -> u64 {
        expected_rate(self.rate.get(), self.rate.is_growing(), self.base_rtt.get())
    }

    /// How large a chunk may be when there is no other path to choose. The reader gets nothing of it before
    /// all of it is there.
    pub(crate) fn chunk(&self) -> u64 {
        bytes_in(self.expected_rate(), LONE_CHUNK_TIME).clamp(SMALL_CHUNK, CHUNK)
    }

    /// `in_flight` bytes are as much as the path is known to carry: what it delivers now is all that it can.
    pub(crate) fn is_full(&self, in_flight: u64) -> bool {
        // A lone segment never is.
        in_flight > 0 && in_flight > bytes_in(self.expected_rate(), self.base_rtt.get())
    }
}
