//! Segments: the numbered bundles of frames that a path's byte channel carries, each behind its
//! length. Their numbers are never written: a carrier delivers them in order, so both sides count.

use crate::error::DecodeError;
use crate::varint::Reader;

/// Largest segment on the wire, length included: one full TLS record.
pub const MAX_SEGMENT: usize = 16 * 1024;
/// Bytes that a segment's length takes when we write it.
pub(crate) const LENGTH_SIZE: usize = 2;

/// Splits the first whole segment off `bytes`: its body and how many bytes it took.
/// `None` when more bytes are needed.
///
/// # Errors
/// [`DecodeError::TooLarge`] when the length exceeds [`MAX_SEGMENT`].
pub fn split(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, DecodeError> {
    let mut reader = Reader::new(bytes);
    let Ok(length) = reader.varint() else {
        return Ok(None);
    };
    if length > MAX_SEGMENT as u64 {
        return Err(DecodeError::TooLarge("segment"));
    }
    let header = bytes.len() - reader.rest().len();
    match reader.bytes(length as usize) {
        Ok(body) => Ok(Some((body, header + body.len()))),
        Err(_) => Ok(None),
    }
}
