//! Bulk and a stream over Wi-Fi and a recorded cellular network.
//!
//! The cellular traces were recorded while driving; both directions are played from their beginning in every
//! trial. Wi-Fi has 8 Mbit/s and 30 ms; in one half of the cases it fades: for half a second every four
//! seconds it carries nothing, as for somebody who walks away from the access point.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::{Queue, Rate, Trace};

use super::{Plan, lanes, rotated};
use crate::contender::Contender;
use crate::flow::{Flow, Way, delays};
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, TwoLinks};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::{quantile, sorted};

const RECORDED: [(&str, &str, u64); 3] = [
    ("LTE (AT&T)", "ATT-LTE-driving-2016", 50),
    ("LTE (Verizon)", "Verizon-LTE-short", 50),
    ("UMTS (T-Mobile)", "TMobile-UMTS-driving", 100),
];
const WIFI_RTT: Duration = Duration::from_millis(30);
const WIFI_KBIT: u64 = 8_000;
/// Wi-Fi's fades: in each period it carries nothing for a while.
const PERIOD_MS: u64 = 4000;
const FADE_MS: u64 = 500;
/// Cellular networks keep much.
const CELLULAR_QUEUE: Queue = Queue::Time(Duration::from_secs(1));
const STREAM_BITS: u64 = 500_000;
const BLOCK_EVERY: Duration = Duration::from_millis(20);
const SETTLE: Duration = Duration::from_secs(1);
const CONTENDERS: [Contender; 2] = [Contender::FULL, Contender::MPTCP];

const SPEC: Spec = Spec {
    name: "traces",
    title: "Wi-Fi and a recorded cellular network: bulk goodput, and the delay of a 500 kbit/s stream's blocks",
    metrics: &[
        Metric { key: "goodput", unit: "Mbit/s" },
        Metric { key: "p50", unit: "ms" },
        Metric { key: "p99", unit: "ms" },
    ],
    targets: &[against_mptcp("goodput", Bound::AtLeast(1.0)), against_mptcp("p99", Bound::AtMost(0.7))],
    plot: Plot::Ratios,
};

const fn against_mptcp(metric: &'static str, bound: Bound) -> Target {
    Target {
        case: "",
        of: "whimbrel full",
        metric,
        against: Some("mptcp full"),
        judged: Judged::Median,
        bound,
        aim: 1.0,
    }
}

#[derive(Debug, Clone)]
struct Job {
    recorded: usize,
    fades: bool,
    is_bulk: bool,
    round: u32,
}

impl Job {
    fn case(&self) -> String {
        let wifi = if self.fades { "fading Wi-Fi" } else { "Wi-Fi" };
        let traffic = if self.is_bulk { "bulk" } else { "stream" };
        format!("{wifi} + {}, {traffic}", RECORDED[self.recorded].0)
    }
}

pub(crate) fn run(plan: &Plan, folder: &Path, output: &mut Output) -> Result<()> {
    if !folder.is_dir() {
        eprintln!("traces is skipped: there is no folder {}; name one with --traces", folder.display());
        return Ok(());
    }
    let networks = if plan.quick { 1 } else { RECORDED.len() };
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(3) {
        for recorded in 0..networks {
            for (fades, is_bulk) in [(false, true), (true, true), (false, false), (true, false)] {
                jobs.push(Job { recorded, fades, is_bulk, round });
            }
        }
    }
    let length = plan.length(30.0);
    let done = lanes::run(&jobs, 3, &SPEC, output, Job::case, |job| {
        let mut trials = Vec::new();
        for contender in rotated(&CONTENDERS, job.round) {
            trials.push(trial(job, contender, folder, length).with_context(|| contender.to_string())?);
        }
        Ok((trials, ()))
    })?;
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "seconds": length.as_secs_f64(),
        "wifi": {"kbit": WIFI_KBIT, "rtt_ms": WIFI_RTT.as_millis(), "queue_ms": 100,
            "fades": {"every_ms": PERIOD_MS, "for_ms": FADE_MS}},
        "cellular": RECORDED.map(|(name, file, rtt)| json!({"name": name, "trace": file, "rtt_ms": rtt})),
        "cellular_queue_ms": 1000,
        "stream_bits": STREAM_BITS,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

fn network(job: &Job, folder: &Path) -> Result<TwoLinks> {
    let (_, file, rtt) = RECORDED[job.recorded];
    let trace = |way: &str| Trace::load(folder.join(format!("{file}.{way}")));
    let rtt = Duration::from_millis(rtt);
    let cellular = Access::recorded("wwan0", trace("up")?, trace("down")?, rtt).queue(CELLULAR_QUEUE);
    let wifi = if job.fades {
        Access::recorded("wlan0", fading()?, fading()?, WIFI_RTT)
    } else {
        Access::new("wlan0", Rate::kbit(WIFI_KBIT), WIFI_RTT)
    };
    TwoLinks::new(&[wifi, cellular])
}

/// Wi-Fi's rate, but for the fades.
fn fading() -> Result<Trace> {
    // Two chances of 1500 bytes in 3 ms are 8 Mbit/s.
    let chances = (0..PERIOD_MS - FADE_MS).filter(|ms| ms % 3 != 0);
    Ok(Trace::from_millis(chances.chain([PERIOD_MS]).collect())?)
}

fn trial(job: &Job, contender: Contender, folder: &Path, length: Duration) -> Result<Trial> {
    let net = network(job, folder)?;
    let mut session = contender.start(&net)?;
    std::thread::sleep(SETTLE);
    let trial = Trial::new(contender, job.round).in_case(job.case());
    let began = Instant::now();
    if job.is_bulk {
        session.run_until(Flow::endless(Way::Down), began + length)?;
        let mbits = session.notes.bytes() as f64 * 8.0 / 1e6;
        return Ok(trial.with("goodput", mbits / length.as_secs_f64()));
    }
    // Blocks that are late may take a little longer.
    let limit = length + Duration::from_secs(10);
    session.run_until(Flow::blocks(Way::Down, STREAM_BITS, BLOCK_EVERY, length), began + limit)?;
    let arrivals = session.notes.take();
    let times = delays(&arrivals).into_iter().map(|(_, delay)| delay.as_secs_f64() * 1000.0);
    let times = sorted(&times.collect::<Vec<_>>());
    let at = |q| quantile(&times, q).context("no block came");
    Ok(trial.with("p50", at(0.5)?).with("p99", at(0.99)?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn fading_wifi_carries_as_much_as_wifi_but_for_the_fades() {
        let rate = fading().unwrap().mean_rate().bits_per_second() as f64;
        let expected = (WIFI_KBIT * 1000) as f64 * (PERIOD_MS - FADE_MS) as f64 / PERIOD_MS as f64;
        assert!((rate / expected - 1.0).abs() < 0.01, "{rate} {expected}");
    }
}
