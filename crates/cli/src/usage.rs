//! What is said of a wrong command line.

use std::ffi::OsString;

use clap::Command;
use clap::error::ErrorKind;

/// A former command of this program, and the program that does its work now.
const MOVED: (&str, &str) = ("pageload", "whimbrel-pageload");

/// What clap says of a wrong command line, in one line.
pub(crate) fn line(command: &Command, error: &clap::Error, argv: &[OsString]) -> String {
    if error.kind() == ErrorKind::InvalidSubcommand && argv.iter().any(|word| word == MOVED.0) {
        let (former, program) = MOVED;
        return format!("`{former}` is a program of its own now: run {program}; see `{program} --help`");
    }
    let text = error.render().to_string();
    let told = text.split("\n\nUsage:").next().unwrap_or_default();
    let told = told.split("\n\nFor more information").next().unwrap_or_default();
    let told = told.trim_start_matches("error: ").split_whitespace().collect::<Vec<_>>().join(" ");
    format!("{told}; see `{} --help`", command_of(command, argv))
}

/// The command that is on a command line: `whimbrel names serve`.
fn command_of(top: &Command, argv: &[OsString]) -> String {
    let (mut found, mut path) = (top, top.get_name().to_owned());
    for word in argv.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(command) = found.find_subcommand(word) {
            found = command;
            path += &format!(" {word}");
        }
    }
    path
}
