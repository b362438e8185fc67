//! The command line: the list of commands.

use std::ffi::OsString;
use std::path::Path;
use std::sync::LazyLock;

use anyhow::Result;
use clap::{ArgAction, Command as Description, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use crate::arguments::Source;
use crate::options::{Globals, after};
use crate::settings::Settings;
use crate::{commands, failure, pages};

#[cfg(test)]
mod tests;

const TOP_EXAMPLE: &str = "\
Examples:
  whimbrel ssh ada@ssh.home.ada@example.org";

/// Connections by name that survive every move: they live until they are closed.
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
    Agent(commands::agent::Agent),
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

/// The command line with help that fits a screen.
pub(crate) fn described() -> Description {
    pages::on_a_screen(Cli::command())
}

/// The command line over the configuration file. `None` when only help was asked for, and given.
pub(crate) fn parse(argv: &[OsString]) -> Result<Option<Cli>> {
    let source = Source::new(described, argv);
    let Some(matches) = source.read()? else { return Ok(None) };
    let mut cli = Cli::from_arg_matches(&matches).map_err(|error| source.wrong(&error))?;
    cli.globals.source = source;
    Ok(Some(cli))
}

/// Checks a configuration file's text as the program does. For tests of the reader.
///
/// # Errors
/// One line that names the key, the line and what to do.
pub fn check_config(text: &str) -> Result<(), String> {
    // Made once: it takes far longer than most texts do.
    static COMMAND: LazyLock<Description> = LazyLock::new(Cli::command);
    let file = Path::new("config.toml");
    Settings::parse(text, file, &COMMAND)
        .and_then(|settings| settings.check_values(&COMMAND))
        .map_err(|error| failure::line(&error))
}
