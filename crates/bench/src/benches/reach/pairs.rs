//! Which gateways can be opened for each other, and how soon.
//!
//! Each pair of kinds has a world of its own; each attempt in it has a fresh client. No gateway passes a port
//! on.

use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;
use whimbrel_lab::{Block, NatKind};

use super::millis;
use super::stage::Stage;
use super::systems::System;
use crate::benches::{Plan, lanes};
use crate::lab::Homes;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial, distinct};
use crate::stats::{quantile, sorted};

/// An attempt that has not met by then has failed. Whimbrel searches for 20 s at most.
const LIMIT: Duration = Duration::from_secs(20);
/// Where no UDP passes.
const SHORT: Duration = Duration::from_secs(3);
const LANES: usize = 4;
const ALL: &str = "all pairs";

const SPEC: Spec = Spec {
    name: "reach-pairs",
    title: "pairs of gateways: share of the attempts that become direct; missed: pairs that only the other system \
            opens",
    metrics: &[
        Metric { key: "share", unit: "" },
        Metric { key: "time", unit: "ms" },
        Metric { key: "missed", unit: "pairs" },
    ],
    targets: &[
        share_of("symmetric, port-restricted"),
        share_of("port-restricted, symmetric"),
        Target {
            case: ALL,
            of: "whimbrel",
            metric: "missed",
            against: None,
            judged: Judged::Median,
            bound: Bound::AtMost(0.0),
            aim: 0.0,
        },
    ],
    plot: Plot::Cases { metric: "share", unit: "" },
};

const fn share_of(case: &'static str) -> Target {
    Target {
        case,
        of: "whimbrel",
        metric: "share",
        against: None,
        judged: Judged::Median,
        bound: Bound::AtLeast(0.8),
        aim: 0.95,
    }
}

/// What stands between a home and the Internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gateway {
    FullCone,
    AddressRestricted,
    PortRestricted,
    /// Two that are port-restricted in a row, the home's and its carrier's.
    CarrierGrade,
    Symmetric,
    /// Lets no UDP through.
    WithoutUdp,
    /// Lets nothing out but TCP to port 443, where the relay listens.
    HttpsOnly,
}

