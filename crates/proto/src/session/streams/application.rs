//! What the application does with streams.

use bytes::Bytes;

use super::{Door, Streams};
use crate::error::{CloseCode, StreamError};
use crate::event::{Event, Events};
use crate::flow::Urgency;
use crate::ids::StreamId;
use crate::stream::{Backlog, Chunk, Pace, Pool, Recv, RecvRead, Send};

/// What a read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Read<T = usize> {
    /// Bytes, or how many were copied; at least one.
    Data(T),
    /// Nothing now; [`Event::Readable`] will tell.
    Blocked,
    /// The stream ended here.
    Fin,
}

impl Streams {
    /// How urgent a stream's data is. False if the stream is over.
    pub(crate) fn set_urgency(&mut self, id: StreamId, urgency: Urgency) -> bool {
        let stream = self.map.get_mut(&id);
        stream.map(|stream| stream.level = urgency.level()).is_some()
    }

    /// Opens a stream, on which the peer may write unless it goes `one_way`. `None` if the peer allows no
    /// more, or the connection ends.
    pub(crate) fn open(&mut self, one_way: bool) -> Option<StreamId> {
        let Some(index) = (self.door == Door::Open).then(|| self.numbers.open()).flatten() else {
            self.open_blocked = true;
            return None;
        };
        let id = StreamId::new(self.side, index);
        let mut stream = self.new_stream();
        stream.announce = true;
        if one_way {
            // Said before each of its bytes, until the peer has answered; see `put_one_way`.
            stream.recv.stop(CloseCode::ONE_WAY);
        }
        self.map.insert(id, Box::new(stream));
        if self.peer_window.is_some() {
            self.grant_at_once(id);
        }
        self.enqueue(id);
        Some(id)
    }

    /// The next stream that the peer opened, for both ways or for one.
    pub(crate) fn accept(&mut self, one_way: bool) -> Option<StreamId> {
        self.arrivals.accept(one_way)
    }

    /// The streams that this side has opened or accepted, as far as they are not over.
    pub(crate) fn known(&self) -> Vec<StreamId> {
        self.map.keys().filter(|id| !self.arrivals.contains(**id)).copied().collect()
    }

    /// Takes as much of `data` as there is room for. Without a path that works (`flowing`) more may wait.
    pub(crate) fn write(&mut self, id: StreamId, data: &[u8], flowing: bool) -> Result<usize, StreamError> {
        self.put(id, data.len(), flowing, |send, pool, n| send.write(pool, &data[..n]))
    }

    /// The same without a copy: takes away what there is room for.
    pub(crate) fn write_chunk(
        &mut self,
        id: StreamId,
        data: &mut Bytes,
        flowing: bool,
    ) -> Result<usize, StreamError> {
        self.put(id, data.len(), flowing, |send, pool, n| send.write_chunk(pool, data.split_to(n)))
    }

    /// Puts as many of so many bytes as there is room for.
    fn put(
        &mut self,
        id: StreamId,
        length: usize,
        flowing: bool,
        put: impl FnOnce(&mut Send, &Pool, usize),
    ) -> Result<usize, StreamError> {
        let ahead = self.ahead();
        // Without a path everything waits; then the larger limits alone count.
        let most = if flowing { self.share_of_unsent() } else { u64::MAX };
        let stream = self.map.get_mut(&id).ok_or(StreamError::Closed(id))?;
        if let Some(code) = stream.send.stopped {
            return Err(StreamError::Stopped(id, code));
        }
        if stream.send.is_finishing() || stream.send.reset.is_some() || self.door != Door::Open {
            return Err(StreamError::Finished(id));
        }
        let held = stream.send.held();
        let unsent = stream.send.unsent_limit(most, ahead).saturating_sub(stream.send.unsent());
        let n = self.memory.room(held).min(unsent).min(length as u64) as usize;
        stream.pressing = n < length;
        if n == 0 {
            if length > 0 {
                self.blocked_writers.insert(id);
            }
            return Ok(0);
        }
        put(&mut stream.send, &self.limits.pool, n);
        self.memory.change(held, held + n as u64);
        self.enqueue(id);
        Ok(n)
    }

