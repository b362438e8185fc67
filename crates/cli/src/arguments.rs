//! The command line over the configuration file: what it says, whatever the commands are.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{ArgMatches, Command};

use crate::failure::Failure;
use crate::settings::Settings;
use crate::{places, usage};

/// Where flags come from. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    /// Describes the commands and their flags.
    program: fn() -> Command,
    argv: Arc<[OsString]>,
}

/// Nothing, of a program without commands.
impl Default for Source {
    fn default() -> Self {
        Self::new(Command::default, &[])
    }
}

impl Source {
    /// The words of a command line, of a program with the commands that `program` describes.
    pub(crate) fn new(program: fn() -> Command, argv: &[OsString]) -> Self {
        Self { program, argv: argv.into() }
    }

    /// Reads the command line over the configuration file as that is now. `None` when only help was asked
    /// for, and given.
    ///
    /// # Errors
    /// What is wrong with either, in a line for the user.
    pub(crate) fn read(&self) -> Result<Option<ArgMatches>> {
        let (program, argv) = ((self.program)(), &self.argv);
        // Help is given even if the configuration is broken: it may be what explains it.
        if let Err(error) = program.clone().try_get_matches_from(argv.iter())
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
            Some(file) => Settings::read(&file, &program)?,
            None => Settings::default(),
        };
        settings.check_values(&program)?;
        settings.matches(&program, argv).map(Some).map_err(|error| self.wrong(&error))
    }

    /// What clap says of this command line, in a line.
    pub(crate) fn wrong(&self, error: &clap::Error) -> anyhow::Error {
        Failure::usage(usage::line(&(self.program)(), error, &self.argv))
    }
}

/// Of what was read, the flags of the command itself: `serve` of `names serve`.
pub(crate) fn own(mut matches: &ArgMatches) -> &ArgMatches {
    while let Some((_, below)) = matches.subcommand() {
        matches = below;
    }
    matches
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
