//! A Unix socket at a known place, which one program has at a time.

use std::fs::{DirBuilder, File, Permissions, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use tokio::net::{UnixListener, UnixStream};

use crate::failure::Failure;
use crate::identity;

/// The users that can reach a socket. What they may do there, the program finds out by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// This user, and root.
    Owner,
    /// All users of this host.
    All,
}

/// A socket file, and which one it was: somebody may have put another in that place. It goes when this is
/// dropped; the lock after it.
pub(super) struct Socket {
    pub(super) file: PathBuf,
    inode: u64,
    /// While this is open no other program takes the place of the socket, also before it answers.
    _lock: File,
}

impl Drop for Socket {
    fn drop(&mut self) {
        if inode(&self.file).is_ok_and(|inode| inode == self.inode) {
            // What is left over is taken by the next program.
            let _ = std::fs::remove_file(&self.file);
        }
    }
}

fn inode(file: &Path) -> std::io::Result<u64> {
    std::fs::symlink_metadata(file).map(|metadata| metadata.ino())
}

fn is_socket(file: &Path) -> bool {
    std::fs::symlink_metadata(file).is_ok_and(|metadata| metadata.file_type().is_socket())
}

/// Listens on this socket, in the place of a program that is dead. `what` names such a program in errors.
pub(super) async fn listen(file: &Path, reach: Reach, what: &str) -> Result<(UnixListener, Socket)> {
    let shown = file.display();
    let directory = file.parent().filter(|directory| !directory.as_os_str().is_empty());
    let directory = directory.unwrap_or_else(|| Path::new("."));
    match reach {
        Reach::Owner => {
            identity::private_directory(directory)?;
            crate::status::check(directory)?;
        }
        Reach::All => shared_directory(directory)?,
    }
    let taken = || Failure::usage(format!("a {what} answers on {shown} already; stop that one first"));
    let lock = file.with_extension("lock");
    let mut options = File::options();
    let opened = options.create(true).truncate(false).write(true).mode(0o600).open(&lock);
    let lock = opened.with_context(|| format!("cannot open {}", lock.display()))?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(taken()),
        Err(TryLockError::Error(error)) => return Err(error).with_context(|| format!("cannot lock {shown}")),
    }
    match UnixStream::connect(file).await {
        Ok(_) => return Err(taken()),
        // Files that are no sockets refuse too, and are not ours to remove.
        Err(error) if error.kind() == ErrorKind::ConnectionRefused && is_socket(file) => {
            // The socket of a program that has ended.
            let _ = std::fs::remove_file(file);
        }
        // There is none, or what is wrong is said below.
        Err(_) => {}
    }
    let failed = || format!("cannot listen on {shown}");
    let listener = UnixListener::bind(file).with_context(failed)?;
    if reach == Reach::All {
        std::fs::set_permissions(file, Permissions::from_mode(0o666)).with_context(failed)?;
    }
    let inode = inode(file).with_context(failed)?;
    Ok((listener, Socket { inode, _lock: lock, file: file.to_owned() }))
}

/// A directory that all can look into, and in which nobody else can put another socket in the place of ours.
fn shared_directory(directory: &Path) -> Result<()> {
    let failed = || format!("cannot make the directory {}", directory.display());
    match DirBuilder::new().mode(0o755).create(directory) {
        // Whatever the umask is.
        Ok(()) => std::fs::set_permissions(directory, Permissions::from_mode(0o755)).with_context(failed)?,
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error).with_context(failed),
    }
    let metadata = std::fs::symlink_metadata(directory).with_context(failed)?;
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !is_ours || metadata.mode() & 0o022 != 0 {
        let shown = directory.display();
        bail!("{shown} is not a directory in which you alone can write; have the socket in another one");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("for-all").join("notes");
        shared_directory(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "mine").unwrap();
        assert!(listen(&file, Reach::All, "manager").await.is_err());
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
        std::fs::remove_file(&file).unwrap();
        let bound = UnixListener::bind(&file).unwrap();
        drop(bound);
        assert!(listen(&file, Reach::All, "manager").await.is_ok(), "the socket of a program that has ended");
    }

    #[test]
    fn a_socket_for_all_stands_where_nobody_else_can_put_another() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("for-all");
        shared_directory(&directory).unwrap();
        let mode = || std::fs::metadata(&directory).unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o755);
        // It may be there before.
        shared_directory(&directory).unwrap();
        for open_to_others in [0o775, 0o757, 0o1777] {
            std::fs::set_permissions(&directory, Permissions::from_mode(open_to_others)).unwrap();
            let error = shared_directory(&directory).unwrap_err().to_string();
            assert!(error.contains("you alone can write"), "{error}");
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(shared_directory(&file).is_err());
        let link = folder.path().join("link");
        std::fs::set_permissions(&directory, Permissions::from_mode(0o755)).unwrap();
        std::os::unix::fs::symlink(&directory, &link).unwrap();
        assert!(shared_directory(&link).is_err(), "a link that somebody else may turn");
    }
}
