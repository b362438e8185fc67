//! The head of a piece, as it goes out and as it comes, however that is cut.

use std::io;

use anyhow::{Result, bail};

use super::{LENGTH, MAX_HEAD, OTHER, Piece};

/// A head that goes out; at first there is none.
#[derive(Default)]
pub(in crate::transfer) struct HeadOut {
    bytes: Vec<u8>,
    /// Of them, those that were read.
    told: usize,
}

/// A head that comes, as far as it is there.
#[derive(Default)]
pub(in crate::transfer) struct HeadIn(Vec<u8>);

impl HeadOut {
    /// The head of this piece.
    ///
    /// # Errors
    /// When its names are too long.
    pub(in crate::transfer) fn of(piece: &Piece) -> io::Result<Self> {
        Ok(Self { bytes: piece.head()?, told: 0 })
    }

    /// Reads the next bytes. `None` if there are no more.
    pub(in crate::transfer) fn read(&mut self, into: &mut [u8]) -> Option<usize> {
        let left = self.bytes.get(self.told..).filter(|left| !left.is_empty())?;
        let n = left.len().min(into.len());
        into[..n].copy_from_slice(&left[..n]);
        self.told += n;
        Some(n)
    }
}

impl HeadIn {
    /// Takes those of these bytes that it lacks. Returns how many that were, and the piece once its head is
    /// whole: then the next one may come.
    ///
    /// # Errors
    /// When it is none, or its names are refused.
    pub(in crate::transfer) fn take(&mut self, bytes: &[u8]) -> Result<(usize, Option<Piece>)> {
        let n = (length(&self.0)? - self.0.len()).min(bytes.len());
        self.0.extend_from_slice(&bytes[..n]);
        if self.0.len() < length(&self.0)? {
            return Ok((n, None));
        }
        let piece = Piece::of_head(&self.0)?;
        self.0.clear();
        Ok((n, Some(piece)))
    }

    /// Whether nothing of it is there.
    pub(in crate::transfer) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// How long a head is that begins so.
fn length(head: &[u8]) -> Result<usize> {
    let Some(length) = head.first_chunk::<LENGTH>() else { return Ok(LENGTH) };
    match u32::from_be_bytes(*length) as usize {
        length @ 1..=MAX_HEAD => Ok(LENGTH + length),
        _ => bail!(OTHER),
    }
}
