//! Messages in datagrams of a carrier (RFC 9221), beside the segments of its path: a packet that is lost holds
//! up nothing but its own message, and no stream is before it in the carrier's queue.

use std::time::Instant;

use smallvec::SmallVec;

use super::Connection;
use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::error::{DecodeError, ProtocolError};
use crate::frame::{self, Frame, Piece, Step};
use crate::ids::PathId;
use crate::message::sender::{Chance, Ran, Together};
use crate::message::turns::Levels;
use crate::path::{Flying, Leavers, Path};
use crate::session::messages::Portion;
use crate::varint::{self, Reader};

/// In the place of a number: there is no message in it, only answers.
const ANSWERS: u64 = varint::MAX;
/// So little does not wait for the turn of a stream that its carrier does not take: that may wait for a lost packet.
const LITTLE: u64 = 4096;
/// So many messages share a datagram, at most: what is lost with it is bounded too.
const MOST_TOGETHER: usize = 64;
/// So many that arrive together need no memory of their own.
const FEW_TOGETHER: usize = 16;
/// What such a datagram takes, at most.
const ANSWERS_SIZE: u64 = 8 + frame::DATAGRAMS_SIZE as u64;

impl Connection {
    /// The carrier of `path` takes datagrams of so many bytes now, as long as that is not said anew; 0: it takes
    /// none.
    pub fn set_datagram_room(&mut self, path: PathId, room: u64) {
        if let Some(path) = self.paths.get_mut(path) {
            path.datagrams.set_room(room);
        }
    }

    /// Whether there may be something that could go in a datagram on a path whose carrier has them.
    #[must_use]
    pub fn may_have_datagrams(&self) -> bool {
        let answers = || self.paths.values().any(|path| path.datagrams.arriving.owes_answer());
        self.session.identity.both_take_datagrams() && (!self.session.messages.sender.is_idle() || answers())
    }

    /// Streams share their carriers with messages that are to be quick: the queues that streams make should be
    /// short. That is so while a flow is open that is more urgent than the streams which waited last.
    #[must_use]
    pub fn wants_short_queues(&mut self) -> bool {
        let journals = self.journal_flows().map_or(0, |flows| flows.len());
        let flow = self.session.messages.sender.most_urgent_flow(journals);
        let streams = self.session.most_urgent_stream();
        flow.zip(streams).is_some_and(|(flow, streams)| flow < streams)
    }

    /// Appends one datagram for `path` to `out`, within the [room](Self::set_datagram_room) that its carrier
    /// has. Returns false when there is nothing to send in that way. To be asked for before
    /// [`poll_transmit`](Self::poll_transmit).
    pub fn poll_datagram(&mut self, now: Instant, id: PathId, out: &mut Vec<u8>) -> bool {
        self.clock.tell(now);
        if self.put_answers(now, id, out) {
            return true;
        }
        self.run_messages(now);
        let chance = self.chance(id);
        let room = chance.datagram;
        if room == 0 || self.is_closed() {
            return false;
        }
        let levels = self.pacing.open_levels(now, self.session.levels());
        let waiting = self.session.messages.sender.waiting_alone(levels, chance);
        let copied = self.session.messages.sender.copy_alone(chance);
        if (waiting == 0 && copied.is_none()) || self.pacing.room(now, waiting.max(1)) == 0 {
            return false;
        }
        // A copy goes on another path than that on which its message is quickest: what else waits may have to wait for
        // a better one.
        let may_share = copied.is_none() || (waiting > 0 && self.is_quick_for(now, id, waiting));
        let before = out.len();
        varint::write(out, self.paths.get(id).map_or(0, |path| path.datagrams.leaving.next()));
        let bundles = self.session.identity.both_take_datagram_bundles();
        let (mut leavers, mut is_full) = (Leavers::new(), !bundles || !may_share);
        match copied {
            // It is late already beside what went first.
            Some(copied) => leavers.extend(self.session.messages.sender.put_copy_alone(copied, out)),
            None if self.is_quick_for(now, id, waiting) => {
                let portion = Portion { chunk: room, levels, now: self.clock.since_begin(now), chance };
                let most = if is_full { 1 } else { MOST_TOGETHER };
                let together = Together { room, most, out: &mut *out, leavers: &mut leavers };
                is_full |= self.session.put_datagram_run(portion, &self.pacing, together) == Ran::Full;
                if leavers.is_empty() {
                    let path = self.paths.get(id);
                    let beside = waiting > LITTLE || path.is_none_or(|path| path.figures.has_room());
                    let (pacing, events) = (&mut self.pacing, &mut self.events);
                    leavers.extend(self.session.put_datagram(portion, beside, pacing, out, events));
                }
            }
            None => {}
        }
        if leavers.is_empty() {
            out.truncate(before);
            return false;
        }
        if !is_full {
            self.fill_datagram(now, levels, chance, before, &mut leavers, out);
        }
        let bytes = (out.len() - before) as u64;
        self.pacing.spend(bytes);
        let silence = self.silence();
        if let Some(path) = self.paths.get_mut(id) {
            path.datagrams.leaving.note(now, &leavers, bytes);
            // Nothing else would show that the path works.
            let interval = path.patience(silence) / 2;
            path.ping |= path.outgoing.in_flight() == 0 && path.datagrams.leaving.asks(now, interval);
        }
        true
    }

