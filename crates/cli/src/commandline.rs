//! The command line: the list of commands, and how it is read together with the configuration file.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{
    Arg, ArgAction, Command as Description, CommandFactory as _, FromArgMatches as _, Parser, Subcommand,
};

use crate::failure::{self, Failure};
use crate::options::{GLOBAL, Globals, after};
use crate::settings::Settings;
use crate::{commands, output, places, usage};

#[cfg(test)]
mod tests;

/// As wide as clap makes the rest, where the terminal is that wide.
const HELP_COLUMNS: usize = 100;

const TOP_EXAMPLE: &str = "\
Examples:
  whimbrel ssh ada@ssh.home.ada@example.org";

/// Connections by name that survive every move: they live until they are closed, whatever happens.
#[derive(Parser)]
#[command(
    name = "whimbrel",
    version,
    disable_version_flag = true,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true,
    after_help = after(TOP_EXAMPLE),
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    /// Print the version
    // Everybody knows it, and the list of commands fills a screen.
    #[arg(short = 'V', long, action = ArgAction::Version, hide = true)]
    version: Option<bool>,
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
    Devices(commands::devices::Devices),
    Friends(commands::friends::Friends),
    Names(commands::names::Names),
    Relay(commands::relay::Relay),
    Serve(commands::serve::ServeAll),
    Expose(commands::expose::Expose),
    Forward(commands::forward::Forward),
    Pipe(commands::pipe::Pipe),
    Gateway(commands::gateway::Gateway),
    Proxy(commands::proxy::Proxy),
    Sessions(commands::sessions::Sessions),
    Handoff(commands::handoff::HandOff),
    Take(commands::take::Take),
    Send(commands::send::Send),
    Receive(commands::receive::Receive),
    Chat(commands::chat::Chat),
    Ssh(commands::ssh::Ssh),
    Setup(commands::setup::Setup),
    Status(commands::status::Status),
    Paths(commands::paths::Paths),
    Limit(commands::limit::Limit),
    Doctor(commands::doctor::Doctor),
    Access(commands::access::Access),
    Run(commands::run::Run),
    Demo(commands::demo::Demo),
    Help(commands::help::Help),
}

/// The command line with help that fits a screen: each command's own options, an option a line.
pub(crate) fn described() -> Description {
    describe(Cli::command(), &[])
}

fn describe(command: Description, above: &[&str]) -> Description {
    let options: Vec<(clap::Id, bool)> = command
        .get_arguments()
        .map(|arg| (arg.get_id().clone(), arg.get_help_heading() == Some(GLOBAL)))
        .collect();
    let names: Vec<String> = command.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    let long = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let long = output::fit(&long, HELP_COLUMNS, 0);
    let help = Arg::new("help").short('h').long("help").action(ArgAction::HelpShort).help("Print help");
    // The list of commands fills a screen by itself.
    let help = help.help_heading(None::<&str>).hide(above.is_empty());
    let own = command.get_name().to_owned();
    let path = [above, &[own.as_str()]].concat();
    let mut command = command
        .help_template(format!("{long}\n\n{{usage-heading}} {{usage}}\n\n{{all-args}}{{after-help}}"))
        .bin_name(path.join(" "))
        .disable_help_flag(true)
        .arg(help);
    for (id, global) in options {
        // What follows flags with a heading of their own is none of theirs.
        let own = id == "json";
        command = command.mut_arg(id, |arg| match (global, own) {
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
pub(crate) fn global_options() -> String {
    let mut command = Description::new("whimbrel").disable_help_flag(true).help_template("{all-args}");
    for arg in Cli::command().get_arguments().filter(|arg| arg.get_help_heading() == Some(GLOBAL)) {
        command = command.arg(arg.clone().hide_short_help(false));
    }
    command.render_help().to_string().trim_end().to_owned()
}

/// The command line over the configuration file. `None` when only help was asked for, and given.
pub(crate) fn parse(argv: &[OsString]) -> Result<Option<Cli>> {
    let command = described();
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
