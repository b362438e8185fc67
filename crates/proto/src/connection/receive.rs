//! Taking segments in.

use std::time::{Duration, Instant};

use super::Connection;
use crate::content::Content;
use crate::error::ProtocolError;
use crate::event::Event;
use crate::frame::{self, Acks, Frame, PathReport, Step};
use crate::ids::{PathId, Side};
use crate::path::Sent;
use crate::session::addresses::Place;
use crate::varint::Reader;

/// How an acknowledgement came, which decides what it says of the path's round trip and of its present.
#[derive(Debug, Clone, Copy)]
pub(super) enum Heard {
    /// Held back for so long, and no longer than was promised.
    Timely(Duration),
    /// Told along on another path, so much later than was promised: this one may be dead by now.
    Along(Duration),
    /// When the path was given up.
    Finally,
}

/// What a frame means for its segment.
struct Taken {
    /// It asks for an acknowledgement.
    eliciting: bool,
    /// The application's bytes come.
    flowing: bool,
}

impl Connection {
    /// Takes one segment (without its length) that arrived on `path`.
    ///
    /// # Errors
    /// [`ProtocolError`] if the peer broke the protocol; the connection is then closing with the
    /// matching code, and the path should be flushed and dropped.
    pub fn handle_segment(
        &mut self,
        now: Instant,
        path: PathId,
        segment: &[u8],
    ) -> Result<(), ProtocolError> {
        self.clock.tell(now);
        let result = self.take_segment(now, path, segment);
        self.break_off(now, &result);
        result
    }

    /// A peer that broke the protocol is told so, and the connection is over.
    pub(super) fn break_off(&mut self, now: Instant, result: &Result<(), ProtocolError>) {
        if let Err(error) = result {
            self.abort(error.code(), &error.to_string());
            self.update_close(now);
            self.give_up(error.code(), &error.to_string());
        }
    }