    /// Puts in what else waits, is small enough, and has its turn: it goes with what goes anyway. `begin`: where
    /// the datagram begins.
    fn fill_datagram(
        &mut self,
        now: Instant,
        levels: Levels,
        chance: Chance,
        begin: usize,
        leavers: &mut Leavers,
        out: &mut Vec<u8>,
    ) {
        let age = self.clock.since_begin(now);
        let beside = self.paths.get(chance.path).is_none_or(|path| path.figures.has_room());
        let mut waiting = self.session.messages.sender.waiting_alone(levels, chance);
        while waiting > 0 && leavers.len() < MOST_TOGETHER {
            let taken = (out.len() - begin) as u64;
            if self.pacing.room(now, taken + 1) <= taken {
                return;
            }
            let chance = Chance { datagram: chance.datagram.saturating_sub(taken), ..chance };
            let portion = Portion { chunk: chance.datagram, levels, now: age, chance };
            let (known, most) = (leavers.len(), MOST_TOGETHER - leavers.len());
            let together = Together { room: chance.datagram, most, out: &mut *out, leavers: &mut *leavers };
            match self.session.put_datagram_run(portion, &self.pacing, together) {
                Ran::Full => return,
                Ran::In => {
                    let bytes = leavers[known..].iter().map(|leaver| leaver.size.max(1)).sum();
                    waiting = waiting.saturating_sub(bytes);
                    continue;
                }
                Ran::Not => {}
            }
            let beside = beside || waiting > LITTLE;
            let put = self.session.put_datagram(portion, beside, &mut self.pacing, out, &mut self.events);
            let Some(leaver) = put else { return };
            // An empty one counts as a byte.
            waiting = waiting.saturating_sub(leaver.size.max(1));
            leavers.push(leaver);
        }
    }

    /// Whether messages of so many bytes may go on `id`, and arrive there first. What waits of streams is no
    /// reason to send them another way.
    fn is_quick_for(&self, now: Instant, id: PathId, waiting: u64) -> bool {
        if self.shares_paths() {
            crate::scheduler::is_quickest(self.snapshots(now), id, waiting)
        } else {
            self.stream_chunk(now, id, waiting) > 0
        }
    }

