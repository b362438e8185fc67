//! What the application does with a connection's streams and addresses.

use std::net::SocketAddr;

use bytes::Bytes;

use super::Connection;
use crate::error::{CloseCode, StreamError};
use crate::frame::MAX_ADDRESSES;
use crate::handover::Priority;
use crate::ids::StreamId;
use crate::session::Read;
use crate::stream::{Backlog, Chunk, Pace};

impl Connection {
    /// Opens a stream. `None` when the peer's limit is reached; [`Event::StreamsAvailable`](crate::Event)
    /// tells when to try again.
    pub fn open_stream(&mut self) -> Option<StreamId> {
        if self.held { None } else { self.session.streams.open(false) }
    }

    /// Opens a stream on which this side alone writes. Reading it is [stopped](Self::stop) from the start. A
    /// peer of an older version takes it for a stream of both ways that nobody reads. Otherwise as
    /// [`open_stream`](Self::open_stream).
    pub fn open_one_way(&mut self) -> Option<StreamId> {
        if self.held { None } else { self.session.streams.open(true) }
    }

    /// The next stream that the peer opened, for both ways.
    pub fn accept_stream(&mut self) -> Option<StreamId> {
        if self.held { None } else { self.session.streams.accept(false) }
    }

    /// The next stream that the peer opened for itself alone to write on.
    pub fn accept_one_way(&mut self) -> Option<StreamId> {
        if self.held { None } else { self.session.streams.accept(true) }
    }

    /// The streams that this side has opened or accepted, as far as they are not over.
    #[must_use]
    pub fn known_streams(&self) -> Vec<StreamId> {
        self.session.streams.known()
    }

    /// Takes as much of `data` as there is room for; `Ok(0)` means: wait for
    /// [`Event::Writable`](crate::Event::Writable).
    ///
    /// # Errors
    /// [`StreamError`] when the stream cannot be written to.
    pub fn write(&mut self, id: StreamId, data: &[u8]) -> Result<usize, StreamError> {
        self.session.check_open()?;
        if self.held {
            return Ok(0);
        }
        let flowing = self.has_active_path();
        self.session.streams.write(id, data, flowing)
    }

    /// As [`write`](Self::write), but keeps the memory of what it takes away from `data`, where that is not
    /// little, instead of a copy.
    ///
    /// # Errors
    /// [`StreamError`] when the stream cannot be written to.
    pub fn write_chunk(&mut self, id: StreamId, data: &mut Bytes) -> Result<usize, StreamError> {
        self.session.check_open()?;
        if self.held {
            return Ok(0);
        }
        let flowing = self.has_active_path();
        self.session.streams.write_chunk(id, data, flowing)
    }

    /// No more will be written; the peer reads up to here and then sees the end.
    ///
    /// # Errors
    /// [`StreamError`] when the stream is gone.
    pub fn finish(&mut self, id: StreamId) -> Result<(), StreamError> {
        self.session.check_open()?;
        self.session.streams.finish(id)
    }

    /// Gives the sending half up: what the peer does not have yet is dropped.
    ///
    /// # Errors
    /// [`StreamError`] when the stream is gone.
    pub fn reset(&mut self, id: StreamId, code: CloseCode) -> Result<(), StreamError> {
        self.session.check_open()?;
        self.session.streams.reset(id, code, &mut self.events)
    }

    /// Does not want to read the rest: what arrives is dropped and the peer is asked to stop.
    ///
    /// # Errors
    /// [`StreamError`] when the stream is gone.
    pub fn stop(&mut self, id: StreamId, code: CloseCode) -> Result<(), StreamError> {
        self.session.check_open()?;
        self.session.streams.stop(id, code)
    }

    /// Copies the next bytes of a stream. What arrived before the connection ended can still be read; not so
    /// while an abort from this side is under way.
    ///
    /// # Errors
    /// [`StreamError`] when the stream was reset or is gone, or the connection ended before it.
    pub fn read(&mut self, id: StreamId, buf: &mut [u8]) -> Result<Read, StreamError> {
        if self.held {
            return self.session.check_open().map(|()| Read::Blocked);
        }
        if !self.session.ending.is_closed() {
            self.session.check_open()?;
        }
        let pace = self.pace();
        let found = self.session.streams.read(id, buf, &pace);
        self.found(id, found)
    }

    /// Gives the next bytes of a stream away without a copy: at most as many as a segment's worth, in the
    /// memory that they arrived in. Otherwise as [`read`](Self::read).
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_chunk(&mut self, id: StreamId) -> Result<Read<Chunk>, StreamError> {
        if self.held {
            return self.session.check_open().map(|()| Read::Blocked);
        }
        if !self.session.ending.is_closed() {
            self.session.check_open()?;
        }
        let pace = self.pace();
        let found = self.session.streams.read_chunk(id, &pace);
        self.found(id, found)
    }

    /// What a read says: nothing more comes once the connection is over.
    fn found<T>(
        &self,
        id: StreamId,
        found: Option<Result<Read<T>, StreamError>>,
    ) -> Result<Read<T>, StreamError> {
        match found {
            Some(Ok(Read::Blocked)) => self.session.check_open().map(|()| Read::Blocked),
            Some(found) => found,
            None => self.session.check_open().and(Err(StreamError::Closed(id))),
        }
    }

    /// What was written to a stream and is not with the peer yet. Nothing, if the stream is over.
    #[must_use]
    pub fn backlog(&self, id: StreamId) -> Backlog {
        self.session.streams.backlog(id)
    }

    /// Everything written so far, and the end if it was told, has reached the peer.
    #[must_use]
    pub fn is_drained(&self, id: StreamId) -> bool {
        self.session.streams.is_drained(id)
    }

    /// How fast readers must be for the windows of their streams to grow, and how far they may.
    pub(super) fn pace(&self) -> Pace {
        let live = self.paths.values().filter(|p| p.is_live());
        let round_trip = live.map(|p| p.figures.srtt()).max().unwrap_or_default();
        self.session.streams.pace(self.clock.told(), round_trip)
    }

    /// Announces an address at which this side can be reached, or changes it. The peer is told reliably. `id`
    /// names it and may be used again; false, and nothing is done, unless it is below 32.
    pub fn announce_address(&mut self, id: u8, address: SocketAddr, priority: Priority) -> bool {
        if id >= MAX_ADDRESSES {
            return false;
        }
        self.session.addresses.state(id, Some((address, priority)));
        true
    }

    /// Withdraws an address that was announced. The peer is told reliably.
    pub fn withdraw_address(&mut self, id: u8) {
        self.session.addresses.state(id, None);
    }

    /// The addresses that this side announced: id, address, priority.
    #[must_use]
    pub fn announced_addresses(&self) -> Vec<(u8, SocketAddr, Priority)> {
        self.session.addresses.present().collect()
    }

    /// The addresses that the peer announced: id, address, priority.
    #[must_use]
    pub fn peer_addresses(&self) -> Vec<(u8, SocketAddr, Priority)> {
        self.session.peer_addresses.present().collect()
    }
}
