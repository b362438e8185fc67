//! What the application does with streams.

use std::time::Duration;

use super::Connection;
use crate::error::{CloseCode, StreamError};
use crate::event::Event;
use crate::ids::StreamId;
use crate::params::Params;
use crate::stream::{Pace, RecvRead, Stream};

/// A stream is granted no more than this at once; what a page is made of fits in.
const LARGEST_OPENING_WINDOW: u64 = 256 * 1024;
/// What arrives and is read within this time is quick, however short the round trip is.
const LEAST_PATIENCE: Duration = Duration::from_millis(30);
/// A writer may be so far ahead of the peer's credit for the stream: what a stream holds that the peer
/// doesn't read.
const AHEAD_OF_CREDIT: u64 = 64 * 1024;

/// What a read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read {
    /// So many bytes were copied; at least one.
    Data(usize),
    /// Nothing now; [`Event::Readable`] will tell.
    Blocked,
    /// The stream ended here.
    Fin,
}

impl Connection {
    /// Opens a stream. `None` when the peer's limit is reached; [`Event::StreamsAvailable`] tells
    /// when to try again.
    pub fn open_stream(&mut self) -> Option<StreamId> {
        let over = self.closed.is_some() || self.closing.is_some();
        let Some(index) = (!over).then(|| self.numbers.open()).flatten() else {
            self.open_blocked = true;
            return None;
        };
        let id = StreamId::new(self.side, index);
        let mut stream = self.new_stream();
        stream.announce = true;
        self.streams.insert(id, stream);
        if self.is_established() {
            self.grant_at_once(id);
        }
        self.enqueue(id);
        Some(id)
    }

    /// Grants a stream on which nothing has arrived more than was stated for all, as long as there is enough
    /// for others: what comes may be large, and should not have to wait for a round trip.
    pub(super) fn grant_at_once(&mut self, id: StreamId) {
        let size = self.credit.opening_window(self.streams.len());
        let size = size.min(LARGEST_OPENING_WINDOW).min(self.config.stream_window);
        if let Some(stream) = self.streams.get_mut(&id)
            && stream.recv.window.widen(size)
        {
            self.control.max_stream_data.insert(id);
        }
    }

    /// The next stream that the peer opened.
    pub fn accept_stream(&mut self) -> Option<StreamId> {
        self.numbers.accept().map(|index| StreamId::new(self.side.peer(), index))
    }

    pub(super) fn new_stream(&self) -> Stream {
        let send_window = match &self.peer_params {
            Some(params) => params.max_stream_data,
            None => Params::unknown_peer().max_stream_data,
        };
        Stream::new(send_window, self.config.params.max_stream_data)
    }

    /// Takes as much of `data` as there is room for; `Ok(0)` means: wait for [`Event::Writable`].
    ///
    /// # Errors
    /// [`StreamError`] when the stream cannot be written to.
    pub fn write(&mut self, id: StreamId, data: &[u8]) -> Result<usize, StreamError> {
        self.check_open()?;
        let flowing = self.has_active_path();
        let ahead = self.is_established().then_some(AHEAD_OF_CREDIT);
        let stream = self.streams.get_mut(&id).ok_or(StreamError::Closed(id))?;
        if let Some(code) = stream.send.stopped {
            return Err(StreamError::Stopped(id, code));
        }
        if stream.send.is_finishing() || stream.send.reset.is_some() || self.closing.is_some() {
            return Err(StreamError::Finished(id));
        }
        let held = stream.send.held();
        // Without a path everything waits; then the larger limits alone count.
        let most = if flowing { self.config.stream_unsent } else { u64::MAX };
        let unsent = stream.send.unsent_limit(most, ahead).saturating_sub(stream.send.unsent());
        let n = self.memory.room(held).min(unsent).min(data.len() as u64) as usize;
        stream.pressing = n < data.len();
        if n == 0 {
            if !data.is_empty() {
                self.blocked_writers.insert(id);
            }
            return Ok(0);
        }
        stream.send.write(&self.config.pool, &data[..n]);
        self.memory.change(held, held + n as u64);
        self.enqueue(id);
        Ok(n)
    }

