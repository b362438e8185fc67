//! The kernel's setting that says who manages the subflows of new connections.

use super::HelperError;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;

/// Of the network namespace of the thread that opens it.
const SETTING: &str = "/proc/sys/net/mptcp/pm_type";
/// The values: the kernel's own path manager, and a program.
const KERNEL: &[u8] = b"0";
const PROGRAM: &[u8] = b"1";
/// The file that helpers with their sockets in one directory have in common. Each that runs has a lock on it
/// together with the others; it holds the word below until the last one went.
const SHARED: &str = "path-manager";
/// The setting is the kernel's own path manager again when the last helper goes.
const GIVE_BACK: &[u8] = b"0";

/// While one lives, a program manages the subflows of new connections.
pub(super) struct Taken {
    /// Kept open: it stays that of the namespace in which it was opened.
    setting: File,
    shared: File,
}

impl Taken {
    /// Takes it over, together with the other helpers whose sockets are in this directory.
    pub(super) fn take(directory: &Path) -> Result<Self, HelperError> {
        let opened = File::options().read(true).write(true).open(SETTING);
        let setting = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => HelperError::Kernel(error),
            _ => HelperError::Forbidden(error),
        })?;
        let shared = share(directory, || is_programs(&setting)).map_err(HelperError::Socket)?;
        setting.write_all_at(PROGRAM, 0).map_err(HelperError::Forbidden)?;
        Ok(Self { setting, shared })
    }
}

fn is_programs(setting: &File) -> io::Result<bool> {
    let mut word = [0; 16];
    let length = setting.read_at(&mut word, 0)?;
    Ok(word[..length].trim_ascii() == PROGRAM)
}

/// Joins the helpers of this directory, and notes what is to be done when the last one goes. One that was
/// killed has left its note, and the setting as it had made it.
fn share(directory: &Path, is_programs: impl FnOnce() -> io::Result<bool>) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true).mode(0o600);
    let shared = options.open(directory.join(SHARED))?;
    // The last one has it alone, for as long as giving back takes.
    shared.lock_shared()?;
    if !is_programs()? {
        shared.write_all_at(GIVE_BACK, 0)?;
    }
    Ok(shared)
}

/// Leaves the helpers. Whether the setting is to be given back.
fn leave(shared: &File) -> io::Result<bool> {
    if shared.try_lock().is_err() {
        return Ok(false);
    }
    let gives_back = shared.metadata()?.len() > 0;
    shared.set_len(0)?;
    Ok(gives_back)
}

impl Drop for Taken {
    fn drop(&mut self) {
        let given_back = leave(&self.shared).and_then(|gives_back| match gives_back {
            true => self.setting.write_all_at(KERNEL, 0),
            false => Ok(()),
        });
        if let Err(error) = given_back {
            tracing::warn!(%error, "new connections of Multipath TCP stay without a path manager");
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn the_last_helper_gives_back_what_the_first_one_took() {
        let folder = tempfile::tempdir().unwrap();
        let first = share(folder.path(), || Ok(false)).unwrap();
        let second = share(folder.path(), || Ok(true)).unwrap();
        assert!(!leave(&first).unwrap());
        drop(first);
        assert!(leave(&second).unwrap());
        drop(second);
        // What was a program's before helpers came stays so.
        let other = share(folder.path(), || Ok(true)).unwrap();
        assert!(!leave(&other).unwrap());
    }

    #[test]
    fn what_a_helper_took_that_was_killed_is_given_back_by_the_next_one() {
        let folder = tempfile::tempdir().unwrap();
        drop(share(folder.path(), || Ok(false)).unwrap());
        let next = share(folder.path(), || Ok(true)).unwrap();
        assert!(leave(&next).unwrap());
    }
}
