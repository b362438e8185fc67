//! Where results go: to the reader, and to a file that says on what they were measured.

use std::fs;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};

use crate::machine::{self, Machine};
use crate::report::{self, Bound, Spec, Trial};

/// Prints results and keeps them.
#[derive(Debug)]
pub(crate) struct Output {
    json: bool,
    directory: Option<PathBuf>,
    machine: Machine,
    command: String,
    quick: bool,
}

impl Output {
    pub(crate) fn new(json: bool, directory: Option<PathBuf>, quick: bool) -> Result<Self> {
        if let Some(directory) = &directory {
            fs::create_dir_all(directory)
                .with_context(|| format!("cannot make {}; choose another with --out", directory.display()))?;
        }
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let command = format!("whimbrel-bench {}", arguments.join(" ")).trim_end().to_owned();
        let machine = Machine::here();
        if !json {
            println!("{machine}");
        }
        Ok(Self { json, directory, machine, command, quick })
    }

    /// Reports one trial as soon as it is over.
    pub(crate) fn trial(&self, spec: &Spec, trial: &Trial) {
        if self.json {
            self.line("trial", spec, trial);
            return;
        }
        let mut shown = format!("  {} #{} {}:", spec.name, trial.round + 1, trial.system);
        for metric in spec.metrics {
            if let Some(value) = trial.values.get(metric.key) {
                shown += &format!(" {} {} {}", metric.key, number(*value), metric.unit);
            }
        }
        eprintln!("{shown}");
    }

    /// Reports and keeps what a whole bench found.
    pub(crate) fn finish(&mut self, spec: &Spec, settings: Value, trials: &[Trial]) -> Result<()> {
        let summaries = report::summaries(spec, trials);
        let ratios = report::ratios(spec, trials);
        let verdicts = report::verdicts(spec, &summaries, &ratios);
        if self.json {
            summaries.iter().for_each(|s| self.line("summary", spec, s));
            ratios.iter().for_each(|r| self.line("ratio", spec, r));
            verdicts.iter().for_each(|v| self.line("verdict", spec, v));
        } else {
            print_tables(spec, &summaries, &ratios, &verdicts);
        }
        let date = machine::now();
        let kept = json!({
            "bench": spec.name,
            "title": spec.title,
            "date": date,
            "command": self.command,
            "quick": self.quick,
            "machine": self.machine,
            "settings": settings,
            "metrics": spec.metrics,
            "trials": trials,
            "summaries": summaries,
            "ratios": ratios,
            "verdicts": verdicts,
        });
        let Some(directory) = &self.directory else { return Ok(()) };
        let day = date.get(..10).unwrap_or(&date);
        let path = directory.join(format!("{day}-{}.json", spec.name));
        let text = serde_json::to_string_pretty(&kept)? + "\n";
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        if !self.json {
            println!("kept in {}", path.display());
        }
        Ok(())
    }

    fn line(&self, kind: &str, spec: &Spec, value: &impl Serialize) {
        let mut object = json!({ "kind": kind, "bench": spec.name });
        if let (Some(object), Ok(Value::Object(fields))) =
            (object.as_object_mut(), serde_json::to_value(value))
        {
            object.extend(fields);
        }
        println!("{object}");
    }
}

/// Three digits that mean something, whatever the size.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn print_tables(
    spec: &Spec,
    summaries: &[report::Summary],
    ratios: &[report::Ratio],
    verdicts: &[report::Verdict],
) {
    println!("\n{}: {}", spec.name, spec.title);
    println!("  {:<18} {:<18} {:>10} {:>10} {:>10}", "metric", "system", "median", "min", "max");
    for summary in summaries {
        let metric = format!("{} [{}]", summary.metric, summary.unit);
        let spread = summary.spread;
        let (median, min, max) = (number(spread.median), number(spread.min), number(spread.max));
        println!("  {metric:<18} {:<18} {median:>10} {min:>10} {max:>10}", summary.system);
    }
    for ratio in ratios {
        let pair = format!("{} / {}", ratio.subject, ratio.peer);
        let spread = ratio.spread;
        let (median, min, max) = (number(spread.median), number(spread.min), number(spread.max));
        println!("  {:<18} {pair:<28} {median:>10} {min:>10} {max:>10}", ratio.metric);
    }
    for verdict in verdicts {
        let target = &verdict.target;
        let (sign, limit) = match target.bound {
            Bound::AtLeast(limit) => ("≥", limit),
            Bound::AtMost(limit) => ("≤", limit),
        };
        let against = target.against.map_or(String::new(), |peer| format!(" × {peer}"));
        let met = if verdict.met { "met" } else { "MISSED" };
        println!(
            "  target {met}: {} {} {} {sign} {}{against} (aim {})",
            target.of,
            target.metric,
            number(verdict.value),
            number(limit),
            number(target.aim),
        );
    }
}
