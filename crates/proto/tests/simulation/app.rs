//! What the applications on both ends did and saw: the oracle of every simulation.

use std::collections::BTreeMap;

use whimbrel_proto::{CloseCode, Connection, Read, Side, StreamError, StreamId};

/// The byte at `offset` of the direction of `stream` that `writer` writes.
pub(crate) fn content(stream: StreamId, writer: Side, offset: u64) -> u8 {
    let salt = u64::from(writer == Side::Server) * 101;
    ((offset ^ (offset >> 8).wrapping_mul(31)) as u8)
        .wrapping_add((stream.0 * 17 + salt) as u8)
        .wrapping_mul(167)
}

#[derive(Debug, Default, Clone)]
pub(crate) struct Half {
    /// Sending.
    pub(crate) written: u64,
    pub(crate) finished: bool,
    pub(crate) reset: bool,
    /// The peer asked us to stop.
    pub(crate) was_stopped: bool,
    /// Receiving.
    pub(crate) read: u64,
    pub(crate) saw_fin: bool,
    pub(crate) saw_reset: bool,
    pub(crate) stopped: bool,
}

impl Half {
    pub(crate) fn reading_is_over(&self) -> bool {
        self.saw_fin || self.saw_reset || self.stopped
    }
}

/// One application.
#[derive(Debug, Clone)]
pub(crate) struct App {
    side: Side,
    pub(crate) streams: BTreeMap<StreamId, Half>,
}

impl App {
    pub(crate) fn new(side: Side) -> Self {
        Self { side, streams: BTreeMap::new() }
    }

    pub(crate) fn open(&mut self, connection: &mut Connection) -> Option<StreamId> {
        let id = connection.open_stream()?;
        self.streams.insert(id, Half::default());
        Some(id)
    }

    pub(crate) fn accept(&mut self, connection: &mut Connection) {
        while let Some(id) = connection.accept_stream() {
            let twice = self.streams.insert(id, Half::default());
            assert!(twice.is_none(), "stream {id} was accepted twice");
        }
    }

    pub(crate) fn write(&mut self, connection: &mut Connection, id: StreamId, n: usize) -> usize {
        let half = self.streams.entry(id).or_default();
        let data: Vec<u8> =
            (half.written..half.written + n as u64).map(|offset| content(id, self.side, offset)).collect();
        match connection.write(id, &data) {
            Ok(taken) => {
                assert!(taken <= n);
                assert!(!half.finished && !half.reset, "wrote behind the end of {id}");
                half.written += taken as u64;
                taken
            }
            Err(StreamError::Stopped(..)) => {
                half.was_stopped = true;
                0
            }
            Err(_) => 0,
        }
    }

    pub(crate) fn finish(&mut self, connection: &mut Connection, id: StreamId) {
        if connection.finish(id).is_ok() {
            let half = self.streams.entry(id).or_default();
            half.finished |= !half.reset;
        }
    }

    pub(crate) fn reset(&mut self, connection: &mut Connection, id: StreamId) {
        if connection.reset(id, CloseCode::application(7)).is_ok() {
            self.streams.entry(id).or_default().reset = true;
        }
    }

    pub(crate) fn stop(&mut self, connection: &mut Connection, id: StreamId) {
        if connection.stop(id, CloseCode::application(8)).is_ok() {
            self.streams.entry(id).or_default().stopped = true;
        }
    }

    /// Reads at most `max` bytes and holds them, and the end, against what `peer` wrote.
    pub(crate) fn read(
        &mut self,
        connection: &mut Connection,
        peer: &App,
        id: StreamId,
        max: usize,
    ) -> usize {
        let Some(half) = self.streams.get_mut(&id) else {
            return 0;
        };
        if half.reading_is_over() || max == 0 {
            return 0;
        }
        let theirs = peer.streams.get(&id).cloned().unwrap_or_default();
        let mut buf = vec![0; max];
        match connection.read(id, &mut buf) {
            Ok(Read::Data(n)) => {
                assert!(n > 0 && n <= max);
                for (i, byte) in buf[..n].iter().enumerate() {
                    let offset = half.read + i as u64;
                    assert_eq!(
                        *byte,
                        content(id, peer.side, offset),
                        "{:?} read a wrong byte at {offset} of stream {id}",
                        self.side
                    );
                }
                half.read += n as u64;
                assert!(half.read <= theirs.written, "more was read than was written");
                n
            }
            Ok(Read::Blocked) => 0,
            Ok(Read::Fin) => {
                assert!(theirs.finished, "stream {id} ended, but was not finished");
                assert_eq!(half.read, theirs.written, "stream {id} ended early");
                half.saw_fin = true;
                0
            }
            Err(StreamError::Reset(..)) => {
                assert!(theirs.reset, "stream {id} was never reset");
                half.saw_reset = true;
                0
            }
            Err(StreamError::ConnectionClosed(_)) => {
                // Ended, or aborted on this side.
                assert!(connection.end_reason().is_some());
                0
            }
            Err(error) => panic!("{:?} reading {id}: {error}", self.side),
        }
    }

    pub(crate) fn read_all(&mut self, connection: &mut Connection, peer: &App) -> u64 {
        self.accept(connection);
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        let mut total = 0;
        for id in ids {
            loop {
                let n = self.read(connection, peer, id, 64 * 1024);
                total += n as u64;
                if n == 0 {
                    break;
                }
            }
        }
        total
    }

    /// What of `self`'s writing has not come out at `peer` as it must, for a connection that
    /// goes on; `None` when all is well.
    pub(crate) fn missing_at(&self, peer: &App) -> Option<String> {
        for (id, mine) in &self.streams {
            let Some(theirs) = peer.streams.get(id) else {
                return Some(format!("stream {id} is not known to {:?}", peer.side));
            };
            let ok = if theirs.stopped || theirs.saw_fin {
                true
            } else if mine.reset || mine.was_stopped {
                theirs.saw_reset
            } else {
                theirs.read == mine.written && !mine.finished
            };
            if !ok {
                return Some(format!("{:?} stream {id}: {mine:?} against {theirs:?}", self.side));
            }
        }
        None
    }

    /// All bytes of halves that go on or were finished have been read at `peer`.
    pub(crate) fn bytes_missing_at(&self, peer: &App) -> Option<String> {
        for (id, mine) in &self.streams {
            if mine.reset || mine.was_stopped || mine.written == 0 {
                continue;
            }
            let read = peer.streams.get(id).map_or(0, |h| h.read);
            if read != mine.written && !peer.streams.get(id).is_some_and(|h| h.stopped) {
                return Some(format!("stream {id}: {read} of {} read", mine.written));
            }
        }
        None
    }
}
