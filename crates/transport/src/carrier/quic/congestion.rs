//! What QUIC's congestion controller sees, kept for statistics and to bound what waits to be sent.

use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use quinn::congestion::{BbrConfig, Controller, ControllerFactory, ControllerMetrics};
use quinn_proto::RttEstimator;

use super::bound::Bound;
use super::queue::ShortQueue;
use super::rate::rate;
use super::startup::Startup;
use crate::carrier::lock;

/// Sent and not acknowledged bytes may wait behind a lost packet for so many windows.
const WINDOWS_WHEN_LOSSY: u64 = 3;
/// So long after a loss (or two round trips) acknowledged bytes may still be held up by it.
const LOSSY_FOR: Duration = Duration::from_millis(500);
/// Bytes that may wait to be sent for the first time: they are stuck if the path dies, and make round trips
/// longer than they are. No more than the path takes within [`UNSENT_TIME`], within these limits.
const UNSENT_LIMIT: u64 = 128 * 1024;
const MIN_UNSENT_LIMIT: u64 = 16 * 1024;
const UNSENT_TIME: Duration = Duration::from_millis(20);
/// What a path of which nothing is known may have in flight (RFC 9002 §7.2, for datagrams of 1200 bytes).
/// quinn's own for this controller is twenty times that: half a second on a link of 4 Mbit/s.
const INITIAL_WINDOW: u64 = 12_000;

/// One connection's view, shared by whatever controllers it has (QUIC starts a new one on a new network).
#[derive(Debug, Default)]
pub(crate) struct Observed {
    figures: Mutex<Figures>,
    /// Queues on the way are to be short.
    short: AtomicBool,
}

#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Figures {
    pub(super) cwnd: u64,
    pub(super) rttvar: Duration,
    pub(super) last_ack: Option<Instant>,
    /// Bytes a second.
    pub(super) delivery_rate: u64,
    srtt: Duration,
    last_loss: Option<Instant>,
    /// Of the present delivery-rate sample.
    since: Option<Instant>,
    acked: u64,
    /// Newest of the packets that are being acknowledged together.
    newest_sent: Option<Instant>,
}

impl Observed {
    pub(super) fn figures(&self) -> Figures {
        *lock(&self.figures)
    }

    /// Queues on the way are to be short from now on, or need not be.
    pub(super) fn set_short(&self, short: bool) {
        self.short.store(short, Ordering::Relaxed);
    }

    /// How many bytes may wait to be sent for the first time.
    pub(super) fn unsent_limit(&self) -> u64 {
        self.figures().unsent_limit()
    }

    /// How many bytes QUIC may hold: in flight, held up behind a loss, or waiting.
    pub(super) fn send_window(&self, now: Instant) -> u64 {
        let figures = self.figures();
        let lossy_for = LOSSY_FOR.max(figures.srtt * 2);
        let lossy = figures.last_loss.is_some_and(|at| now.saturating_duration_since(at) < lossy_for);
        figures.cwnd * if lossy { WINDOWS_WHEN_LOSSY } else { 1 } + figures.unsent_limit()
    }
}

impl Figures {
    /// A path may take as much as it was seen to deliver, or as its window promises. Before a round trip was
    /// measured, the window promises nothing.
    fn unsent_limit(&self) -> u64 {
        let within = |bytes: u64, time: Duration| {
            let bytes =
                (u128::from(bytes) * UNSENT_TIME.as_nanos()).checked_div(time.as_nanos()).unwrap_or(0);
            u64::try_from(bytes).unwrap_or(u64::MAX)
        };
        let (seen, promised) =
            (within(self.delivery_rate, Duration::from_secs(1)), within(self.cwnd, self.srtt));
        seen.max(promised).clamp(MIN_UNSENT_LIMIT, UNSENT_LIMIT)
    }

    fn acked(&mut self, now: Instant, rtt: Duration) {
        self.last_ack = Some(now);
        self.srtt = rtt;
        if let Some(sent) = self.newest_sent.take() {
            let sample = now.saturating_duration_since(sent);
            // RFC 6298 §2.3.
            self.rttvar = (self.rttvar * 3 + sample.abs_diff(rtt)) / 4;
        }
        let since = *self.since.get_or_insert(now);
        let time = now.saturating_duration_since(since);
        if time >= rtt && !time.is_zero() {
            self.delivery_rate = rate(self.acked, time);
            (self.since, self.acked) = (Some(now), 0);
        }
    }
}

/// Makes controllers that tell [`Observed`] what they see.
pub(super) struct Factory(pub(super) Arc<Observed>);

