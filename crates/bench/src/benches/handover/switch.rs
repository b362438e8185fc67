//! Downloads in the midst of which one network takes the place of the other [msocket figs. 13-16].
//!
//! Wi-Fi has 0.9 ms and cellular 59 ms, as there; the paper does not tell rates. After a third of the file
//! the network in use is switched off. With one path, the other is switched on at that moment; with two, both
//! were there.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::Rate;

use crate::benches::{Plan, lanes, rotated};
use crate::contender::{Contender, Session};
use crate::flow::{Flow, Way, time_to};
use crate::lab::{Access, CARRIER, CONGESTION_CONTROL, Loss, TwoLinks};
use crate::output::Output;
use crate::plot::{Axis, Chart, Corner, Point, Series, Style};
use crate::report::{Metric, Plot, Spec, Trial};

const SIZES: [u64; 4] = [2_000_000, 5_000_000, 10_000_000, 20_000_000];
const SETTLE: Duration = Duration::from_millis(700);
const LIMIT: Duration = Duration::from_secs(60);
const LOOK_EVERY: Duration = Duration::from_millis(2);
const LANES: usize = 3;

const SPEC: Spec = Spec {
    name: "handover-switch",
    title: "downloads that change networks after a third, Wi-Fi 20 Mbit/s 0.9 ms, cellular 10 Mbit/s 59 ms",
    metrics: &[Metric { key: "time", unit: "ms" }],
    targets: &[],
    plot: Plot::Chart,
};

/// Which network goes, and whether the other one was there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scene {
    from_wifi: bool,
    two_paths: bool,
}

impl Scene {
    const ALL: [Self; 4] = [
        Self { from_wifi: true, two_paths: false },
        Self { from_wifi: false, two_paths: false },
        Self { from_wifi: true, two_paths: true },
        Self { from_wifi: false, two_paths: true },
    ];

    fn name(self) -> String {
        let networks = if self.from_wifi { "Wi-Fi to cellular" } else { "cellular to Wi-Fi" };
        format!("{networks}, {} path{}", 1 + u8::from(self.two_paths), if self.two_paths { "s" } else { "" })
    }

    fn contenders(self) -> [Contender; 2] {
        [if self.two_paths { Contender::FULL } else { Contender::SINGLE }, Contender::MPTCP]
    }

    /// The network in use comes first.
    fn accesses(self) -> [Access; 2] {
        let wifi = Access::new("wlan0", Rate::mbit(20), Duration::from_micros(900));
        let cellular = Access::new("wwan0", Rate::mbit(10), Duration::from_millis(59));
        if self.from_wifi { [wifi, cellular] } else { [cellular, wifi] }
    }
}

struct Job {
    scene: Scene,
    contender: Contender,
    round: u32,
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let sizes = if plan.quick { &SIZES[..2] } else { &SIZES[..] };
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(5) {
        for scene in Scene::ALL {
            jobs.extend(rotated(&scene.contenders(), round).map(|contender| Job { scene, contender, round }));
        }
    }
    let name = |job: &Job| format!("{}, {}", job.scene.name(), job.contender);
    let done = lanes::run(&jobs, LANES, &SPEC, output, name, |job| Ok((one(job, sizes)?, ())))?;
    let mut series = Vec::new();
    for scene in Scene::ALL {
        for contender in scene.contenders() {
            let point = |size: &u64| {
                let is_own = |t: &&Trial| t.system == contender.to_string() && t.case == case(scene, *size);
                let times = done.trials.iter().filter(is_own).filter_map(|t| t.values.get("time"));
                Point::of(*size as f64 / 1e6, &times.copied().collect::<Vec<_>>())
            };
            let points = sizes.iter().filter_map(point).collect();
            series.push(Series {
                label: format!("{}: {contender}", scene.name()),
                style: Style::Both,
                points,
            });
        }
    }
    let chart = Chart {
        x: Axis::log("size of the file [MB]"),
        y: Axis::log("time of the download [ms], median and ends of the runs"),
        series,
        free: Corner::UpperLeft,
        mark: None,
    };
    let settings = json!({
        "congestion_control": CONGESTION_CONTROL,
        "carrier": CARRIER,
        "wifi": {"mbit": 20, "rtt_ms": 0.9}, "cellular": {"mbit": 10, "rtt_ms": 59}, "queue_ms": 100,
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish_chart(&SPEC, settings, &done.trials, Some(&chart))
}

fn case(scene: Scene, size: u64) -> String {
    format!("{}, {} MB", scene.name(), size / 1_000_000)
}

fn one(job: &Job, sizes: &[u64]) -> Result<Vec<Trial>> {
    let trial = |size: &u64| -> Result<Trial> {
        let net = TwoLinks::new(&job.scene.accesses())?;
        if !job.scene.two_paths {
            net.lose(1, Loss::AddressRemoved)?;
        }
        let mut session = job.contender.start(&net)?;
        if !job.scene.two_paths {
            // It begins with what is there.
            job.contender.tell_loss(&net, 1)?;
        }
        std::thread::sleep(SETTLE);
        let took = download(&net, &mut session, job, *size)?;
        let trial = Trial::new(job.contender, job.round).in_case(case(job.scene, *size));
        Ok(trial.with("time", took.as_secs_f64() * 1000.0))
    };
    sizes.iter().map(trial).collect()
}

fn download(net: &TwoLinks, session: &mut Session<'_>, job: &Job, size: u64) -> Result<Duration> {
    let (notes, began) = (session.notes.clone(), Instant::now());
    std::thread::scope(|scope| -> Result<()> {
        let switch = scope.spawn(|| -> Result<()> {
            while notes.bytes() < size / 3 && began.elapsed() < LIMIT {
                std::thread::sleep(LOOK_EVERY);
            }
            net.lose(0, Loss::AddressRemoved)?;
            if !job.scene.two_paths {
                net.bring_back(1, Loss::AddressRemoved)?;
                job.contender.tell_return(net, 1)?;
            }
            job.contender.tell_loss(net, 0)
        });
        session.run(Flow::bulk(Way::Down, size), LIMIT)?;
        switch.join().ok().context("the switch panicked")?
    })?;
    time_to(&session.notes.take(), began, size).context("the file is not complete")
}
