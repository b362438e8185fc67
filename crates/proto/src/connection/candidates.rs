//! Candidates for paths through the NAT gateways of both sides.

use std::net::SocketAddr;

use super::Connection;
use crate::error::ProtocolError;
use crate::event::Event;
use crate::ids::PathId;

impl Connection {
    /// Whether both sides know what candidates are.
    #[must_use]
    pub fn can_punch(&self) -> bool {
        self.session.identity.both_punch()
    }

    /// Whether both sides take part in a [search](crate::punching::Search) for a port.
    #[must_use]
    pub fn can_search(&self) -> bool {
        self.session.identity.both_search()
    }

    /// Tells the peer at which addresses this side's UDP sockets may be reached, at most
    /// [`MAX_CANDIDATES`](crate::MAX_CANDIDATES), best first, and asks it to send to them now, so that its
    /// gateway lets in what comes from there. Told reliably; does nothing if the peer would not know what it
    /// means.
    pub fn state_candidates(&mut self, addresses: Vec<SocketAddr>) {
        if self.can_punch() {
            self.session.candidates.state(addresses);
        }
    }

    /// The addresses that this side stated last.
    #[must_use]
    pub fn own_candidates(&self) -> &[SocketAddr] {
        self.session.candidates.own()
    }

    /// The peer's candidates, as it says. They may be anybody's:
    /// [`worth_punching`](crate::punching::worth_punching) tells which of them may be sent to.
    #[must_use]
    pub fn peer_candidates(&self) -> &[SocketAddr] {
        self.session.candidates.peers()
    }

    /// Tells the peer where this side sees it, on the newest of its paths. Told reliably, and once; does
    /// nothing if the peer would not know what it means.
    pub fn state_observed(&mut self, at: SocketAddr) {
        if self.session.identity.both_tell_what_they_observe() {
            self.session.observed.state(at);
        }
    }

    /// Where the peer sees this side, as it said last.
    #[must_use]
    pub fn observed(&self) -> Option<SocketAddr> {
        self.session.observed.heard()
    }

    pub(super) fn observed_heard(&mut self, sequence: u64, at: SocketAddr) -> Result<(), ProtocolError> {
        if !self.session.identity.both_tell_what_they_observe() {
            return Err(ProtocolError::Unexpected("OBSERVED"));
        }
        self.session.observed.hear(sequence, at);
        Ok(())
    }

    pub(super) fn candidates_heard(
        &mut self,
        sequence: u64,
        addresses: Vec<SocketAddr>,
    ) -> Result<(), ProtocolError> {
        if !self.can_punch() {
            return Err(ProtocolError::Unexpected("CANDIDATES"));
        }
        if self.session.candidates.hear(sequence, addresses) {
            self.events.push(Event::PeerCandidates);
        }
        Ok(())
    }

    /// Client: once `path` is answered, `other` becomes a backup path in mode `single` too, where it would be
    /// retired otherwise. It stays until another path is answered.
    pub fn keep_as_backup(&mut self, path: PathId, other: PathId) {
        if let Some(path) = self.paths.get_mut(path) {
            path.succession.keep(other);
        }
    }
}
