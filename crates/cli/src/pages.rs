//! Help, manual pages and shell completions, made from the description of the command line itself.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::{Arg, ArgAction, Command, ValueEnum as _};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::options::{GLOBAL, LIMITS, NETWORKS};
use crate::output;

/// Wider lines are hard to read.
const MOST_COLUMNS: usize = 100;
/// Options that many commands have, by their heading, and the topic of `whimbrel help` that explains them.
const TOPICS: [(&str, &str); 2] = [(NETWORKS, "networks"), (LIMITS, "service-limits")];

/// The command line with help that fits a screen: each command's own options, an option a line.
pub(crate) fn on_a_screen(program: Command) -> Command {
    describe(program, &[], columns())
}

/// The columns that help uses: those of the terminal, up to a limit.
fn columns() -> usize {
    let set = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    output::terminal_width().or(set).map_or(MOST_COLUMNS, |columns| columns.min(MOST_COLUMNS))
}

fn describe(command: Command, above: &[&str], columns: usize) -> Command {
    let elsewhere = |arg: &&Arg| {
        let heading = arg.get_help_heading();
        heading == Some(GLOBAL) || TOPICS.iter().any(|(topic, _)| heading == Some(topic))
    };
    let hidden: Vec<clap::Id> =
        command.get_arguments().filter(elsewhere).map(|arg| arg.get_id().clone()).collect();
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let long = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let long = output::fit(&long, columns, 0);
    let topics: String = TOPICS.iter().filter_map(|topic| reference(&command, *topic, columns)).collect();
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help");
    // The list of commands fills a screen by itself.
    let help = help.hide(above.is_empty());
    let own = command.get_name().to_owned();
    let path = [above, &[own.as_str()]].concat();
    // Likewise.
    let below = if above.is_empty() { "\n" } else { "\n\n" };
    let mut command = command
        .help_template(format!(
            "{long}{below}{{usage-heading}} {{usage}}\n\n{{all-args}}{topics}{{after-help}}"
        ))
        .term_width(columns)
        .bin_name(path.join(" "))
        .disable_help_flag(true)
        .arg(help);
    for id in hidden {
        command = command.mut_arg(id, |arg| arg.hide_short_help(true));
    }
    for name in names {
        command = command.mut_subcommand(name, |command| describe(command, &path, columns));
    }
    command
}

/// Where the options of a topic are explained, if a command has any.
fn reference(command: &Command, (heading, topic): (&str, &str), columns: usize) -> Option<String> {
    let options: Vec<String> =
        under(command, heading).filter_map(|arg| arg.get_long().map(|long| format!("--{long}"))).collect();
    let text = format!("{heading}: whimbrel help {topic}. For {}", options.join(", "));
    (!options.is_empty()).then(|| format!("\n\n{}", output::fit(&text, columns, 2)))
}

/// A command's options that have this heading.
fn under<'a>(command: &'a Command, heading: &'a str) -> impl Iterator<Item = &'a Arg> {
    command.get_arguments().filter(move |arg| arg.get_help_heading() == Some(heading))
}

/// The options of a command that have this heading, as their help.
pub(crate) fn options_under(command: &Command, heading: &str) -> String {
    let mut page = Command::new("whimbrel").disable_help_flag(true).help_template("{all-args}");
    for arg in under(command, heading) {
        page = page.arg(arg.clone().hide_short_help(false));
    }
    page.render_help().to_string().trim_end().to_owned()
}

/// Writes a manual page for the program and for each of its commands into a directory, which is made if there
/// is none.
pub(crate) fn manual(command: Command, directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .and_then(|()| clap_mangen::generate_to(command, directory))
        .with_context(|| format!("cannot write manual pages into {}", directory.display()))
}

/// The completions for a shell, as a script that the shell reads.
pub(crate) fn completions(mut command: Command, shell: &str) -> Result<String> {
    let Ok(shell) = Shell::from_str(shell, false) else {
        let known: Vec<String> = Shell::value_variants().iter().map(ToString::to_string).collect();
        return Err(Failure::usage(format!(
            "there are no completions for `{shell}`; there are: {}",
            known.join(", ")
        )));
    };
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    String::from_utf8(script).context("the completions are no text")
}