    /// No more will be written; the peer reads up to here and then sees the end.
    ///
    /// # Errors
    /// [`StreamError`] when the stream is gone.
    pub fn finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        self.check_open()?;
        let stream = self.streams.get_mut(&id).ok_or(StreamError::Closed(id))?;
        if let Some(code) = stream.send.stopped {
            return Err(StreamError::Stopped(id, code));
        }
        stream.send.finish();
        stream.pressing = false;
        self.enqueue(id);
        Ok(())
    }

    /// Gives the sending half up: what the peer does not have yet is dropped.
    ///
    /// # Errors
    /// [`StreamError`] when the stream is gone.
    pub fn reset(&mut self, id: StreamId, code: CloseCode) -> Result<(), StreamError> {
        self.check_open()?;
        let stream = self.streams.get_mut(&id).ok_or(StreamError::Closed(id))?;
        if stream.send.is_over() {
            return Ok(());
        }
        let held = stream.send.held();
        // Bytes never sent do not count against connection credit.
        stream.send.reset(code);
        self.memory.change(held, stream.send.held());
        self.control.resets.insert(id);
        // There is nothing left to wait for.
        self.push(Event::Drained(id));
        self.wake_writers();
        Ok(())
    }

    /// Does not want to read the rest: what arrives is dropped and the peer is asked to stop.
    ///
    /// # Errors
    /// [`StreamError`] when the stream is gone.
    pub fn stop(&mut self, id: StreamId, code: CloseCode) -> Result<(), StreamError> {
        self.check_open()?;
        let stream = self.streams.get_mut(&id).ok_or(StreamError::Closed(id))?;
        if !stream.recv.is_over() {
            let before = stream.recv.consumed();
            let pieces = stream.recv.pieces();
            stream.recv.stop(code);
            let discarded = stream.recv.consumed() - before;
            self.pieces -= pieces - stream.recv.pieces();
            self.control.stops.insert(id);
            self.consume(discarded);
        }
        self.remove_if_over(id);
        Ok(())
    }

    /// Copies the next bytes of a stream. What arrived before the connection ended can still be read; not so
    /// while an abort from this side is under way.
    ///
    /// # Errors
    /// [`StreamError`] when the stream was reset or is gone, or the connection ended before it.
    pub fn read(&mut self, id: StreamId, buf: &mut [u8]) -> Result<Read, StreamError> {
        if self.closed.is_none() {
            self.check_open()?;
        }
        let pace = self.pace();
        let Some(stream) = self.streams.get_mut(&id) else {
            self.check_open()?;
            return Err(StreamError::Closed(id));
        };
        if buf.is_empty() {
            return Ok(Read::Data(0));
        }
        match stream.recv.read(&self.config.pool, buf) {
            RecvRead::Data(n) => {
                if stream.recv.grant(&pace) {
                    self.control.max_stream_data.insert(id);
                }
                self.consume(n as u64);
                Ok(Read::Data(n))
            }
            RecvRead::Blocked => {
                self.check_open()?;
                Ok(Read::Blocked)
            }
            RecvRead::Fin => {
                self.remove_if_over(id);
                Ok(Read::Fin)
            }
            RecvRead::Reset(code) => {
                self.remove_if_over(id);
                Err(StreamError::Reset(id, code))
            }
        }
    }

    /// Everything written so far, and the end if it was told, has reached the peer.
    #[must_use]
    pub fn is_drained(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_none_or(|s| s.send.is_drained())
    }

    /// How fast readers must be for the windows of their streams to grow, and how far they may.
    pub(super) fn pace(&self) -> Pace {
        let live = self.paths.values().filter(|p| p.is_live());
        let round_trip = live.map(|p| p.figures.srtt()).max().unwrap_or_default();
        Pace {
            now: self.clock,
            patience: (round_trip * 3 / 2).max(LEAST_PATIENCE),
            most: self.credit.grown_window(self.streams.len()).min(self.config.stream_window),
        }
    }

    fn check_open(&self) -> Result<(), StreamError> {
        match self.end_reason() {
            Some((_, code, _)) => Err(StreamError::ConnectionClosed(code)),
            None => Ok(()),
        }
    }

    /// Gives connection credit back for bytes that were read or dropped.
    pub(super) fn consume(&mut self, n: u64) {
        self.control.max_data |= self.credit.consume(n);
    }

    /// Puts a stream in the send queue if it has something to send.
    pub(super) fn enqueue(&mut self, id: StreamId) {
        if self.closed.is_some() {
            return;
        }
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.queued
            && (stream.announce || stream.send.wants_to_send())
        {
            stream.queued = true;
            self.send_queue.push_back(id);
        }
    }

    /// Lets the writer of a stream go on once a good part of what it may hold is free again.
    pub(super) fn wake_writer(&mut self, id: StreamId) {
        if !self.blocked_writers.contains(&id) || !self.has_room(id) {
            return;
        }
        self.blocked_writers.remove(&id);
        self.push(Event::Writable(id));
    }

    /// Lets writers go on that waited because of what other streams held.
    pub(super) fn wake_writers(&mut self) {
        if !self.memory.take_relief() {
            return;
        }
        let blocked: Vec<StreamId> = self.blocked_writers.iter().copied().collect();
        blocked.into_iter().for_each(|id| self.wake_writer(id));
    }

    fn has_room(&mut self, id: StreamId) -> bool {
        let ahead = self.is_established().then_some(AHEAD_OF_CREDIT);
        let Some(stream) = self.streams.get(&id) else {
            return true;
        };
        let unsent = stream.send.unsent_limit(self.config.stream_unsent, ahead);
        stream.send.unsent() <= unsent / 2 && self.memory.has_room(stream.send.held())
    }

    pub(super) fn remove_if_over(&mut self, id: StreamId) {
        if !self.streams.get(&id).is_some_and(Stream::is_over) {
            return;
        }
        self.streams.remove(&id);
        if id.opener() != self.side {
            self.numbers.note_closed();
            self.control.max_streams |= self.numbers.raise();
        }
    }
}
