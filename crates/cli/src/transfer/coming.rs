//! The bytes of a file as they come.

use anyhow::{Result, bail};
use sha2::{Digest as _, Sha256};
use tokio::task::block_in_place;

use super::inbox::Room;
use super::partial::Partial;

/// A file whose bytes come.
pub(super) struct Coming<'a> {
    pub(super) size: Option<u64>,
    pub(super) at: u64,
    pub(super) room: Room,
    pub(super) partial: &'a mut Partial,
    pub(super) hasher: Sha256,
}

impl Coming<'_> {
    /// How many are to come.
    ///
    /// # Errors
    /// When nobody knows.
    pub(super) fn missing(&self) -> Result<u64> {
        let Some(size) = self.size else { bail!("a file of unknown size has to come in chunks") };
        Ok(size.saturating_sub(self.at))
    }

    /// Writes the next ones. Blocks.
    ///
    /// # Errors
    /// When they are more than was offered, or than fit.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<()> {
        let length = bytes.len() as u64;
        match self.size {
            Some(size) if length > size.saturating_sub(self.at) => {
                bail!("the sender sends more than the {size} bytes that it offered")
            }
            Some(_) => {}
            None => self.room.keep(self.at, length)?,
        }
        block_in_place(|| self.partial.write(bytes))?;
        self.room.used(length);
        self.hasher.update(bytes);
        self.at += length;
        Ok(())
    }
}
