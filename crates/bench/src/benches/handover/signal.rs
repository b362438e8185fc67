//! The moment between "address gone" and "signal received", when the signal itself is lost [mptcp-handover
//! §5].
//!
//! Wi-Fi is lost and the client says so over cellular, on which nothing gets through for a while. The
//! subject's signal has come when the server's side reports that the path is gone; that of kernel MPTCP, when
//! the server's kernel has counted a REMOVE_ADDR. What never comes counts as the longest time that is looked
//! at.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::{Direction, Rate};

use crate::benches::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way};
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, Loss, TwoLinks};
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Metric, Plot, Spec, Trial};

/// For which nothing gets through.
const CLOSED_MS: [u64; 6] = [0, 50, 200, 500, 1000, 2000];
const CONTENDERS: [Contender; 2] = [Contender::BACKUP, Contender::MPTCP_BACKUP];
const SETTLE: Duration = Duration::from_millis(800);
const BEFORE: Duration = Duration::from_millis(700);
const LONGEST: Duration = Duration::from_secs(8);
const LOOK_EVERY: Duration = Duration::from_millis(1);
const LANES: usize = 4;

const SPEC: Spec = Spec {
    name: "handover-signal",
    title: "from the loss of an address until the server knows, while nothing gets through for a while",
    metrics: &[Metric { key: "known", unit: "ms" }],
    targets: &[],
    plot: Plot::Chart,
};

struct Job {
    contender: Contender,
    closed: Duration,
    round: u32,
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let closed = if plan.quick { &CLOSED_MS[2..3] } else { &CLOSED_MS[..] };
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(10) {
        for &ms in closed {
            let closed = Duration::from_millis(ms);
            jobs.extend(rotated(&CONTENDERS, round).map(|contender| Job { contender, closed, round }));
        }
    }
    let done = lanes::run(&jobs, LANES, &SPEC, output, |job| job.contender.to_string(), one)?;
    let series = CONTENDERS.map(|contender| {
        let point = |ms: &u64| {
            let is_own = |t: &&Trial| t.system == contender.to_string() && t.case == case(*ms);
            let times = done.trials.iter().filter(is_own).filter_map(|t| t.values.get("known"));
            Point::of(*ms as f64, &times.copied().collect::<Vec<_>>())
        };
        Series {
            label: contender.to_string(),
            style: Style::Both,
            points: closed.iter().filter_map(point).collect(),
        }
    });
    let chart = Chart {
        x: Axis::linear("nothing gets through for [ms]"),
        y: Axis::linear("until the server knows [ms], median and ends of the runs"),
        series: series.to_vec(),
        free: Corner::UpperLeft,
        mark: None,
    };
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "wifi": {"mbit": 8, "rtt_ms": 30}, "cellular": {"mbit": 8, "rtt_ms": 50},
        "never_counts_as_ms": LONGEST.as_millis(),
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish_chart(&SPEC, settings, &done.trials, Some(&chart))
}

fn case(closed_ms: u64) -> String {
    format!("{closed_ms} ms")
}

fn one(job: &Job) -> Result<(Vec<Trial>, ())> {
    let net = TwoLinks::new(&[
        Access::new("wlan0", Rate::mbit(8), Duration::from_millis(30)),
        Access::new("wwan0", Rate::mbit(8), Duration::from_millis(50)),
    ])?;
    let mut session = job.contender.start(&net)?;
    std::thread::sleep(SETTLE);
    let signal = session.signal(&net)?;
    let known = std::thread::scope(|scope| -> Result<Duration> {
        let watch = scope.spawn(|| -> Result<Duration> {
            std::thread::sleep(BEFORE);
            let cellular = net.link(1).context("no link")?;
            cellular.set_blackhole(Direction::Both, !job.closed.is_zero());
            let gone = net.lose(0, Loss::AddressRemoved)?;
            job.contender.tell_loss(&net, 0)?;
            let mut is_closed = true;
            while gone.elapsed() < LONGEST {
                if is_closed && gone.elapsed() >= job.closed {
                    cellular.set_blackhole(Direction::Both, false);
                    is_closed = false;
                }
                if signal.has_come(&net) {
                    return Ok(gone.elapsed());
                }
                std::thread::sleep(LOOK_EVERY);
            }
            Ok(LONGEST)
        });
        let flow = Flow::blocks(Way::Down, 500_000, Duration::from_millis(20), LONGEST * 2);
        session.run_until(flow, Instant::now() + BEFORE + LONGEST)?;
        watch.join().ok().context("the watcher panicked")?
    })?;
    let closed = u64::try_from(job.closed.as_millis())?;
    let trial = Trial::new(job.contender, job.round).in_case(case(closed));
    Ok((vec![trial.with("known", known.as_secs_f64() * 1000.0)], ()))
}
