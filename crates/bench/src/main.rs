//! Measurements of whimbrel beside its peers.
//!
//! Each bench runs the subject and its peers in turn within one run, so that what disturbs the
//! machine disturbs all of them, and compares them pair by pair. Results are numbers to read, never
//! assertions: a busy machine must not fail a build.

mod benches;
mod cli;
mod contender;
mod energy;
mod flow;
mod lab;
mod machine;
mod messenger;
mod output;
mod page;
mod plot;
mod report;
mod stats;
mod sys;
mod system;
mod web;

use anyhow::Result;
use clap::Parser;

fn main() -> Result<()> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    cli::Cli::parse().run()
}
