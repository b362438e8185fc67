//! Taking segments in.

use std::time::{Duration, Instant};

use super::Connection;
use crate::error::ProtocolError;
use crate::event::Event;
use crate::frame::{self, Frame, Step};
use crate::ids::{PathId, Side, StreamId};
use crate::path::{Content, Sent};
use crate::varint::Reader;

/// More pieces than this that wait for others before them, over all streams, are an attack on our
/// memory.
const MAX_PIECES: usize = 16 * 1024;

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
        self.note_time(now);
        let result = self.take_segment(now, path, segment);
        if let Err(error) = &result {
            self.abort(error.code(), &error.to_string());
            self.update_close(now);
            self.give_up(error.code(), &error.to_string());
        }
        result
    }

    fn take_segment(&mut self, now: Instant, id: PathId, segment: &[u8]) -> Result<(), ProtocolError> {
        let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live()) else {
            // Our final count for this path may have been told: nothing more may be taken from it.
            return Ok(());
        };
        let first = path.incoming.segments() == 0;
        path.liveness.hear(now);
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
            match frame::step(&mut reader)? {
                Step::End => break,
                // It means something to its sender, who may wait for the acknowledgement.
                Step::Skipped => eliciting = true,
                Step::Frame(frame) => {
                    eliciting |= !matches!(frame, Frame::Ack(_) | Frame::Refuse { .. });
                    flowing |= matches!(&frame, Frame::Stream { data, .. } if !data.is_empty());
                    self.take_frame(now, id, frame, first && position == 0)?;
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

    fn take_frame(
        &mut self,
        now: Instant,
        path: PathId,
        frame: Frame<'_>,
        first: bool,
    ) -> Result<(), ProtocolError> {
        let answer = matches!(frame, Frame::Accept { .. } | Frame::Joined { .. } | Frame::Refuse { .. });
        if self.side == Side::Client && answer != first {
            return Err(ProtocolError::Unexpected("answer"));
        }
        match frame {
            // The driver has dealt with these when it added the path.
            Frame::Open(_) | Frame::Join(_) if first && self.side == Side::Server => Ok(()),
            Frame::Open(_) => Err(ProtocolError::Unexpected("OPEN")),
            Frame::Join(_) => Err(ProtocolError::Unexpected("JOIN")),
            _ if first && self.side == Side::Server => Err(ProtocolError::Unexpected("first")),
            Frame::Accept { random, lost, params } => {
                if self.side == Side::Server || !self.was_opened_by_open(path) {
                    return Err(ProtocolError::Unexpected("ACCEPT"));
                }
                match self.peer_random {
                    None => {
                        self.learn_random(random);
                        self.learn_params(params);
                        self.push(Event::Established);
                    }
                    // The answer to another OPEN of the same connection.
                    Some(known) if known == random => {}
                    Some(_) => return Err(ProtocolError::OtherAnswer),
                }
                self.path_answered(now, path, &lost)
            }
            Frame::Joined { lost } if self.side == Side::Client && !self.was_opened_by_open(path) => {
                self.path_answered(now, path, &lost)?;
                self.stats.paths_joined += 1;
                Ok(())
            }
            Frame::Joined { .. } => Err(ProtocolError::Unexpected("JOINED")),
            Frame::Refuse { code, reason } if self.side == Side::Client => {
                self.path_refused(now, path, code, reason);
                Ok(())
            }
            Frame::Refuse { .. } => Err(ProtocolError::Unexpected("REFUSE")),
            Frame::Ack(acks) => {
                for (report, delay) in acks {
                    self.take_ack(now, report.path, report.received, delay)?;
                }
                Ok(())
            }
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
            Frame::Ping => Ok(()),
            Frame::Addresses { sequence, addresses } => {
                if sequence > self.peer_addresses_sequence {
                    self.peer_addresses_sequence = sequence;
                    self.push(Event::PeerAddresses(addresses));
                }
                Ok(())
            }
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
            frame => self.take_stream_frame(frame),
        }
    }

    fn take_stream_frame(&mut self, frame: Frame<'_>) -> Result<(), ProtocolError> {
        if self.closed.is_some() {
            return Ok(());
        }
        match frame {
            Frame::Stream { id, offset, data, fin } => self.take_data(id, offset, data, fin),
            Frame::MaxData(max) => {
                self.credit.allow(max);
                Ok(())
            }
            Frame::MaxStreamData(id, max) => {
                if self.known_stream(id)?
                    && let Some(stream) = self.streams.get_mut(&id)
                {
                    stream.send.max_data = stream.send.max_data.max(max);
                    self.enqueue(id);
                    self.wake_writer(id);
                }
                Ok(())
            }
            Frame::MaxStreams(max) => {
                self.numbers.allow(max);
                if std::mem::take(&mut self.open_blocked) {
                    self.push(Event::StreamsAvailable);
                }
                Ok(())
            }
            Frame::Reset { id, code, final_size } => self.take_reset(id, code, final_size),
            Frame::Stop(id, code) => self.take_stop(id, code),
            _ => Err(ProtocolError::Unexpected("unknown")),
        }
    }

    /// Makes sure that the peer may name `id`, creating streams that it opens. False if the stream
    /// is over already.
    fn known_stream(&mut self, id: StreamId) -> Result<bool, ProtocolError> {
        if id.opener() == self.side {
            if !self.numbers.is_opened_here(id.index()) {
                return Err(ProtocolError::Unexpected("frame for a stream never opened"));
            }
        } else if !self.numbers.is_granted(id.index()) {
            return Err(ProtocolError::StreamLimit);
        } else {
            // Streams are opened in order; with several paths a later one may be heard of first.
            let mut opened = false;
            while let Some(index) = self.numbers.open_up_to(id.index()) {
                let new = StreamId::new(self.side.peer(), index);
                let stream = self.new_stream();
                self.streams.insert(new, stream);
                self.push(Event::StreamOpened(new));
                opened = true;
            }
            self.control.max_streams |= opened && self.numbers.raise();
        }
        Ok(self.streams.contains_key(&id))
    }

    fn take_data(&mut self, id: StreamId, offset: u64, data: &[u8], fin: bool) -> Result<(), ProtocolError> {
        if !self.known_stream(id)? {
            self.stats.stream_bytes_duplicate += data.len() as u64;
            return Ok(());
        }
        let pace = self.pace();
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        let consumed = stream.recv.consumed();
        let (arrived, pieces) = (stream.recv.arrived(), stream.recv.pieces());
        let grown = stream.recv.insert(&self.config.pool, id, offset, data, fin)?;
        if grown > 0 && stream.recv.note_arrival(&pace) {
            self.control.max_stream_data.insert(id);
        }
        let discarded = stream.recv.consumed() - consumed;
        let readable = stream.recv.is_readable();
        self.pieces = self.pieces + stream.recv.pieces() - pieces;
        // Of a stream that nobody reads any more, gaps count as arrived.
        let fresh = (stream.recv.arrived() - arrived).min(data.len() as u64);
        self.stats.stream_bytes_received += fresh;
        self.stats.stream_bytes_duplicate += data.len() as u64 - fresh;
        if self.pieces > MAX_PIECES {
            return Err(ProtocolError::TooManyGaps(id));
        }
        self.count_received(grown)?;
        self.consume(discarded);
        if readable {
            self.push(Event::Readable(id));
        }
        if arrived == 0 && !fin {
            self.grant_at_once(id);
        }
        self.remove_if_over(id);
        Ok(())
    }

    fn count_received(&mut self, grown: u64) -> Result<(), ProtocolError> {
        self.control.max_data |= self.credit.receive(grown)?;
        Ok(())
    }

    fn take_reset(
        &mut self,
        id: StreamId,
        code: crate::CloseCode,
        final_size: u64,
    ) -> Result<(), ProtocolError> {
        if !self.known_stream(id)? {
            return Ok(());
        }
        let Some(stream) = self.streams.get_mut(&id) else {
            return Ok(());
        };
        let consumed = stream.recv.consumed();
        let pieces = stream.recv.pieces();
        let grown = stream.recv.reset(id, final_size, code)?;
        let discarded = stream.recv.consumed() - consumed;
        self.pieces -= pieces - stream.recv.pieces();
        self.count_received(grown)?;
        self.consume(discarded);
        self.push(Event::Readable(id));
        self.remove_if_over(id);
        Ok(())
    }

    fn take_stop(&mut self, id: StreamId, code: crate::CloseCode) -> Result<(), ProtocolError> {
        if !self.known_stream(id)? {
            return Ok(());
        }
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.send.stopped.is_none()
            && !stream.send.is_over()
        {
            stream.send.stopped = Some(code);
            self.blocked_writers.remove(&id);
            self.push(Event::Writable(id));
            // Nobody reads it: stop sending, and say where it ends.
            let _ = self.reset(id, code);
        }
        Ok(())
    }

    fn take_ack(&mut self, now: Instant, id: PathId, count: u64, delay: u64) -> Result<(), ProtocolError> {
        let Some(path) = self.paths.get(id) else {
            // A path that is settled; its acknowledgements travelled on another one.
            return Ok(());
        };
        if count > path.outgoing.count() {
            return Err(ProtocolError::AckOfUnsent);
        }
        // What it was held back for beyond the promise counts as part of the round trip (RFC 9002 §5.3).
        let delay = Duration::from_micros(delay).min(self.peer_ack_delay());
        self.apply_ack(now, id, count, Some(delay));
        Ok(())
    }

    /// Takes everything below `count` on a path as delivered.
    pub(super) fn apply_ack(&mut self, now: Instant, id: PathId, count: u64, delay: Option<Duration>) {
        let Some(path) = self.paths.get_mut(id) else {
            return;
        };
        let Some(acknowledged) = path.outgoing.acknowledge(count) else {
            return;
        };
        if let Some(delay) = delay {
            path.measure(now, &acknowledged, delay);
        }
        let is_stream = |content: &Content| matches!(content, Content::Stream { .. });
        if acknowledged.segments.iter().flat_map(|segment| &segment.contents).any(is_stream) {
            path.liveness.expect_answer();
        }
        if acknowledged.newest().is_some() {
            self.note_progress(id, now);
        }
        for content in acknowledged.segments.into_iter().flat_map(|s: Sent| s.contents) {
            self.delivered(now, content);
        }
        self.note_drained(id);
        self.wake_writers();
    }

    fn delivered(&mut self, now: Instant, content: Content) {
        match content {
            Content::Stream { id, range, fin, .. } => self.data_delivered(id, range, fin),
            Content::PathLost(path) => self.final_was_told(now, path),
            Content::Accept => self.confirmed = true,
            Content::CloseAck => self.farewell_settled(),
            Content::Reset(id) => {
                if let Some(stream) = self.streams.get_mut(&id) {
                    stream.send.reset_acknowledged();
                    self.push(Event::Drained(id));
                    self.remove_if_over(id);
                }
            }
            _ => {}
        }
    }

    fn data_delivered(&mut self, id: StreamId, range: std::ops::Range<u64>, fin: bool) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let before = stream.send.held();
        stream.send.acknowledged(&self.config.pool, range, fin);
        let (after, drained) = (stream.send.held(), stream.send.is_drained());
        self.memory.change(before, after);
        self.wake_writer(id);
        if drained {
            self.push(Event::Drained(id));
        }
        self.remove_if_over(id);
    }
}
