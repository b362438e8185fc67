//! Help, manual pages and shell completions, made from the description of the command line itself.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::{Arg, ArgAction, Command, ValueEnum as _};
use clap_complete::Shell;

use crate::failure::Failure;
use crate::options::GLOBAL;
use crate::output;

/// As wide as clap makes the rest, where the terminal is that wide.
const HELP_COLUMNS: usize = 100;

/// The command line with help that fits a screen: each command's own options, an option a line.
pub(crate) fn on_a_screen(program: Command) -> Command {
    describe(program, &[])
}

fn describe(command: Command, above: &[&str]) -> Command {
    // What follows flags with a heading of their own is none of theirs.
    let follows = |arg: &Arg| arg.is_positional() || arg.get_id() == "json";
    let options: Vec<(clap::Id, bool, bool)> = command
        .get_arguments()
        .map(|arg| (arg.get_id().clone(), arg.get_help_heading() == Some(GLOBAL), follows(arg)))
        .collect();
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let long = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let long = output::fit(&long, HELP_COLUMNS, 0);
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help");
    // The list of commands fills a screen by itself.
    let help = help.help_heading(None::<&str>).hide(above.is_empty());
    let own = command.get_name().to_owned();
    let path = [above, &[own.as_str()]].concat();
    // Likewise.
    let below = if above.is_empty() { "\n" } else { "\n\n" };
    let mut command = command
        .help_template(format!("{long}{below}{{usage-heading}} {{usage}}\n\n{{all-args}}{{after-help}}"))
        .bin_name(path.join(" "))
        .disable_help_flag(true)
        .arg(help);
    for (id, global, follows) in options {
        command = command.mut_arg(id, |arg| match (global, follows) {
            (true, _) => arg.hide_short_help(true),
            (_, true) => arg.help_heading(None::<&str>),
            _ => arg,
        });
    }
    for name in names {
        command = command.mut_subcommand(name, |command| describe(command, &path));
    }
    command
}

/// The options of every command, as their help.
pub(crate) fn global_options(program: &Command) -> String {
    let mut command = Command::new("whimbrel").disable_help_flag(true).help_template("{all-args}");
    for arg in program.get_arguments().filter(|arg| arg.get_help_heading() == Some(GLOBAL)) {
        command = command.arg(arg.clone().hide_short_help(false));
    }
    command.render_help().to_string().trim_end().to_owned()
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
