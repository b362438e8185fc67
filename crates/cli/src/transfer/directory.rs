//! A directory that is held open: what is done in it is done there, whatever becomes of its path, and no
//! symbolic link is followed.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{AtFlags, Dir, FileType, FlockOperation, Mode, OFlags, RenameFlags, Stat};
use rustix::io::Errno;

use super::name;

/// An open directory. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Directory {
    fd: Arc<OwnedFd>,
    /// For messages only.
    path: PathBuf,
}

impl Directory {
    /// Opens the directory that this user named; it may be a link.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())
            .with_context(|| format!("cannot receive into {}", path.display()))?;
        Ok(Self { fd: Arc::new(fd), path: path.to_owned() })
    }

    /// Where an entry is, for messages.
    pub(super) fn shown(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Opens a directory in this one, and makes it if it is not there.
    pub(super) fn child(&self, name: &str, mode: Mode, shown: &str) -> Result<Self> {
        let path = self.shown(shown);
        let failed = || format!("cannot make the directory {}", path.display());
        match rustix::fs::mkdirat(&self.fd, name, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(io::Error::from(error)).with_context(failed),
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&self.fd, name, flags, Mode::empty()) {
            Ok(fd) => Ok(Self { fd: Arc::new(fd), path }),
            Err(Errno::NOTDIR | Errno::LOOP) => bail!("{} exists and is no directory", path.display()),
            Err(error) => Err(io::Error::from(error)).with_context(failed),
        }
    }

    /// Opens a directory in this one that is there.
    pub(super) fn existing(&self, name: &str) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::empty())?;
        Ok(Self { fd: Arc::new(fd), path: self.shown(name) })
    }

    /// The names of what is there; `None` where there are more than so many. Those that are no text are left
    /// out.
    pub(super) fn names(&self, most: usize) -> io::Result<Option<Vec<String>>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.fd)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if name == "." || name == ".." {
                continue;
            }
            if names.len() >= most {
                return Ok(None);
            }
            names.push(name.to_owned());
        }
        Ok(Some(names))
    }

    /// Removes a directory with nothing in it.
    pub(super) fn remove_directory(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR)?)
    }

    /// What is there under this name, a link as a link.
    pub(super) fn entry(&self, name: &str) -> io::Result<Option<Stat>> {
        match rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Opens a regular file of this user's, and nothing else.
    pub(super) fn file(&self, name: &str, write: bool) -> io::Result<File> {
        // A pipe must not keep us waiting.
        let flags = OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let flags = flags | if write { OFlags::RDWR | OFlags::CREATE } else { OFlags::RDONLY };
        let fd = rustix::fs::openat(&self.fd, name, flags, Mode::from(0o600))?;
        let stat = rustix::fs::fstat(&fd)?;
        if !is_file(&stat) {
            return Err(io::Error::other("it is no plain file"));
        }
        if write && (stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_nlink != 1) {
            return Err(io::Error::other("it is not this user's alone; remove it"));
        }
        if write {
            rustix::fs::fchmod(&fd, Mode::from(0o600))?;
        }
        Ok(fd.into())
    }

    /// Whether the name still stands for this open file.
    pub(super) fn is(&self, name: &str, file: &Stat) -> io::Result<bool> {
        Ok(self.entry(name)?.is_some_and(|found| (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino)))
    }

    pub(super) fn remove_file(&self, name: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.fd, name, AtFlags::empty())?)
    }

    /// Renames, and replaces a file that has the name.
    pub(super) fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.fd, from, &self.fd, to)?)
    }

    /// Renames, unless somebody has the name.
    pub(super) fn rename_new(&self, from: &str, to: &str) -> Result<()> {
        match rustix::fs::renameat_with(&self.fd, from, &self.fd, to, RenameFlags::NOREPLACE) {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => bail!(self.exists(to)),
            Err(Errno::INVAL | Errno::NOSYS) => self.take_name(from, to),
            Err(error) => Err(io::Error::from(error))
                .with_context(|| format!("cannot make {}", self.shown(to).display())),
        }
    }

    /// For file systems that cannot do it at once: takes the name with something empty, which then is
    /// replaced.
    fn take_name(&self, from: &str, to: &str) -> Result<()> {
        let is_directory =
            self.entry(from)?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
        let taken = if is_directory {
            rustix::fs::mkdirat(&self.fd, to, Mode::from(0o700))
        } else {
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            rustix::fs::openat(&self.fd, to, flags, Mode::from(0o600)).map(drop)
        };
        match taken {
            Ok(()) => Ok(self.rename(from, to)?),
            Err(Errno::EXIST) => bail!(self.exists(to)),
            Err(error) => Err(io::Error::from(error).into()),
        }
    }

    /// What is said of a name that is taken.
    pub(super) fn exists(&self, name: &str) -> String {
        format!("{} exists; move it away, or receive with --overwrite", self.shown(name).display())
    }

    /// Locks the directory against other programs of ours; false if one of them has it.
    pub(super) fn try_lock(&self) -> io::Result<bool> {
        match rustix::fs::flock(&self.fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn stat(&self) -> io::Result<Stat> {
        Ok(rustix::fs::fstat(&self.fd)?)
    }

    /// Lets nobody else in.
    pub(super) fn make_private(&self) -> Result<()> {
        if self.stat()?.st_uid != rustix::process::geteuid().as_raw() {
            bail!("{} is another user's; remove it", self.path.display());
        }
        Ok(self.set_mode(Mode::from(0o700))?)
    }

    pub(super) fn set_mode(&self, mode: Mode) -> io::Result<()> {
        Ok(rustix::fs::fchmod(&self.fd, mode)?)
    }

    /// Makes names last over a crash. Some file systems cannot do it.
    pub(super) fn sync(&self) {
        let _ = rustix::fs::fsync(&self.fd);
    }
}

pub(super) fn is_file(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode).is_file()
}

/// Where something is until it is whole.
pub(super) fn on_its_way(name: &str) -> String {
    format!(".{name}{}", name::SUFFIX)
}

/// The modes that files and directories get once they are whole.
#[derive(Clone, Copy, Debug)]
pub(super) struct Modes {
    pub(super) file: Mode,
    pub(super) directory: Mode,
}

impl Modes {
    /// As other programs of this user would make them.
    pub(super) fn of_user() -> Self {
        // It can only be read by setting it; what another thread makes meanwhile is too private for a moment.
        let mask = rustix::process::umask(Mode::from(0o077));
        rustix::process::umask(mask);
        Self { file: Mode::from(0o666) & !mask, directory: Mode::from(0o777) & !mask }
    }
}
