//! Closing: what the end of a connection means for its streams and paths.

use std::time::Instant;

use super::Connection;
use crate::error::{CloseCode, ProtocolError};
use crate::event::{ClosedBy, PathEnd};
use crate::ids::{PathId, Side};
use crate::path::Path;

impl Connection {
    /// Ends the connection in order: what was written is delivered first, over further paths if
    /// need be, then CLOSE is exchanged. [`Event::Closed`](crate::Event::Closed) tells when the peer knows.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        self.begin_close(code, reason, true);
    }

    /// Ends the connection at once: undelivered data is given up, and streams fail from now on, even while
    /// there is no path on which the peer could be told.
    pub fn abort(&mut self, code: CloseCode, reason: &str) {
        self.begin_close(code, reason, false);
    }

    fn begin_close(&mut self, code: CloseCode, reason: &str, graceful: bool) {
        if !self.is_closed() {
            self.session.begin_close(code, reason, graceful);
            self.close_unheard();
        }
    }

    /// A client that nobody answered has nobody to agree an end with. It goes on only to deliver
    /// what was written; a server that got OPEN all the same keeps it for its linger time.
    pub(super) fn close_unheard(&mut self) {
        if self.is_established() || self.paths.values().any(Path::is_live) {
            return;
        }
        let (streams, sender) = (&self.session.streams, &self.session.messages.sender);
        let drained = || streams.are_drained() && sender.is_drained();
        if let Some((code, reason)) = self.session.ending.own_word(drained) {
            self.finish_close(ClosedBy::Local, code, &reason);
        }
    }

    /// Decides whether CLOSE may go now.
    pub(super) fn update_close(&mut self, now: Instant) {
        let (streams, sender) = (&self.session.streams, &self.session.messages.sender);
        let drained = || streams.are_drained() && sender.is_drained();
        self.session.ending.update(self.clock.since_begin(now), drained);
    }

    /// All was said, CLOSE included, and the peer has not answered in all this time.
    pub(super) fn close_unanswered(&mut self) {
        if let Some((code, reason)) = self.session.ending.word() {
            self.finish_close(ClosedBy::Local, code, &reason);
        }
    }

    pub(super) fn peer_closed(&mut self, now: Instant, code: CloseCode, reason: &str) {
        self.session.ending.peer_closes();
        let active = self.paths.values_mut().filter(|p| p.is_active());
        active.for_each(|path| path.last_word = true);
        if self.side() == Side::Client {
            let wait = self.timeouts.closing.min(self.session.identity.params().linger);
            self.session.ending.owe_farewell(self.clock.since_begin(now) + wait);
        }
        self.finish_close(ClosedBy::Peer, code, reason);
    }

    pub(super) fn close_acknowledged(&mut self) -> Result<(), ProtocolError> {
        let (code, reason) = self.session.ending.agreed().ok_or(ProtocolError::Unexpected("CLOSE_ACK"))?;
        self.finish_close(ClosedBy::Local, code, &reason);
        Ok(())
    }

    /// The peer refused a path.
    pub(super) fn path_refused(&mut self, now: Instant, id: PathId, code: CloseCode, reason: &str) {
        // Of several OPENs each is answered for itself; a server may know one of them only.
        let others = self.paths.iter().any(|(of, path)| of != id && path.is_live());
        if self.was_opened_by_open(id) && (self.is_established() || others) {
            return self.lose_path(now, id, PathEnd::Refused);
        }
        // A server that hands its end over just now will let somebody in, or another one will.
        if self.can_hand_over() && code == CloseCode::BUSY {
            return self.lose_path(now, id, PathEnd::Refused);
        }
        // Where the peer was before it moved to another process, others may answer for it; and one to whom it
        // goes may not have the connection yet.
        let is_stray = matches!(code, CloseCode::UNKNOWN_CONNECTION | CloseCode::BAD_PROOF);
        let is_elsewhere =
            (is_stray || self.expected_peer().is_some()) && self.session.identity.tenure.may_be_elsewhere();
        if is_elsewhere && self.session.ending.said().is_none() {
            return self.lose_path(now, id, PathEnd::Refused);
        }
        if code != CloseCode::PATH_ID_REUSED {
            self.session.ending.settle_farewell();
        }
        match (self.session.ending.said(), code) {
            // It forgot the connection because it has our CLOSE: the end is agreed.
            (Some((code, reason)), CloseCode::UNKNOWN_CONNECTION) => {
                self.finish_close(ClosedBy::Local, code, &reason);
            }
            (_, CloseCode::PATH_ID_REUSED) => self.lose_path(now, id, PathEnd::Refused),
            _ => self.finish_close(ClosedBy::Peer, code, reason),
        }
    }

    /// The connection ends on this side without a word from the peer.
    pub fn give_up(&mut self, code: CloseCode, reason: &str) {
        self.session.ending.settle_farewell();
        self.finish_close(ClosedBy::Local, code, reason);
    }

    fn finish_close(&mut self, by: ClosedBy, code: CloseCode, reason: &str) {
        self.session.finish(by, code, reason, &mut self.events);
    }

    /// Why nothing can be read or written any more: the connection ended, or was aborted here, which the peer
    /// may yet have to be told.
    #[must_use]
    pub fn end_reason(&self) -> Option<(ClosedBy, CloseCode, &str)> {
        self.session.ending.end_reason()
    }

    /// Why the connection ended, if it has.
    #[must_use]
    pub fn close_reason(&self) -> Option<(ClosedBy, CloseCode, &str)> {
        self.session.ending.close_reason()
    }

    /// The connection is over for the application.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.session.ending.is_closed()
    }

    /// The connection is over and owes the peer nothing: its state may be dropped.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let ending = &self.session.ending;
        let owed = ending.owes_close_ack() && self.paths.values().any(Path::stays);
        ending.is_closed() && !owed && !ending.owes_farewell()
    }
}
