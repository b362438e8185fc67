//! `whimbrel access serve`: the manager.

use std::path::PathBuf;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use whimbrel_access::PolicySpec;
use whimbrel_multiaccess::{Manager, Settings, StartError, host_socket_path, socket_path};

use super::listen::{Reach, listen};
use crate::failure::Failure;
use crate::manager::Ready;
use crate::options::{Globals, after};
use crate::shutdown::Shutdown;
use crate::{files, output, places};

/// The settings of the host's manager.
const HOST_SETTINGS: &str = "/etc/whimbrel/access.toml";

/// Measure this host's networks, and say which one to take to programs that ask, until stopped
///
/// Programs ask on a Unix socket of this user, or of all users (docs/manager.md). Settings are in a TOML
/// file, and flags win: policies with settings of their own, interfaces with their DNS servers, and more.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel access serve
  whimbrel access serve --metered usb0
  whimbrel access serve --policy eaf --interval 50 --external 20
  whimbrel access serve --host --metered usb0"))]
pub(super) struct Serve {
    /// Serve all users of this host, each apart from others; to be started by root
    #[arg(long)]
    host: bool,
    /// Socket to answer on [default: where programs look for it]
    #[arg(long, value_name = "FILE")]
    socket: Option<PathBuf>,
    /// File with settings [default: access.toml of ~/.config/whimbrel, or of /etc/whimbrel]
    #[arg(long, value_name = "FILE")]
    settings: Option<PathBuf>,
    /// The policy: whimbrel (the default), eaf, lowest-latency, cheapest, round-robin and others
    #[arg(long, value_name = "NAME")]
    policy: Option<String>,
    /// An interface whose traffic costs money; repeatable
    #[arg(long, value_name = "INTERFACE")]
    metered: Vec<String>,
    /// Milliseconds between measurements while there is traffic [default: 100]
    #[arg(long, value_name = "MS")]
    interval: Option<u64>,
    /// Let a program decide, and give it so many milliseconds for each decision
    #[arg(long, value_name = "MS")]
    external: Option<u64>,
    /// Print a JSON object once it answers
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(globals: &Globals, args: Serve) -> Result<()> {
    let settings = settings(&args)?;
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    files::raise_limit();
    let (usual, reach) = match args.host {
        true => (host_socket_path(), Reach::All),
        false => (socket_path(), Reach::Owner),
    };
    let file = args.socket.clone().unwrap_or(usual);
    let (listener, socket) = listen(&file, reach, "manager").await?;
    let started = match args.host {
        true => Manager::for_host(settings, listener).await,
        false => Manager::start(settings, listener).await,
    };
    let mut manager = started.map_err(|error| match error {
        StartError::Settings(error) => Failure::usage(error.to_string()),
        error => error.into(),
    })?;
    let interfaces = manager.interfaces();
    let status = match &interfaces[..] {
        [] => "no interface is up and has an address yet".to_owned(),
        known => format!("choosing among {}", known.join(", ")),
    };
    let ready = Ready::tell(&status);
    if args.json {
        output::json(&json!({ "socket": socket.file, "interfaces": interfaces }))?;
    } else {
        output::note(globals.quiet, status);
        output::line(socket.file.display().to_string())?;
    }
    let ended = tokio::select! {
        _ = shutdown.requested() => Ok(()),
        () = manager.failed() => Err(anyhow::anyhow!("a part of the manager has ended; its log says why")),
    };
    drop(ready);
    ended
}

/// What the file says, and what flags say instead.
fn settings(args: &Serve) -> Result<Settings> {
    let file = match &args.settings {
        Some(file) => Some(file.clone()),
        None if args.host => Some(PathBuf::from(HOST_SETTINGS)).filter(|file| file.exists()),
        None => Some(places::config()?.join("access.toml")).filter(|file| file.exists()),
    };
    let mut settings = match &file {
        Some(file) => {
            let shown = file.display();
            let text = std::fs::read_to_string(file)
                .map_err(|error| Failure::usage(format!("cannot read the settings {shown}: {error}")))?;
            Settings::from_toml(&text).map_err(|error| Failure::usage(format!("{shown}: {error}")))?
        }
        None => Settings::default(),
    };
    if let Some(name) = &args.policy
        && *name != settings.policy.name()
    {
        settings.policy = PolicySpec::named(name);
    }
    settings.metered.extend(args.metered.iter().cloned());
    settings.interval = args.interval.unwrap_or(settings.interval);
    settings.external = args.external.or(settings.external);
    settings.check().map_err(|error| Failure::usage(error.to_string()))?;
    Ok(settings)
}
