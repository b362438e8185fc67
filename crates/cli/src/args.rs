//! The command line: global flags and the list of commands.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand};
use whimbrel_names::ServiceAddress;
use whimbrel_transport::Carriers;

use crate::commands;
use crate::failure::EXIT_CODES;

const TOP_EXAMPLE: &str = "\
Examples:
  At home, once:       whimbrel names serve
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

/// Flags of every command.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Globals {
    /// Configuration file; may hold every flag [default: ~/.config/whimbrel/config.toml]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) config: Option<PathBuf>,
    /// File with this user's key [default: ~/.config/whimbrel/identity, made on first use]
    #[arg(long, global = true, value_name = "FILE", help_heading = "Global options")]
    pub(crate) identity: Option<PathBuf>,
    /// Name service: its ticket, or ID@HOST:PORT
    #[arg(long, global = true, value_name = "SERVICE", help_heading = "Global options")]
    pub(crate) names: Option<ServiceAddress>,
    /// Port for TCP and UDP; any free one by default
    #[arg(long, global = true, value_name = "PORT", help_heading = "Global options")]
    pub(crate) port: Option<u16>,
    /// Dial with auto, tcp, quic or mptcp; auto is TCP and QUIC, whichever gets through first
    #[arg(long, global = true, value_name = "CARRIER", help_heading = "Global options")]
    pub(crate) carrier: Option<Carriers>,
    /// Say more: -v what happens to connections, -vv everything. RUST_LOG has the last word
    #[arg(short, long, global = true, action = ArgAction::Count, help_heading = "Global options")]
    pub(crate) verbose: u8,
    /// Print errors and results only
    #[arg(short, long, global = true, conflicts_with = "verbose", help_heading = "Global options")]
    pub(crate) quiet: bool,
    /// Use exactly these local addresses instead of the system's; repeatable. For demos and tests
    #[arg(long, global = true, value_name = "IP", hide_short_help = true, help_heading = "Global options")]
    pub(crate) address: Vec<IpAddr>,
    /// End when standard input ends: for programs that start this one and may die
    #[arg(long, global = true, hide = true)]
    pub(crate) until_eof: bool,
}

/// The commands.
#[derive(Subcommand)]
pub(crate) enum Command {
    Id(commands::id::Id),
    Names(commands::names::Names),
    Expose(commands::expose::Expose),
    Forward(commands::forward::Forward),
    Pipe(commands::pipe::Pipe),
    Send(commands::send::Send),
    Receive(commands::receive::Receive),
    Status(commands::status::Status),
    Paths(commands::paths::Paths),
    Demo(commands::demo::Demo),
    Pageload(commands::pageload::Pageload),
    Help(commands::help::Help),
}

/// The text under a command's options: its example and the exit codes.
pub(crate) fn after(example: &str) -> String {
    format!("{example}\n\n{EXIT_CODES}")
}
