//! `whimbrel access serve`: the manager.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use whimbrel_access::PolicySpec;
use whimbrel_multiaccess::{Manager, Settings, StartError, socket_path};

use crate::failure::Failure;
use crate::manager::Ready;
use crate::options::{Globals, after};
use crate::shutdown::Shutdown;
use crate::{files, identity, output, places};

/// Measure this host's networks, and say which one to take to programs that ask, until stopped
///
/// Programs ask on a Unix socket of this user (docs/manager.md). Settings are in a TOML file, and flags win:
/// policies with settings of their own, interfaces with their DNS servers, and what is to be ignored.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel access serve
  whimbrel access serve --metered usb0
  whimbrel access serve --policy eaf --interval 50 --external 20"))]
pub(super) struct Serve {
    /// File with settings [default: ~/.config/whimbrel/access.toml, if it is there]
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
    let (listener, socket) = listen().await?;
    let started = Manager::start(settings, listener).await;
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

/// A socket file, and which one it was: somebody may have put another in that place. It goes when this is
/// dropped; the lock after it.
struct Socket {
    file: PathBuf,
    inode: u64,
    /// While this is open no other manager takes the place of the socket, also before it answers.
    _lock: File,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if inode(&self.file).is_ok_and(|inode| inode == self.inode) {
            // What is left over is taken by the next manager.
            let _ = std::fs::remove_file(&self.file);
        }
    }
}

fn inode(file: &Path) -> std::io::Result<u64> {
    std::fs::symlink_metadata(file).map(|metadata| metadata.ino())
}

/// Listens in this user's own directory, in the place of a manager that is dead.
async fn listen() -> Result<(UnixListener, Socket)> {
    let file = socket_path();
    let directory = places::runtime();
    identity::private_directory(&directory)?;
    crate::status::check(&directory)?;
    let shown = file.display();
    let taken = || Failure::usage(format!("a manager answers on {shown} already; stop that one first"));
    let lock = directory.join("access.lock");
    let mut options = File::options();
    let opened = options.create(true).truncate(false).write(true).mode(0o600).open(&lock);
    let lock = opened.with_context(|| format!("cannot open {}", lock.display()))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(taken()),
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("cannot lock {shown}")),
    }
    match UnixStream::connect(&file).await {
        Ok(_) => return Err(taken()),
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            // The socket of a manager that has ended.
            let _ = std::fs::remove_file(&file);
        }
        // There is none, or what is wrong is said below.
        Err(_) => {}
    }
    let failed = || format!("cannot listen on {}", file.display());
    let listener = UnixListener::bind(&file).with_context(failed)?;
    let inode = inode(&file).with_context(failed)?;
    Ok((listener, Socket { inode, _lock: lock, file: file.clone() }))
}
