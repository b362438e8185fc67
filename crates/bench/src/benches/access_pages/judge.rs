//! What the page loads say: the targets, over all pages and scenarios.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::Result;
use serde_json::Value;

use super::browser::Browser;
use super::figures;
use super::load::Load;
use super::scenario::SCENARIOS;
use super::system::System;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::Spread;

/// The page by which `eaf` is judged, in the symmetric scenario.
const JUDGED: &str = "32 x 100 KB";
/// Pages whose times stand in the result one by one; all others are in the table of loads.
const SHOWN: [&str; 6] = ["2 x 1 KB", "64 x 1 KB", "32 x 10 KB", JUDGED, "4 x 1 MB", "mixed, figure 4"];
/// Slower than the better interface by more than this is worse.
const WORSE: f64 = 1.05;
/// A median is to be within this share of what the simulator says.
const OUTLIER: f64 = 0.15;
/// The policies, which are compared with one another.
const POLICIES: [System; 7] = [
    System::Single(1),
    System::Single(2),
    System::RoundRobin,
    System::Eaf,
    System::EafMptcp,
    System::Mptcp,
    System::Whimbrel,
];

pub(super) const SPEC: Spec = Spec {
    name: "access-pages",
    title: "page loads over two networks through the proxy and the manager (Socket Intents, §VIII-A, B)",
    metrics: &[
        Metric { key: "time", unit: "ms" },
        Metric { key: "gain", unit: "x better single" },
        Metric { key: "median", unit: "ms" },
        Metric { key: "p95", unit: "ms" },
        Metric { key: "of_better", unit: "of better single" },
        Metric { key: "of_better_p95", unit: "of better single" },
        Metric { key: "of_direct", unit: "of no proxy" },
        Metric { key: "of_predicted", unit: "of simulated" },
        Metric { key: "median_of_others", unit: "of best other" },
        Metric { key: "p95_of_others", unit: "of best other" },
        Metric { key: "worse", unit: "share of cases" },
    ],
    targets: &[
        target("eaf", "gain", Bound::AtLeast(1.25), 1.6),
        target("single 1", "of_direct", Bound::AtMost(1.03), 1.0),
        target("whimbrel", "median_of_others", Bound::AtMost(1.0), 1.0),
        target("whimbrel", "p95_of_others", Bound::AtMost(1.0), 1.0),
        target("whimbrel", "worse", Bound::AtMost(0.02), 0.0),
        target("all systems", "of_predicted", Bound::AtLeast(0.85), 1.0),
        target("all systems", "of_predicted", Bound::AtMost(1.15), 1.0),
    ],
    plot: Plot::Cases { metric: "of_better", unit: "of the better interface alone, median of all pages" },
};

const fn target(of: &'static str, metric: &'static str, bound: Bound, aim: f64) -> Target {
    Target { case: "", of, metric, against: None, judged: Judged::Median, bound, aim }
}

/// Whether a load stands in the result by itself.
fn is_shown(load: &Load) -> bool {
    SHOWN.contains(&load.page.as_str())
}

pub(super) fn trial(load: &Load) -> Trial {
    let case = format!("{}, {}, {}", load.browser, load.scenario, load.page);
    let trial = Trial::new(load.system, load.round).in_case(case).with("time", load.ms);
    match load.predicted {
        Some(predicted) => trial.with("of_predicted", load.ms / predicted),
        None => trial,
    }
}

/// Judges all loads, draws the figures and keeps everything.
pub(super) fn finish(loads: &[Load], settings: Value, output: &mut Output) -> Result<()> {
    let mut trials: Vec<Trial> = loads.iter().filter(|load| is_shown(load)).map(trial).collect();
    for browser in [Browser::Client, Browser::Chromium, Browser::Firefox] {
        let own: Vec<&Load> = loads.iter().filter(|load| load.browser == browser).collect();
        if !own.is_empty() {
            trials.extend(judged(browser, &Cases::of(&own)));
        }
    }
    output.keep("access-pages-loads.csv", &table(loads))?;
    output.keep("access-pages-outliers.csv", &outliers(loads))?;
    output.finish(&SPEC, settings.clone(), &trials)?;
    figures::finish(loads, &settings, output)
}