    /// Tells, in a datagram, what came in others on `id`. If that is lost, the next one tells it.
    fn put_answers(&mut self, now: Instant, id: PathId, out: &mut Vec<u8>) -> bool {
        let takes = self.session.identity.both_take_reliable_datagrams();
        let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live()) else {
            return false;
        };
        let datagrams = &mut path.datagrams;
        if !datagrams.arriving.is_answer_due(now) {
            return false;
        }
        if !takes || datagrams.answer_room() < ANSWERS_SIZE {
            datagrams.arriving.answer_in_segment();
            return false;
        }
        let before = out.len();
        varint::write(out, ANSWERS);
        Frame::Datagrams { path: id, came: datagrams.arriving.answer(now) }.encode(out);
        datagrams.leaving.note_answers((out.len() - before) as u64);
        true
    }

    /// How large a message's frame may be that goes on `id` in a datagram.
    pub(super) fn datagram_room(&self, id: PathId) -> u64 {
        // What goes on all paths goes in segments.
        let takes = self.session.identity.both_take_datagrams() && !self.sharing.is_redundant();
        let path = self.paths.get(id).filter(|p| p.is_active() && takes);
        path.map_or(0, |path| {
            path.datagrams.room().saturating_sub(varint::size(path.datagrams.leaving.next()) as u64)
        })
    }

    /// Takes a datagram that arrived on `path`.
    ///
    /// # Errors
    /// [`ProtocolError`] if the peer broke the protocol, as for
    /// [`handle_segment`](Self::handle_segment).
    pub fn handle_datagram(
        &mut self,
        now: Instant,
        path: PathId,
        datagram: &[u8],
    ) -> Result<(), ProtocolError> {
        self.clock.tell(now);
        let result = self.take_datagram(now, path, datagram);
        self.break_off(now, &result);
        result
    }

    fn take_datagram(&mut self, now: Instant, id: PathId, datagram: &[u8]) -> Result<(), ProtocolError> {
        // A peer that was not told of datagrams means something else by them.
        let params = self.session.identity.params();
        let (offered, delay) = (params.takes_datagrams(), params.max_ack_delay);
        let reliable = params.takes_reliable_datagrams();
        let bundles = params.takes_datagram_bundles();
        let promptly = self.session.identity.both_take_reliable_datagrams();
        let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live() && offered) else {
            return Ok(());
        };
        path.liveness.hear(now);
        self.contact.heard(now);
        self.reach.hear(now);
        let mut reader = Reader::new(datagram);
        let number = reader.varint()?;
        if number == ANSWERS && reliable {
            return self.take_answers(now, id, &mut reader);
        }
        // All of it, before anything is done.
        let mut messages: SmallVec<[Piece<'_>; FEW_TOGETHER]> = SmallVec::new();
        while messages.is_empty() || !reader.is_empty() {
            let Some(message) = frame::piece(&mut reader)? else {
                return Err(DecodeError::Invalid("datagram").into());
            };
            let Piece { header, size, data, .. } = message;
            let allowed = (reliable || !header.class.reliable) && (bundles || messages.is_empty());
            if !allowed || number == ANSWERS || data.len() as u64 != size {
                return Err(DecodeError::Invalid("datagram").into());
            }
            messages.push(message);
        }
        let fresh = path.datagrams.arriving.take(now, number, datagram.len(), delay, promptly);
        if path.is_suspect() && path.liveness.revives_by_hearing() {
            self.note_progress(id, now);
        }
        if fresh {
            for message in &messages {
                self.session.messages.take_piece(*message, &mut self.events)?;
            }
        }
        Ok(())
    }

    /// The peer tells in a datagram what it has.
    fn take_answers(
        &mut self,
        now: Instant,
        here: PathId,
        reader: &mut Reader<'_>,
    ) -> Result<(), ProtocolError> {
        while !reader.is_empty() {
            let Step::Frame(Frame::Datagrams { path, came }) = frame::step(reader)? else {
                return Err(DecodeError::Invalid("datagram").into());
            };
            let news = self.datagrams_came(now, path, &came, path == here)?;
            if news && path == here {
                // It just went there and back.
                self.note_progress(here, now);
            }
        }
        Ok(())
    }

    /// The peer tells which datagrams on a path it has; `promptly`: in a datagram on that path. True if that is
    /// news.
    pub(super) fn datagrams_came(
        &mut self,
        now: Instant,
        id: PathId,
        came: &[std::ops::Range<u64>],
        promptly: bool,
    ) -> Result<bool, ProtocolError> {
        let Some(path) = self.paths.get_mut(id) else {
            return Ok(false);
        };
        let round_trip = path.figures.srtt();
        let answered = path.datagrams.leaving.answer(now, round_trip, came, promptly)?;
        let age = self.clock.since_begin(now);
        for flying in &answered.arrived {
            self.session.messages.sender.all_delivered(age, flying.ids(), &mut self.events);
        }
        self.datagrams_lost(&answered.lost);
        Ok(!answered.arrived.is_empty())
    }

    pub(super) fn datagrams_lost(&mut self, lost: &[Flying]) {
        // What was late has gone again.
        for flying in lost.iter().filter(|flying| !flying.repeated) {
            self.session.messages.sender.all_come_back(flying.ids(), &mut self.events);
        }
    }

    /// What was in datagrams and had no answer in time goes again or is lost, and what came in some is due to be
    /// told.
    pub(super) fn run_datagrams(&mut self, now: Instant) {
        let silence = self.silence();
        let mut lost = Vec::new();
        for path in self.paths.values_mut() {
            path.datagrams.arriving.expire(now);
            let patience = path.patience(silence);
            lost.extend(path.datagrams.leaving.take_lost(now, patience));
            lost.extend(path.datagrams.leaving.take_late(now));
        }
        self.datagrams_lost(&lost);
    }

    /// What came in datagrams has to be told in a segment now.
    pub(super) fn owes_datagrams(&self, now: Instant) -> bool {
        self.paths.values().any(|p| p.is_live() && p.datagrams.arriving.is_due(now))
    }

    /// Tells what came in datagrams.
    pub(super) fn put_datagrams(&mut self, draft: &mut Draft<'_>) -> bool {
        let before = draft.len();
        let news = |path: &Path| path.is_live() && path.datagrams.arriving.has_news();
        for (id, path) in self.paths.iter_mut().filter(|(_, path)| news(path)) {
            if draft.room() >= frame::DATAGRAMS_SIZE + SMALL_FRAME {
                let came = path.datagrams.arriving.say();
                draft.put(&Frame::Datagrams { path: id, came }, Some(Content::Datagrams(id)));
            }
        }
        draft.len() > before
    }
}
