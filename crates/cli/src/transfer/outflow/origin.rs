//! Where the bytes of a file come from that is sent.

use std::fs::File;
use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, anyhow};
use tokio::task::block_in_place;

use super::input::Input;
use super::left::Rest;

/// Where the bytes come from.
pub(in crate::transfer) enum Origin {
    File(Part),
    Input(Input),
}

/// A file, or the end of one.
pub(in crate::transfer) struct Part {
    file: File,
    /// What people call it.
    shown: String,
    /// The number that its first byte has in what is sent.
    first: u64,
    /// The number behind its last byte.
    end: u64,
    /// Bytes of the file that are before it and not of it.
    base: u64,
}

impl Part {
    /// The bytes from `first` to `end` of what is sent.
    pub(in crate::transfer) fn new(file: File, shown: String, (first, end): (u64, u64)) -> Self {
        Self { file, shown, first, end, base: 0 }
    }

    /// The same of a file in which it begins behind so many bytes.
    pub(in crate::transfer) fn behind(self, base: u64) -> Self {
        Self { base, ..self }
    }

    /// Reads the next bytes, of which the first one has the number `at`; 0 is the end. Blocks.
    ///
    /// # Errors
    /// What the system says, and when it became shorter.
    pub(in crate::transfer) fn read(&self, at: u64, into: &mut [u8]) -> Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(at)).unwrap_or(usize::MAX);
        let most = left.min(into.len());
        if most == 0 {
            return Ok(0);
        }
        let failed = || format!("cannot read {}", self.shown);
        let n = block_in_place(|| self.file.read_at(&mut into[..most], self.base + (at - self.first)));
        match n.with_context(failed)? {
            0 => Err(anyhow!("it became shorter while it was being sent").context(failed())),
            n => Ok(n),
        }
    }
}

impl Origin {
    /// Its size, if that is known.
    pub(super) fn size(&self) -> Option<u64> {
        match self {
            Self::File(part) => Some(part.end),
            Self::Input(_) => None,
        }
    }

    /// Reads the next bytes, of which the first one has the number `at`; 0 is the end. Cancel-safe.
    pub(super) async fn read(&mut self, at: u64, into: &mut [u8]) -> Result<usize> {
        match self {
            Self::File(part) => part.read(at, into),
            Self::Input(input) => input.read(into).await,
        }
    }

    /// Sees to it that all that is left is in a file. Cancel-safe.
    pub(super) async fn read_ahead(&mut self) -> Result<()> {
        match self {
            Self::File(_) => Ok(()),
            Self::Input(input) => input.read_ahead().await,
        }
    }

    /// What is left from `at` on, if all of it is in a file.
    pub(super) fn rest(&self, at: u64) -> Option<Rest<'_>> {
        match self {
            Self::File(part) => {
                let (from, length) = (at.checked_sub(part.first)?, part.end.checked_sub(at)?);
                Some(Rest { file: &part.file, from: part.base.checked_add(from)?, length })
            }
            Self::Input(input) => input.rest(),
        }
    }
}
