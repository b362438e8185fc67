//! The file that is being received: where it is until it is whole.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Seek as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rustix::fs::RenameFlags;
use sha2::Sha256;

use super::hash_prefix;
use crate::failure::is_full;

const SUFFIX: &str = ".whimbrel-part";
/// Most file systems take no longer names.
const MAX_NAME: usize = 255;

/// A file on its way.
#[derive(Debug)]
pub(super) struct Partial {
    file: File,
    path: PathBuf,
    target: PathBuf,
    overwrite: bool,
}

/// Somebody else receives this file.
#[derive(Debug)]
pub(super) struct Locked(String);

impl std::fmt::Display for Locked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} is being received already", self.0)
    }
}

impl std::error::Error for Locked {}

/// Where a file of this name goes, if it is the name of a file and nothing else.
pub(super) fn target(directory: &Path, name: &str) -> Result<PathBuf> {
    let mut parts = Path::new(name).components();
    let plain = matches!((parts.next(), parts.next()), (Some(Component::Normal(part)), None) if part == OsStr::new(name));
    if !plain || name.chars().any(char::is_control) || name.ends_with(SUFFIX) {
        bail!("{name:?} is not the plain name of a file");
    }
    if name.len() + SUFFIX.len() + 1 > MAX_NAME {
        bail!("the name {name:?} is too long");
    }
    Ok(directory.join(name))
}

impl Partial {
    /// Opens what is there of `target`, or begins it.
    pub(super) fn open(target: PathBuf, overwrite: bool) -> Result<Self> {
        let name = target.file_name().unwrap_or_default().to_string_lossy();
        let path = target.with_file_name(format!(".{name}{SUFFIX}"));
        let failed = || format!("cannot write {}", path.display());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
            .open(&path)
            .with_context(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Locked(name.into_owned()).into()),
            Err(TryLockError::Error(error)) => return Err(error).with_context(failed),
        }
        Ok(Self { file, path, target, overwrite })
    }

    /// How many bytes are there, and their sum.
    pub(super) fn present(&mut self) -> io::Result<(u64, Sha256)> {
        let length = self.file.metadata()?.len();
        self.file.rewind()?;
        Ok((length, hash_prefix(&mut self.file, length)?))
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
        let directory = self.target.parent().unwrap_or(Path::new("."));
        if is_full(&error) {
            return anyhow::anyhow!(
                "no space is left in {}; free some and send again: what has arrived is kept",
                directory.display()
            );
        }
        anyhow::Error::new(error).context(format!("cannot write {}", self.path.display()))
    }

    /// Gives the whole file its name.
    pub(super) fn finish(self) -> Result<PathBuf> {
        self.file.sync_all().map_err(|error| self.explain(error))?;
        if self.overwrite {
            fs::rename(&self.path, &self.target).map_err(|error| self.explain(error))?;
        } else {
            rename_new(&self.path, &self.target)?;
        }
        // Without it a crash may forget the new name. Some file systems cannot do it.
        let directory = self.target.parent().unwrap_or(Path::new("."));
        let _ = File::open(directory).and_then(|directory| directory.sync_all());
        Ok(self.target)
    }

    /// Takes an empty file away that is not wanted after all.
    pub(super) fn discard(self) {
        if self.file.metadata().is_ok_and(|metadata| metadata.len() == 0) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Renames, unless somebody has the name.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    let exists = || format!("{} exists; move it away, or receive with --overwrite", to.display());
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, from, cwd, to, RenameFlags::NOREPLACE) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::EXIST) => bail!(exists()),
        // Not every file system can; then somebody could come in between, for a moment.
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS) => match fs::symlink_metadata(to) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(fs::rename(from, to)?),
            _ => bail!(exists()),
        },
        Err(error) => Err(error).with_context(|| format!("cannot rename {}", from.display())),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_plain_names_are_taken() {
        let directory = Path::new("/in");
        for name in ["a", "a b.tar.gz", ".hidden", "é", "..."] {
            assert_eq!(target(directory, name).unwrap(), directory.join(name));
        }
        let long = "x".repeat(250);
        for name in [
            "",
            ".",
            "..",
            "/",
            "/etc/passwd",
            "../a",
            "a/b",
            "a/",
            "./a",
            "a\n",
            "a\0",
            ".a.whimbrel-part",
            &long,
        ] {
            assert!(target(directory, name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_partial_file_goes_on_and_never_replaces() {
        let dir = tempfile::tempdir().unwrap();
        let name = target(dir.path(), "f").unwrap();
        let mut partial = Partial::open(name.clone(), false).unwrap();
        partial.write(b"hel").unwrap();
        assert!(Partial::open(name.clone(), false).unwrap_err().to_string().contains("already"));
        drop(partial);
        let mut partial = Partial::open(name.clone(), false).unwrap();
        assert_eq!(partial.present().unwrap().0, 3);
        partial.write(b"lo").unwrap();
        fs::write(&name, "mine").unwrap();
        let error = partial.finish().unwrap_err().to_string();
        assert!(error.contains("exists"), "{error}");
        assert_eq!(fs::read(&name).unwrap(), b"mine");
        Partial::open(name.clone(), true).unwrap().finish().unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"hello");
    }
}
