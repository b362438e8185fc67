//! The command line of the program `whimbrel-pageload`, and what each command does.

use crate::experiment::{self, Design, Progress, Results};
use crate::har::Har;
use crate::modern::{Network, Protocol, Settings, Trace};
use crate::page::Page;
use crate::report::Summary;
use crate::scenario::{Link, Outcome};
use crate::simulator::{Conditions, Model, Simulator};
use crate::{bench, pages, report, waterfall};
use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use whimbrel_access::{NAMES, PolicySpec};

/// What access policies are worth: simulate page loads over several networks.
#[derive(Debug, Parser)]
#[command(
    name = "whimbrel-pageload",
    version,
    after_help = "Example:\n  whimbrel-pageload waterfall page.har --path 20ms,6mbit --path 50ms,20mbit -o page.svg"
)]
pub struct Command {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Load pages and print how long it takes under each policy
    #[command(after_help = "Example:\n  whimbrel-pageload load page.har --policy whimbrel --policy single:2")]
    Load(Load),
    /// Load one page and draw when each object came over which path
    #[command(
        after_help = "Example:\n  whimbrel-pageload waterfall page.har --path 20ms,6mbit --path 50ms,20mbit -o page.svg"
    )]
    Waterfall(Waterfall),
    /// Run a factorial design on all cores; goes on where it was interrupted
    #[command(after_help = "Example:\n  whimbrel-pageload experiment design.toml -o results.csv")]
    Experiment(Experiment),
    /// Draw the figures of an experiment's results
    #[command(after_help = "Example:\n  whimbrel-pageload report results.csv -o report --subject whimbrel")]
    Report(Report),
    /// Measure simulations per second and core
    #[command(after_help = "Example:\n  whimbrel-pageload bench page.har --model modern")]
    Bench(Bench),
}

