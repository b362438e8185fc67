//! A file that is to be sent, or a directory with nothing in it.

use std::fs::{self, File};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};

use super::message::{ONE_FILE, Offer, VERSION};
use super::outflow::Part;
use super::tree::Entry;

/// What is to be sent.
#[derive(Clone)]
pub(super) struct Item {
    /// The directories above it, as the receiver is to have them.
    pub(super) above: Vec<String>,
    pub(super) name: String,
    pub(super) bytes: Bytes,
}

/// Where its bytes are.
#[derive(Clone)]
pub(super) enum Bytes {
    /// It is a directory.
    None,
    /// In this file.
    Path(PathBuf),
    /// So many in a file that was brought here, behind those of others.
    Kept { file: Arc<File>, base: u64, size: u64 },
}

impl Item {
    pub(super) fn of(entry: &Entry) -> Self {
        let bytes = if entry.directory { Bytes::None } else { Bytes::Path(entry.path.clone()) };
        Self { above: entry.above.clone(), name: entry.name.clone(), bytes }
    }

    /// The names that lead to it, with its own.
    pub(super) fn shown(&self) -> String {
        let names: Vec<&str> = self.above.iter().chain([&self.name]).map(String::as_str).collect();
        names.join("/")
    }

    /// How many bytes it has now; `None` for a directory.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn size(&self) -> Result<Option<u64>> {
        match &self.bytes {
            Bytes::None => Ok(None),
            Bytes::Path(path) => {
                let metadata = fs::metadata(path);
                Ok(Some(metadata.with_context(|| format!("cannot read {}", path.display()))?.len()))
            }
            Bytes::Kept { size, .. } => Ok(Some(*size)),
        }
    }

    /// Its bytes, and how many there are; `None` for a directory.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn open(&self) -> Result<Option<(Part, u64)>> {
        match &self.bytes {
            Bytes::None => Ok(None),
            Bytes::Path(path) => {
                let failed = || format!("cannot read {}", path.display());
                let file = File::open(path).with_context(failed)?;
                let size = file.metadata().with_context(failed)?.len();
                Ok(Some((Part::new(file, path.display().to_string(), (0, size)), size)))
            }
            Bytes::Kept { file, base, size } => {
                let shown = format!("what is here of {}", self.name);
                let file = file.try_clone().with_context(|| format!("cannot read {shown}"))?;
                Ok(Some((Part::new(file, shown, (0, *size)).behind(*base), *size)))
            }
        }
    }

    /// What is offered to the receiver, but for its size.
    pub(super) fn offer(&self, part_of: Option<u64>) -> Offer {
        Offer {
            version: if part_of.is_none() { ONE_FILE } else { VERSION },
            name: self.name.clone(),
            above: self.above.clone(),
            directory: matches!(self.bytes, Bytes::None),
            part_of,
            ..Offer::default()
        }
    }
}
