//! Retiring paths: neither side sends on them any more, and they end when all that was sent has arrived.

use std::time::Instant;

use super::Connection;
use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::error::ProtocolError;
use crate::event::PathEnd;
use crate::frame::Frame;
use crate::ids::{PathId, Side};
use crate::path::{Path, PathState};

impl Connection {
    /// Client: ends a path without losing anything on it. Nothing more is sent there; when all that was sent,
    /// in both directions, has arrived, [`Event::PathDown`](crate::Event::PathDown) says that its carrier may
    /// be closed. Until then its state is [`PathState::Retiring`]; if it stalls it is lost like any other
    /// path.
    ///
    /// A path that is not active, and any path to a peer that does not know RETIRE, is lost at once. False,
    /// and nothing happens, if no other path is active.
    pub fn retire_path(&mut self, now: Instant, id: PathId) -> bool {
        debug_assert_eq!(self.side(), Side::Client);
        if !self.paths.iter().any(|(of, path)| of != id && path.is_active()) {
            return false;
        }
        let is_active = |id: &PathId| self.paths.get(*id).is_some_and(Path::is_active);
        let successor = self.paths.get(id).and_then(|path| path.succession.gives_way_to(is_active));
        if let Some(successor) = successor {
            self.replace(id, successor);
        }
        self.retire_or_lose(now, id);
        true
    }

    /// Paths that were to [keep](Self::keep_as_backup), or [give way to](Self::give_way), one that is retired
    /// now keep, or give way to, that which takes its place.
    pub(super) fn replace(&mut self, old: PathId, successor: PathId) {
        for (_, path) in self.paths.iter_mut().filter(|(id, _)| *id != successor) {
            path.succession.replace(old, successor);
        }
    }

    /// Retires a path if that is possible, else gives it up.
    pub(super) fn retire_or_lose(&mut self, now: Instant, id: PathId) {
        match self.paths.get(id).map(Path::state) {
            Some(PathState::Active) if self.session.identity.both_retire() => self.begin_retiring(now, id),
            Some(PathState::Retiring) => {}
            _ => self.lose_path(now, id, PathEnd::Here),
        }
    }

    fn begin_retiring(&mut self, now: Instant, id: PathId) {
        // Its acknowledgements come on other paths, which may be slower.
        let silence = self.silence();
        let patience = self.paths.values().filter(|p| p.stays()).map(|p| p.patience(silence)).max();
        if let Some(path) = self.paths.get_mut(id) {
            path.retire(now, patience.unwrap_or_default(), self.timeouts.last_words);
            self.path_marks.retire(id);
        }
        self.note_drained(id);
    }

    /// The peer has put `segments` on the path, and will not put more.
    pub(super) fn retire_heard(
        &mut self,
        now: Instant,
        id: PathId,
        segments: u64,
    ) -> Result<(), ProtocolError> {
        let Some(path) = self.paths.get_mut(id).filter(|path| path.is_live()) else {
            // Its final count was told, or will be.
            return Ok(());
        };
        if path.is_opening() || !path.incoming.ends_at(segments) {
            return Err(ProtocolError::Unexpected("RETIRE"));
        }
        if path.is_retiring() {
            self.note_drained(id);
        } else {
            self.begin_retiring(now, id);
        }
        Ok(())
    }

    /// If nothing is missing on a retiring path any more, in either direction: tells its final count. Its
    /// carrier stays until the peer has heard that, since its end must not look like a loss.
    pub(super) fn note_drained(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(id)
            && path.drain()
        {
            self.path_marks.lost(id);
        }
    }

    pub(super) fn put_retires(&mut self, draft: &mut Draft<'_>) {
        while draft.room() >= SMALL_FRAME
            && let Some(id) = self.path_marks.pop_retire()
        {
            if let Some(path) = self.paths.get(id).filter(|path| path.is_retiring()) {
                let frame = Frame::Retire { path: id, segments: path.outgoing.count() };
                draft.put(&frame, Some(Content::Retire(id)));
            }
        }
    }
}