#[derive(Debug, Args)]
struct Scenario {
    /// A path: round-trip time, and rate or trace file; e.g. 20ms,6mbit or 40ms,lte.down,loss=0.01
    #[arg(long = "path", value_name = "PATH", default_values = ["20ms,6mbit", "50ms,20mbit"])]
    paths: Vec<String>,
    /// The model
    #[arg(long, value_enum, default_value = "modern")]
    model: Model,
    /// The modern model's switches, a TOML file (see docs/pageload.md)
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// h1, h2 or h3, instead of what the settings say
    #[arg(long, value_parser = protocol)]
    protocol: Option<Protocol>,
    /// Decides about everything that is random
    #[arg(long, default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Args)]
struct Load {
    /// HAR files, folders of them, or .jsonl.gz sets
    #[arg(required = true)]
    pages: Vec<PathBuf>,
    /// A policy by name, with :PATH to start on another path than the first; may be repeated [default: all]
    #[arg(long = "policy")]
    policies: Vec<String>,
    /// Print JSON, one object a line, with the times of every object of the page
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    scenario: Scenario,
}

#[derive(Debug, Args)]
struct Waterfall {
    /// A HAR file
    page: PathBuf,
    /// The policy
    #[arg(long, default_value = "whimbrel")]
    policy: String,
    /// The file to draw into, as SVG; a bitmap of it goes beside it (.png)
    #[arg(long, short, default_value = "waterfall.svg")]
    out: PathBuf,
    #[command(flatten)]
    scenario: Scenario,
}

#[derive(Debug, Args)]
struct Experiment {
    /// The design
    design: PathBuf,
    /// The results: CSV, a row for each page and setting
    #[arg(long, short, default_value = "results.csv")]
    out: PathBuf,
    /// Threads [default: one for each core]
    #[arg(long)]
    threads: Option<usize>,
}

#[derive(Debug, Args)]
struct Report {
    /// Results of an experiment
    results: PathBuf,
    /// The folder to draw into
    #[arg(long, short, default_value = "report")]
    out: PathBuf,
    /// The policy that speed-ups are against
    #[arg(long, default_value = "interface-1")]
    baseline: String,
    /// The policy that Fig. 9 is against
    #[arg(long, default_value = "mptcp-if1")]
    multipath: String,
    /// The policy that Fig. 10 is about
    #[arg(long, default_value = "eaf")]
    subject: String,
}

#[derive(Debug, Args)]
struct Bench {
    /// HAR files, folders of them, or .jsonl.gz sets
    #[arg(required = true)]
    pages: Vec<PathBuf>,
    /// Only pages that are named in the first column of this CSV file
    #[arg(long)]
    only: Option<PathBuf>,
    /// The model
    #[arg(long, value_enum, default_value = "paper")]
    model: Model,
    /// Rounds, of which the fastest counts; policies take turns
    #[arg(long, default_value_t = 10)]
    rounds: usize,
}

impl Command {
    /// Do what the command says. Blocks until it is done.
    ///
    /// # Errors
    /// One line that says what is wrong and what to do.
    pub fn run(self) -> Result<()> {
        let done = match self.what {
            What::Load(command) => load(&command),
            What::Waterfall(command) => draw_waterfall(&command),
            What::Experiment(command) => run_experiment(&command),
            What::Report(command) => write_report(&command),
            What::Bench(command) => run_bench(&command),
        };
        match done {
            // Whoever read what is printed has read enough.
            Err(error) if is_closed_pipe(&error) => Ok(()),
            done => done,
        }
    }
}

fn is_closed_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn protocol(text: &str) -> Result<Protocol, String> {
    match text {
        "h1" => Ok(Protocol::H1),
        "h2" => Ok(Protocol::H2),
        "h3" => Ok(Protocol::H3),
        _ => Err("it should be h1, h2 or h3".to_owned()),
    }
}

/// `NAME` or `NAME:PATH`.
fn policy(text: &str) -> Result<PolicySpec> {
    let spec = match text.split_once(':') {
        None => PolicySpec::named(text),
        Some((name, path)) => {
            let path =
                path.parse().with_context(|| format!("policy {text}: {path} is no number of a path"))?;
            PolicySpec::named(name).on(path)
        }
    };
    spec.build()?;
    Ok(spec)
}

/// `20ms,6mbit`, `40ms,FILE`, and `loss=0.01` behind them.
fn network(text: &str) -> Result<Network> {
    let wrong = || format!("--path {text}: it should look like 20ms,6mbit or 40ms,trace.down,loss=0.01");
    let mut parts = text.split(',');
    let number = |part: Option<&str>, unit: &str| -> Option<f64> {
        part?.strip_suffix(unit)?.parse().ok().filter(|number: &f64| *number > 0.0 && number.is_finite())
    };
    let rtt = number(parts.next(), "ms").with_context(wrong)?;
    let what = parts.next().with_context(wrong)?;
    let is_rate = what.strip_suffix("mbit").is_some_and(|rate| rate.parse::<f64>().is_ok());
    let mut network = match number(Some(what), "mbit") {
        Some(mbit) => Network::plain(Link::paper(rtt, mbit)),
        None if is_rate => bail!("--path {text}: {what} is no rate: it has to be above 0mbit"),
        None => Network::traced(rtt * 0.001, Arc::new(Trace::read(what.as_ref()).with_context(wrong)?)),
    };
    if let Some(loss) = parts.next() {
        network.loss = loss.strip_prefix("loss=").and_then(|loss| loss.parse().ok()).with_context(wrong)?;
        if !(0.0..1.0).contains(&network.loss) || parts.next().is_some() {
            bail!(wrong());
        }
    }
    Ok(network)
}

/// A scenario, read.
struct Stage {
    model: Model,
    networks: Vec<Network>,
    settings: Settings,
    seed: u64,
}

impl Stage {
    fn new(scenario: &Scenario) -> Result<Self> {
        let networks = scenario.paths.iter().map(|text| network(text)).collect::<Result<Vec<_>>>()?;
        let settings = match &scenario.settings {
            None => Settings::default(),
            Some(file) => toml::from_str(
                &std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?,
            )
            .with_context(|| format!("{}", file.display()))?,
        };
        let settings = Settings { protocol: scenario.protocol.unwrap_or(settings.protocol), ..settings };
        if networks.len() > whimbrel_access::MAX_PATHS {
            bail!("at most {} --path", whimbrel_access::MAX_PATHS);
        }
        if scenario.model == Model::Paper && networks.iter().any(|n| n.trace.is_some() || n.loss > 0.0) {
            bail!("--model paper knows neither traces nor loss: leave them out, or use --model modern");
        }
        Ok(Self { model: scenario.model, networks, settings, seed: scenario.seed })
    }

