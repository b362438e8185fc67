//! The end of a connection: agreed by both sides, and able to survive moves [msocket §III-B4].

use std::time::Instant;

use super::timers::CLOSING_LINGER;
use super::{Closing, Connection};
use crate::error::{CloseCode, ProtocolError};
use crate::event::{ClosedBy, Event};
use crate::ids::{PathId, Side};
use crate::path::Path;

/// Client: what became of our CLOSE_ACK. A server that waits for it cannot dial, so the client must be able
/// to come back and say it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Farewell {
    /// The server has not sent CLOSE.
    NotOwed,
    /// The server may not have it. From then on it no longer waits either.
    Owed { until: Instant },
    /// The server has it, or no longer waits.
    Settled,
}

impl Connection {
    /// Ends the connection in order: what was written is delivered first, over further paths if
    /// need be, then CLOSE is exchanged. [`Event::Closed`] tells when the peer knows.
    pub fn close(&mut self, code: CloseCode, reason: &str) {
        self.begin_close(code, reason, true);
    }

    /// Ends the connection at once: undelivered data is given up, and streams fail from now on, even while
    /// there is no path on which the peer could be told.
    pub fn abort(&mut self, code: CloseCode, reason: &str) {
        self.begin_close(code, reason, false);
    }

    fn begin_close(&mut self, code: CloseCode, reason: &str, graceful: bool) {
        if self.closed.is_some() {
            return;
        }
        match &mut self.closing {
            Some(closing) => closing.graceful &= graceful,
            None => {
                self.closing =
                    Some(Closing { code, reason: reason.to_owned(), graceful, sent: false, since: None });
            }
        }
        self.close_unheard();
    }

    /// A client that nobody answered has nobody to agree an end with. It goes on only to deliver
    /// what was written; a server that got OPEN all the same keeps it for its linger time.
    pub(super) fn close_unheard(&mut self) {
        if self.is_established() || self.paths.values().any(Path::is_live) {
            return;
        }
        let drained = self.streams.values().all(|s| s.send.is_drained());
        if let Some(closing) = self.closing.as_ref().filter(|c| drained || !c.graceful) {
            let Closing { code, reason, .. } = closing.clone();
            self.finish_close(ClosedBy::Local, code, reason);
        }
    }

    /// Decides whether CLOSE may go now.
    pub(super) fn update_close(&mut self, now: Instant) {
        let Some(closing) = &mut self.closing else {
            return;
        };
        closing.since.get_or_insert(now);
        if !closing.sent && (!closing.graceful || self.streams.values().all(|s| s.send.is_drained())) {
            closing.sent = true;
            closing.since = Some(now);
            self.control.close = true;
        }
    }

    /// All was said, CLOSE included, and the peer has not answered in all this time.
    pub(super) fn close_unanswered(&mut self) {
        if let Some(Closing { code, reason, .. }) = self.closing.clone() {
            self.finish_close(ClosedBy::Local, code, reason);
        }
    }

    pub(super) fn closing_frame(&self) -> Option<(CloseCode, &str)> {
        self.closing.as_ref().map(|c| (c.code, c.reason.as_str()))
    }

    pub(super) fn peer_closed(&mut self, now: Instant, code: CloseCode, reason: &str) {
        self.control.close_ack = true;
        let active = self.paths.values_mut().filter(|p| p.is_active());
        active.for_each(|path| path.last_word = true);
        if self.side == Side::Client && self.farewell == Farewell::NotOwed {
            let until = now + CLOSING_LINGER.min(self.config.params.linger);
            self.farewell = Farewell::Owed { until };
        }
        if self.closed.is_none() {
            self.finish_close(ClosedBy::Peer, code, reason.to_owned());
        }
    }

    /// Our CLOSE_ACK is known to have arrived, or nobody waits for it.
    pub(super) fn farewell_settled(&mut self) {
        if self.farewell != Farewell::NotOwed {
            self.farewell = Farewell::Settled;
            self.control.close_ack = false;
        }
    }

    pub(super) fn owes_farewell(&self) -> bool {
        self.farewell_deadline().is_some()
    }

    /// When to stop trying to tell the server that we have heard its CLOSE.
    pub(super) fn farewell_deadline(&self) -> Option<Instant> {
        match self.farewell {
            Farewell::Owed { until } => Some(until),
            Farewell::NotOwed | Farewell::Settled => None,
        }
    }

    pub(super) fn close_acknowledged(&mut self) -> Result<(), ProtocolError> {
        match self.closing.clone() {
            Some(closing) if closing.sent => {
                // For a server that has agreed to our end, its own CLOSE is settled too.
                self.farewell = Farewell::Settled;
                self.finish_close(ClosedBy::Local, closing.code, closing.reason);
                Ok(())
            }
            _ => Err(ProtocolError::Unexpected("CLOSE_ACK")),
        }
    }

    /// The peer refused a path.
    pub(super) fn path_refused(&mut self, now: Instant, id: PathId, code: CloseCode, reason: &str) {
        // Of several OPENs each is answered for itself; a server may know one of them only.
        let others = self.paths.iter().any(|(of, path)| of != id && path.is_live());
        if self.was_opened_by_open(id) && (self.is_established() || others) {
            return self.path_lost(now, id);
        }
        if code != CloseCode::PATH_ID_REUSED {
            self.farewell_settled();
        }
        match (&self.closing, code) {
            // It forgot the connection because it has our CLOSE: the end is agreed.
            (Some(closing), CloseCode::UNKNOWN_CONNECTION) if closing.sent => {
                let Closing { code, reason, .. } = closing.clone();
                self.finish_close(ClosedBy::Local, code, reason);
            }
            (_, CloseCode::PATH_ID_REUSED) => self.path_lost(now, id),
            _ => self.finish_close(ClosedBy::Peer, code, reason.to_owned()),
        }
    }

    /// The connection ends on this side without a word from the peer.
    pub fn give_up(&mut self, code: CloseCode, reason: &str) {
        self.farewell_settled();
        self.finish_close(ClosedBy::Local, code, reason.to_owned());
    }

    pub(super) fn finish_close(&mut self, by: ClosedBy, code: CloseCode, reason: String) {
        if self.closed.is_some() {
            return;
        }
        self.closed = Some((by, code, reason.clone()));
        self.memory.clear();
        self.send_queue.clear();
        let blocked = std::mem::take(&mut self.blocked_writers);
        for id in blocked {
            self.push(Event::Writable(id));
        }
        self.push(Event::Closed { by, code, reason });
    }

    /// Why nothing can be read or written any more: the connection ended, or was aborted here, which the peer
    /// may yet have to be told.
    #[must_use]
    pub fn end_reason(&self) -> Option<(ClosedBy, CloseCode, &str)> {
        let aborted = self.closing.as_ref().filter(|closing| !closing.graceful);
        self.close_reason().or_else(|| aborted.map(|c| (ClosedBy::Local, c.code, c.reason.as_str())))
    }

    /// Why the connection ended, if it has.
    #[must_use]
    pub fn close_reason(&self) -> Option<(ClosedBy, CloseCode, &str)> {
        self.closed.as_ref().map(|(by, code, reason)| (*by, *code, reason.as_str()))
    }

    /// The connection is over for the application.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// The connection is over and owes the peer nothing: its state may be dropped.
    #[must_use]
    pub fn is_over(&self) -> bool {
        let owed = self.control.close_ack && self.paths.values().any(Path::stays);
        self.closed.is_some() && !owed && !self.owes_farewell()
    }
}