impl ControllerFactory for Factory {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        let mut config = BbrConfig::default();
        config.initial_window(INITIAL_WINDOW);
        let inner = Arc::new(config).build(now, current_mtu);
        lock(&self.0.figures).cwnd = inner.window();
        Box::new(Observing {
            inner,
            observed: self.0.clone(),
            rtt: Duration::ZERO,
            startup: Startup::new(INITIAL_WINDOW),
            bound: Bound::new(INITIAL_WINDOW),
            queue: ShortQueue::new(),
        })
    }
}

struct Observing {
    inner: Box<dyn Controller>,
    observed: Arc<Observed>,
    rtt: Duration,
    startup: Startup,
    bound: Bound,
    queue: ShortQueue,
}

impl Observing {
    /// The window if queues need not be short.
    fn filling(&self) -> u64 {
        self.startup.window().unwrap_or_else(|| self.bound.window(self.inner.window()))
    }
}

impl Controller for Observing {
    fn on_sent(&mut self, now: Instant, bytes: u64, last_packet_number: u64) {
        self.inner.on_sent(now, bytes, last_packet_number);
    }

    fn on_ack(&mut self, now: Instant, sent: Instant, bytes: u64, app_limited: bool, rtt: &RttEstimator) {
        self.inner.on_ack(now, sent, bytes, app_limited, rtt);
        self.rtt = rtt.get();
        self.startup.on_ack(now, sent, bytes, app_limited, rtt.min());
        self.bound.on_ack(now, sent, bytes, app_limited);
        self.queue.on_ack(now, sent, bytes);
        let mut figures = lock(&self.observed.figures);
        figures.acked += bytes;
        figures.newest_sent = figures.newest_sent.max(Some(sent));
    }

    fn on_end_acks(&mut self, now: Instant, in_flight: u64, app_limited: bool, largest: Option<u64>) {
        self.inner.on_end_acks(now, in_flight, app_limited, largest);
        self.queue.on_end_acks(now, self.filling(), app_limited);
        let mut figures = lock(&self.observed.figures);
        figures.acked(now, self.rtt);
        figures.cwnd = self.window();
    }

    fn on_congestion_event(&mut self, now: Instant, sent: Instant, persistent: bool, lost_bytes: u64) {
        self.inner.on_congestion_event(now, sent, persistent, lost_bytes);
        self.startup.on_loss();
        let mut figures = lock(&self.observed.figures);
        figures.last_loss = Some(now);
        figures.cwnd = self.window();
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.inner.on_mtu_update(new_mtu);
    }

    fn window(&self) -> u64 {
        let filling = self.filling();
        if self.observed.short.load(Ordering::Relaxed) { self.queue.window(filling) } else { filling }
    }

    fn metrics(&self) -> ControllerMetrics {
        self.inner.metrics()
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(Self {
            inner: self.inner.clone_box(),
            observed: self.observed.clone(),
            rtt: self.rtt,
            startup: self.startup.clone(),
            bound: self.bound.clone(),
            queue: self.queue.clone(),
        })
    }

    fn initial_window(&self) -> u64 {
        self.inner.initial_window()
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_path_holds_little_and_a_quick_one_enough() {
        let unsent = |delivery_rate, cwnd, srtt| {
            let srtt = Duration::from_millis(srtt);
            Figures { delivery_rate, cwnd, srtt, ..Figures::default() }.unsent_limit()
        };
        assert_eq!(unsent(0, INITIAL_WINDOW, 0), MIN_UNSENT_LIMIT, "nothing is known yet");
        assert_eq!(unsent(250_000, 30_000, 100), MIN_UNSENT_LIMIT, "2 Mbit/s");
        assert_eq!(unsent(2_500_000, 100_000, 50), 50_000, "20 Mbit/s");
        assert_eq!(unsent(1_000, 1_000_000, 100), UNSENT_LIMIT, "little was asked of it so far");
        assert_eq!(unsent(125_000_000, 1_000_000, 10), UNSENT_LIMIT);
    }

    #[test]
    fn a_path_of_which_nothing_is_known_is_not_given_more_than_any_can_take() {
        let observed = Arc::new(Observed::default());
        let now = Instant::now();
        let controller = Arc::new(Factory(observed.clone())).build(now, 1_200);
        // RFC 9002 §7.2.
        assert!(controller.window() <= 14_720);
        assert!(controller.initial_window() <= 14_720);
        assert!(observed.send_window(now) <= 32 * 1024);
    }
}