    fn page(&self, har: &Har) -> Result<Page> {
        Ok(Page::new(har, self.model.reading())?)
    }

    fn links(&self) -> Vec<Link> {
        self.networks.iter().map(|network| network.link).collect()
    }

    fn load(&self, page: &Page, spec: &PolicySpec) -> Result<Outcome> {
        if usize::from(spec.path().unwrap_or(1)) > self.networks.len() {
            bail!("policy {}: there is no path {}", spec.name(), spec.path().unwrap_or(1));
        }
        let mut policy = spec.build()?;
        let mut outcome = Outcome::default();
        let Self { model, seed, networks, settings } = self;
        let conditions = Conditions { model: *model, networks, settings, seed: *seed };
        Simulator::new().load(page, conditions, policy.as_mut(), &mut outcome);
        Ok(outcome)
    }
}

fn load(command: &Load) -> Result<()> {
    let stage = Stage::new(&command.scenario)?;
    let names: Vec<String> = if command.policies.is_empty() {
        NAMES.iter().map(|name| (*name).to_owned()).collect()
    } else {
        command.policies.clone()
    };
    let specs = names.iter().map(|name| policy(name)).collect::<Result<Vec<_>>>()?;
    for path in &command.pages {
        for har in pages::read(path)? {
            let page = stage.page(&har)?;
            if !command.json {
                writeln!(
                    io::stdout(),
                    "{}: {} objects, {} bytes",
                    page.name,
                    page.transfers.len(),
                    page.bytes()
                )?;
            }
            for (name, spec) in names.iter().zip(&specs) {
                let outcome = stage.load(&page, spec)?;
                if command.json {
                    writeln!(io::stdout(), "{}", as_json(&page, name, &outcome, &stage.links()))?;
                } else {
                    let used: Vec<String> = outcome
                        .utilisation(&stage.links())
                        .map(|share| format!("{:.0} %", share * 100.0))
                        .collect();
                    writeln!(
                        io::stdout(),
                        "  {name:16} {:8.3} s  {:3} connections  paths used {}",
                        outcome.plt,
                        outcome.connections,
                        used.join(" ")
                    )?;
                }
            }
        }
    }
    Ok(())
}

fn as_json(page: &Page, policy: &str, outcome: &Outcome, links: &[Link]) -> serde_json::Value {
    let objects: Vec<serde_json::Value> = page
        .transfers
        .iter()
        .zip(&outcome.spans)
        .map(|(transfer, span)| {
            serde_json::json!({
                "url": transfer.url, "bytes": transfer.size, "ready_s": span.ready, "assigned_s": span.assigned,
                "done_s": span.done, "connection": span.connection, "path": span.path + 1,
            })
        })
        .collect();
    serde_json::json!({
        "page": page.name, "policy": policy, "plt_s": outcome.plt, "connections": outcome.connections,
        "utilisation": outcome.utilisation(links).collect::<Vec<_>>(), "objects": objects,
    })
}

fn draw_waterfall(command: &Waterfall) -> Result<()> {
    let stage = Stage::new(&command.scenario)?;
    let page = stage.page(&Har::read(&command.page)?)?;
    let outcome = stage.load(&page, &policy(&command.policy)?)?;
    waterfall::write(&page, &outcome, &command.policy, &command.scenario.paths, &command.out)?;
    writeln!(
        io::stdout(),
        "{}: {:.3} s by {}; drawn into {}",
        page.name,
        outcome.plt,
        command.policy,
        command.out.display()
    )?;
    Ok(())
}

/// Shows how far an experiment is on the terminal.
struct Bar(ProgressBar);

impl Progress for Bar {
    fn begin(&self, rows: usize, of: usize) {
        self.0.set_length(of as u64);
        self.0.set_position(rows as u64);
        self.0.reset_eta();
    }

