//! The networks of the paper's §VI and of today, and what they allow.

use std::time::Duration;

use whimbrel_lab::{LinkSpec, Rate};

/// The bytes of a packet of 1500 that a program gets, over TCP with time stamps.
const SEGMENT: f64 = 1448.0;
const PACKET: f64 = 1500.0;
/// Packets that TCP sends before it hears of the first one (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// Whichever device asks, the server is one round trip behind the gateway.
pub(super) const SERVER_RTT: Duration = Duration::from_millis(1);

/// What a device is connected by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Network {
    pub(super) name: &'static str,
    pub(super) rtt: Duration,
    pub(super) rate: Rate,
}

/// As the paper has them; a rate where it does not vary that.
pub(super) const WLAN: Network =
    Network { name: "WLAN", rtt: Duration::from_millis(38), rate: Rate::mbit(1) };
pub(super) const UMTS: Network = Network { name: "3G", rtt: Duration::from_millis(740), rate: Rate::mbit(1) };
/// As they are today.
const WIFI: Network = Network { name: "Wi-Fi", rtt: Duration::from_millis(10), rate: Rate::mbit(100) };
const LTE: Network = Network { name: "LTE", rtt: Duration::from_millis(50), rate: Rate::mbit(30) };

impl Network {
    pub(super) fn at(self, rate: Rate) -> Self {
        Self { rate, ..self }
    }

    /// Both directions alike, with a queue of 100 ms.
    pub(super) fn link(&self) -> LinkSpec {
        LinkSpec::default().delay(self.rtt / 2).rate(self.rate)
    }

    /// What a program gets, in bytes a second.
    pub(super) fn goodput(&self) -> f64 {
        self.rate.bits_per_second() as f64 / 8.0 * SEGMENT / PACKET
    }

    /// What TCP brings in some seconds from its first byte on, if it begins with its initial window, doubles
    /// that each round trip, and loses nothing.
    fn brought(&self, seconds: f64) -> f64 {
        let (mut bytes, mut begun) = (0.0, 0.0);
        for window in self.windows() {
            bytes += (self.goodput() * (seconds - begun)).clamp(0.0, window);
            begun += self.rtt.as_secs_f64();
        }
        bytes + (self.goodput() * (seconds - begun)).max(0.0)
    }

    /// In how many seconds, from the first byte on, it brings so much.
    fn takes(&self, mut bytes: f64) -> f64 {
        let mut begun = 0.0;
        for window in self.windows() {
            if bytes <= window {
                break;
            }
            bytes -= window;
            begun += self.rtt.as_secs_f64();
        }
        begun + bytes / self.goodput()
    }

    /// The windows of the first rounds, in which the pipe is not full, in bytes.
    fn windows(&self) -> impl Iterator<Item = f64> {
        let full = self.goodput() * self.rtt.as_secs_f64();
        let doubled = |window: &f64| Some(window * 2.0);
        std::iter::successors(Some(INITIAL_WINDOW * SEGMENT), doubled)
            .take_while(move |window| *window < full)
    }
}

/// A move from one network to another.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Scenario {
    pub(super) from: Network,
    pub(super) to: Network,
    /// The seconds that a file of 0.8 MB takes that moves at the fifth second (Table I).
    pub(super) paper: Option<f64>,
}

pub(super) const PAPER: [Scenario; 3] = [
    Scenario { from: WLAN, to: WLAN, paper: Some(7.69) },
    Scenario { from: WLAN, to: UMTS, paper: Some(25.87) },
    Scenario { from: UMTS, to: WLAN, paper: Some(12.42) },
];
pub(super) const TODAY: [Scenario; 3] = [
    Scenario { from: WIFI, to: WIFI, paper: None },
    Scenario { from: WIFI, to: LTE, paper: None },
    Scenario { from: LTE, to: WIFI, paper: None },
];