    fn take_segment(&mut self, now: Instant, id: PathId, segment: &[u8]) -> Result<(), ProtocolError> {
        let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live()) else {
            // Our final count for this path may have been told: nothing more may be taken from it.
            return Ok(());
        };
        let first = path.incoming.segments() == 0;
        path.liveness.hear(now);
        self.contact.heard(now);
        self.reach.hear(now);
        if !path.incoming.count(segment.len()) {
            return Err(ProtocolError::Unexpected("segment behind RETIRE"));
        }
        if path.is_suspect() && path.liveness.revives_by_hearing() {
            self.note_progress(id, now);
        }
        let mut reader = Reader::new(segment);
        let mut eliciting = false;
        let mut flowing = false;
        let mut position = 0;
        loop {
            let opens = first && position == 0;
            if !opens && let Some(taken) = self.take_frequent(now, id, &mut reader)? {
                position += 1;
                (eliciting, flowing) = (eliciting | taken.eliciting, flowing | taken.flowing);
                continue;
            }
            match frame::step(&mut reader)? {
                Step::End => break,
                // It means something to its sender, who may wait for the acknowledgement.
                Step::Skipped => eliciting = true,
                Step::Frame(frame) => {
                    eliciting |= !matches!(frame, Frame::Ack(_) | Frame::Refuse { .. });
                    self.take_frame(now, id, frame, opens)?;
                    position += 1;
                }
            }
        }
        if let Some(path) = self.paths.get_mut(id).filter(|_| flowing) {
            path.liveness.expect_more();
        }
        if eliciting {
            self.owe_ack(now, id, segment.len());
        }
        self.note_drained(id);
        Ok(())
    }

    /// Takes the next frame if it is one of those that come all the time, and those behind it if they are all
    /// messages. No [`Frame`] is made of them: it would be moved about with room for the largest.
    fn take_frequent(
        &mut self,
        now: Instant,
        id: PathId,
        reader: &mut Reader<'_>,
    ) -> Result<Option<Taken>, ProtocolError> {
        let mut taken = None;
        while let Some(piece) = frame::piece(reader)? {
            let flowing = !piece.data.is_empty();
            taken.get_or_insert(Taken { eliciting: true, flowing }).flowing |= flowing;
            self.session.messages.take_piece(piece, &mut self.events)?;
        }
        if taken.is_some() {
            return Ok(taken);
        }
        if let Some(acks) = frame::acks(reader)? {
            self.take_acks(now, id, acks)?;
            return Ok(Some(Taken { eliciting: false, flowing: false }));
        }
        let Some(piece) = frame::stream(reader)? else {
            return Ok(None);
        };
        let (flowing, pace) = (!piece.data.is_empty(), self.pace());
        self.session.streams.take_piece(piece, &pace, &mut self.events)?;
        Ok(Some(Taken { eliciting: true, flowing }))
    }

    fn take_frame(
        &mut self,
        now: Instant,
        path: PathId,
        frame: Frame<'_>,
        first: bool,
    ) -> Result<(), ProtocolError> {
        let answer = matches!(
            frame,
            Frame::Accept { .. }
                | Frame::Joined { .. }
                | Frame::Resumed(_)
                | Frame::TakenOver(_)
                | Frame::Refuse { .. }
        );
        if self.side() == Side::Client && answer != first {
            return Err(ProtocolError::Unexpected("answer"));
        }
        match frame {
            // The driver has dealt with these when it added the path.
            Frame::Open(_) | Frame::Join(_) | Frame::Resume(_) | Frame::TakeOver(_)
                if first && self.side() == Side::Server =>
            {
                Ok(())
            }
            Frame::Open(_) => Err(ProtocolError::Unexpected("OPEN")),
            Frame::Join(_) => Err(ProtocolError::Unexpected("JOIN")),
            Frame::Resume(_) => Err(ProtocolError::Unexpected("RESUME")),
            Frame::TakeOver(_) => Err(ProtocolError::Unexpected("TAKE_OVER")),
            _ if first && self.side() == Side::Server => Err(ProtocolError::Unexpected("first")),
            Frame::Accept { random, lost, params } => {
                if self.side() == Side::Server || !self.was_opened_by_open(path) {
                    return Err(ProtocolError::Unexpected("ACCEPT"));
                }
                // There may be answers to several OPENs of the same connection.
                if !self.session.identity.learn_random(random) {
                    return Err(ProtocolError::OtherAnswer);
                }
                if !self.is_established() {
                    self.session.learn_params(params, &mut self.events);
                    self.events.push(Event::Established);
                }
                self.path_answered(now, path, &lost)
            }
            Frame::Joined { lost } if self.side() == Side::Client && self.was_joined(path) => {
                self.session.identity.claim_heard();
                self.note_peer_back();
                self.path_answered(now, path, &lost)?;
                self.joined += 1;
                Ok(())
            }
            Frame::Resumed(resumed) => self.resumed_heard(now, path, &resumed),
            Frame::TakenOver(taken_over) => self.taken_over_heard(now, path, &taken_over),
            Frame::Assign { assignment, addresses } => self.assignment_heard(&assignment, addresses),
            Frame::Suspend(generation) => self.suspend_heard(generation),
            Frame::Joined { .. } => Err(ProtocolError::Unexpected("JOINED")),
            Frame::Refuse { code, reason } if self.side() == Side::Client => {
                self.path_refused(now, path, code, reason);
                Ok(())
            }
            Frame::Refuse { .. } => Err(ProtocolError::Unexpected("REFUSE")),
            Frame::Ack(acks) => self.take_acks(now, path, acks),
            Frame::PathLost(report) => {
                self.learn_final(now, report);
                Ok(())
            }
            Frame::Retire { path, segments } => self.retire_heard(now, path, segments),
            Frame::Close { code, reason } => {
                self.peer_closed(now, code, reason);
                Ok(())
            }
            Frame::CloseAck => {
                // Nothing else is left to wait for, and the client does.
                if let Some(path) = self.paths.get_mut(path) {
                    path.incoming.owe_now();
                }
                self.close_acknowledged()
            }
            Frame::Datagrams { path, came } => self.datagrams_came(now, path, &came, false).map(drop),
            Frame::Ping => Ok(()),
            Frame::Addresses { sequence, addresses } => {
                if self.session.notice_addresses.hear(sequence) {
                    self.events.push(Event::PeerAddresses(addresses));
                }
                Ok(())
            }
            Frame::Candidates { sequence, addresses } => self.candidates_heard(sequence, addresses),
            Frame::Observed { sequence, address } => self.observed_heard(sequence, address),
            Frame::PathPriority { path, sequence, priority } => {
                self.priority_heard(path, priority, sequence);
                Ok(())
            }
            Frame::AddAddress { id, sequence, priority, address } => {
                self.address_heard(id, sequence, Some((address, priority)));
                Ok(())
            }
            Frame::RemoveAddress { id, sequence } => {
                self.address_heard(id, sequence, None);
                Ok(())
            }
            Frame::Handover { sequence, mode } => {
                self.handover_heard(now, mode, sequence);
                Ok(())
            }
            Frame::Message { .. } | Frame::Skip(_) | Frame::MaxMessages(_) => {
                self.session.messages.take(&frame, &mut self.events)
            }
            frame => {
                let pace = self.pace();
                self.session.streams.take(frame, &pace, &mut self.events)
            }
        }
    }

    fn address_heard(&mut self, id: u8, sequence: u64, address: Option<Place>) {
        if self.session.peer_addresses.hear(id, sequence, address) {
            self.events.push(Event::PeerAddress { id, address });
        }
    }

    fn take_acks(&mut self, now: Instant, here: PathId, acks: Acks) -> Result<(), ProtocolError> {
        for (report, delay) in acks {
            self.take_ack(now, here, &report, Duration::from_micros(delay))?;
        }
        Ok(())
    }

    /// An acknowledgement that came on `here`, after the peer had held it back for `delay`.
    fn take_ack(
        &mut self,
        now: Instant,
        here: PathId,
        report: &PathReport,
        delay: Duration,
    ) -> Result<(), ProtocolError> {
        let id = report.path;
        let Some(path) = self.paths.get(id) else {
            // A path that is settled; its acknowledgements travelled on another one.
            return Ok(());
        };
        if report.received > path.outgoing.count() {
            return Err(ProtocolError::AckOfUnsent);
        }
        let promised = self.session.identity.peer_ack_delay();
        let late = delay.saturating_sub(promised);
        let heard = if late > Duration::ZERO && here != id {
            Heard::Along(late)
        } else {
            // What it was held back for beyond the promise counts as part of the round trip (RFC 9002 §5.3).
            Heard::Timely(delay.min(promised))
        };
        self.apply_ack(now, id, report.received, heard);
        Ok(())
    }

    /// Takes everything below `count` on a path as delivered.
    pub(super) fn apply_ack(&mut self, now: Instant, id: PathId, count: u64, heard: Heard) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let Some(acknowledged) = path.outgoing.acknowledge(count) else {
            return;
        };
        if let Heard::Timely(delay) = heard {
            path.measure(now, &acknowledged, delay);
        }
        if acknowledged.segments.iter().flat_map(|segment| &segment.contents).any(Content::is_data) {
            path.liveness.expect_answer();
        }
        if acknowledged.newest().is_some() {
            match heard {
                Heard::Along(late) => self.note_past_progress(id, now, late),
                _ => self.note_progress(id, now),
            }
        }
        for content in acknowledged.segments.into_iter().flat_map(|s: Sent| s.contents) {
            self.delivered(now, content);
        }
        self.note_drained(id);
        self.session.streams.wake_writers(&mut self.events);
    }

    fn delivered(&mut self, now: Instant, content: Content) {
        match content {
            Content::Stream { id, range, fin, .. } => {
                self.session.streams.data_delivered(id, range, fin, &mut self.events);
            }
            Content::Message { id, range, .. } => {
                let range = range.start.into()..range.end.into();
                let age = self.clock.since_begin(now);
                self.session.messages.sender.delivered(age, id, range, &mut self.events);
            }
            Content::Messages { ids, .. } => {
                let age = self.clock.since_begin(now);
                self.session.messages.sender.all_delivered(age, ids, &mut self.events);
            }
            Content::Skip(id) => self.session.messages.sender.skip_delivered(id, &mut self.events),
            Content::PathLost(path) => self.final_was_told(now, path),
            Content::Accept => self.session.identity.confirm(),
            Content::CloseAck => self.session.ending.settle_farewell(),
            Content::Suspend => self.leave_heard(),
            Content::Word(word) => self.session.identity.tenure.word_heard(word),
            Content::Assign => self.announcement_heard(),
            Content::Reset(id) => self.session.streams.reset_delivered(id, &mut self.events),
            _ => {}
        }
    }
}
