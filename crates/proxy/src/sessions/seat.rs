//! The gateway's end of the line to the device that has a session, or is about to.

mod lasting;

pub(super) use lasting::SeatRecord;

use super::frame::{Frame, LONGEST, Paused};
use super::line::{Heard, LAST, Line};
use super::server::Server;
use crate::Place;
use bytes::Bytes;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// What a device may send before the server has taken it. It keeps to a quarter of that until it pauses.
pub(super) const MOST_UP: usize = 1024 * 1024;
/// A device learns what the server has taken when it is so much.
const TELL: u64 = 64 * 1024;

/// One device.
pub(super) struct Seat {
    device: EndpointId,
    line: Line,
    phase: Phase,
    down: Down,
    up: Up,
    pauses: Pauses,
    /// Counts the session as the device's.
    place: Arc<Place<EndpointId>>,
}

/// Whether a device goes on.
#[derive(Clone, Copy)]
enum Phase {
    Active,
    Pausing,
    Paused(Paused),
}

/// Every PAUSE has one answer, which may come when the device was told to go on already.
#[derive(Default)]
struct Pauses {
    said: u32,
    answered: u32,
}

/// What was said to a device.
struct Down {
    /// The offset behind the last byte.
    sent: u64,
    end: Said,
    /// What it has of what follows, until its turn has come. A device that never hears of it forgets it.
    ahead: Option<Range<u64>>,
}

/// What a device was told of the end of the server's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Said {
    Nothing,
    End,
    Broken,
}

/// What a device has said.
struct Up {
    /// Where its bytes begin among those of all devices.
    base: u64,
    received: u64,
    /// What it was told of those that the server has taken.
    told: u64,
    /// What it said that it has sent.
    announced: u64,
}

impl Seat {
    /// A device that gets the server's bytes from an offset on, behind these words. Its own ones are behind
    /// those that wait for the server already.
    pub(super) fn new(
        stream: Stream,
        words: &[u8],
        offset: u64,
        server: &Server,
        place: Arc<Place<EndpointId>>,
    ) -> Self {
        Self {
            device: stream.peer_id(),
            line: Line::new(stream, words),
            phase: Phase::Active,
            down: Down { sent: offset, end: Said::Nothing, ahead: None },
            up: Up { base: server.waiting().end(), received: 0, told: 0, announced: 0 },
            pauses: Pauses::default(),
            place,
        }
    }

    /// These bytes came to the device before.
    pub(super) fn with_ahead(mut self, ahead: Range<u64>) -> Self {
        self.down.ahead = (!ahead.is_empty()).then_some(ahead);
        self
    }

    /// What counts the session as the device's.
    pub(super) fn place(&self) -> Arc<Place<EndpointId>> {
        self.place.clone()
    }

    pub(super) fn device(&self) -> EndpointId {
        self.device
    }

    /// A second stream, for what must not wait behind bytes.
    pub(super) fn set_control(&mut self, stream: Stream, words: &[u8]) {
        // It would overtake what was said about moving on the first stream.
        if self.pauses.said > 0 {
            return;
        }
        self.line.set_control(stream, words);
    }

    /// What happens next. Cancel-safe.
    pub(super) async fn next(&mut self) -> Heard {
        self.line.next().await
    }

    /// Has the device stop, and say how far it is.
    pub(super) fn pause(&mut self) {
        self.phase = Phase::Pausing;
        self.pauses.said += 1;
        self.line.say_first(&Frame::Pause);
    }

    /// Has the device go on after all.
    pub(super) fn resume(&mut self) {
        if !matches!(self.phase, Phase::Active) {
            self.phase = Phase::Active;
            self.line.say_first(&Frame::Resume);
        }
    }

    /// How far the device is, once it has stopped and all that it sent before is here.
    pub(super) fn paused(&self) -> Option<Paused> {
        match self.phase {
            Phase::Paused(paused) if paused.sent == self.up.received => Some(paused),
            _ => None,
        }
    }

    /// For how long no path to the device has worked, if none does.
    pub(super) fn unreachable(&self) -> Option<Duration> {
        self.line.unreachable()
    }