impl Scenario {
    pub(super) fn name(&self) -> String {
        format!("{} to {}", self.from.name, self.to.name)
    }

    /// The same where both networks have this rate.
    pub(super) fn at(self, rate: Rate) -> Self {
        Self { from: self.from.at(rate), to: self.to.at(rate), paper: None }
    }

    /// The round trips that a move may take: one of the device before, three of the new one.
    pub(super) fn round_trips(&self) -> Duration {
        self.from.rtt + self.to.rtt * 3
    }

    /// What the links allow: how long so many bytes take that are asked for over the first network, and go on
    /// over the second one when that asks, so long after the beginning.
    ///
    /// A connection and a request take a round trip each. The first network brings bytes until the gateway
    /// knows of the move, and what was under way then; the gateway sends the rest at that very moment. TCP
    /// begins with ten packets on either network, and loses nothing.
    pub(super) fn least(&self, bytes: usize, asked: Duration) -> Duration {
        let [from, to, asked, server] =
            [self.from.rtt, self.to.rtt, asked, SERVER_RTT].map(|time| time.as_secs_f64());
        let first = 2.0 * from + 2.0 * server;
        let before = self.from.brought((asked + to / 2.0 + from / 2.0 - first).max(0.0));
        let left = bytes as f64 - before;
        let seconds = if left <= 0.0 {
            first + self.from.takes(bytes as f64)
        } else {
            asked + to + self.to.takes(left)
        };
        Duration::from_secs_f64(seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_near(found: f64, expected: f64) {
        assert!((found / expected - 1.0).abs() < 0.001, "{found} is not {expected}");
    }

    #[test]
    fn a_full_pipe_brings_its_rate_and_slow_start_less() {
        let rate = 125_000.0 * 1448.0 / 1500.0;
        is_near(WLAN.goodput(), rate);
        // 38 ms of 1 Mbit/s are less than four packets.
        is_near(WLAN.brought(2.0), 2.0 * rate);
        is_near(WLAN.takes(rate), 1.0);
        // 740 ms are 61.7 packets: three rounds of 10, 20 and 40 come before the pipe is full.
        is_near(UMTS.brought(0.74), 14_480.0);
        is_near(UMTS.brought(3.0 * 0.74), 7.0 * 14_480.0);
        is_near(UMTS.brought(3.0), 7.0 * 14_480.0 + (3.0 - 2.22) * rate);
        is_near(UMTS.takes(7.0 * 14_480.0 + rate), 3.22);
    }

    #[test]
    fn time_and_bytes_are_two_sides_of_the_same() {
        for network in [WLAN, UMTS, WIFI, LTE] {
            for seconds in [0.05, 0.3, 0.8, 1.5, 4.0] {
                let bytes = network.brought(seconds);
                let took = network.takes(bytes);
                // Within a round, TCP sends at its beginning and is silent then.
                assert!(
                    took <= seconds + 1e-6,
                    "{}: {seconds} s bring {bytes}, which take {took}",
                    network.name
                );
                is_near(network.brought(took.max(1e-3)), bytes);
            }
        }
    }

    #[test]
    fn the_paper_is_slower_than_its_links_allow() {
        for scenario in PAPER {
            let least = scenario.least(800_000, Duration::from_secs(5)).as_secs_f64();
            assert!(least > 6.5 && Some(least) < scenario.paper, "{}: {least}", scenario.name());
        }
        // All came before it was to move.
        let early = PAPER[0].least(100_000, Duration::from_secs(5)).as_secs_f64();
        is_near(early, 0.078 + 100_000.0 / WLAN.goodput());
    }

    #[test]
    fn a_move_may_take_a_round_trip_of_the_old_network_and_three_of_the_new_one() {
        assert_eq!(PAPER[1].round_trips(), Duration::from_millis(38 + 3 * 740));
        assert_eq!(TODAY[2].round_trips(), Duration::from_millis(50 + 3 * 10));
    }
}
