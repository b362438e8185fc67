//! Unreliable messages in datagrams of a carrier (RFC 9221), beside the segments of its path.

use std::time::Instant;

use super::Connection;
use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::error::{DecodeError, ProtocolError};
use crate::frame::{self, Frame, Step};
use crate::ids::PathId;
use crate::path::{Flying, Path};
use crate::session::messages::Portion;
use crate::varint::{self, Reader};

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
        self.session.identity.both_take_datagrams() && !self.session.messages.sender.is_idle()
    }

    /// Appends one datagram for `path` to `out`, within the [room](Self::set_datagram_room) that its carrier
    /// has. Returns false when there is nothing to send in that way. To be asked for before
    /// [`poll_transmit`](Self::poll_transmit).
    pub fn poll_datagram(&mut self, now: Instant, id: PathId, out: &mut Vec<u8>) -> bool {
        self.clock.tell(now);
        self.run_messages(now);
        let chance = self.chance(id);
        let room = chance.datagram;
        if room == 0 || !chance.takes_now || self.is_closed() || self.session.messages.sender.is_idle() {
            return false;
        }
        let levels = self.pacing.open_levels(now, self.session.levels());
        let waiting = self.session.messages.sender.waiting_alone(levels, room);
        if waiting == 0
            || self.pacing.room(now, waiting) == 0
            || self.stream_chunk(now, id, waiting.saturating_add(self.session.streams.waiting(levels))) == 0
        {
            return false;
        }
        let before = out.len();
        varint::write(out, self.paths.get(id).map_or(0, |path| path.datagrams.next()));
        let portion = Portion { chunk: room, levels, now: self.clock.since_begin(now), chance };
        let Some((message, size)) =
            self.session.put_datagram(portion, &mut self.pacing, out, &mut self.events)
        else {
            out.truncate(before);
            return false;
        };
        let bytes = (out.len() - before) as u64;
        self.pacing.spend(bytes);
        let silence = self.silence();
        if let Some(path) = self.paths.get_mut(id) {
            path.datagrams.note(now, message, size, bytes);
            // Nothing else would show that the path works.
            let interval = path.patience(silence) / 2;
            path.ping |= path.outgoing.in_flight() == 0 && path.datagrams.asks(now, interval);
        }
        true
    }

    /// How large a message's frame may be that goes on `id` in a datagram.
    pub(super) fn datagram_room(&self, id: PathId) -> u64 {
        // What goes on two paths goes in segments.
        let takes = self.session.identity.both_take_datagrams() && !self.sharing.is_redundant();
        let path = self.paths.get(id).filter(|p| p.is_active() && takes);
        path.map_or(0, |path| {
            path.datagrams.room().saturating_sub(varint::size(path.datagrams.next()) as u64)
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
        let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live() && offered) else {
            return Ok(());
        };
        path.liveness.hear(now);
        self.contact.heard(now);
        self.reach.hear(now);
        let mut reader = Reader::new(datagram);
        let number = reader.varint()?;
        let Step::Frame(message @ Frame::Message { header, size, data, .. }) = frame::step(&mut reader)?
        else {
            return Err(DecodeError::Invalid("datagram").into());
        };
        if header.class.reliable || data.len() as u64 != size || !reader.is_empty() {
            return Err(DecodeError::Invalid("datagram").into());
        }
        let fresh = path.datagrams.take(now, number, datagram.len(), delay);
        if path.is_suspect() && path.liveness.revives_by_hearing() {
            self.note_progress(id, now);
        }
        if fresh { self.session.messages.take(&message, &mut self.events) } else { Ok(()) }
    }

    /// The peer tells which datagrams on a path it has.
    pub(super) fn datagrams_came(
        &mut self,
        now: Instant,
        id: PathId,
        came: &[std::ops::Range<u64>],
    ) -> Result<(), ProtocolError> {
        let Some(path) = self.paths.get_mut(id) else {
            return Ok(());
        };
        let round_trip = path.figures.srtt();
        let answered = path.datagrams.answer(now, round_trip, came)?;
        let age = self.clock.since_begin(now);
        for flying in &answered.arrived {
            self.session.messages.sender.delivered(age, flying.id, 0..flying.size, &mut self.events);
        }
        self.datagrams_lost(&answered.lost);
        Ok(())
    }

    pub(super) fn datagrams_lost(&mut self, lost: &[Flying]) {
        for flying in lost {
            self.session.messages.sender.come_back(flying.id, 0..flying.size, &mut self.events);
        }
    }

    /// What was in datagrams and had no answer in time is lost, and what came in some is due to be told.
    pub(super) fn run_datagrams(&mut self, now: Instant) {
        let silence = self.silence();
        let mut lost = Vec::new();
        for path in self.paths.values_mut() {
            path.datagrams.expire(now);
            let patience = path.patience(silence);
            lost.extend(path.datagrams.take_lost(now, patience));
        }
        self.datagrams_lost(&lost);
    }

    /// What came in datagrams has to be told now.
    pub(super) fn owes_datagrams(&self, now: Instant) -> bool {
        self.paths.values().any(|p| p.is_live() && p.datagrams.is_due(now))
    }

    /// Tells what came in datagrams.
    pub(super) fn put_datagrams(&mut self, draft: &mut Draft<'_>) -> bool {
        let before = draft.len();
        let news = |path: &Path| path.is_live() && path.datagrams.has_news();
        for (id, path) in self.paths.iter_mut().filter(|(_, path)| news(path)) {
            if draft.room() >= frame::DATAGRAMS_SIZE + SMALL_FRAME {
                let came = path.datagrams.say();
                draft.put(&Frame::Datagrams { path: id, came }, Some(Content::Datagrams(id)));
            }
        }
        draft.len() > before
    }
}
