//! Where results go: to the reader, and to a file that says on what they were measured.

use std::fmt::Display;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::{Value, json};

use crate::machine::{self, Machine};
use crate::plot::{self, Chart, Found};
use crate::report::{self, Bound, Judged, Spec, Trial};
use crate::stats::Spread;

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
            say(format_args!("{machine}"));
        }
        Ok(Self { json, directory, machine, command, quick })
    }

    /// Reports one trial as soon as it is over.
    pub(crate) fn trial(&self, spec: &Spec, trial: &Trial) {
        if self.json {
            self.line("trial", spec, trial);
            return;
        }
        let system = labelled(&trial.case, &trial.system);
        let mut shown = format!("  {} #{} {system}:", spec.name, trial.round + 1);
        for metric in spec.metrics {
            if let Some(value) = trial.values.get(metric.key) {
                shown += &format!(" {} {} {}", metric.key, number(*value), metric.unit);
            }
        }
        eprintln!("{shown}");
    }

    /// Reports and keeps what a whole bench found.
    pub(crate) fn finish(&mut self, spec: &Spec, settings: Value, trials: &[Trial]) -> Result<()> {
        self.finish_chart(spec, settings, trials, None)
    }

    /// The same, with a chart that the bench has made of it.
    pub(crate) fn finish_chart(
        &mut self,
        spec: &Spec,
        settings: Value,
        trials: &[Trial],
        chart: Option<&Chart>,
    ) -> Result<()> {
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
        let kept = json!({
            "bench": spec.name,
            "title": spec.title,
            "date": machine::now(),
            "command": self.command,
            "commit": machine::COMMIT,
            "quick": self.quick,
            "machine": self.machine,
            "settings": settings,
            "metrics": spec.metrics,
            "trials": trials,
            "summaries": summaries,
            "ratios": ratios,
            "verdicts": verdicts,
            "chart": chart,
        });
        let Some(directory) = &self.directory else { return Ok(()) };
        // No date in the name: a result takes the place of the one before, and none stays that is older than
        // it seems.
        let path = directory.join(format!("{}.json", spec.name));
        write(&path, &(serde_json::to_string_pretty(&kept)? + "\n"))?;
        write(&path.with_extension("csv"), &report::csv(trials))?;
        if let Some(chart) = chart {
            write(&directory.join(format!("{}-chart.csv", spec.name)), &chart.csv())?;
        }
        let picture = path.with_extension("svg");
        let found = Found { trials, summaries: &summaries, ratios: &ratios, chart };
        let drawn = plot::draw(&picture, spec, &found)?;
        if !self.json {
            say(format_args!("kept in {}", path.display()));
            if drawn {
                say(format_args!("drawn in {}", picture.display()));
            }
        }
        if drawn && !plot::write_png(&picture, &picture.with_extension("png"))? {
            eprintln!("no PNG: the system has no font; install one (apt-get install fonts-dejavu-core)");
        }
        Ok(())
    }

    /// Keeps a text beside the results, if results are kept.
    pub(crate) fn keep(&self, name: &str, text: &str) -> Result<()> {
        match &self.directory {
            Some(directory) => write(&directory.join(name), text),
            None => Ok(()),
        }
    }

    fn line(&self, kind: &str, spec: &Spec, value: &impl Serialize) {
        let mut object = json!({ "kind": kind, "bench": spec.name });
        if let (Some(object), Ok(Value::Object(fields))) =
            (object.as_object_mut(), serde_json::to_value(value))
        {
            object.extend(fields);
        }
        say(format_args!("{object}"));
    }
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
}

fn labelled(case: &str, system: &str) -> String {
    if case.is_empty() { system.to_owned() } else { format!("{case}, {system}") }
}

/// Prints a line. Who stops reading it does not end the measurement.
fn say(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Three digits that mean something, whatever the size.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.1 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn columns(spread: Spread) -> String {
    let Spread { median, min, max, p95 } = spread;
    [median, min, p95, max].map(|value| format!("{:>10}", number(value))).join(" ")
}

fn print_tables(
    spec: &Spec,
    summaries: &[report::Summary],
    ratios: &[report::Ratio],
    verdicts: &[report::Verdict],
) {
    let mut rows: Vec<(String, String, Spread)> = Vec::new();
    for summary in summaries {
        let metric = format!("{} [{}]", summary.metric, summary.unit);
        rows.push((metric, labelled(&summary.case, &summary.system), summary.spread));
    }
    for ratio in ratios {
        let pair = labelled(&ratio.case, &format!("{} / {}", ratio.subject, ratio.peer));
        rows.push((ratio.metric.to_owned(), pair, ratio.spread));
    }
    let width = rows.iter().map(|(_, system, _)| system.chars().count()).fold(22, usize::max);
    say(format_args!("\n{}: {}", spec.name, spec.title));
    say(format_args!(
        "  {:<18} {:<width$} {:>10} {:>10} {:>10} {:>10}",
        "metric", "system", "median", "min", "p95", "max"
    ));
    for (metric, system, spread) in &rows {
        say(format_args!("  {metric:<18} {system:<width$} {}", columns(*spread)));
    }
    for verdict in verdicts {
        let target = &verdict.target;
        let (sign, limit) = match target.bound {
            Bound::AtLeast(limit) => ("≥", limit),
            Bound::AtMost(limit) => ("≤", limit),
        };
        let against = target.against.map_or(String::new(), |peer| format!(" × {peer}"));
        let met = if verdict.met { "met" } else { "MISSED" };
        let which = match target.judged {
            Judged::Median => "",
            Judged::P95 => " p95",
            Judged::Least => " least",
        };
        say(format_args!(
            "  target {met}: {} {}{which} {} {sign} {}{against} (aim {})",
            labelled(&verdict.case, target.of),
            target.metric,
            number(verdict.value),
            number(limit),
            number(target.aim),
        ));
    }
}
