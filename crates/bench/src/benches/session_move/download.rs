//! A download that moves (Table I), over the paper's networks and over today's.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::scenario::{PAPER, SERVER_RTT, Scenario, TODAY};
use super::server::Work;
use super::world::{Kind, World};
use super::{ALLOWANCE, LANES, MOVE_AT, plain};
use crate::benches::{Plan, lanes};
use crate::lab::CONGESTION_CONTROL;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

/// Of a file that moves at the fifth second, in bytes (§VI-A).
const FILE: f64 = 800_000.0;
/// Today's files take so much longer than the first network alone would take until the move.
const LONGER: f64 = 1.4;

pub(super) const SPEC: Spec = Spec {
    name: "session-move",
    title: "a download moves to another device through the gateway; delay: from its asking to its first byte there; \
            over: above what the links allow; excess: of the delay over 1 RTT of the old and 3 of the new device",
    metrics: &[
        Metric { key: "delay", unit: "ms" },
        Metric { key: "excess", unit: "ms" },
        Metric { key: "total", unit: "s" },
        Metric { key: "least", unit: "s" },
        Metric { key: "over", unit: "%" },
        Metric { key: "paper", unit: "s" },
        Metric { key: "of_paper", unit: "times" },
        Metric { key: "threshold", unit: "of before" },
        // Where it is 2 the one before says nothing: there was none to become smaller.
        Metric { key: "unset", unit: "of two looks" },
        Metric { key: "timeouts", unit: "in all" },
        Metric { key: "retransmitted", unit: "packets" },
    ],
    targets: &[
        at_most("excess", ALLOWANCE, 0.0),
        at_most("of_paper", 1.0, 0.8),
        at_most("over", 5.0, 2.0),
        Target {
            case: "",
            of: "whimbrel",
            metric: "threshold",
            against: None,
            judged: Judged::Least,
            bound: Bound::AtLeast(1.0),
            aim: 1.0,
        },
        at_most("timeouts", 0.0, 0.0),
    ],
    plot: Plot::Cases { metric: "total", unit: "s" },
};

const fn at_most(metric: &'static str, limit: f64, aim: f64) -> Target {
    Target {
        case: "",
        of: "whimbrel",
        metric,
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(limit),
        aim,
    }
}

/// By what a download moves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Whimbrel,
    /// With a gateway that keeps little.
    Little,
    /// TCP begins anew.
    Plain,
}

pub(super) struct Job {
    scenario: Scenario,
    system: System,
    round: u32,
    size: usize,
    after: Duration,
}

impl Job {
    /// Of a file that takes longer than until the move.
    fn new(scenario: Scenario, system: System, round: u32, after: Duration) -> Self {
        let share = after.as_secs_f64() / MOVE_AT.as_secs_f64();
        let size = match scenario.paper {
            Some(_) => FILE * share,
            None => scenario.from.goodput() * after.as_secs_f64() * LONGER,
        };
        Self { scenario, system, round, size: size as usize, after }
    }

    fn case(&self) -> String {
        let little = if self.system == System::Little { ", window closed" } else { "" };
        format!("{}{little}", self.scenario.name())
    }

