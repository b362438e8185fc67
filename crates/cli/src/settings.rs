//! The configuration file: TOML that may hold every flag.
//!
//! Each entry becomes the default of the flag of the same name, so flags on the command line win,
//! and values are checked by the same rules in both places.

use std::ffi::OsString;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::de::{DeTable, DeValue};

use crate::failure::Failure;
use crate::usage;

/// Flags that make no sense in the file.
const NOT_IN_FILE: [&str; 7] = ["config", "help", "version", "until_eof", "topic", "take_over", "program"];

/// One flag's value in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Setting {
    /// The commands on the way to the flag's: none for global flags, `names`, `serve` for `names serve`.
    path: Vec<String>,
    /// Its id in clap.
    arg: String,
    values: Vec<String>,
    line: usize,
}

/// A file whose keys are all known.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    file: PathBuf,
    settings: Vec<Setting>,
}

impl Settings {
    /// Reads a file.
    pub(crate) fn read(file: &Path, command: &Command) -> Result<Self> {
        let text = std::fs::read_to_string(file)
            .with_context(|| format!("cannot read the configuration {}", file.display()))
            .map_err(|error| Failure::usage(crate::failure::line(&error)))?;
        Self::parse(&text, file, command)
    }

    /// Reads a file's text; `file` is named in errors.
    pub(crate) fn parse(text: &str, file: &Path, command: &Command) -> Result<Self> {
        let source = Source { text, file };
        let table = DeTable::parse(text).map_err(|error| {
            source.error(error.span().unwrap_or_default(), error.message().lines().next().unwrap_or_default())
        })?;
        let mut settings = Vec::new();
        for (key, value) in table.get_ref() {
            let name: &str = key.get_ref();
            match value.get_ref() {
                DeValue::Table(section) => {
                    let (path, command) = find_command(command, name)
                        .ok_or_else(|| source.error(key.span(), &no_section(command, name)))?;
                    for (key, value) in section {
                        let at = (&path[..], command, &format!("[{name}]")[..]);
                        settings.push(source.setting(at, key, value)?);
                    }
                }
                _ => settings.push(source.setting((&[], command, "the top of the file"), key, value)?),
            }
        }
        Ok(Self { file: file.to_owned(), settings })
    }

    /// Parses the command line over these settings.
    pub(crate) fn matches(&self, command: &Command, argv: &[OsString]) -> Result<ArgMatches, clap::Error> {
        let chosen = match self.apply(command, self.settings.iter()).try_get_matches_from(argv) {
            Ok(matches) => {
                let kept: Vec<_> =
                    self.settings.iter().filter(|s| !s.is_overruled(command, &matches)).collect();
                if kept.len() == self.settings.len() {
                    return Ok(matches);
                }
                kept
            }
            Err(_) => self.settings.iter().collect(),
        };
        self.apply(command, chosen.into_iter()).try_get_matches_from(argv)
    }

    /// The first setting whose value its flag does not take, told with its line.
    pub(crate) fn check_values(&self, command: &Command) -> Result<()> {
        for setting in &self.settings {
            let argv = std::iter::once("whimbrel").chain(setting.path.iter().map(String::as_str));
            let argv: Vec<OsString> = argv.map(OsString::from).collect();
            let result = self.apply(command, std::iter::once(setting)).try_get_matches_from(&argv);
            let Err(error) = result else { continue };
            use clap::error::ErrorKind;
            if matches!(error.kind(), ErrorKind::ValueValidation | ErrorKind::InvalidValue) {
                return Err(Failure::usage(format!(
                    "{}:{}: {}",
                    self.file.display(),
                    setting.line,
                    usage::line(command, &error, &argv)
                )));
            }
        }
        Ok(())
    }

    fn apply<'a>(&self, command: &Command, settings: impl Iterator<Item = &'a Setting>) -> Command {
        settings.fold(command.clone(), |command, setting| setting.apply(command, &setting.path))
    }
}

impl Setting {
    fn apply(&self, command: Command, path: &[String]) -> Command {
        match path.split_first() {
            Some((first, rest)) => command.mut_subcommand(first, |command| self.apply(command, rest)),
            None => command.mut_arg(&self.arg, |arg| arg.required(false).default_values(self.values.clone())),
        }
    }

