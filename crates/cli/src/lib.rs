//! The `whimbrel` program: its command line, its commands, and what they share.
//!
//! ```text
//! args, settings     the command line and the configuration file
//! commands           one file each
//! identity, naming   who we are, and by what right we use a name
//! serving            commands that let peers in until they are stopped
//! network            an endpoint set up as the flags say; how it ends
//! access             who is let in
//! tunnel, lasting    bytes between sockets and streams; a connection that is re-made if it truly ended
//! transfer           files that arrive whole
//! multipath          flags about several networks; changing how a running command uses them
//! status             what the commands of this user are doing
//! demo               the parts of `whimbrel demo`
//! ```

mod access;
mod args;
mod commands;
mod demo;
mod failure;
mod identity;
mod lasting;
mod multipath;
mod naming;
mod network;
mod output;
mod places;
mod progress;
mod serving;
pub mod settings;
mod shutdown;
mod status;
mod transfer;
mod tunnel;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _};

use crate::args::{Cli, Command, Globals};
use crate::failure::Failure;
use crate::settings::Settings;

/// Runs the program with these arguments, the first being its own name.
pub fn run(argv: impl IntoIterator<Item = OsString>) -> ExitCode {
    let argv: Vec<OsString> = argv.into_iter().collect();
    match start(&argv) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let line = failure::line(&error);
            if !line.is_empty() {
                // If nobody reads errors there is nobody to tell.
                let _ = writeln!(std::io::stderr(), "whimbrel: {line}");
            }
            ExitCode::from(failure::code(&error))
        }
    }
}

fn command() -> clap::Command {
    Cli::command()
}

fn start(argv: &[OsString]) -> Result<()> {
    let Some(cli) = parse(argv)? else {
        return Ok(());
    };
    log(&cli.globals);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start: the system gives no threads or no poller")?;
    let result = runtime.block_on(dispatch(cli));
    // A thread may wait in read(2) on standard input, which nothing ends.
    runtime.shutdown_background();
    result
}

async fn dispatch(cli: Cli) -> Result<()> {
    let globals = &cli.globals;
    match cli.command {
        Command::Id(args) => commands::id::run(globals, args).await,
        Command::Names(args) => commands::names::run(globals, args).await,
        Command::Expose(args) => commands::expose::run(globals, args).await,
        Command::Forward(args) => commands::forward::run(globals, args).await,
        Command::Pipe(args) => commands::pipe::run(globals, args).await,
        Command::Send(args) => commands::send::run(globals, args).await,
        Command::Receive(args) => commands::receive::run(globals, args).await,
        Command::Status(args) => commands::status::run(globals, args).await,
        Command::Paths(args) => commands::paths::run(globals, args).await,
        Command::Demo(args) => commands::demo::run(globals, args).await,
        Command::Pageload(args) => commands::pageload::run(args).await,
        Command::Help(args) => commands::help::run(args),
    }
}

/// The command line over the configuration file. `None` when only help was asked for, and given.
fn parse(argv: &[OsString]) -> Result<Option<Cli>> {
    let command = command();
    // Help is given even if the configuration is broken: it may be what explains it.
    if let Err(error) = command.clone().try_get_matches_from(argv)
        && matches!(
            error.kind(),
            ErrorKind::DisplayHelp
                | ErrorKind::DisplayVersion
                | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
        )
    {
        // A reader that went away has read enough.
        let _ = error.print();
        return match error.kind() {
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Err(Failure::silent(Failure::USAGE)),
            _ => Ok(None),
        };
    }
    let settings = match config_file(argv)? {
        Some(file) => Settings::read(&file, &command)?,
        None => Settings::default(),
    };
    settings.check_values(&command)?;
    let matches =
        settings.matches(&command, argv).map_err(|error| Failure::usage(usage_line(&error, argv)))?;
    let cli = Cli::from_arg_matches(&matches).map_err(|error| Failure::usage(usage_line(&error, argv)))?;
    Ok(Some(cli))
}

/// The configuration file: the one that is named, or the usual one if it exists.
fn config_file(argv: &[OsString]) -> Result<Option<PathBuf>> {
    let mut argv = argv.iter().skip(1);
    while let Some(arg) = argv.next() {
        match arg.to_str() {
            Some("--") => break,
            Some("--config") => return Ok(argv.next().map(PathBuf::from)),
            Some(text) => {
                if let Some(file) = text.strip_prefix("--config=") {
                    return Ok(Some(PathBuf::from(file)));
                }
            }
            None => {}
        }
    }
    let Ok(directory) = places::config() else {
        return Ok(None);
    };
    Ok(Some(directory.join("config.toml")).filter(|file| file.exists()))
}

/// What clap says of a wrong command line, in one line.
fn usage_line(error: &clap::Error, argv: &[OsString]) -> String {
    let text = error.render().to_string();
    let told = text.split("\n\nUsage:").next().unwrap_or_default();
    let told = told.split("\n\nFor more information").next().unwrap_or_default();
    let told = told.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{told}; see `{} --help`", command_of(argv))
}

/// The command that is on a command line: `whimbrel names serve`.
fn command_of(argv: &[OsString]) -> String {
    let top = command();
    let (mut found, mut path) = (&top, top.get_name().to_owned());
    for word in argv.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(command) = found.find_subcommand(word) {
            found = command;
            path += &format!(" {word}");
        }
    }
    path
}

/// Log lines go to standard error. Without -v there are none: what users must know is said as an error.
fn log(globals: &Globals) {
    use tracing_subscriber::EnvFilter;
    let default = match (globals.quiet, globals.verbose) {
        (true, _) | (_, 0) => "off",
        (_, 1) => "info",
        (_, 2) => "debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // A second subscriber is refused; there is none.
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).try_init();
}