    fn name(&self) -> String {
        format!("{}, {:?}", self.case(), self.system)
    }
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let after = plan.length(MOVE_AT.as_secs_f64());
    let rounds = plan.rounds(3);
    let jobs = |scenarios: &[Scenario], systems: &[System]| -> Vec<Job> {
        let mut jobs = Vec::new();
        for round in 0..rounds {
            for scenario in scenarios {
                let job = |system: &System| Job::new(*scenario, *system, round, after);
                jobs.extend(systems.iter().map(job));
            }
        }
        jobs
    };
    let systems = [System::Whimbrel, System::Plain];
    let mut all = jobs(&PAPER, &systems);
    // What a gateway keeps bounds the rate: on 3G that would be what is measured.
    all.extend(jobs(&PAPER[..1], &[System::Little]));
    let mut done = lanes::run(&all, LANES, &SPEC, output, Job::name, one)?;
    if !plan.quick {
        let today = lanes::run(&jobs(&TODAY, &systems), 1, &SPEC, output, Job::name, one)?;
        done.trials.extend(today.trials);
        done.failures.extend(today.failures);
    }
    let network = |s: &Scenario| {
        json!({
            "name": s.name(), "paper_s": s.paper,
            "rtt_ms": [s.from.rtt.as_millis() as u64, s.to.rtt.as_millis() as u64],
            "bit_s": [s.from.rate.bits_per_second(), s.to.rate.bits_per_second()],
        })
    };
    let settings = json!({
        "carrier": "auto",
        "congestion_control": CONGESTION_CONTROL,
        "scenarios": PAPER.iter().chain(&TODAY).map(network).collect::<Vec<_>>(),
        "rtt_server_ms": SERVER_RTT.as_millis() as u64,
        "queue_ms": 100,
        "move_at_s": after.as_secs_f64(),
        "file_bytes": Job::new(PAPER[0], System::Whimbrel, 0, after).size,
        "threshold": "of slow start; one that was never set is 0x7fffffff, and unset says at how many looks",
        "window_closed": "the gateway keeps 64 KiB of a session, and so does its kernel",
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

/// One download. It fails unless every byte came once, over one connection of the server.
pub(super) fn one(job: &Job) -> Result<(Vec<Trial>, ())> {
    let trial = match job.system {
        System::Plain => {
            let again = plain::run(&job.scenario, job.size, job.after)?;
            Trial::new("tcp anew", job.round)
                .with("delay", millis(again.first))
                .with("total", again.total.as_secs_f64())
        }
        System::Whimbrel => moved(job, Kind::Own)?,
        System::Little => moved(job, Kind::Little)?,
    };
    Ok((vec![trial.in_case(job.case())], ()))
}

fn moved(job: &Job, kind: Kind) -> Result<Trial> {
    let world = World::new(&job.scenario, kind, job.size)?;
    let (begun, moved) = world.run(Work::Bulk(0), job.after)?;
    let (first, asked, before) = (moved.first, moved.asked, moved.sender);
    let rest = world.finish(moved)?;
    let after = world.server.sender()?;
    let end = rest.record.end().unwrap_or(begun);
    let total = (end - begun).as_secs_f64();
    let least = job.scenario.least(job.size, asked).as_secs_f64();
    let threshold = f64::from(after.slow_start_threshold) / f64::from(before.slow_start_threshold);
    let trial = Trial::new("whimbrel", job.round)
        .with("delay", millis(first))
        .with("excess", millis(first) - millis(job.scenario.round_trips()))
        .with("total", total)
        .with("least", least)
        .with("over", (total / least - 1.0) * 100.0)
        .with("threshold", threshold)
        .with("unset", [before, after].iter().filter(|look| look.has_no_threshold()).count() as f64)
        .with("timeouts", world.server.timeouts(&world.hub.server)? as f64)
        .with("retransmitted", f64::from(after.retransmitted));
    Ok(match job.scenario.paper {
        // A quick run moves a smaller file, earlier.
        Some(paper) if job.after == MOVE_AT => trial.with("paper", paper).with("of_paper", total / paper),
        _ => trial,
    })
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    /// On a busy machine a moment may be noted so much later than it came.
    const LATE: Duration = Duration::from_millis(100);

    fn values(scenario: usize, system: System) -> Trial {
        let job = Job::new(PAPER[scenario], system, 0, Duration::from_millis(1500));
        let (mut trials, ()) = one(&job).unwrap();
        trials.remove(0)
    }

    /// The end itself, whose bytes and connections are checked with it.
    #[test]
    fn a_download_moves_between_wlans_and_nothing_is_faster_than_its_links() {
        if !require!() {
            return;
        }
        let trial = values(0, System::Whimbrel);
        let value = |name: &str| trial.values[name];
        // Half a round trip to the gateway, one to the phone, and half a one back.
        assert!(value("delay") >= 2.0 * 38.0, "{trial:?}");
        assert!(value("total") >= value("least") - LATE.as_secs_f64(), "{trial:?}");
        assert_eq!(trial.case, "WLAN to WLAN");
        assert!(!trial.values.contains_key("paper"), "it was smaller than the paper's");
    }

    #[test]
    fn a_server_whose_window_was_closed_goes_on_and_is_looked_at() {
        if !require!() {
            return;
        }
        let trial = values(0, System::Little);
        assert_eq!(trial.case, "WLAN to WLAN, window closed");
        assert!(trial.values["threshold"] > 0.0 && trial.values.contains_key("timeouts"), "{trial:?}");
        let (unset, threshold) = (trial.values["unset"], trial.values["threshold"]);
        assert!([0.0, 1.0, 2.0].contains(&unset) && (unset < 2.0 || threshold == 1.0), "{trial:?}");
    }

    #[test]
    fn tcp_begins_anew_where_it_was() {
        if !require!() {
            return;
        }
        let trial = values(2, System::Plain);
        assert!(trial.values["delay"] >= 2.0 * 38.0 && trial.values["total"] >= 1.5, "{trial:?}");
    }

    #[test]
    fn a_file_is_the_papers_where_it_moves_at_the_fifth_second() {
        let of = |scenario, after| Job::new(scenario, System::Whimbrel, 0, after);
        assert_eq!(of(PAPER[1], MOVE_AT).size, 800_000);
        assert_eq!(of(PAPER[1], MOVE_AT / 5).size, 160_000);
        assert!(of(TODAY[1], MOVE_AT).size > 60_000_000);
        assert_eq!(of(PAPER[1], MOVE_AT).name(), "WLAN to 3G, Whimbrel");
    }
}
