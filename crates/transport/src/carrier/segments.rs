//! Segments out of an ordered byte channel.

use whimbrel_proto::segment;

use super::PathError;

/// Joins plaintext to whole segments; `partial` keeps what is not whole yet.
pub(super) fn assemble(
    partial: &mut Vec<u8>,
    plain: &[u8],
    mut take: impl FnMut(&[u8]) -> Result<(), PathError>,
) -> Result<(), PathError> {
    if partial.is_empty() {
        let used = take_segments(plain, &mut take)?;
        partial.extend_from_slice(&plain[used..]);
    } else {
        partial.extend_from_slice(plain);
        let used = take_segments(partial, &mut take)?;
        partial.drain(..used);
        if partial.is_empty() {
            *partial = Vec::new();
        }
    }
    Ok(())
}

fn take_segments(
    mut bytes: &[u8],
    take: &mut impl FnMut(&[u8]) -> Result<(), PathError>,
) -> Result<usize, PathError> {
    let all = bytes.len();
    while let Some((body, used)) = segment::split(bytes).map_err(|_| PathError::Protocol)? {
        take(body)?;
        bytes = &bytes[used..];
    }
    Ok(all - bytes.len())
}
