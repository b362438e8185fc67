//! How updates are written: postcard, compressed with zstd.
//!
//! Entries name the same keys again and again, so that compressed they take a third. What is read is bounded
//! before it is unpacked: a message by the caller, its contents by [`MAX_UNPACKED`].

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The most bytes of a message, packed.
pub const MAX_MESSAGE: usize = 4 * 1024 * 1024;
/// The most bytes of a message, unpacked.
pub const MAX_UNPACKED: usize = 16 * 1024 * 1024;

/// Fast, and half as large as it would be without.
const LEVEL: i32 = 3;

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// Too much.
    #[error(
        "a message of the group has at most {MAX_MESSAGE} bytes, and {MAX_UNPACKED} unpacked; this has more"
    )]
    TooLarge,
    /// Torn, or of another program.
    #[error("this is no message of a group: it is torn, or of a newer program; update the older one")]
    Malformed,
    /// A snapshot in place of entries.
    #[error(
        "the other device sends a snapshot in place of entries, which nobody could check; it is not taken: \
         update the older program"
    )]
    Snapshot,
}

/// Packs a message.
///
/// # Errors
/// [`WireError::TooLarge`]
pub(crate) fn pack(message: &impl Serialize) -> Result<Vec<u8>, WireError> {
    let bytes = postcard::to_stdvec(message).map_err(|_| WireError::Malformed)?;
    if bytes.len() > MAX_UNPACKED {
        return Err(WireError::TooLarge);
    }
    let packed = zstd::bulk::compress(&bytes, LEVEL).map_err(|_| WireError::Malformed)?;
    if packed.len() > MAX_MESSAGE { Err(WireError::TooLarge) } else { Ok(packed) }
}

/// Unpacks a message. Nothing may be left.
///
/// # Errors
/// [`WireError`]
pub(crate) fn unpack<T: DeserializeOwned>(packed: &[u8]) -> Result<T, WireError> {
    parse(&unpacked(packed)?)
}

/// Unpacks a message's bytes.
///
/// # Errors
/// [`WireError`]
pub(crate) fn unpacked(packed: &[u8]) -> Result<Vec<u8>, WireError> {
    if packed.len() > MAX_MESSAGE {
        return Err(WireError::TooLarge);
    }
    let stated = zstd::zstd_safe::get_frame_content_size(packed).map_err(|_| WireError::Malformed)?;
    let size = stated.and_then(|size| usize::try_from(size).ok()).ok_or(WireError::Malformed)?;
    if size > MAX_UNPACKED {
        return Err(WireError::TooLarge);
    }
    zstd::bulk::decompress(packed, size).map_err(|_| WireError::Malformed)
}

/// Reads a message. Nothing may be left.
///
/// # Errors
/// [`WireError::Malformed`]
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, WireError> {
    match postcard::take_from_bytes(bytes) {
        Ok((message, [])) => Ok(message),
        _ => Err(WireError::Malformed),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Op;

    #[test]
    fn a_message_comes_back_and_a_torn_one_is_an_error() {
        let message = vec![Op::Seen; 300];
        let packed = pack(&message).unwrap();
        assert_eq!(unpack::<Vec<Op>>(&packed).unwrap(), message);
        for cut in 0..packed.len() {
            assert!(unpack::<Vec<Op>>(&packed[..cut]).is_err());
        }
        let longer = pack(&(&message, 7_u8)).unwrap();
        assert_eq!(unpack::<Vec<Op>>(&longer), Err(WireError::Malformed));
    }

    #[test]
    fn a_small_message_that_unpacks_to_a_huge_one_is_refused_before_it_is_unpacked() {
        let bomb = zstd::bulk::compress(&vec![0; MAX_UNPACKED + 1], LEVEL).unwrap();
        assert!(bomb.len() < 10_000);
        assert_eq!(unpack::<Vec<u8>>(&bomb), Err(WireError::TooLarge));
        assert_eq!(unpack::<Vec<u8>>(&vec![0; MAX_MESSAGE + 1]), Err(WireError::TooLarge));
    }
}
