//! The SHA-256 of a file that is sent.

use sha2::{Digest as _, Sha256};

use super::super::hex;

/// Its length in bytes.
pub(super) const LENGTH: usize = 32;

/// The sum of a whole file.
#[derive(Clone)]
pub(super) enum Sum {
    /// Made of the bytes as they are read.
    Running(Sha256),
    /// Known already: another device has read all of them.
    Known([u8; LENGTH]),
}

impl Sum {
    /// These are the next bytes.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if let Self::Running(hasher) = self {
            hasher.update(bytes);
        }
    }

    /// The sum, once all bytes were taken.
    pub(super) fn whole(&self) -> [u8; LENGTH] {
        match self {
            Self::Running(hasher) => hasher.clone().finalize().into(),
            Self::Known(sum) => *sum,
        }
    }

    /// The same as text.
    pub(super) fn text(&self) -> String {
        hex(&self.whole())
    }
}