    /// No more will be written.
    pub(crate) fn finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        let stream = self.map.get_mut(&id).ok_or(StreamError::Closed(id))?;
        if let Some(code) = stream.send.stopped {
            return Err(StreamError::Stopped(id, code));
        }
        stream.send.finish();
        stream.pressing = false;
        self.enqueue(id);
        Ok(())
    }

    /// Gives the sending half up: what the peer does not have yet is dropped.
    pub(crate) fn reset(
        &mut self,
        id: StreamId,
        code: CloseCode,
        events: &mut Events,
    ) -> Result<(), StreamError> {
        let stream = self.map.get_mut(&id).ok_or(StreamError::Closed(id))?;
        if stream.send.is_over() {
            return Ok(());
        }
        let held = stream.send.held();
        // Bytes never sent do not count against connection credit.
        stream.send.reset(code);
        self.memory.change(held, stream.send.held());
        self.marks.reset(id);
        if stream.goes_one_way() {
            self.marks.stop(id);
        }
        // There is nothing left to wait for.
        events.push(Event::Drained(id));
        self.wake_writers(events);
        Ok(())
    }

    /// Does not want to read the rest: what arrives is dropped and the peer is asked to stop.
    pub(crate) fn stop(&mut self, id: StreamId, code: CloseCode) -> Result<(), StreamError> {
        let stream = self.map.get_mut(&id).ok_or(StreamError::Closed(id))?;
        if !stream.recv.is_over() {
            let before = stream.recv.consumed();
            let pieces = stream.recv.pieces();
            stream.recv.stop(code);
            let discarded = stream.recv.consumed() - before;
            self.pieces -= pieces - stream.recv.pieces();
            self.marks.stop(id);
            self.consume(discarded);
        }
        self.remove_if_over(id);
        Ok(())
    }

    /// Copies the next bytes of a stream; `None` if it is over or was never there.
    pub(crate) fn read(
        &mut self,
        id: StreamId,
        buf: &mut [u8],
        pace: &Pace,
    ) -> Option<Result<Read, StreamError>> {
        if buf.is_empty() {
            return self.map.contains_key(&id).then_some(Ok(Read::Data(0)));
        }
        self.hand_over(id, pace, |recv, pool| recv.read(pool, buf))
    }

    /// Gives the next bytes of a stream away; `None` if it is over or was never there.
    pub(crate) fn read_chunk(
        &mut self,
        id: StreamId,
        pace: &Pace,
    ) -> Option<Result<Read<Chunk>, StreamError>> {
        self.hand_over(id, pace, |recv, pool| recv.read_chunk(pool))
    }

    fn hand_over<T>(
        &mut self,
        id: StreamId,
        pace: &Pace,
        take: impl FnOnce(&mut Recv, &Pool) -> RecvRead<T>,
    ) -> Option<Result<Read<T>, StreamError>> {
        let stream = self.map.get_mut(&id)?;
        let before = stream.recv.consumed();
        Some(match take(&mut stream.recv, &self.limits.pool) {
            RecvRead::Data(data) => {
                let taken = stream.recv.consumed() - before;
                if stream.recv.grant(pace) {
                    self.marks.max_stream_data(id);
                }
                self.consume(taken);
                Ok(Read::Data(data))
            }
            RecvRead::Blocked => Ok(Read::Blocked),
            RecvRead::Fin => {
                self.remove_if_over(id);
                Ok(Read::Fin)
            }
            RecvRead::Reset(code) => {
                self.remove_if_over(id);
                Err(StreamError::Reset(id, code))
            }
        })
    }

    /// What was written and is not with the peer yet. Nothing, if the stream is over.
    pub(crate) fn backlog(&self, id: StreamId) -> Backlog {
        let of = |send: &Send| Backlog { unsent: send.unsent(), unacknowledged: send.held() };
        self.map.get(&id).map(|stream| of(&stream.send)).unwrap_or_default()
    }

    /// Everything written so far, and the end if it was told, has reached the peer.
    pub(crate) fn is_drained(&self, id: StreamId) -> bool {
        self.map.get(&id).is_none_or(|s| s.send.is_drained())
    }
}
