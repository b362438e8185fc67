//! The command line: the list of commands, and how it is read together with the configuration file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::failure::{self, EXIT_CODES, Failure};
use crate::options::Globals;
use crate::settings::Settings;
use crate::{commands, places, usage};

#[cfg(test)]
mod tests;

const TOP_EXAMPLE: &str = "\
Examples:
  At home, once:       whimbrel names serve --allow @example.org
  At home:             whimbrel expose ssh.home.ada@example.org --to 127.0.0.1:22 --allow LAPTOP-ID
  On the laptop:       ssh -o ProxyCommand='whimbrel pipe ssh.home.ada@example.org' ada@home
  See it move:         whimbrel demo

`whimbrel help config` explains the configuration file.";

/// Connections that survive every move.
///
/// Connects programs by name. A connection lives until somebody closes it, whatever happens to
/// addresses, interfaces, NATs and sleep underneath.
#[derive(Parser)]
#[command(
    name = "whimbrel",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true,
    after_help = format!("{TOP_EXAMPLE}\n\n{EXIT_CODES}"),
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    Id(commands::id::Id),
    Trust(commands::trust::Trust),
    Invite(commands::invite::Invite),
    Join(commands::invite::Join),
    Names(commands::names::Names),
    Expose(commands::expose::Expose),
    Forward(commands::forward::Forward),
    Pipe(commands::pipe::Pipe),
    Send(commands::send::Send),
    Receive(commands::receive::Receive),
    Status(commands::status::Status),
    Paths(commands::paths::Paths),
    Demo(commands::demo::Demo),
    Help(commands::help::Help),
}

/// The command line over the configuration file. `None` when only help was asked for, and given.
pub(crate) fn parse(argv: &[OsString]) -> Result<Option<Cli>> {
    let command = Cli::command();
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
    let matches = settings
        .matches(&command, argv)
        .map_err(|error| Failure::usage(usage::line(&command, &error, argv)))?;
    let cli = Cli::from_arg_matches(&matches)
        .map_err(|error| Failure::usage(usage::line(&command, &error, argv)))?;
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

/// Checks a configuration file's text as the program does. For tests of the reader.
///
/// # Errors
/// One line that names the key, the line and what to do.
pub fn check_config(text: &str) -> Result<(), String> {
    let command = Cli::command();
    let file = Path::new("config.toml");
    Settings::parse(text, file, &command)
        .and_then(|settings| settings.check_values(&command))
        .map_err(|error| failure::line(&error))
}
