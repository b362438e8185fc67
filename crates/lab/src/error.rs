//! What can go wrong while a network is built or changed.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Result of the lab's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// Why this process cannot build networks.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Unavailable {
    /// TAP devices cannot be made.
    #[error("/dev/net/tun cannot be opened ({0}); load the module `tun`, or run as root")]
    NoTap(String),
    /// A needed program is missing.
    #[error("`{0}` was not found; install it with `apt-get install iproute2 nftables util-linux`")]
    NoTool(&'static str),
    /// Network namespaces cannot be made.
    #[error("network namespaces cannot be made ({0}); run as root, or allow unprivileged user namespaces")]
    NoNamespaces(String),
}

/// Why a lab could not be built or changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// This process may not build networks.
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    /// A program the lab calls is missing.
    #[error("`{tool}` was not found; install it with `apt-get install iproute2 nftables`")]
    ToolMissing {
        /// The program's name.
        tool: String,
    },
    /// A program the lab calls refused what it was asked.
    #[error("`{command}` failed: {message}; check the names and addresses it was given")]
    Tool {
        /// The command line or its input.
        command: String,
        /// What it printed.
        message: String,
    },
    /// A program the lab calls did not end.
    #[error("`{command}` did not end within {limit:?}; is the machine overloaded?")]
    ToolTimeout {
        /// The command line or its input.
        command: String,
        /// How long it was waited for.
        limit: Duration,
    },
    /// A network namespace could not be made or entered.
    #[error(
        "cannot make or enter a network namespace: {0}; run as root or begin the test with whimbrel_lab::require!()"
    )]
    Namespace(#[source] io::Error),
    /// A TAP device could not be made or changed.
    #[error("cannot make or change the TAP device {name}: {source}; is /dev/net/tun there and accessible?")]
    Tap {
        /// The interface's name.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A gateway could not listen where it was to.
    #[error("cannot listen {what}: {source}")]
    Listen {
        /// For what, and where.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A process or thread could not be started.
    #[error("cannot start {what}: {source}")]
    Spawn {
        /// What was to be started.
        what: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A trace file could not be read.
    #[error("cannot read the trace {path}: {source}")]
    TraceFile {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A trace is not in mahimahi's format.
    #[error("not a mahimahi trace: {reason}; each line is a millisecond, none smaller than the one before")]
    TraceFormat {
        /// What is wrong with it.
        reason: String,
    },
    /// Both ends of a link were to be on one host.
    #[error("a link joins two different hosts, but both ends are {host}")]
    SameHost {
        /// The host's name.
        host: String,
    },
    /// The host's service thread has ended.
    #[error("the host {host} is gone")]
    HostGone {
        /// The host's name.
        host: String,
    },
    /// A kernel setting could not be changed.
    #[error("cannot set {path}: {source}; is /proc/sys writable?")]
    Sysctl {
        /// The setting.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}