fn table(loads: &[Load]) -> String {
    let mut text =
        "browser,scenario,page,recorded,bytes,system,round,ms,simulated_ms,second_link\n".to_owned();
    for load in loads {
        let Load { browser, scenario, page, is_recorded, bytes, system, round, ms, second, .. } = load;
        let simulated = load.predicted.map_or(String::new(), |ms| format!("{ms:.1}"));
        let _ = writeln!(
            text,
            "{browser},{scenario},\"{page}\",{is_recorded},{bytes},{system},{round},{ms:.1},{simulated},{second:.3}"
        );
    }
    text
}

/// Medians that are further from the simulator's word than it may be, the furthest first.
fn outliers(loads: &[Load]) -> String {
    let mut found = Vec::new();
    for browser in [Browser::Client, Browser::Chromium, Browser::Firefox] {
        let own: Vec<&Load> = loads.iter().filter(|load| load.browser == browser).collect();
        for ((scenario, page), case) in &Cases::of(&own).0 {
            for system in System::ALL {
                let ratio = case.of_predicted(system).filter(|ratio| (ratio - 1.0).abs() > OUTLIER);
                let (Some(ratio), Some(ms)) = (ratio, case.time(system)) else { continue };
                let simulated = ms / ratio;
                let line =
                    format!("{browser},{scenario},\"{page}\",{system},{ms:.1},{simulated:.1},{ratio:.3}\n");
                found.push((ratio.ln().abs(), line));
            }
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    let head = "browser,scenario,page,system,ms,simulated_ms,of_simulated\n".to_owned();
    found.into_iter().fold(head, |text, (_, line)| text + &line)
}

/// The times of each system in each case: a page in a scenario.
struct Cases(BTreeMap<(&'static str, String), Case>);

/// What was found in one case.
#[derive(Default)]
struct Case(Vec<Found>);

struct Found {
    system: System,
    times: Vec<f64>,
    predicted: Option<f64>,
}

impl Cases {
    fn of(loads: &[&Load]) -> Self {
        let mut cases: BTreeMap<(&'static str, String), Case> = BTreeMap::new();
        for load in loads {
            let Case(found) = cases.entry((load.scenario, load.page.clone())).or_default();
            let (system, predicted) = (load.system, load.predicted);
            match found.iter_mut().find(|found| found.system == system) {
                Some(found) => found.times.push(load.ms),
                None => found.push(Found { system, times: vec![load.ms], predicted }),
            }
        }
        Self(cases)
    }

    /// Something of each case in which it is known.
    fn each(&self, of: impl Fn(&Case) -> Option<f64>) -> Vec<f64> {
        self.0.values().filter_map(of).collect()
    }
}

impl Case {
    fn found(&self, system: System) -> Option<&Found> {
        self.0.iter().find(|found| found.system == system)
    }

    /// The median.
    fn time(&self, system: System) -> Option<f64> {
        Spread::of(&self.found(system)?.times).map(|spread| spread.median)
    }

    /// Over the better interface alone.
    fn better(&self) -> Option<f64> {
        Some(self.time(System::Single(1))?.min(self.time(System::Single(2))?))
    }

    fn of_better(&self, system: System) -> Option<f64> {
        Some(self.time(system)? / self.better()?)
    }

    fn of_predicted(&self, system: System) -> Option<f64> {
        Some(self.time(system)? / self.found(system)?.predicted?)
    }
}

/// What is said of one browser.
fn judged(browser: Browser, cases: &Cases) -> Vec<Trial> {
    let all = format!("{browser}, all");
    let mut trials = Vec::new();
    for system in System::ALL {
        let mut trial = Trial::new(system, 0).in_case(&all);
        if let Some(times) = Spread::of(&cases.each(|case| case.time(system))) {
            trial = trial.with("median", times.median).with("p95", times.p95);
        }
        if let Some(relative) = Spread::of(&cases.each(|case| case.of_better(system))) {
            trial = trial.with("of_better", relative.median).with("of_better_p95", relative.p95);
        }
        if let Some(ratios) = Spread::of(&cases.each(|case| case.of_predicted(system))) {
            trial = trial.with("of_predicted", ratios.median);
        }
        trials.push(match system {
            System::Single(1) => against_no_proxy(trial, cases),
            System::Whimbrel => against_others(trial, cases),
            _ => trial,
        });
    }
    let ratios = System::ALL.iter().flat_map(|system| cases.each(|case| case.of_predicted(*system)));
    if let Some(spread) = Spread::of(&ratios.collect::<Vec<_>>()) {
        trials.push(Trial::new("all systems", 0).in_case(&all).with("of_predicted", spread.median));
    }
    if let Some(case) = cases.0.get(&(SCENARIOS[0].name, JUDGED.to_owned())) {
        let name = format!("{browser}, {}, {JUDGED}", SCENARIOS[0].name);
        let gain =
            |system| Some(Trial::new(system, 0).in_case(&name).with("gain", 1.0 / case.of_better(system)?));
        trials.extend(POLICIES.into_iter().filter_map(gain));
    }
    trials
}

fn against_no_proxy(trial: Trial, cases: &Cases) -> Trial {
    let ratios = cases.each(|case| Some(case.time(System::Single(1))? / case.time(System::NoProxy)?));
    match Spread::of(&ratios) {
        Some(spread) => trial.with("of_direct", spread.median),
        None => trial,
    }
}

/// The subject beside the best of the others, and how often it is worse than the better interface.
fn against_others(trial: Trial, cases: &Cases) -> Trial {
    let best = |of: fn(Spread) -> f64| {
        let others = POLICIES.into_iter().filter(|system| *system != System::Whimbrel);
        let each = others.filter_map(|system| Spread::of(&cases.each(|case| case.time(system)))).map(of);
        each.fold(f64::INFINITY, f64::min)
    };
    let Some(own) = Spread::of(&cases.each(|case| case.time(System::Whimbrel))) else { return trial };
    let relative = cases.each(|case| case.of_better(System::Whimbrel));
    let worse = relative.iter().filter(|relative| **relative > WORSE).count() as f64;
    trial
        .with("median_of_others", own.median / best(|spread| spread.median))
        .with("p95_of_others", own.p95 / best(|spread| spread.p95))
        .with("worse", worse / relative.len().max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(page: &str, system: System, round: u32, ms: f64) -> Load {
        Load {
            browser: Browser::Client,
            scenario: SCENARIOS[0].name,
            page: page.to_owned(),
            system,
            round,
            bytes: 1000,
            is_recorded: false,
            ms,
            predicted: Some(100.0),
            second: 0.5,
        }
    }

    #[test]
    fn systems_are_judged_by_the_medians_of_their_cases() {
        let mut loads = Vec::new();
        for (page, one, two, whimbrel) in [(JUDGED, 200.0, 300.0, 100.0), ("other", 100.0, 90.0, 99.0)] {
            for round in 0..3 {
                let wild = if round == 1 { 1000.0 } else { 0.0 };
                loads.push(load(page, System::NoProxy, round, one / 1.1));
                loads.push(load(page, System::Single(1), round, one));
                loads.push(load(page, System::Single(2), round, two));
                loads.push(load(page, System::Eaf, round, one / 2.0));
                loads.push(load(page, System::Whimbrel, round, whimbrel + wild));
            }
        }
        let trials = judged(Browser::Client, &Cases::of(&loads.iter().collect::<Vec<_>>()));
        let of = |system: &str, metric: &str| {
            let own = trials.iter().filter(|trial| trial.system == system);
            own.filter_map(|trial| trial.values.get(metric)).copied().next().unwrap_or(f64::NAN)
        };
        assert!((of("single 1", "of_direct") - 1.1).abs() < 1e-9);
        assert_eq!(of("eaf", "gain"), 2.0);
        // The medians are 100 and 99 ms; those of `eaf` are 100 and 50 ms.
        assert!((of("whimbrel", "median_of_others") - 99.5 / 75.0).abs() < 1e-9);
        // 99 is more than 5 % above 90, and 100 is not above 200.
        assert_eq!(of("whimbrel", "worse"), 0.5);
        assert!(of("all systems", "of_predicted") > 0.9);
    }

    #[test]
    fn what_is_far_from_the_simulators_word_is_listed_the_furthest_first() {
        let times = [("near", 114.0), ("slow", 300.0), ("fast", 20.0), ("late", 116.0)];
        let loads: Vec<Load> = times.map(|(page, ms)| load(page, System::Eaf, 0, ms)).into();
        let text = outliers(&loads);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "browser,scenario,page,system,ms,simulated_ms,of_simulated");
        assert_eq!(lines[1], "client,symmetric,\"fast\",eaf,20.0,100.0,0.200");
        let pages: Vec<&str> = lines[1..].iter().filter_map(|line| line.split('"').nth(1)).collect();
        assert_eq!(pages, ["fast", "slow", "late"]);
    }
}