impl Gateway {
    const ALL: [Self; 7] = [
        Self::FullCone,
        Self::AddressRestricted,
        Self::PortRestricted,
        Self::CarrierGrade,
        Self::Symmetric,
        Self::WithoutUdp,
        Self::HttpsOnly,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::FullCone => "full cone",
            Self::AddressRestricted => "address-restricted",
            Self::PortRestricted => "port-restricted",
            Self::CarrierGrade => "carrier-grade",
            Self::Symmetric => "symmetric",
            Self::WithoutUdp => "no UDP",
            Self::HttpsOnly => "443/tcp only",
        }
    }

    fn kind(self) -> NatKind {
        match self {
            Self::FullCone => NatKind::FullCone,
            Self::AddressRestricted => NatKind::AddressRestricted,
            Self::PortRestricted | Self::CarrierGrade => NatKind::PortRestricted,
            Self::Symmetric | Self::WithoutUdp | Self::HttpsOnly => NatKind::Symmetric,
        }
    }

    fn block(self) -> Option<Block> {
        match self {
            Self::WithoutUdp => Some(Block::Udp),
            Self::HttpsOnly => Some(Block::AllButTcpPort(443)),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Job {
    /// The client's, and the server's.
    gateways: [Gateway; 2],
    system: System,
    attempts: u32,
}

impl Job {
    fn case(&self) -> String {
        self.gateways.map(Gateway::name).join(", ")
    }

    fn limit(&self) -> Duration {
        if self.gateways.iter().any(|gateway| gateway.block().is_some()) { SHORT } else { LIMIT }
    }
}

pub(super) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let chosen = if plan.quick { &Gateway::ALL[2..5] } else { &Gateway::ALL[..] };
    let attempts = plan.rounds(10);
    let mut jobs = Vec::new();
    for &client in chosen {
        for &server in chosen {
            let job = |system: &System| Job { gateways: [client, server], system: *system, attempts };
            jobs.extend(System::all().iter().map(job));
        }
    }
    let name = |job: &Job| format!("{}, {}", job.case(), job.system.name());
    let done = lanes::run(&jobs, LANES, &SPEC, output, name, one)?;
    let mut trials = done.trials;
    for system in System::all() {
        let trial = whole(&trials, *system);
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    let settings = json!({
        "carrier": "auto", "attempts": attempts, "limit_ms": LIMIT.as_millis() as u64, "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &trials)
}

/// Two homes and what runs in them. Dropped in this order.
struct World {
    stage: Box<dyn Stage>,
    homes: Homes,
}

impl World {
    fn new(job: &Job) -> Result<Self> {
        let homes = Homes::behind(job.gateways.map(|gateway| gateway == Gateway::CarrierGrade))?;
        homes.set_kind(NatKind::PortRestricted)?;
        for (nat, gateway) in homes.gateways().iter().zip(job.gateways) {
            nat.set_kind(gateway.kind())?;
            if let Some(block) = gateway.block() {
                nat.router().block(block)?;
            }
        }
        Ok(Self { stage: job.system.stage(&homes)?, homes })
    }
}

fn one(job: &Job) -> Result<(Vec<Trial>, ())> {
    let mut world = World::new(job)?;
    let mut times = Vec::new();
    for attempt in 0..job.attempts {
        if attempt > 0 && job.gateways.contains(&Gateway::Symmetric) {
            // A server searches for ports twice, and then once a minute.
            world = World::new(job)?;
        }
        let connected = world.stage.connect(&world.homes).context("the client does not connect at all")?;
        times.extend(connected.direct_after(job.limit()).map(millis));
    }
    let share = times.len() as f64 / f64::from(job.attempts.max(1));
    let mut trial = Trial::new(job.system.name(), 0).in_case(job.case()).with("share", share);
    if let Some(median) = quantile(&sorted(&times), 0.5) {
        trial = trial.with("time", median);
    }
    Ok((vec![trial], ()))
}

/// All pairs together: the share of those that were opened, and how many only another system opened.
fn whole(trials: &[Trial], system: System) -> Trial {
    let opened = |case: &str, wanted: &dyn Fn(&str) -> bool| {
        trials.iter().any(|trial| {
            let share = trial.values.get("share").copied().unwrap_or(0.0);
            trial.case == case && wanted(&trial.system) && share > 0.0
        })
    };
    let cases = distinct(trials.iter().map(|trial| trial.case.as_str()).filter(|case| *case != ALL));
    let is_own = |name: &str| name == system.name();
    let is_other = |name: &str| name != system.name();
    let own = cases.iter().filter(|case| opened(case, &is_own)).count();
    let share = own as f64 / cases.len().max(1) as f64;
    let whole = Trial::new(system.name(), 0).in_case(ALL).with("share", share);
    // Nothing is missed, or not missed, where no other system was there.
    if !trials.iter().any(|trial| is_other(&trial.system)) {
        return whole;
    }
    let missed = cases.iter().filter(|case| !opened(case, &is_own) && opened(case, &is_other)).count();
    whole.with("missed", missed as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_the_other_system_opens_is_missed() {
        let trial =
            |system: &str, case: &str, share| Trial::new(system, 0).in_case(case).with("share", share);
        let trials = [
            trial("whimbrel", "a", 1.0),
            trial("iroh", "a", 0.5),
            trial("whimbrel", "b", 0.0),
            trial("iroh", "b", 0.1),
        ];
        let of = |system| whole(&trials, system).values;
        assert_eq!((of(System::Whimbrel)["share"], of(System::Whimbrel)["missed"]), (0.5, 1.0));
        assert_eq!((of(System::Iroh)["share"], of(System::Iroh)["missed"]), (1.0, 0.0));
    }

    #[test]
    fn every_target_is_for_a_pair() {
        let case = |a: Gateway, b: Gateway| format!("{}, {}", a.name(), b.name());
        let all: Vec<String> =
            Gateway::ALL.into_iter().flat_map(|a| Gateway::ALL.map(|b| case(a, b))).collect();
        for target in SPEC.targets {
            let found = all.iter().filter(|case| case.starts_with(target.case)).count();
            assert_eq!(found, usize::from(target.case != ALL), "{}", target.case);
        }
    }
}
