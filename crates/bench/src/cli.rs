//! The command line.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand};

use crate::benches::{self, Plan, child};
use crate::output::Output;
use crate::system::Kind;

const EXAMPLES: &str = "\
Examples:
  whimbrel-bench                           every bench, results below bench/results
  whimbrel-bench throughput --rounds 9     one bench, nine rounds
  whimbrel-bench connect --quick           a smoke run, nothing is kept
  whimbrel-bench ping-pong --systems whimbrel,tls --json
  
The peers TLS, quinn and iroh are compiled in with `--features peers` only.";

/// Measures whimbrel beside TCP, TLS over TCP, quinn and iroh.
#[derive(Debug, Parser)]
#[command(version, after_help = EXAMPLES)]
pub(crate) struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

/// What holds for every bench.
#[derive(Debug, Args)]
struct Options {
    /// Rounds; in each, every system runs once.
    #[arg(long, global = true, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Seconds that one trial measures.
    #[arg(long, global = true)]
    seconds: Option<f64>,
    /// Print one JSON object a line instead of tables.
    #[arg(long, global = true)]
    json: bool,
    /// Where results are kept, as `DATE-BENCH.json`.
    #[arg(long, global = true, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A smoke run: few, short rounds; results are kept only where `--out` says.
    #[arg(long, global = true)]
    quick: bool,
    /// Only these systems.
    #[arg(long, global = true, value_enum, value_delimiter = ',')]
    systems: Vec<Kind>,
}

#[derive(Debug, Clone, Subcommand)]
enum Command {
    /// Every bench, one after the other (the default).
    All,
    /// One stream, 64 KiB writes.
    Throughput,
    /// One stream, 1 KiB writes.
    SmallWrites,
    /// One byte there and back.
    PingPong,
    /// From starting to connect to a known peer until the first byte was echoed.
    Connect,
    /// Memory and CPU time of connections that do nothing.
    Idle {
        /// How many connections.
        #[arg(long)]
        connections: Option<usize>,
    },
    /// One side of the idle bench, in a process of its own.
    #[command(hide = true)]
    IdleChild(child::Role),
}

impl Cli {
    pub(crate) fn run(self) -> Result<()> {
        let command = self.command.unwrap_or(Command::All);
        if let Command::IdleChild(role) = command {
            return child::run(role);
        }
        let options = self.options;
        let plan = options.plan()?;
        let mut output = Output::new(options.json, options.kept_in(), options.quick)?;
        match command {
            Command::All => {
                benches::bulk::throughput(&plan, &mut output)?;
                benches::bulk::small_writes(&plan, &mut output)?;
                benches::ping_pong::run(&plan, &mut output)?;
                benches::connect::run(&plan, &mut output)?;
                benches::idle::run(&plan, None, &mut output)
            }
            Command::Throughput => benches::bulk::throughput(&plan, &mut output),
            Command::SmallWrites => benches::bulk::small_writes(&plan, &mut output),
            Command::PingPong => benches::ping_pong::run(&plan, &mut output),
            Command::Connect => benches::connect::run(&plan, &mut output),
            Command::Idle { connections } => benches::idle::run(&plan, connections, &mut output),
            Command::IdleChild(_) => Ok(()),
        }
        .context("the bench did not finish")
    }
}

impl Options {
    fn plan(&self) -> Result<Plan> {
        let mut systems = Kind::available();
        if !self.systems.is_empty() {
            if let Some(missing) = self.systems.iter().find(|s| !systems.contains(s)) {
                bail!("{missing} is not compiled in; build with `--features peers`");
            }
            systems.retain(|s| self.systems.contains(s));
        }
        Ok(Plan { systems, rounds: self.rounds, seconds: self.seconds, quick: self.quick })
    }

    fn kept_in(&self) -> Option<PathBuf> {
        match (&self.out, self.quick) {
            (Some(out), _) => Some(out.clone()),
            (None, true) => None,
            (None, false) => Some("bench/results".into()),
        }
    }
}
