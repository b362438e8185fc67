//! The one place that asks the operating system for randomness.

/// Fills an array with bytes from the operating system's generator.
///
/// # Panics
/// When the system has no randomness to give. That is no state to go on in: a key made without it would be
/// guessable.
pub fn array<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    if let Err(error) = getrandom::fill(&mut bytes) {
        panic!(
            "the operating system gives no random bytes ({error}); keys and ids cannot be made without them"
        );
    }
    bytes
}