    /// Whether a flag that excludes this one is on the command line.
    fn is_overruled(&self, command: &Command, matches: &ArgMatches) -> bool {
        let (mut command, mut matches) = (command.clone(), matches);
        for step in &self.path {
            let Some((name, inner)) = matches.subcommand() else { return false };
            let Some(found) = command.find_subcommand(step).filter(|_| name == step) else { return false };
            (command, matches) = (found.clone(), inner);
        }
        let Some(arg) = command.get_arguments().find(|arg| arg.get_id() == self.arg.as_str()) else {
            return false;
        };
        command
            .get_arguments()
            .filter(|other| excludes(&command, arg, other))
            .any(|other| matches.value_source(other.get_id().as_str()) == Some(ValueSource::CommandLine))
    }
}

fn excludes(command: &Command, one: &Arg, other: &Arg) -> bool {
    let lists = |a: &Arg, b: &Arg| command.get_arg_conflicts_with(a).iter().any(|c| c.get_id() == b.get_id());
    lists(one, other) || lists(other, one)
}

/// A section's command: `expose`, or `names-serve` for `names serve`.
fn find_command<'a>(top: &'a Command, section: &str) -> Option<(Vec<String>, &'a Command)> {
    if let Some(command) = top.find_subcommand(section) {
        return Some((vec![section.to_owned()], command));
    }
    let (outer, inner) = section.split_once('-')?;
    let command = top.find_subcommand(outer)?.find_subcommand(inner)?;
    Some((vec![outer.to_owned(), inner.to_owned()], command))
}

fn no_section(top: &Command, name: &str) -> String {
    let mut known = Vec::new();
    for command in top.get_subcommands() {
        let own = command.get_arguments().any(|arg| !arg.is_global_set());
        if own {
            known.push(command.get_name().to_owned());
        }
        known.extend(command.get_subcommands().map(|c| format!("{}-{}", command.get_name(), c.get_name())));
    }
    format!("unknown section [{name}]; there are {}", known.join(", "))
}

struct Source<'a> {
    text: &'a str,
    file: &'a Path,
}

type Spanned<T> = toml::Spanned<T>;
/// A command's path, the command, and what to call its section.
type Section<'a> = (&'a [String], &'a Command, &'a str);

impl Source<'_> {
    fn line(&self, span: &Range<usize>) -> usize {
        self.text.as_bytes().iter().take(span.start).filter(|byte| **byte == b'\n').count() + 1
    }

    fn error(&self, span: Range<usize>, message: &str) -> anyhow::Error {
        Failure::usage(format!("{}:{}: {message}", self.file.display(), self.line(&span)))
    }

    fn setting(
        &self,
        (path, command, section): Section<'_>,
        key: &Spanned<impl AsRef<str>>,
        value: &Spanned<DeValue<'_>>,
    ) -> Result<Setting> {
        let name = key.get_ref().as_ref();
        let arg = command
            .get_arguments()
            .filter(|arg| !NOT_IN_FILE.contains(&arg.get_id().as_str()))
            .find(|arg| setting_name(arg) == name && (path.is_empty() || !arg.is_global_set()));
        let Some(arg) = arg else {
            let known: Vec<String> = command
                .get_arguments()
                .filter(|arg| !arg.is_hide_set() && !NOT_IN_FILE.contains(&arg.get_id().as_str()))
                .filter(|arg| path.is_empty() || !arg.is_global_set())
                .map(setting_name)
                .collect();
            let message = format!("unknown key `{name}` in {section}; there are {}", known.join(", "));
            return Err(self.error(key.span(), &message));
        };
        let several = matches!(arg.get_action(), ArgAction::Append);
        let values = values(value.get_ref(), several)
            .map_err(|problem| self.error(value.span(), &format!("`{name}` {problem}")))?;
        Ok(Setting {
            path: path.to_vec(),
            arg: arg.get_id().to_string(),
            values,
            line: self.line(&key.span()),
        })
    }
}

/// A flag's name without dashes; a positional argument's name in lower case.
fn setting_name(arg: &Arg) -> String {
    arg.get_long().map_or_else(|| arg.get_id().to_string(), str::to_owned)
}

fn values(value: &DeValue<'_>, several: bool) -> Result<Vec<String>, &'static str> {
    let scalar = |value: &DeValue<'_>| match value {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Ok(number.as_str().replace('_', "")),
        DeValue::Boolean(truth) => Ok(truth.to_string()),
        _ => Err("must be a string, a whole number or true or false"),
    };
    match value {
        DeValue::Array(list) if several => list.iter().map(|value| scalar(value.get_ref())).collect(),
        DeValue::Array(_) => Err("takes one value, not a list"),
        value => Ok(vec![scalar(value)?]),
    }
}
