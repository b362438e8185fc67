//! The end of a connection: agreed by both sides, and able to survive moves [msocket §III-B4]. Points in time
//! are durations since the connection began.

use std::time::Duration;

use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::error::{CloseCode, DecodeError};
use crate::event::ClosedBy;
use crate::frame::{Frame, MAX_REASON};
use crate::snapshot;
use crate::varint::Reader;

/// CLOSE with the longest reason.
const CLOSE_FRAME: usize = 3 + 8 + MAX_REASON;

/// Our own CLOSE.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Closing {
    code: CloseCode,
    reason: String,
    /// Wait until all stream data was acknowledged.
    graceful: bool,
    sent: bool,
    /// When the wait began that has a limit: for a path, or for the peer's answer.
    since: Option<Duration>,
}

/// Client: what became of our CLOSE_ACK. A server that waits for it cannot dial, so the client must be able
/// to come back and say it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Farewell {
    /// The server has not sent CLOSE.
    NotOwed,
    /// The server may not have it. From then on it no longer waits either.
    Owed { until: Duration },
    /// The server has it, or no longer waits.
    Settled,
}

/// How long a closing connection waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The connection is not closing.
    None,
    /// It is, and was not told the time since.
    Unknown,
    /// Since then.
    Since(Duration),
}

/// How far a connection is on its way to its end.
#[derive(Debug)]
pub(crate) struct Ending {
    closing: Option<Closing>,
    closed: Option<(ClosedBy, CloseCode, String)>,
    farewell: Farewell,
    close_waits: bool,
    close_ack_waits: bool,
}

impl Default for Ending {
    fn default() -> Self {
        let farewell = Farewell::NotOwed;
        Self { closing: None, closed: None, farewell, close_waits: false, close_ack_waits: false }
    }
}

impl Ending {
    /// Begins to close: in order, once all was delivered, or at once.
    pub(crate) fn begin(&mut self, code: CloseCode, reason: &str, graceful: bool) {
        match &mut self.closing {
            Some(closing) => closing.graceful &= graceful,
            None => {
                let reason = reason.to_owned();
                self.closing = Some(Closing { code, reason, graceful, sent: false, since: None });
            }
        }
    }

    /// CLOSE may go, or has gone.
    pub(crate) fn is_said(&self) -> bool {
        self.closing.as_ref().is_some_and(|c| c.sent)
    }

    /// Decides whether CLOSE may go now. Tells whether all streams are `drained` only if that matters.
    pub(crate) fn update(&mut self, now: Duration, drained: impl FnOnce() -> bool) {
        let Some(closing) = &mut self.closing else {
            return;
        };
        closing.since.get_or_insert(now);
        if !closing.sent && (!closing.graceful || drained()) {
            closing.sent = true;
            closing.since = Some(now);
            self.close_waits = true;
        }
    }

    /// Our own word on the end, if nothing has to be delivered before it.
    pub(crate) fn own_word(&self, drained: impl FnOnce() -> bool) -> Option<(CloseCode, String)> {
        let closing = self.closing.as_ref().filter(|c| !c.graceful || drained())?;
        Some((closing.code, closing.reason.clone()))
    }

    /// Our own word, if CLOSE has gone.
    pub(crate) fn said(&self) -> Option<(CloseCode, String)> {
        self.closing.as_ref().filter(|c| c.sent).map(|c| (c.code, c.reason.clone()))
    }

    /// Our own word, however far it got.
    pub(crate) fn word(&self) -> Option<(CloseCode, String)> {
        self.closing.as_ref().map(|c| (c.code, c.reason.clone()))
    }

    /// The code with which this side closes, or with which the connection ended otherwise.
    #[inline]
    pub(crate) fn code(&self) -> Option<CloseCode> {
        let closing = self.closing.as_ref().map(|closing| closing.code);
        closing.or_else(|| self.close_reason().map(|(_, code, _)| code))
    }

    /// How long this side has been closing.
    pub(crate) fn waits_since(&self) -> Wait {
        match self.closing.as_ref().map(|closing| closing.since) {
            None => Wait::None,
            Some(None) => Wait::Unknown,
            Some(Some(since)) => Wait::Since(since),
        }
    }

    /// When to stop waiting for the answer to CLOSE, if the wait has a `limit`.
    pub(crate) fn close_deadline(&self, limit: Duration) -> Option<Duration> {
        let closing = self.closing.as_ref().filter(|c| c.sent && self.closed.is_none())?;
        closing.since?.checked_add(limit)
    }

    /// The peer closed, and is owed CLOSE_ACK.
    pub(crate) fn peer_closes(&mut self) {
        self.close_ack_waits = true;
    }

    /// Client: our CLOSE_ACK has to reach the server by then.
    pub(crate) fn owe_farewell(&mut self, until: Duration) {
        if self.farewell == Farewell::NotOwed {
            self.farewell = Farewell::Owed { until };
        }
    }

    /// Our CLOSE_ACK is known to have arrived, or nobody waits for it.
    pub(crate) fn settle_farewell(&mut self) {
        if self.farewell != Farewell::NotOwed {
            self.farewell = Farewell::Settled;
            self.close_ack_waits = false;
        }
    }

    /// The peer has agreed to our end: for a server its own CLOSE is settled with it. Returns our word;
    /// `None` if CLOSE was not sent.
    pub(crate) fn agreed(&mut self) -> Option<(CloseCode, String)> {
        let said = self.said()?;
        self.farewell = Farewell::Settled;
        Some(said)
    }

