//! How long a move interrupts a connection.
//!
//! Hosts around an emulated router: a client, a server that listens under a name, the name service,
//! and a bystander that watches the name. Every two of them are one RTT apart, and all of them,
//! resolvers included, use the lab's links only. The server says something every 2 ms.
//!
//! A side moves by losing its only address and getting another one: at once in the first round, and
//! a little later in each further one, up to a second, so that the move meets every phase of what is
//! tried meanwhile. The time counts from the moment from which the new address could be used, which
//! is taken just before the kernel is asked (by a netlink request of this process) for the route that
//! comes with it; when both move, from the later of the two. It ends when the client's application
//! has read the first message that the server's application wrote after the old address was gone:
//! such a message cannot have come by the old path.
//!
//! When both move, the budget holds two times that are measured in the same run: `publish`, from that
//! moment until the service has stored the new record; and `push`, from then until the bystander,
//! which stays where it is, has it.

mod world;

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_transport::{CarrierKind, Carriers};

pub(super) use self::world::World;
use super::{Plan, lanes, schedule};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

/// Round trips between the hosts, in milliseconds.
const RTTS: [u64; 4] = [20, 50, 100, 200];
/// How long a host has no address in the last round: longer than between the first attempts to find a way
/// without one.
pub(crate) const AWAY_MS: u64 = 1000;
const MESSAGE_EVERY: Duration = Duration::from_millis(2);
/// Before each move, so that nothing of the one before is still under way.
const CALM: Duration = Duration::from_millis(500);
const CALM_RTTS: u32 = 6;
/// Worlds side by side: they mostly wait.
const LANES: usize = 3;

const SPEC: Spec = Spec {
    name: "recovery",
    title: "from a usable new address to the first new byte; excess: what is above the budget in RTT",
    metrics: &[
        Metric { key: "recovery", unit: "ms" },
        Metric { key: "rtts", unit: "RTT" },
        Metric { key: "publish", unit: "ms" },
        Metric { key: "push", unit: "ms" },
        Metric { key: "budget", unit: "ms" },
        Metric { key: "excess", unit: "ms" },
    ],
    targets: &[
        excess_of("whimbrel client 20 ms"),
        excess_of("whimbrel client 50 ms"),
        excess_of("whimbrel client 100 ms"),
        excess_of("whimbrel client 200 ms"),
        excess_of("whimbrel server 20 ms"),
        excess_of("whimbrel server 50 ms"),
        excess_of("whimbrel server 100 ms"),
        excess_of("whimbrel server 200 ms"),
        excess_of("whimbrel both 20 ms"),
        excess_of("whimbrel both 50 ms"),
        excess_of("whimbrel both 100 ms"),
        excess_of("whimbrel both 200 ms"),
        published("whimbrel both 20 ms", 20),
        published("whimbrel both 50 ms", 50),
        published("whimbrel both 100 ms", 100),
        published("whimbrel both 200 ms", 200),
    ],
    plot: Plot::Against { value: "recovery", budget: "budget", allowance: 10.0, unit: "ms" },
};

/// JOIN in 0-RTT data is answered after one round trip.
const QUIC: Spec = Spec {
    name: "quic-recovery",
    title: "QUIC, client moves: from a usable new address to the first new byte; excess: what is above one RTT",
    metrics: SPEC.metrics,
    targets: &[
        excess_of("whimbrel client 20 ms"),
        excess_of("whimbrel client 50 ms"),
        excess_of("whimbrel client 100 ms"),
        excess_of("whimbrel client 200 ms"),
    ],
    plot: SPEC.plot,
};

const fn excess_of(of: &'static str) -> Target {
    Target {
        case: "",
        of,
        metric: "excess",
        against: None,
        judged: Judged::P95,
        bound: Bound::AtMost(10.0),
        aim: 3.0,
    }
}

/// The new record is with the service half a round trip after it could leave, in QUIC's first packets.
const fn published(of: &'static str, rtt: u32) -> Target {
    let half = rtt as f64 / 2.0;
    Target {
        case: "any carrier",
        of,
        metric: "publish",
        against: None,
        judged: Judged::P95,
        bound: Bound::AtMost(half + 5.0),
        aim: half + 3.0,
    }
}

