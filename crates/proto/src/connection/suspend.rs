//! A connection without paths, written down and read again.

use std::time::{Duration, Instant};

use super::Connection;
use crate::config::Config;
use crate::error::DecodeError;
use crate::event::Events;
use crate::path::Path;
use crate::path_table::PathTable;
use crate::session::Session;
use crate::snapshot::{self, VERSION};
use crate::varint::Reader;

impl Connection {
    /// Writes the connection down: [`restore`](Self::restore) goes on where this was written. `None` unless
    /// the connection is established, not over, and without a path.
    ///
    /// The bytes hold the connection's secrets and what was not delivered or read. Whoever keeps them must
    /// encrypt and authenticate them, and see to it that only one restored copy goes on.
    #[must_use]
    pub fn snapshot(&self) -> Option<Vec<u8>> {
        if !self.is_established() || self.is_closed() || self.paths.values().any(Path::is_live) {
            return None;
        }
        let mut out = vec![VERSION];
        snapshot::number(&mut out, self.clock.told().as_micros() as u64);
        self.session.write_down(&mut out);
        self.paths.write_down(&mut out);
        Some(out)
    }

    /// Reads a connection back that was written down, without a path. Events tell the application which
    /// streams it has to look at.
    ///
    /// # Errors
    /// [`DecodeError`] if these are not the bytes of a snapshot, or of another version.
    pub fn restore(mut config: Config, bytes: &[u8], now: Instant) -> Result<Self, DecodeError> {
        config.keep_promises();
        let mut reader = Reader::new(bytes);
        if reader.byte()? != VERSION {
            return Err(DecodeError::Invalid("version of a snapshot"));
        }
        let age = Duration::from_micros(reader.varint()?);
        let mut events = Events::default();
        let session = Session::read_back(&mut reader, &config, &mut events)?;
        let paths = PathTable::read_back(&mut reader)?;
        if !reader.is_empty() {
            return Err(DecodeError::Invalid("end of a snapshot"));
        }
        let mut this = Self::without_paths(session, &config, now, age);
        for report in paths.final_reports() {
            this.path_marks.lost(report.path);
        }
        (this.paths, this.events) = (paths, events);
        Ok(this)
    }
}
