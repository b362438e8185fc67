//! The `whimbrel` program: its command line, its commands, and what they share.
//!
//! ```text
//! commandline        the list of commands
//! arguments          the command line over the configuration file, whatever the commands are
//! commands           one file each
//! pages              help, manual pages and completions
//! settings, usage    what the configuration file says; what is said of a wrong command line
//! options            flags that all commands have
//! identity, naming   who we are, and by what right we use a name
//! own_group          the user's devices and friends, in step on all devices
//! requests           what users ask each other by the name service
//! devices, groups    whom the user gave names to, and the groups that the user has made
//! renewer, ledger    how they are kept, and where they are written down
//! logging            log lines
//! manager            the service manager that started us
//! reload             who is let in and pins, read again when it says so
//! serving            commands that let peers in until they are stopped
//! network            an endpoint set up as the flags say; how it ends
//! access, readers    who is let in, and who may look the published name up
//! who                everybody, a key or a name, as flags and files say it
//! dns                what a domain's owner says of its name service
//! proxy              the HTTP proxy that the environment names
//! lan                peers in the local network, without a name service
//! meeting            two machines that learn each other's keys by a code
//! tunnel, lasting    bytes between sockets and streams; connections that are re-made if they truly ended
//! halt               stopping these in the middle, to go on elsewhere
//! local              where `forward` listens
//! hosts              names that programs reach as hosts, by proxies
//! sockets, files     local sockets, counted; how many files may be open
//! chat               two people talk in their terminals
//! transfer           files that arrive whole
//! multipath          flags about several networks; changing how a running command uses them
//! steering, intent   having the multi-access manager choose among them, by what is known of the traffic
//! status             what the commands of this user are doing, asked and followed
//! limits             what this process may send, set from outside
//! plain, qr          text of others, fit for a terminal; a text as a square that cameras read
//! fullscreen         the terminal's second page, with every key for itself
//! takeover, estate   a command that goes on in place of a running one; what it is handed
//! demo               the parts of `whimbrel demo`
//! ```

mod access;
mod appointed;
mod arguments;
mod aside;
mod chat;
mod commandline;
mod commands;
mod demo;
mod devices;
mod dns;
mod estate;
mod failure;
mod files;
mod fullscreen;
mod groups;
mod halt;
mod hosts;
mod identity;
mod intent;
mod lan;
mod lasting;
mod leases;
mod ledger;
mod limits;
mod local;
mod logging;
mod manager;
mod meeting;
mod metrics;
mod moving;
mod multipath;
mod naming;
mod network;
mod options;
mod output;
mod own_group;
mod pages;
mod places;
mod plain;
mod presence;
mod progress;
mod proxy;
mod qr;
mod readers;
mod relaying;
mod reload;
mod renewer;
mod requests;
mod roster;
mod routers;
mod rule;
mod serving;
mod settings;
mod shutdown;
mod sockets;
mod status;
mod steering;
mod takeover;
mod transfer;
mod tunnel;
mod usage;
mod web;
mod who;

use std::ffi::OsString;
use std::future::ready;
use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use futures_util::FutureExt as _;
use futures_util::future::LocalBoxFuture;

pub use crate::commandline::check_config;
use crate::commandline::{Cli, Command};
use crate::options::Globals;

/// The decoders of what peers send. What is here may change at any time.
#[cfg(feature = "fuzzing")]
pub mod fuzzing {
    /// Decodes bytes as the messages and the chunks of a transfer, and as what is said in a meeting by code.
    pub fn transfer(bytes: &[u8]) {
        crate::transfer::decode_anything(bytes);
        crate::meeting::decode_anything(bytes);
    }

    /// Decodes bytes as what is said in a chat.
    pub fn chat(bytes: &[u8]) {
        crate::chat::decode_anything(bytes);
    }

