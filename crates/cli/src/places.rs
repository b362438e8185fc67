//! Where files are: the XDG base directories.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use etcetera::BaseStrategy as _;
use etcetera::base_strategy::Xdg;

const PROGRAM: &str = "whimbrel";

fn base() -> Result<Xdg> {
    Xdg::new().context("cannot tell where your files are; set HOME")
}

/// This user's home directory.
pub(crate) fn home() -> Result<PathBuf> {
    Ok(base()?.home_dir().to_owned())
}

/// Configuration, the key and delegations: `~/.config/whimbrel`.
pub(crate) fn config() -> Result<PathBuf> {
    Ok(base()?.config_dir().join(PROGRAM))
}

/// What a name service stores: `~/.local/share/whimbrel`.
pub(crate) fn data() -> Result<PathBuf> {
    Ok(base()?.data_dir().join(PROGRAM))
}

/// The sockets of running commands: `$XDG_RUNTIME_DIR/whimbrel`, or `/tmp/whimbrel-UID`.
pub(crate) fn runtime() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute()) {
        Some(directory) => directory.join(PROGRAM),
        None => PathBuf::from(format!("/tmp/{PROGRAM}-{}", rustix::process::getuid().as_raw())),
    }
}
