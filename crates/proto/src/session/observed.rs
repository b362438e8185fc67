//! Where each side sees the other, as it says: of what it said, the newest counts.

use std::net::SocketAddr;

use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::frame::Frame;

/// Both sides' words. They are of the present copies of both: no part of what is written down.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    sequence: u64,
    /// Where this side sees the peer.
    told: Option<SocketAddr>,
    waits: bool,
    peer_sequence: u64,
    /// Where the peer sees this side.
    heard: Option<SocketAddr>,
}

impl Observed {
    /// The peer is seen there now; it is told if that is new.
    pub(crate) fn state(&mut self, at: SocketAddr) {
        if self.told.replace(at) != Some(at) {
            self.sequence += 1;
            self.waits = true;
        }
    }

    /// Where the peer sees this side.
    pub(crate) fn heard(&self) -> Option<SocketAddr> {
        self.heard
    }

    /// The peer's word.
    pub(crate) fn hear(&mut self, sequence: u64, at: SocketAddr) {
        if sequence > self.peer_sequence {
            (self.peer_sequence, self.heard) = (sequence, Some(at));
        }
    }

    /// The peer is another copy from now on, which counts anew.
    pub(crate) fn peer_changed(&mut self) {
        (self.peer_sequence, self.heard) = (0, None);
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// It was lost with its path.
    pub(crate) fn mark(&mut self) {
        self.waits = self.told.is_some();
    }

    pub(crate) fn put(&mut self, draft: &mut Draft<'_>) {
        let Some(address) = self.told.filter(|_| draft.room() >= SMALL_FRAME) else { return };
        if std::mem::take(&mut self.waits) {
            draft.put(&Frame::Observed { sequence: self.sequence, address }, Some(Content::Observed));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn the_newest_word_counts_and_the_same_is_not_said_twice() {
        let (mut ours, mut theirs) = (Observed::default(), Observed::default());
        ours.state(at(1));
        ours.state(at(2));
        theirs.hear(2, at(2));
        theirs.hear(1, at(1));
        assert_eq!((ours.sequence, theirs.heard()), (2, Some(at(2))));
        ours.waits = false;
        ours.state(at(2));
        assert!(!ours.waits());
        ours.mark();
        assert!(ours.waits(), "it was lost");
        theirs.peer_changed();
        theirs.hear(1, at(3));
        assert_eq!(theirs.heard(), Some(at(3)));
    }
}
