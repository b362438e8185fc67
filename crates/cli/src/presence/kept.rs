//! Files that the agent writes and other commands read, one of each kind for a user's group: in a folder that
//! only the user reads.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use whimbrel_base::EndpointId;

use crate::{identity, places};

/// The folder.
///
/// # Errors
/// When it is not known where this user's data is.
pub(crate) fn folder() -> Result<PathBuf> {
    Ok(places::data()?.join("presence"))
}

/// What was written last, if it has no more than so many bytes. A file that is not there says nothing.
/// Blocks.
pub(crate) fn read(user: EndpointId, ending: &str, largest: u64) -> Vec<u8> {
    let read = file(user, ending).ok().filter(|file| {
        std::fs::metadata(file).is_ok_and(|metadata| metadata.is_file() && metadata.len() <= largest)
    });
    read.and_then(|file| std::fs::read(file).ok()).unwrap_or_default()
}

/// Writes a file in place of the one before. Blocks.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write(user: EndpointId, ending: &str, bytes: &[u8]) -> Result<()> {
    let (file, folder) = (file(user, ending)?, folder()?);
    identity::private_directory(&folder)?;
    let failed = || format!("cannot write {}", file.display());
    // A file that a crash takes is heard of again: it is not forced to the disk.
    let mut new = tempfile::NamedTempFile::new_in(&folder).with_context(failed)?;
    new.write_all(bytes).with_context(failed)?;
    new.persist(&file).with_context(failed)?;
    Ok(())
}

fn file(user: EndpointId, ending: &str) -> Result<PathBuf> {
    Ok(folder()?.join(format!("{user}.{ending}")))
}