    /// When to stop trying to tell the server that we have heard its CLOSE.
    pub(crate) fn farewell_deadline(&self) -> Option<Duration> {
        match self.farewell {
            Farewell::Owed { until } => Some(until),
            Farewell::NotOwed | Farewell::Settled => None,
        }
    }

    pub(crate) fn owes_farewell(&self) -> bool {
        self.farewell_deadline().is_some()
    }

    /// The connection is over for the application. False if it was before.
    pub(crate) fn finish(&mut self, by: ClosedBy, code: CloseCode, reason: &str) -> bool {
        let news = self.closed.is_none();
        if news {
            self.closed = Some((by, code, reason.to_owned()));
        }
        news
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_some()
    }

    /// Why the connection ended, if it has.
    pub(crate) fn close_reason(&self) -> Option<(ClosedBy, CloseCode, &str)> {
        self.closed.as_ref().map(|(by, code, reason)| (*by, *code, reason.as_str()))
    }

    /// Why nothing can be read or written any more: the connection ended, or was aborted here.
    pub(crate) fn end_reason(&self) -> Option<(ClosedBy, CloseCode, &str)> {
        let aborted = self.closing.as_ref().filter(|closing| !closing.graceful);
        self.close_reason().or_else(|| aborted.map(|c| (ClosedBy::Local, c.code, c.reason.as_str())))
    }

    /// CLOSE_ACK waits for a segment.
    pub(crate) fn owes_close_ack(&self) -> bool {
        self.close_ack_waits
    }

    /// Something has to be told.
    pub(crate) fn waits(&self) -> bool {
        self.close_waits || self.close_ack_waits
    }

    /// CLOSE has to be told again.
    pub(crate) fn mark_close(&mut self) {
        self.close_waits = true;
    }

    /// CLOSE_ACK was lost with its path: it goes again unless nobody waits for it.
    pub(crate) fn mark_close_ack(&mut self) {
        self.close_ack_waits |= self.farewell != Farewell::Settled;
    }

    /// Writes itself down, as long as the connection is not over. How long it waits is counted anew.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::code(out, self.closing.as_ref().map(|c| c.code));
        if let Some(Closing { reason, graceful, sent, .. }) = &self.closing {
            snapshot::bytes(out, reason.as_bytes());
            snapshot::flag(out, *graceful);
            snapshot::flag(out, *sent);
        }
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut this = Self::default();
        if let Some(code) = snapshot::read_code(reader)? {
            let reason = String::from_utf8_lossy(reader.prefixed()?).into_owned();
            let (graceful, sent) = (snapshot::read_flag(reader)?, snapshot::read_flag(reader)?);
            this.closing = Some(Closing { code, reason, graceful, sent, since: None });
            this.close_waits = sent;
        }
        Ok(this)
    }

    pub(crate) fn put(&mut self, draft: &mut Draft<'_>) {
        if draft.room() < CLOSE_FRAME + SMALL_FRAME {
            return;
        }
        if std::mem::take(&mut self.close_waits)
            && let Some(Closing { code, reason, .. }) = &self.closing
        {
            draft.put(&Frame::Close { code: *code, reason }, Some(Content::Close));
        }
        if std::mem::take(&mut self.close_ack_waits) {
            draft.put(&Frame::CloseAck, Some(Content::CloseAck));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(5);

    #[test]
    fn close_waits_for_what_was_written_and_an_abort_does_not() {
        let mut ending = Ending::default();
        ending.begin(CloseCode::NONE, "", true);
        ending.update(NOW, || false);
        assert!(!ending.is_said() && ending.end_reason().is_none());
        ending.begin(CloseCode::NONE, "", false);
        ending.update(NOW, || false);
        assert!(ending.is_said() && ending.end_reason().is_some());
    }

    #[test]
    fn the_wait_for_an_answer_begins_when_close_may_go() {
        let mut ending = Ending::default();
        ending.begin(CloseCode::NONE, "", true);
        assert_eq!(ending.waits_since(), Wait::Unknown);
        ending.update(NOW, || false);
        assert_eq!((ending.waits_since(), ending.close_deadline(NOW)), (Wait::Since(NOW), None));
        ending.update(2 * NOW, || true);
        assert_eq!(ending.close_deadline(NOW), Some(3 * NOW));
    }

    #[test]
    fn a_lost_close_ack_goes_again_until_it_is_settled() {
        let mut ending = Ending::default();
        ending.peer_closes();
        ending.owe_farewell(NOW);
        ending.owe_farewell(2 * NOW);
        assert_eq!(ending.farewell_deadline(), Some(NOW), "the first word counts");
        ending.mark_close_ack();
        assert!(ending.owes_close_ack());
        ending.settle_farewell();
        ending.mark_close_ack();
        assert!(!ending.waits() && !ending.owes_farewell());
    }

    #[test]
    fn only_the_first_end_counts() {
        let mut ending = Ending::default();
        assert!(ending.finish(ClosedBy::Peer, CloseCode::NONE, "first"));
        assert!(!ending.finish(ClosedBy::Local, CloseCode::NONE, "second"));
        assert_eq!(ending.close_reason(), Some((ClosedBy::Peer, CloseCode::NONE, "first")));
    }
}
