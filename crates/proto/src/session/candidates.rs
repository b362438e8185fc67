//! Candidates: addresses of UDP sockets between which the sides may open a path through their NAT gateways.
//! Each side states its own; a statement with a higher number asks the peer to punch towards it now.

use std::net::SocketAddr;

use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::frame::{Frame, MAX_CANDIDATES};

/// CANDIDATES with as many as there may be, each with its length and port.
const CANDIDATES_FRAME: usize = SMALL_FRAME + MAX_CANDIDATES * (2 + 2 + 16);

/// What both sides have stated last. It is of the present copies of both: no part of what is written down.
#[derive(Debug, Default)]
pub(crate) struct Candidates {
    sequence: u64,
    own: Vec<SocketAddr>,
    waits: bool,
    peer_sequence: u64,
    peers: Vec<SocketAddr>,
}

impl Candidates {
    /// States the first [`MAX_CANDIDATES`] of these under a new number.
    pub(crate) fn state(&mut self, mut addresses: Vec<SocketAddr>) {
        addresses.truncate(MAX_CANDIDATES);
        self.sequence += 1;
        self.own = addresses;
        self.waits = true;
    }

    pub(crate) fn own(&self) -> &[SocketAddr] {
        &self.own
    }

    pub(crate) fn peers(&self) -> &[SocketAddr] {
        &self.peers
    }

    /// The peer's word. True if it is news.
    pub(crate) fn hear(&mut self, sequence: u64, addresses: Vec<SocketAddr>) -> bool {
        let is_news = sequence > self.peer_sequence;
        if is_news {
            (self.peer_sequence, self.peers) = (sequence, addresses);
        }
        is_news
    }

    /// The peer is another copy from now on, which counts anew.
    pub(crate) fn peer_changed(&mut self) {
        (self.peer_sequence, self.peers) = (0, Vec::new());
    }

    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// It was lost with its path.
    pub(crate) fn mark(&mut self) {
        self.waits = self.sequence > 0;
    }

    pub(crate) fn put(&mut self, draft: &mut Draft<'_>) {
        if draft.room() >= CANDIDATES_FRAME && std::mem::take(&mut self.waits) {
            let frame = Frame::Candidates { sequence: self.sequence, addresses: self.own.clone() };
            draft.put(&frame, Some(Content::Candidates));
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
    fn the_same_addresses_stated_again_are_news_and_a_late_statement_is_not() {
        let (mut ours, mut theirs) = (Candidates::default(), Candidates::default());
        ours.state(vec![at(1)]);
        assert!(ours.waits() && theirs.hear(ours.sequence, ours.own.clone()));
        ours.state(vec![at(1)]);
        assert!(theirs.hear(ours.sequence, ours.own.clone()), "it asks to punch once more");
        assert!(!theirs.hear(1, vec![at(2)]));
        assert_eq!(theirs.peers(), [at(1)]);
        theirs.peer_changed();
        assert!(theirs.peers().is_empty() && theirs.hear(1, vec![at(3)]));
    }

    #[test]
    fn no_more_are_stated_than_the_peer_takes() {
        let mut ours = Candidates::default();
        ours.state((0..100).map(at).collect());
        assert_eq!(ours.own().len(), MAX_CANDIDATES);
    }
}