/// Who moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mover {
    Client,
    Server,
    Both,
}

impl Mover {
    fn label(self, rtt: u64) -> String {
        let mover = match self {
            Self::Client => "client",
            Self::Server => "server",
            Self::Both => "both",
        };
        format!("whimbrel {mover} {rtt} ms")
    }

    /// What a move takes at least: a round trip for JOIN in QUIC's 0-RTT data, one more over TCP; half of one
    /// for a server's notice, where that arrives; else the record's way through the name service.
    fn budget(self, condition: Condition, rtt: Duration, record: Option<&RecordTimes>) -> Duration {
        let join = if condition.has_quic() { rtt } else { rtt * 2 };
        match (self, record) {
            (Self::Client, _) | (_, None) => join,
            (Self::Server, Some(_)) if condition != Condition::UdpBlocked => rtt / 2 + join,
            (Self::Server | Self::Both, Some(times)) => times.publish + times.push + join,
        }
    }
}

/// What the endpoints may dial with, and what gets through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    /// Any carrier; everything gets through.
    Open,
    /// They dial with TCP only; notices get through.
    TcpOnly,
    /// Any carrier, but every UDP packet is dropped, and with it every notice.
    UdpBlocked,
    /// They dial with QUIC only.
    QuicOnly,
}

impl Condition {
    const ALL: [Self; 3] = [Self::Open, Self::TcpOnly, Self::UdpBlocked];

    fn name(self) -> &'static str {
        match self {
            Self::Open => "any carrier",
            Self::TcpOnly => "TCP only",
            Self::UdpBlocked => "UDP blocked",
            Self::QuicOnly => "",
        }
    }

    fn carriers(self) -> Carriers {
        match self {
            Self::Open | Self::UdpBlocked => Carriers::Auto,
            Self::TcpOnly => Carriers::Only(CarrierKind::Tcp),
            Self::QuicOnly => Carriers::Only(CarrierKind::Quic),
        }
    }

    /// The carrier as results name it.
    fn carrier(self) -> String {
        let carriers = self.carriers();
        match self.name() {
            "" => carriers.to_string(),
            name => format!("{name}: {carriers}"),
        }
    }

    fn has_quic(self) -> bool {
        matches!(self, Self::Open | Self::QuicOnly)
    }
}

/// How the new record travelled.
#[derive(Debug, Clone, Copy)]
struct RecordTimes {
    publish: Duration,
    push: Duration,
}

/// One of the round-trip times, in milliseconds.
pub(crate) fn parse_rtt(text: &str) -> Result<u64, String> {
    let known = text.parse().ok().filter(|rtt| RTTS.contains(rtt));
    known.ok_or_else(|| format!("targets are set for {RTTS:?} only"))
}

/// One pair of hosts and all that happens to it.
struct Job {
    rtt: u64,
    condition: Condition,
    movers: &'static [Mover],
    rounds: u32,
    longest_away: Duration,
}

impl Job {
    fn name(&self) -> String {
        format!("{}, RTT {} ms", self.condition.name(), self.rtt)
    }

    /// Returns the trials, and the round trip in milliseconds as the kernel sees it.
    fn run(&self) -> Result<(Vec<Trial>, f64)> {
        let mut world = World::new(Duration::from_millis(self.rtt), self.condition)?;
        let measured = millis(world.measure_rtt()?);
        let mut trials = Vec::new();
        for (round, mover) in schedule(self.movers, self.rounds) {
            let away = self.longest_away * round / (self.rounds - 1).max(1);
            trials.push(world.trial(mover, away, round).with_context(|| mover.label(self.rtt))?);
        }
        Ok((trials, measured))
    }
}

/// Runs the bench, at these round-trip times or the usual ones. `away` is how long a host that moves is
/// without any address in the last round.
pub(crate) fn run(plan: &Plan, away: Duration, rtts: &[u64], output: &mut Output) -> Result<()> {
    let movers = &[Mover::Client, Mover::Server, Mover::Both];
    measure(&SPEC, plan, &Condition::ALL, movers, away, rtts, output)
}

