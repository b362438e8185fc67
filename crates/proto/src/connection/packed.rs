//! Bytes of a connection that rests, made small: apart from keys, most say that something is as usual.

use std::borrow::Cow;
use std::sync::LazyLock;

use lz4_flex::block::{
    DecompressError, compress_prepend_size_with_dict, decompress_size_prepended_with_dict,
};

use crate::message::MESSAGE_WINDOW;
use crate::params::Params;

/// Larger ones consist mostly of what streams and flows hold. They are not packed: whoever wants the
/// connection would have to wait for that.
const SMALL: usize = 64 * 1024;

const PACKED: u8 = 1;
const AS_IT_IS: u8 = 0;

/// What both sides state about themselves, as most do.
static USUAL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut usual = Vec::new();
    Params { messages: MESSAGE_WINDOW, ..Params::default() }.encode(&mut usual);
    usual
});

/// Bytes that are kept for a while in this process. The last one says how.
#[derive(Debug)]
pub(super) struct Packed(Box<[u8]>);

impl Packed {
    pub(super) fn new(mut bytes: Vec<u8>) -> Self {
        if bytes.len() <= SMALL {
            // A copy, so that the larger memory for packing is given back in one piece.
            let packed = compress_prepend_size_with_dict(&bytes, &USUAL);
            return Self([&packed[..], &[PACKED]].concat().into_boxed_slice());
        }
        bytes.push(AS_IT_IS);
        Self(bytes.into_boxed_slice())
    }

    pub(super) fn unpack(&self) -> Result<Cow<'_, [u8]>, DecompressError> {
        match self.0.split_last() {
            Some((&PACKED, packed)) => decompress_size_prepended_with_dict(packed, &USUAL).map(Cow::Owned),
            Some((_, bytes)) => Ok(Cow::Borrowed(bytes)),
            None => Ok(Cow::default()),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn random(size: usize) -> Vec<u8> {
        (0..size.div_ceil(32)).flat_map(|_| whimbrel_base::random_bytes::<32>()).take(size).collect()
    }

    #[test]
    fn what_is_unpacked_is_what_was_packed() {
        for size in [0, 1, 3, 4, 5, 12, 13, 100, SMALL / 2, SMALL, SMALL + 1, 1 << 20] {
            for bytes in [vec![0; size], random(size), [vec![7; size], random(size)].concat()] {
                assert!(*Packed::new(bytes.clone()).unpack().unwrap() == bytes, "{size}");
            }
        }
    }

    #[test]
    fn what_is_as_usual_takes_little_and_what_is_not_hardly_more_than_it_has() {
        let usual = [vec![0; 100], USUAL.clone(), vec![0; 100], USUAL.clone()].concat();
        assert!(Packed::new(usual).0.len() < 40);
        for size in [SMALL, SMALL + 1] {
            assert!(Packed::new(random(size)).0.len() < size * 101 / 100);
        }
    }
}
