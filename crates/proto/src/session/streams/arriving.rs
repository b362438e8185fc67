//! What the peer says about streams, and what it sends on them.

use std::ops::Range;

use super::{Door, Streams};
use crate::error::{CloseCode, ProtocolError};
use crate::event::{Event, Events};
use crate::frame::{Frame, StreamPiece};
use crate::ids::StreamId;
use crate::stream::Pace;

/// More pieces than this that wait for others before them, over all streams, are an attack on our
/// memory.
pub(super) const MAX_PIECES: usize = 16 * 1024;

impl Streams {
    /// Takes a frame about streams in.
    ///
    /// # Errors
    /// [`ProtocolError`] if the peer broke the protocol, or this is no frame about streams.
    pub(crate) fn take(
        &mut self,
        frame: Frame<'_>,
        pace: &Pace,
        events: &mut Events,
    ) -> Result<(), ProtocolError> {
        if self.door == Door::Closed {
            return Ok(());
        }
        match frame {
            Frame::Stream { id, offset, data, fin } => self.take_data(id, offset, data, fin, pace, events),
            Frame::MaxData(max) => {
                self.credit.allow(max);
                Ok(())
            }
            Frame::MaxStreamData(id, max) => {
                if self.is_known(id, false, events)?
                    && let Some(stream) = self.map.get_mut(&id)
                {
                    stream.send.max_data = stream.send.max_data.max(max);
                    self.enqueue(id);
                    self.wake_writer(id, events);
                }
                Ok(())
            }
            Frame::MaxStreams(max) => {
                self.numbers.allow(max);
                self.wake_openers(events);
                Ok(())
            }
            Frame::Reset { id, code, final_size } => self.take_reset(id, code, final_size, events),
            Frame::Stop(id, code) => self.take_stop(id, code, events),
            _ => Err(ProtocolError::Unexpected("unknown")),
        }
    }

    /// Takes bytes of a stream in.
    ///
    /// # Errors
    /// [`ProtocolError`] if the peer broke the protocol.
    pub(crate) fn take_piece(
        &mut self,
        piece: StreamPiece<'_>,
        pace: &Pace,
        events: &mut Events,
    ) -> Result<(), ProtocolError> {
        if self.door == Door::Closed {
            return Ok(());
        }
        let StreamPiece { id, offset, data, fin } = piece;
        self.take_data(id, offset, data, fin, pace, events)
    }

    /// Makes sure that the peer may name `id`, creating streams that it opens. False if the stream
    /// is over already. A stream goes `one_way` if the first frame that names it says so.
    fn is_known(&mut self, id: StreamId, one_way: bool, events: &mut Events) -> Result<bool, ProtocolError> {
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
                self.map.insert(new, Box::new(stream));
                self.arrivals.opened(new);
                opened = true;
            }
            let raised = opened && self.numbers.raise();
            self.marks.max_streams_if(raised);
            if self.arrivals.named(id, one_way) {
                events.push(Event::StreamOpened(id));
            }
        }
        Ok(self.map.contains_key(&id))
    }

    fn take_data(
        &mut self,
        id: StreamId,
        offset: u64,
        data: &[u8],
        fin: bool,
        pace: &Pace,
        events: &mut Events,
    ) -> Result<(), ProtocolError> {
        if !self.is_known(id, false, events)? {
            self.counts.duplicate += data.len() as u64;
            return Ok(());
        }
        let Some(stream) = self.map.get_mut(&id) else {
            return Ok(());
        };
        let consumed = stream.recv.consumed();
        let (arrived, pieces) = (stream.recv.arrived(), stream.recv.pieces());
        let grown = stream.recv.insert(&self.limits.pool, id, offset, data, fin)?;
        if grown > 0 && stream.recv.note_arrival(pace) {
            self.marks.max_stream_data(id);
        }
        let discarded = stream.recv.consumed() - consumed;
        let readable = stream.recv.is_readable();
        self.pieces = self.pieces + stream.recv.pieces() - pieces;
        // Of a stream that nobody reads any more, gaps count as arrived.
        let fresh = (stream.recv.arrived() - arrived).min(data.len() as u64);
        self.counts.received += fresh;
        self.counts.duplicate += data.len() as u64 - fresh;
        if self.pieces > MAX_PIECES {
            return Err(ProtocolError::TooManyGaps(id));
        }
        self.count_received(grown)?;
        self.consume(discarded);
        if readable {
            events.push(Event::Readable(id));
        }
        if arrived == 0 && !fin {
            self.grant_at_once(id);
        }
        self.remove_if_over(id);
        Ok(())
    }

    fn count_received(&mut self, grown: u64) -> Result<(), ProtocolError> {
        let raised = self.credit.receive(grown)?;
        self.marks.max_data_if(raised);
        Ok(())
    }

    fn take_reset(
        &mut self,
        id: StreamId,
        code: CloseCode,
        final_size: u64,
        events: &mut Events,
    ) -> Result<(), ProtocolError> {
        if !self.is_known(id, false, events)? {
            return Ok(());
        }
        let Some(stream) = self.map.get_mut(&id) else {
            return Ok(());
        };
        let consumed = stream.recv.consumed();
        let pieces = stream.recv.pieces();
        let grown = stream.recv.reset(id, final_size, code)?;
        let discarded = stream.recv.consumed() - consumed;
        self.pieces -= pieces - stream.recv.pieces();
        self.count_received(grown)?;
        self.consume(discarded);
        events.push(Event::Readable(id));
        self.remove_if_over(id);
        Ok(())
    }

    fn take_stop(&mut self, id: StreamId, code: CloseCode, events: &mut Events) -> Result<(), ProtocolError> {
        if !self.is_known(id, code == CloseCode::ONE_WAY, events)? {
            return Ok(());
        }
        if let Some(stream) = self.map.get_mut(&id)
            && stream.send.stopped.is_none()
            && !stream.send.is_over()
        {
            stream.send.stopped = Some(code);
            self.blocked_writers.remove(&id);
            events.push(Event::Writable(id));
            // Nobody reads it: stop sending, and say where it ends.
            let _ = self.reset(id, code, events);
        }
        Ok(())
    }

    /// The peer has a part of a stream.
    pub(crate) fn data_delivered(&mut self, id: StreamId, range: Range<u64>, fin: bool, events: &mut Events) {
        let Some(stream) = self.map.get_mut(&id) else {
            return;
        };
        let before = stream.send.held();
        stream.send.acknowledged(&self.limits.pool, range, fin);
        let (after, drained) = (stream.send.held(), stream.send.is_drained());
        self.memory.change(before, after);
        self.wake_writer(id, events);
        if drained {
            events.push(Event::Drained(id));
        }
        self.remove_if_over(id);
    }

    /// The peer knows that a stream was given up.
    pub(crate) fn reset_delivered(&mut self, id: StreamId, events: &mut Events) {
        if let Some(stream) = self.map.get_mut(&id) {
            stream.send.reset_acknowledged();
            events.push(Event::Drained(id));
            self.remove_if_over(id);
        }
    }
}
