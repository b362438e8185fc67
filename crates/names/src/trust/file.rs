//! The file of known peers: reading it, and replacing it in one step.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::{Pins, format};

/// No file of known peers is larger.
const MAX_FILE: u64 = 64 * 1024 * 1024;

/// What tells one version of the file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    modified: Option<SystemTime>,
    size: u64,
    #[cfg(unix)]
    inode: u64,
}

impl Stamp {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            modified: metadata.modified().ok(),
            size: metadata.len(),
            #[cfg(unix)]
            inode: std::os::unix::fs::MetadataExt::ino(metadata),
        }
    }
}

/// The version of the file; none if there is no file.
pub(super) fn stamp(file: &Path) -> Result<Option<Stamp>, KnownPeersError> {
    match fs::metadata(file) {
        Ok(metadata) => Ok(Some(Stamp::of(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(KnownPeersError::read(file, &error)),
    }
}

/// What the file has.
pub(super) fn read(file: &Path) -> Result<Pins, KnownPeersError> {
    let mut text = String::new();
    File::open(file)
        .and_then(|opened| opened.take(MAX_FILE).read_to_string(&mut text))
        .map_err(|error| KnownPeersError::read(file, &error))?;
    format::read(&text).map_err(|line| KnownPeersError::Damaged { file: file.to_owned(), line })
}

/// Waits for its turn to change the file; held until dropped. Others hold it for the time of one write.
pub(super) fn lock(file: &Path) -> Result<File, KnownPeersError> {
    let beside = with_suffix(file, ".lock");
    let open = || {
        let opened = private(OpenOptions::new().write(true).create(true).truncate(false)).open(&beside)?;
        opened.lock()?;
        Ok(opened)
    };
    open().map_err(|error: io::Error| KnownPeersError::write(file, &error))
}

/// Replaces the file in one step; with `durable`, also across a loss of power.
pub(super) fn write(file: &Path, pins: &Pins, durable: bool) -> Result<(), KnownPeersError> {
    let new = with_suffix(file, ".new");
    let replace = || {
        let mut written = private(OpenOptions::new().write(true).create(true).truncate(true)).open(&new)?;
        written.write_all(format::write(pins).as_bytes())?;
        if durable {
            written.sync_all()?;
        }
        fs::rename(&new, file)
    };
    replace().map_err(|error| KnownPeersError::write(file, &error))
}

fn private(options: &mut OpenOptions) -> &mut OpenOptions {
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(options, 0o600);
    options
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Why the file of known peers can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KnownPeersError {
    /// It can't be read.
    #[error("cannot read the known peers in {}: {error}; check who owns it", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// Why.
        error: String,
    },
    /// It can't be written.
    #[error("cannot write the known peers in {}: {error}; check its directory and the disk", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Why.
        error: String,
    },
    /// A line is not understood.
    #[error("{}:{line}: this line of the known peers is damaged; mend or remove it", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
    },
}

impl KnownPeersError {
    pub(super) fn read(file: &Path, error: &io::Error) -> Self {
        Self::Read { file: file.to_owned(), error: error.to_string() }
    }

    pub(super) fn write(file: &Path, error: &io::Error) -> Self {
        Self::Write { file: file.to_owned(), error: error.to_string() }
    }
}
