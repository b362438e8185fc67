//! Variable-length integers of RFC 9000 §16: 1, 2, 4 or 8 bytes, values below 2⁶².

use crate::error::DecodeError;

/// The largest value that fits: 2⁶² − 1.
pub const MAX: u64 = (1 << 62) - 1;

/// Bytes that [`write()`] needs for `value`.
#[must_use]
#[inline]
pub const fn size(value: u64) -> usize {
    match value {
        0..=0x3f => 1,
        0x40..=0x3fff => 2,
        0x4000..=0x3fff_ffff => 4,
        _ => 8,
    }
}

/// Appends `value`; values above [`MAX`] are a bug of the caller and are clamped.
#[inline]
pub fn write(out: &mut Vec<u8>, value: u64) {
    debug_assert!(value <= MAX);
    let value = value.min(MAX);
    match size(value) {
        1 => out.push(value as u8),
        2 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        4 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// A bounded reader over the bytes of a frame or segment.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Reads from the start of `bytes`.
    #[must_use]
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read yet.
    #[must_use]
    #[inline]
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// True when everything was read.
    #[must_use]
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Takes the next `n` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(n).ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Takes an array of `N` bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when fewer are left.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], DecodeError> {
        let (taken, rest) = self.rest.split_first_chunk::<N>().ok_or(DecodeError::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Takes one byte.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when none is left.
    #[inline]
    pub fn byte(&mut self) -> Result<u8, DecodeError> {
        Ok(self.array::<1>()?[0])
    }

    /// Takes a variable-length integer. Longer encodings than needed are accepted, as in RFC 9000.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when it is cut off.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        let first = *self.rest.first().ok_or(DecodeError::Truncated)?;
        Ok(match first >> 6 {
            0 => {
                self.rest = &self.rest[1..];
                u64::from(first)
            }
            1 => u64::from(u16::from_be_bytes(self.array()?) & 0x3fff),
            2 => u64::from(u32::from_be_bytes(self.array()?) & 0x3fff_ffff),
            _ => u64::from_be_bytes(self.array()?) & MAX,
        })
    }

    /// Takes a varint length and that many bytes.
    ///
    /// # Errors
    /// [`DecodeError::Truncated`] when the length points past the end.
    #[inline]
    pub fn prefixed(&mut self) -> Result<&'a [u8], DecodeError> {
        let n = usize::try_from(self.varint()?).map_err(|_| DecodeError::Truncated)?;
        self.bytes(n)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn rfc_9000_examples_decode() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ] {
            assert_eq!(Reader::new(bytes).varint().unwrap(), value);
        }
    }

    #[test]
    fn every_size_round_trips_at_its_edges() {
        for value in [0, 0x3f, 0x40, 0x3fff, 0x4000, 0x3fff_ffff, 0x4000_0000, MAX] {
            let mut out = Vec::new();
            write(&mut out, value);
            assert_eq!(out.len(), size(value));
            assert_eq!(Reader::new(&out).varint().unwrap(), value);
        }
    }

    #[test]
    fn a_cut_integer_is_an_error() {
        assert!(Reader::new(&[]).varint().is_err());
        assert!(Reader::new(&[0xc0, 0, 0]).varint().is_err());
    }
}