    /// The round trip to the device, where it is known.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        self.line.round_trip()
    }

    /// The offset behind the last byte that was said to the device.
    pub(super) fn said(&self) -> u64 {
        self.down.sent
    }

    /// The offset behind the last byte that is on its way to the device, or was. A PAUSE that is said now
    /// comes before those behind it, if it need not wait for them.
    pub(super) fn on_its_way(&self) -> u64 {
        let waits = if self.line.has_control() { self.line.unsent() } else { 0 };
        self.down.sent.saturating_sub(waits)
    }

    /// Whether bytes are missing that the device has sent. If it is gone they never come.
    pub(super) fn has_gap(&self) -> bool {
        self.up.announced > self.up.received
    }

    /// Says to an active device what there is to say.
    pub(super) fn fill(&mut self, server: &Server) {
        if !matches!(self.phase, Phase::Active) {
            return;
        }
        while self.line.has_room() {
            if let Some(ahead) = self.down.reaches_ahead() {
                self.line.say(&Frame::Ahead(ahead));
            }
            let bytes = server.from(self.down.sent, self.down.room());
            if bytes.is_empty() {
                break;
            }
            self.down.sent += bytes.len() as u64;
            self.line.say_data(bytes);
        }
        if server.has_ended() && self.down.sent == server.kept().end() {
            self.say_end(if server.is_broken() { Said::Broken } else { Said::End });
        }
        let taken = self.taken_by(server);
        // A frame comes in many pieces: within one, more is about to come that counts with this.
        let is_all = taken == self.up.received && self.line.is_between_frames();
        // What a broken server has taken is not known.
        if !server.is_broken() && (taken >= self.up.told + TELL || is_all) {
            self.tell(taken);
        }
    }

    fn say_end(&mut self, end: Said) {
        if end > self.down.end {
            self.down.end = end;
            self.line.say(if end == Said::Broken { &Frame::Broken } else { &Frame::End });
        }
    }

    fn tell(&mut self, taken: u64) {
        if taken > self.up.told {
            self.up.told = taken;
            self.line.say_first(&Frame::Count(taken));
        }
    }

    /// How much of what this device sent the server has taken.
    fn taken_by(&self, server: &Server) -> u64 {
        server.waiting().base().saturating_sub(self.up.base).min(self.up.received)
    }

    /// Does what a frame of the device says. False if it breaks the rules.
    pub(super) fn hear(&mut self, frame: &Frame, server: &mut Server) -> bool {
        match frame {
            Frame::Data(bytes) => self.hear_bytes(bytes, server),
            Frame::End if matches!(self.phase, Phase::Paused(paused) if !paused.has_ended) => false,
            Frame::End => {
                server.end();
                true
            }
            // What comes late says nothing new.
            Frame::Count(_) if matches!(self.phase, Phase::Paused(_)) => true,
            Frame::Count(count) => *count <= self.down.sent && server.taken(*count),
            Frame::Paused(paused) => self.hear_paused(paused, server),
            Frame::Pause | Frame::Resume | Frame::Moved | Frame::Broken | Frame::Ahead(_) => false,
        }
    }

    fn hear_paused(&mut self, paused: &Paused, server: &mut Server) -> bool {
        self.pauses.answered += 1;
        if self.pauses.answered != self.pauses.said || !matches!(self.phase, Phase::Pausing) {
            // It is late: the device goes on again.
            return self.pauses.answered <= self.pauses.said;
        }
        let is_possible = (server.kept().base()..=self.down.sent).contains(&paused.taken);
        if !is_possible || paused.sent < self.up.received {
            return false;
        }
        self.phase = Phase::Paused(*paused);
        self.up.announced = paused.sent;
        self.pass_end_on(server);
        // Its program has that, or will have it, whatever becomes of the move.
        server.taken(paused.taken)
    }

    /// The end of a program's words may come behind PAUSED. It is not waited for.
    fn pass_end_on(&self, server: &mut Server) {
        if self.paused().is_some_and(|paused| paused.has_ended) {
            server.end();
        }
    }

    fn hear_bytes(&mut self, bytes: &Bytes, server: &mut Server) -> bool {
        let received = self.up.received + bytes.len() as u64;
        let is_late = matches!(self.phase, Phase::Paused(paused) if received > paused.sent);
        let is_too_much = received - self.taken_by(server) > MOST_UP as u64;
        if is_late || is_too_much || server.has_heard_all() {
            return false;
        }
        self.up.received = received;
        server.send(bytes.clone());
        self.pass_end_on(server);
        true
    }

    /// Ends the line in order, meanwhile: both directions are whole.
    pub(super) fn finish(mut self, server: &Server) {
        self.tell(self.taken_by(server));
        self.say_end(Said::End);
        self.last(Line::finish);
    }

    /// Ends the line, meanwhile: the server broke the connection, behind what the program has taken.
    pub(super) fn finish_broken(mut self) {
        self.say_end(Said::Broken);
        self.last(Line::finish);
    }

    /// Says a last word, and ends the line, meanwhile.
    pub(super) fn dismiss(mut self, last: &Frame) {
        self.line.say_first(last);
        self.last(Line::abandon);
    }

    fn last<F>(self, end: impl FnOnce(Line) -> F)
    where
        F: Future<Output = std::io::Result<()>> + Send + 'static,
    {
        let (ending, place) = (end(self.line), self.place);
        tokio::spawn(FutureExt::boxed(async move {
            // A device that does not listen is left.
            let _ = tokio::time::timeout(LAST, ending).await;
            drop(place);
        }));
    }
}

impl Down {
    /// What may be said at once: not what the device has already.
    fn room(&self) -> usize {
        let before = self.ahead.as_ref().map(|ahead| ahead.start.saturating_sub(self.sent));
        before.and_then(|before| usize::try_from(before).ok()).map_or(LONGEST, |before| before.min(LONGEST))
    }

    /// If it is the turn of what came ahead: counts it as sent, up to the offset that is returned.
    fn reaches_ahead(&mut self) -> Option<u64> {
        let ahead = self.ahead.take_if(|ahead| ahead.start <= self.sent)?;
        (self.sent < ahead.end).then(|| {
            self.sent = ahead.end;
            ahead.end
        })
    }
}
