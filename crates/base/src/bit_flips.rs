//! What is signed, with one bit changed: for tests.

/// Fails unless every change of one bit is noticed, and the bytes as they are are taken.
#[track_caller]
pub(crate) fn are_noticed(bytes: &[u8], is_taken: impl Fn(&[u8]) -> bool) {
    let mut changed = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        changed[bit / 8] ^= 1 << (bit % 8);
        assert!(!is_taken(&changed), "bit {bit}");
        changed[bit / 8] ^= 1 << (bit % 8);
    }
    assert!(is_taken(&changed), "nothing was changed");
}