    fn rows(&self, count: usize) {
        self.0.inc(count as u64);
    }
}

fn run_experiment(command: &Experiment) -> Result<()> {
    let design = Design::read(&command.design)?;
    let threads = command
        .threads
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} rows  {per_sec}  {eta} left")?;
    let bar = Bar(ProgressBar::new(0).with_style(style));
    experiment::run(&design, &command.out, threads, &bar)?;
    bar.0.finish();
    writeln!(io::stdout(), "{} rows in {}", bar.0.length().unwrap_or(0), command.out.display())?;
    Ok(())
}

fn write_report(command: &Report) -> Result<()> {
    let results = Results::read(&command.results)?;
    let (baseline, multipath) = (&command.baseline, &command.multipath);
    let summaries = report::write(&results, baseline, multipath, &command.subject, &command.out)?;
    writeln!(io::stdout(), "{}", columns(&Summary::HEADINGS.map(str::to_owned)))?;
    for summary in summaries {
        writeln!(io::stdout(), "{}", columns(&summary.cells()))?;
    }
    writeln!(io::stdout(), "figures: {}", command.out.join("index.html").display())?;
    Ok(())
}

/// The first to the left, the others to the right.
fn columns(cells: &[String]) -> String {
    let (first, others) = cells.split_first().map_or(("", &[][..]), |(first, others)| (first, others));
    others.iter().fold(format!("{first:16}"), |line, cell| line + &format!(" {cell:>9}"))
}

fn run_bench(command: &Bench) -> Result<()> {
    let only = command.only.as_ref().map(std::fs::read_to_string).transpose()?;
    let wanted = |har: &Har| {
        only.as_ref().is_none_or(|list| list.lines().any(|line| line.split(',').next() == Some(&har.name)))
    };
    let mut all = Vec::new();
    for path in &command.pages {
        for har in pages::read(path)?.iter().filter(|har| wanted(har)) {
            all.push(Page::new(har, command.model.reading())?);
        }
    }
    let mut policies = vec![PolicySpec::named("single").on(2), PolicySpec::named("mptcp").on(2)];
    policies.extend(NAMES.iter().map(|name| PolicySpec::named(name)));
    writeln!(
        io::stdout(),
        "{} pages × {} settings; simulations per second and core",
        all.len(),
        bench::SETTINGS.len()
    )?;
    for measured in bench::measure(&all, &policies, command.model, command.rounds)? {
        let path = measured.policy.path().map_or(String::new(), |path| format!(":{path}"));
        writeln!(
            io::stdout(),
            "{:20} {:8.0}",
            measured.policy.name().to_owned() + &path,
            measured.loads as f64 / measured.seconds
        )?;
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_a_round_trip_with_a_rate_or_a_trace() {
        let lossy = network("20ms,6mbit,loss=0.01").unwrap();
        assert_eq!((lossy.link.rtt, lossy.loss), (0.02, 0.01));
        let error = |text: &str| format!("{:#}", network(text).err().unwrap());
        assert_eq!(error("20ms,0mbit"), "--path 20ms,0mbit: 0mbit is no rate: it has to be above 0mbit");
        assert!(error("20ms,-1mbit").contains("-1mbit is no rate"));
        assert!(error("20ms").contains("it should look like 20ms,6mbit"));
        assert!(error("0ms,6mbit").contains("it should look like"));
        assert!(error("20ms,6mbit,loss=2").contains("it should look like"));
        assert!(error("20ms,nosuchfile").contains("nosuchfile"));
    }
}
