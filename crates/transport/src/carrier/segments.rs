//! Segments: what the engine and a carrier exchange, and how they are found in an ordered byte channel.

use std::time::Instant;

use whimbrel_proto::{PathId, segment};

use super::PathError;

/// The engine, as a carrier sees it: segments that come in go there, those to be sent come from there.
pub(crate) trait Segments {
    /// Takes one segment in. [`announce`](Self::announce) is to follow when all that came together is in.
    ///
    /// # Errors
    /// [`PathError::Protocol`] if the peer broke the protocol.
    fn take_segment(&self, now: Instant, path: PathId, segment: &[u8]) -> Result<(), PathError>;

    /// Passes on what the engine has to say. Once for each read: a reader that is woken for every
    /// segment does little but wake up.
    fn announce(&self);

    /// As [`announce`](Self::announce), and tells whether there is something to send on `path`, which takes
    /// more: one lock for both.
    fn announce_and_look(&self, now: Instant, path: PathId) -> bool;

    /// Whether there is something to send on a path.
    fn has_segment(&self, path: PathId) -> bool;

    /// As [`take_segment`](Self::take_segment), for what came in a datagram of the carrier.
    ///
    /// # Errors
    /// [`PathError::Protocol`] if the peer broke the protocol.
    fn take_datagram(&self, now: Instant, path: PathId, datagram: &[u8]) -> Result<(), PathError>;

    /// Whether there may be something that could go in a datagram.
    fn may_have_datagrams(&self) -> bool;

    /// Appends what goes in the next datagram of a path, whose carrier has `room` bytes for it, and takes no
    /// segments now if it is `blocked`. False if there is nothing.
    fn next_datagram(&self, now: Instant, path: PathId, room: u64, blocked: bool, out: &mut Vec<u8>) -> bool;

    /// What carriers hold unsent, and have wait on the way, should be little: there are messages beside
    /// streams.
    fn wants_short_queues(&self) -> bool;

    /// Appends the next segment for a path. Writers for whom that made room are woken.
    fn next_segment(&self, now: Instant, path: PathId, out: &mut Vec<u8>) -> Next;
}

/// What the engine has for a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    Nothing,
    /// A segment, which took all stream data that waited.
    Last,
    /// A segment; stream data still waits, for this path or another.
    AndMore,
}

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