/// The same over QUIC alone, for a client that moves.
pub(crate) fn run_quic(plan: &Plan, output: &mut Output) -> Result<()> {
    let away = Duration::from_millis(AWAY_MS);
    measure(&QUIC, plan, &[Condition::QuicOnly], &[Mover::Client], away, &[], output)
}

fn measure(
    spec: &Spec,
    plan: &Plan,
    conditions: &[Condition],
    movers: &'static [Mover],
    longest_away: Duration,
    rtts: &[u64],
    output: &mut Output,
) -> Result<()> {
    let usual = if plan.quick { &RTTS[..1] } else { &RTTS[..] };
    let rtts = if rtts.is_empty() { usual } else { rtts };
    let rounds = plan.rounds(20);
    let job =
        |&rtt| conditions.iter().map(move |&condition| Job { rtt, condition, movers, rounds, longest_away });
    let jobs: Vec<Job> = rtts.iter().flat_map(job).collect();
    let done = lanes::run(&jobs, LANES, spec, output, Job::name, Job::run)?;
    let settings = json!({
        "rtt_ms": rtts,
        "rtt_measured_ms": done.more,
        "carrier": conditions.iter().map(|condition| condition.carrier()).collect::<Vec<_>>(),
        "name_service": "a host of its own, one RTT from every other",
        "longest_away_ms": millis(longest_away),
        "message_every_ms": millis(MESSAGE_EVERY),
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(spec, settings, &done.trials)
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn a_round_trip_is_budgeted_for_joining_and_another_for_tcp() {
        let rtt = Duration::from_millis(100);
        let ms = Duration::from_millis;
        let record = RecordTimes { publish: ms(151), push: ms(52) };
        let budget = |mover: Mover, condition| mover.budget(condition, rtt, Some(&record));
        let all =
            |condition| [Mover::Client, Mover::Server, Mover::Both].map(|mover| budget(mover, condition));
        assert_eq!(all(Condition::Open), [ms(100), ms(150), ms(303)]);
        assert_eq!(all(Condition::TcpOnly), [ms(200), ms(250), ms(403)]);
        assert_eq!(all(Condition::UdpBlocked), [ms(200), ms(403), ms(403)]);
    }

    #[test]
    fn every_kind_of_move_has_a_target_at_every_round_trip_time() {
        for mover in [Mover::Client, Mover::Server, Mover::Both] {
            for rtt in RTTS {
                let label = mover.label(rtt);
                assert!(SPEC.targets.iter().any(|target| target.of == label), "{label}");
            }
        }
    }

    #[test]
    fn a_record_is_to_be_stored_after_half_a_round_trip_and_5_ms() {
        let limit = |rtt: u64| {
            let is_meant = |target: &&Target| {
                target.of == Mover::Both.label(rtt)
                    && target.metric == "publish"
                    && target.case == Condition::Open.name()
            };
            SPEC.targets.iter().find(is_meant).map(|target| format!("{:?}", target.bound))
        };
        for (rtt, bound) in [(20, "15.0"), (50, "30.0"), (100, "55.0"), (200, "105.0")] {
            assert_eq!(limit(rtt), Some(format!("AtMost({bound})")), "{rtt}");
        }
    }

    #[test]
    fn results_name_the_carrier_of_each_condition() {
        let named = [Condition::QuicOnly, Condition::TcpOnly, Condition::UdpBlocked].map(Condition::carrier);
        assert_eq!(named, ["quic", "TCP only: tcp", "UDP blocked: auto"]);
    }

    #[test]
    fn every_kind_of_move_is_measured() {
        if !require!() {
            return;
        }
        let rtt = Duration::from_millis(20);
        let mut world = World::new(rtt, Condition::TcpOnly).unwrap();
        for mover in [Mover::Client, Mover::Server, Mover::Both] {
            let trial = world.trial(mover, Duration::ZERO, 0).unwrap();
            // Less than the way there and back would mean that an old message was taken for new.
            assert!(trial.values["rtts"] >= 1.9, "{trial:?}");
            assert_eq!(trial.values.contains_key("push"), mover != Mover::Client, "{trial:?}");
        }
    }
}
