//! The file that is being received: where it is until it is whole.

use std::fs::{File, TryLockError};
use std::io::{self, Read as _, Seek as _, Write as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use rustix::fs::Mode;
use sha2::Sha256;

use super::directory::{Directory, on_its_way};
use super::hash_prefix;
use crate::failure::is_full;

/// A file on its way. Nobody else can read it.
#[derive(Debug)]
pub(super) struct Partial {
    directory: Directory,
    name: String,
    part: String,
    file: File,
    replace: bool,
    mode: Mode,
}

/// Somebody else receives this.
#[derive(Debug)]
pub(super) struct Locked(pub(super) String);

impl std::fmt::Display for Locked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is being received already", self.0)
    }
}

impl std::error::Error for Locked {}

impl Partial {
    /// Opens what is there of `name`, or begins it. It gets `mode` when it is whole.
    pub(super) fn open(directory: &Directory, name: &str, replace: bool, mode: Mode) -> Result<Self> {
        let part = on_its_way(name);
        let failed = || format!("cannot write {}", directory.shown(&part).display());
        let file = directory.file(&part, true).with_context(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Locked(name.to_owned()).into()),
            Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
        }
        Ok(Self { directory: directory.clone(), name: name.to_owned(), part, file, replace, mode })
    }

    /// How many bytes are there, and their sum.
    pub(super) fn present(&mut self) -> io::Result<(u64, Sha256)> {
        let length = self.file.metadata()?.len();
        self.file.rewind()?;
        Ok((length, hash_prefix(&mut self.file, length)?))
    }

    /// Has the bytes that are there [read](Self::read) from the first one on. Returns how many these are.
    pub(super) fn begin_anew(&mut self) -> io::Result<u64> {
        self.file.rewind()?;
        Ok(self.file.metadata()?.len())
    }

    /// Reads the next bytes.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.file.read(into)
    }

    /// Forgets all bytes.
    pub(super) fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(0)?;
        self.file.rewind()
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(|error| self.explain(error))
    }

    fn explain(&self, error: io::Error) -> anyhow::Error {
        if is_full(&error) {
            return anyhow::anyhow!(
                "no space is left in {}; free some and send again: what has arrived is kept",
                self.directory.shown("").display()
            );
        }
        let path = self.directory.shown(&self.part);
        anyhow::Error::new(error).context(format!("cannot write {}", path.display()))
    }

    /// Gives the whole file its name and its mode.
    pub(super) fn finish(self) -> Result<PathBuf> {
        let Self { directory, name, part, file, .. } = &self;
        let finished = || -> io::Result<bool> {
            rustix::fs::fchmod(file, self.mode)?;
            file.sync_all()?;
            directory.is(part, &rustix::fs::fstat(file)?)
        };
        if !finished().map_err(|error| self.explain(error))? {
            bail!("{} was moved or replaced while it was received", directory.shown(part).display());
        }
        if self.replace {
            directory.rename(part, name).map_err(|error| self.explain(error))?;
        } else {
            directory.rename_new(part, name)?;
        }
        directory.sync();
        Ok(directory.shown(name))
    }

    /// Takes an empty file away that is not wanted after all.
    pub(super) fn discard(self) {
        if self.file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            let _ = self.directory.remove_file(&self.part);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn open(directory: &Directory, replace: bool) -> Result<Partial> {
        Partial::open(directory, "f", replace, Mode::from(0o640))
    }

    #[test]
    fn a_partial_file_goes_on_and_never_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("f");
        let directory = Directory::open(dir.path()).unwrap();
        let mut partial = open(&directory, false).unwrap();
        partial.write(b"hel").unwrap();
        assert!(open(&directory, false).unwrap_err().to_string().contains("already"));
        drop(partial);
        let mut partial = open(&directory, false).unwrap();
        assert_eq!(partial.present().unwrap().0, 3);
        partial.write(b"lo").unwrap();
        fs::write(&name, "mine").unwrap();
        let error = partial.finish().unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        assert_eq!(fs::read(&name).unwrap(), b"mine");
        open(&directory, true).unwrap().finish().unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"hello");
    }

    #[test]
    fn a_file_is_private_until_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o777;
        // One that a program of before left.
        fs::write(dir.path().join(".f.whimbrel-part"), "x").unwrap();
        let partial = open(&directory, false).unwrap();
        assert_eq!(mode(".f.whimbrel-part"), 0o600);
        partial.finish().unwrap();
        assert_eq!(mode("f"), 0o640);
    }

    #[test]
    fn links_are_neither_followed_nor_replaced() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (victim, part) = (other.path().join("victim"), dir.path().join(".f.whimbrel-part"));
        fs::write(&victim, "mine").unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        symlink(&victim, &part).unwrap();
        open(&directory, true).unwrap_err();
        fs::remove_file(&part).unwrap();
        fs::hard_link(&victim, &part).unwrap();
        open(&directory, true).unwrap_err();
        fs::remove_file(&part).unwrap();
        // A link under the file's own name is a name that is taken; with --overwrite the link itself goes.
        symlink(&victim, dir.path().join("f")).unwrap();
        let mut partial = open(&directory, false).unwrap();
        partial.write(b"new").unwrap();
        partial.finish().unwrap_err();
        open(&directory, true).unwrap().finish().unwrap();
        assert_eq!(fs::read(&victim).unwrap(), b"mine");
        assert_eq!(fs::read(dir.path().join("f")).unwrap(), b"new");
        // What was put in the place of a file on its way does not become the file.
        let partial = Partial::open(&directory, "g", false, Mode::from(0o640)).unwrap();
        fs::remove_file(dir.path().join(".g.whimbrel-part")).unwrap();
        symlink(&victim, dir.path().join(".g.whimbrel-part")).unwrap();
        partial.finish().unwrap_err();
        assert!(!dir.path().join("g").exists());
        // Nor is a link to a directory entered.
        symlink(other.path(), dir.path().join("d")).unwrap();
        directory.child("d", Mode::from(0o700), "d").unwrap_err();
    }

    #[test]
    fn what_is_held_open_stays_where_it_was() {
        let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let inbox = dir.path().join("inbox");
        fs::create_dir(&inbox).unwrap();
        let directory = Directory::open(&inbox).unwrap();
        let mut partial = open(&directory, false).unwrap();
        fs::rename(&inbox, dir.path().join("moved")).unwrap();
        symlink(other.path(), &inbox).unwrap();
        partial.write(b"x").unwrap();
        partial.finish().unwrap();
        assert_eq!(fs::read(dir.path().join("moved/f")).unwrap(), b"x");
        assert_eq!(fs::read_dir(other.path()).unwrap().count(), 0);
    }
}
