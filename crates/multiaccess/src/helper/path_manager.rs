//! The kernel's setting that says who manages the subflows of new connections.

use super::HelperError;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;

/// Of the network namespace of the thread that opens it.
const SETTING: &str = "/proc/sys/net/mptcp/pm_type";
/// The values: the kernel's own path manager, and a program.
const KERNEL: &[u8] = b"0";
const PROGRAM: &[u8] = b"1";

/// While this lives, a program manages the subflows of new connections.
pub(super) struct Taken {
    /// Kept open: it stays that of the namespace in which it was opened.
    setting: File,
    /// It was the kernel's before.
    gives_back: bool,
}

impl Taken {
    /// Takes it over, if that was not done before.
    pub(super) fn take() -> Result<Self, HelperError> {
        let opened = File::options().read(true).write(true).open(SETTING);
        let mut setting = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => HelperError::Kernel(error),
            _ => HelperError::Forbidden(error),
        })?;
        let mut before = [0; 16];
        let length = setting.read(&mut before).map_err(HelperError::Kernel)?;
        let gives_back = before[..length].trim_ascii() != PROGRAM;
        setting.write_all_at(PROGRAM, 0).map_err(HelperError::Forbidden)?;
        Ok(Self { setting, gives_back })
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if self.gives_back
            && let Err(error) = self.setting.write_all_at(KERNEL, 0)
        {
            tracing::warn!(%error, "new connections of Multipath TCP stay without a path manager");
        }
    }
}
