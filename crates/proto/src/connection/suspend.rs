//! A connection without paths, written down and read again.

use std::time::{Duration, Instant};

use super::Connection;
use crate::config::Config;
use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::error::{CloseCode, DecodeError, ProtocolError};
use crate::event::{Event, Events, PathEnd};
use crate::frame::{Frame, Resumed};
use crate::ids::{PathId, Side};
use crate::notice::{Notice, NoticeKey};
use crate::pacing::Pacing;
use crate::path::Path;
use crate::path_table::PathTable;
use crate::secret::Secret;
use crate::session::Session;
use crate::session::identity::Identity;
use crate::session::tenure::Verdict;
use crate::snapshot::{self, OLDEST, VERSION};
use crate::timeouts::Timeouts;
use crate::varint::Reader;

impl Connection {
    /// Writes the connection down: [`restore`](Self::restore) goes on where this was written. `None` unless
    /// the connection is established, not over, and without a path.
    ///
    /// The bytes hold the connection's secrets and what was not delivered or read. Whoever keeps them must
    /// encrypt and authenticate them, and see to it that only one restored copy goes on.
    #[must_use]
    pub fn snapshot(&self) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        self.write_snapshot(&mut out).then_some(out)
    }

    /// As [`snapshot`](Self::snapshot), behind other bytes. False: there is none.
    pub(super) fn write_snapshot(&self, out: &mut Vec<u8>) -> bool {
        if !self.is_established() || self.is_closed() || self.paths.values().any(Path::is_live) {
            return false;
        }
        out.push(VERSION);
        snapshot::number(out, self.clock.told().as_micros() as u64);
        self.session.write_down(out);
        self.paths.write_down(out);
        self.timeouts.write_down(out);
        self.pacing.write_down(out);
        self.session.messages.sender.write_tallies_down(out);
        true
    }

    /// Reads a connection back that was written down, without a path. Events tell the application which
    /// streams it has to look at. If the peer knows how, this copy claims the connection with `nonce`, which
    /// must be fresh, unpredictable bytes: of several copies the peer takes the first that comes.
    ///
    /// # Errors
    /// [`DecodeError`] if these are not the bytes of a snapshot, or of another version.
    pub fn restore(config: Config, bytes: &[u8], nonce: [u8; 32], now: Instant) -> Result<Self, DecodeError> {
        Self::read_back(config, bytes, now, |identity| {
            identity.claim(nonce);
            true
        })
    }

    /// `claim` says whether this copy may have the connection.
    pub(super) fn read_back(
        mut config: Config,
        bytes: &[u8],
        now: Instant,
        claim: impl FnOnce(&mut Identity) -> bool,
    ) -> Result<Self, DecodeError> {
        config.keep_promises();
        let mut reader = Reader::new(bytes);
        let version = reader.byte()?;
        if !(OLDEST..=VERSION).contains(&version) {
            return Err(DecodeError::Invalid("version of a snapshot"));
        }
        let age = Duration::from_micros(reader.varint()?);
        let mut events = Events::default();
        let mut session = Session::read_back(&mut reader, version, &config, &mut events)?;
        if !claim(&mut session.identity) {
            return Err(DecodeError::Invalid("assignment"));
        }
        let paths = PathTable::read_back(&mut reader, session.identity.side())?;
        let mut pacing = Pacing::default();
        if version > OLDEST {
            config.timeouts = Timeouts::read_back(&mut reader, version)?;
            pacing = Pacing::read_back(&mut reader, now)?;
            session.messages.sender.read_tallies_back(&mut reader)?;
        }
        if !reader.is_empty() {
            return Err(DecodeError::Invalid("end of a snapshot"));
        }
        let mut this = Self::without_paths(session, &config, now, age);
        for report in paths.final_reports() {
            this.path_marks.lost(report.path);
        }
        (this.paths, this.pacing, this.events) = (paths, pacing, events);
        Ok(this)
    }

    /// Tells the peer that this side leaves, to be written down: [`Event::SuspendHeard`] says that it knows.
    /// Then [`detach`](Self::detach). Does nothing if the peer does not know SUSPEND.
    pub fn suspend(&mut self) {
        if self.session.identity.both_suspend() {
            self.session.identity.tenure.leave();
        }
    }

    /// Whether the peer knows that this side leaves, or cannot be told.
    #[must_use]
    pub fn may_detach(&self) -> bool {
        let identity = &self.session.identity;
        identity.tenure.is_leave_heard() || !identity.both_suspend() || !self.has_active_path()
    }

    /// Gives all paths up, writes the connection down, and ends it on this side with
    /// [`CloseCode::SUSPENDED`]: what arrived and was not read is in the snapshot, and nowhere else. `None`, and
    /// it goes on without paths, if there is nothing to write down yet or any more.
    pub fn put_to_sleep(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.detach(now);
        let snapshot = self.snapshot()?;
        self.give_up(CloseCode::SUSPENDED, "");
        self.session.let_go();
        Some(snapshot)
    }

    /// Gives all paths up, so that [`snapshot`](Self::snapshot) can write the connection down.
    pub fn detach(&mut self, now: Instant) {
        let live: Vec<_> = self.paths.iter().filter(|(_, path)| path.is_live()).map(|(id, _)| id).collect();
        live.into_iter().for_each(|id| self.path_lost(now, id));
    }

    /// The peer was written down, and has not come back.
    #[cfg(feature = "fuzzing")]
    #[must_use]
    pub fn is_peer_suspended(&self) -> bool {
        self.session.identity.tenure.is_peer_away()
    }

    /// This side was read back, and the peer has not confirmed that it goes on with this copy.
    #[must_use]
    pub fn is_claiming(&self) -> bool {
        self.session.identity.tenure.is_unheard()
    }

    /// Client: what the notices of the server's copy of before are made with, since another one has the
    /// connection, and what that copy is [told](Notice::Superseded) if it sends any.
    #[must_use]
    pub fn superseded_copy(&self) -> Option<(NoticeKey, Notice)> {
        let former = self.session.notices.former()?.clone();
        let (generation, nonce) = self.session.identity.tenure.peers_copy()?;
        Some((former, Notice::Superseded { generation, nonce }))
    }

    /// Server: as [`notice_key`](Self::notice_key), before this copy claimed the connection: the client may
    /// know no other. `None` once it is known to have heard of the claim.
    #[must_use]
    pub fn former_notice_key(&self) -> Option<NoticeKey> {
        self.session.identity.tenure.secret_before().map(Secret::notice_key)
    }

    /// Server: an authentic notice says that the client goes on with the copy of this generation and nonce.
    /// Ends the connection with [`CloseCode::SUPERSEDED`] if that is another one. A copy that another owner
    /// tries to go on with waits for that one's word.
    pub fn hear_superseded(&mut self, generation: u64, nonce: &[u8; 32]) {
        let is_over = self.side() == Side::Server
            && self.session.identity.both_suspend()
            && !self.held
            && self.session.identity.tenure.is_superseded_by(generation, nonce);
        if is_over {
            self.give_up(CloseCode::SUPERSEDED, "");
        }
    }

    pub(super) fn put_suspend(&mut self, draft: &mut Draft<'_>) {
        if draft.room() >= SMALL_FRAME
            && let Some(generation) = self.session.identity.tenure.take_leave()
        {
            draft.put(&Frame::Suspend(generation), Some(Content::Suspend));
        }
    }

    pub(super) fn suspend_heard(&mut self, generation: u64) -> Result<(), ProtocolError> {
        if !self.session.identity.both_suspend() {
            return Err(ProtocolError::Unexpected("SUSPEND"));
        }
        if self.session.identity.tenure.peer_leaves(generation) {
            self.events.push(Event::PeerSuspended);
        }
        Ok(())
    }

    pub(super) fn leave_heard(&mut self) {
        self.session.identity.tenure.leave_heard();
        self.events.push(Event::SuspendHeard);
    }

    /// The peer's present copy has a path again.
    pub(super) fn note_peer_back(&mut self) {
        if self.session.identity.tenure.peer_is_back() {
            self.events.push(Event::PeerResumed);
        }
    }

    /// Client: the server that answered was read back.
    pub(super) fn resumed_heard(
        &mut self,
        now: Instant,
        path: PathId,
        resumed: &Resumed,
    ) -> Result<(), ProtocolError> {
        let knows = self.session.identity.both_suspend() && self.was_joined(path);
        if self.side() == Side::Server || !knows {
            return Err(ProtocolError::Unexpected("RESUMED"));
        }
        let former = self.notice_key();
        match self.session.identity.hear_resumed(path, resumed) {
            Verdict::Current => {}
            Verdict::New => {
                self.session.notices.supersede(former);
                // It goes on under its key: what it may have signed before is void.
                self.session.identity.tenure.expect_nobody();
                self.lose_all_but(now, path);
            }
            // Another copy of the server has the connection, whatever this one says.
            Verdict::Superseded | Verdict::Wrong => {
                self.lose_path(now, path, PathEnd::Refused);
                return Ok(());
            }
        }
        self.note_peer_back();
        self.path_answered(now, path, &resumed.lost)?;
        self.joined += 1;
        Ok(())
    }
}
