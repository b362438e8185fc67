//! Handover modes and path priorities: stated by either side, agreed upon by both, changed while the
//! connection lives.

use std::time::Instant;

use super::Connection;
use crate::content::Content;
use crate::draft::Draft;
use crate::event::Event;
use crate::frame::Frame;
use crate::handover::{Agreed, HandoverMode, Priority};
use crate::ids::{PathId, Side};
use crate::path::Path;

impl Connection {
    /// Sets the handover mode for both sides. The last word of either side counts, the client's if both speak
    /// at once.
    pub fn set_handover(&mut self, now: Instant, mode: HandoverMode) {
        if self.session.mode.state(mode) {
            self.apply_handover(now);
        }
    }

    /// The handover mode that holds.
    #[must_use]
    pub fn handover(&self) -> HandoverMode {
        self.session.mode.get()
    }

    /// Says whether a path shall carry data, or be a backup. The last word of either side counts.
    pub fn set_priority(&mut self, id: PathId, priority: Priority) {
        let side = self.side();
        if let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live())
            && path.priority.value != priority
        {
            path.priority.state(priority, side);
            self.path_marks.priority(id);
        }
    }

    pub(super) fn handover_heard(&mut self, now: Instant, mode: HandoverMode, sequence: u64) {
        if self.session.mode.hear(mode, sequence) {
            self.events.push(Event::HandoverChanged(mode));
            self.apply_handover(now);
        }
    }

    pub(super) fn priority_heard(&mut self, id: PathId, priority: Priority, sequence: u64) {
        let peer = self.side().peer();
        if let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live())
            && path.priority.hear(priority, sequence, peer)
        {
            self.events.push(Event::PriorityChanged(id, priority));
        }
    }

    /// What a path that is opened now should be: in mode `backup` the first one carries the data.
    pub(super) fn opening_priority(&self) -> Agreed<Priority> {
        let mut priority = Agreed::unsaid(Priority::Normal);
        let normal = |p: &Path| p.stays() && p.priority.value == Priority::Normal;
        if self.handover() == HandoverMode::Backup && self.paths.values().any(normal) {
            priority.state(Priority::Backup, self.side());
        }
        priority
    }

    /// Brings the paths into line with the mode. The client does it, who opens and retires paths; the server
    /// follows.
    fn apply_handover(&mut self, now: Instant) {
        if self.side() == Side::Server {
            return;
        }
        let Some(best) = self.best_path() else {
            return;
        };
        let live = self.paths.iter().filter(|(_, p)| p.is_live());
        let others: Vec<PathId> = live.map(|(id, _)| id).filter(|id| *id != best).collect();
        match self.handover() {
            HandoverMode::Full => {
                self.set_priority(best, Priority::Normal);
                others.into_iter().for_each(|id| self.set_priority(id, Priority::Normal));
            }
            HandoverMode::Backup => {
                self.set_priority(best, Priority::Normal);
                others.into_iter().for_each(|id| self.set_priority(id, Priority::Backup));
            }
            HandoverMode::Single => others.into_iter().for_each(|id| self.retire_or_lose(now, id)),
        }
    }

    /// The path to keep if it is to be only one.
    fn best_path(&self) -> Option<PathId> {
        let active = self.paths.iter().filter(|(_, p)| p.is_active());
        let rank = |p: &Path| (p.priority.value == Priority::Backup, p.figures.srtt());
        active.min_by_key(|(_, p)| rank(p)).map(|(id, _)| id)
    }

    /// Puts in what `here` may tell about the priorities of paths. The peer must know the path by then, so
    /// what is said of one that is opening goes on that path alone.
    pub(super) fn put_priorities(
        &mut self,
        here: PathId,
        draft: &mut Draft<'_>,
        fits: fn(&Draft<'_>) -> bool,
    ) {
        for id in self.path_marks.priorities().into_iter().filter(|id| *id != here) {
            if !self.paths.get(id).is_some_and(Path::is_opening) && fits(draft) {
                self.put_priority(id, draft);
            }
        }
        if fits(draft) {
            self.put_priority(here, draft);
        }
    }

    pub(super) fn put_priority(&mut self, id: PathId, draft: &mut Draft<'_>) {
        if !self.path_marks.take_priority(id) {
            return;
        }
        if let Some(path) = self.paths.get(id).filter(|p| p.is_live() && p.priority.is_by(self.side())) {
            let Agreed { value: priority, sequence, .. } = path.priority;
            let frame = Frame::PathPriority { path: id, sequence, priority };
            draft.put(&frame, Some(Content::Priority(id)));
        }
    }
}
