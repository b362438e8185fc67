//! Bytes that wait on the disk until they can be sent.

use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};

use anyhow::{Context as _, Result, anyhow};

use crate::failure::is_full;
use crate::{identity, places};

/// Bytes in a file of this user's that has no name: it is gone as soon as nobody needs it, however that ends.
pub(crate) struct Spool {
    file: File,
    length: u64,
}

impl Spool {
    /// An empty one, in the directory of this user's state.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new() -> Result<Self> {
        let directory = places::data()?;
        identity::private_directory(&directory)?;
        let failed = || format!("cannot write into {}", directory.display());
        let file = tempfile::tempfile_in(&directory).with_context(failed)?;
        file.set_permissions(Permissions::from_mode(0o600)).with_context(failed)?;
        Ok(Self { file, length: 0 })
    }

    #[cfg(test)]
    pub(crate) fn of(file: File) -> Self {
        Self { file, length: 0 }
    }

    /// Writes bytes behind those that are there. Blocks. Where this fails none of them count.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all_at(bytes, self.length).map_err(|error| match is_full(&error) {
            true => anyhow!("no space is left for what is to be sent from here"),
            false => anyhow::Error::new(error).context("cannot write what is to be sent from here"),
        })?;
        self.length += bytes.len() as u64;
        Ok(())
    }

    /// Bytes that are there.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// The file.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The file, for good.
    pub(super) fn into_file(self) -> File {
        self.file
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn bytes_are_kept_in_their_order() {
        let mut spool = Spool::of(tempfile::tempfile().unwrap());
        spool.append(b"ab").unwrap();
        spool.append(b"c").unwrap();
        let mut found = [0; 4];
        assert_eq!(spool.file().read_at(&mut found, 0).unwrap(), 3);
        assert_eq!((&found[..3], spool.length()), (&b"abc"[..], 3));
    }

    #[test]
    fn a_full_disk_is_named_and_nothing_that_it_did_not_take_counts() {
        let full = File::options().read(true).write(true).open("/dev/full").unwrap();
        let mut spool = Spool::of(full);
        let error = spool.append(b"ab").unwrap_err().to_string();
        assert!(error.contains("no space is left"), "{error}");
        assert_eq!(spool.length(), 0);
    }
}