    /// Reads text as what is written on command lines and in files of entries.
    pub fn texts(text: &str) {
        crate::access::read_anything(text);
        crate::limits::read_anything(text);
        let _ = text.parse::<crate::who::Who>();
        let _ = text.parse::<crate::limits::Rate>();
        let _ = text.parse::<crate::limits::Setting>();
        let _ = text.parse::<crate::local::Place>();
        let _ = text.parse::<crate::dns::WhichDomain>();
        let _ = text.parse::<crate::relaying::Advertised>();
    }

    /// Decodes bytes as what is asked of a running command and as its answer, and shows that; and as what it
    /// hands over, to another instance or to another device; and as what another agent says.
    pub fn status(bytes: &[u8]) {
        crate::estate::decode_anything(bytes);
        crate::moving::decode_anything(bytes);
        crate::commands::agent::decode_anything(bytes);
        let (report, event) = crate::status::decode_anything(bytes);
        drop(report.map(|report| crate::commands::status::describe(&report)));
        drop(event.map(|event| crate::commands::status::describe_event(&event)));
    }
}

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

fn start(argv: &[OsString]) -> Result<()> {
    let Some(cli) = commandline::parse(argv)? else {
        return Ok(());
    };
    logging::start(&cli.globals)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start: the system gives no threads or no poller")?;
    let result = runtime.block_on(dispatch(&cli.globals, cli.command));
    // A thread may wait in read(2) on standard input, which nothing ends.
    runtime.shutdown_background();
    result
}

/// What a command does. It is on the heap: all of them in one future would be one function of 330 KB.
fn dispatch(globals: &Globals, command: Command) -> LocalBoxFuture<'_, Result<()>> {
    match command {
        Command::Id(args) => commands::id::run(globals, args).boxed_local(),
        Command::Invite(args) => commands::invite::run(globals, args).boxed_local(),
        Command::Join(args) => commands::invite::run_join(globals, args).boxed_local(),
        Command::Trust(args) => commands::trust::run(globals, args).boxed_local(),
        Command::Devices(args) => commands::devices::run(globals, args).boxed_local(),
        Command::Friends(args) => commands::friends::run(globals, args).boxed_local(),
        Command::Names(args) => commands::names::run(globals, args).boxed_local(),
        Command::Relay(args) => commands::relay::run(globals, args).boxed_local(),
        Command::Serve(args) => commands::serve::run(globals, args).boxed_local(),
        Command::Expose(args) => commands::expose::run(globals, args).boxed_local(),
        Command::Forward(args) => commands::forward::run(globals, args).boxed_local(),
        Command::Pipe(args) => commands::pipe::run(globals, args).boxed_local(),
        Command::Gateway(args) => commands::gateway::run(globals, args).boxed_local(),
        Command::Proxy(args) => commands::proxy::run(globals, args).boxed_local(),
        Command::Sessions(args) => commands::sessions::run(globals, args).boxed_local(),
        Command::Handoff(args) => commands::handoff::run(globals, args).boxed_local(),
        Command::Take(args) => commands::take::run(globals, args).boxed_local(),
        Command::Agent(args) => commands::agent::run(globals, args).boxed_local(),
        Command::Send(args) => commands::send::run(globals, args).boxed_local(),
        Command::Receive(args) => commands::receive::run(globals, args).boxed_local(),
        Command::Chat(args) => commands::chat::run(globals, args).boxed_local(),
        Command::Ssh(args) => ready(commands::ssh::run(globals, args)).boxed_local(),
        Command::Setup(args) => ready(commands::setup::run(globals, args)).boxed_local(),
        Command::Status(args) => commands::status::run(globals, args).boxed_local(),
        Command::Paths(args) => commands::paths::run(globals, args).boxed_local(),
        Command::Limit(args) => commands::limit::run(globals, args).boxed_local(),
        Command::Doctor(args) => commands::doctor::run(globals, args).boxed_local(),
        Command::Access(args) => commands::access::run(globals, args).boxed_local(),
        Command::Run(args) => commands::run::run(globals, args).boxed_local(),
        Command::Demo(args) => commands::demo::run(globals, args).boxed_local(),
        Command::Help(args) => ready(commands::help::run(args, Cli::command())).boxed_local(),
    }
}
