//! The program `whimbrel-pageload`.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match whimbrel_pageload::cli::Command::parse().run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("whimbrel-pageload: {error:#}");
            ExitCode::FAILURE
        }
    }
}
