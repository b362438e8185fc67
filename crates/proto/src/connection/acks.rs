//! Telling what was received, on whatever path is there (`docs/lessons.md`, 8).

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::Connection;
use super::schedule::answers_for;
use crate::draft::{Draft, SMALL_FRAME};
use crate::frame::{self, Acks, Frame, PathReport};
use crate::ids::PathId;
use crate::path::Path;
use crate::varint;

/// With several paths the sender needs to know soon how each of them does.
const SHARED_DELAY: Duration = Duration::from_millis(5);

/// Paths of which a segment tells what was received, and whether it is its place to do so.
pub(super) type Told = SmallVec<[(PathId, bool); 2]>;

impl Connection {
    pub(super) fn owe_ack(&mut self, now: Instant, id: PathId, size: usize) {
        let longest = if self.shares_paths() { SHARED_DELAY } else { Duration::MAX };
        let delay = self.session.identity.params().max_ack_delay.min(longest);
        if let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live()) {
            path.incoming.owe(now, size, delay);
        }
    }

    /// Acknowledges, on `here`, what came in on the paths that it answers for. What another told some time
    /// ago is told along: that path may be dead in one direction.
    pub(super) fn put_acks(&self, now: Instant, here: PathId, trusted: bool, draft: &mut Draft<'_>) -> Told {
        let fitting = draft.room().saturating_sub(SMALL_FRAME) / SMALL_FRAME;
        let shared = self.shares_paths();
        let answered: SmallVec<[PathId; 4]> = match self.paths.get(here) {
            Some(path) if shared || !trusted => {
                let live = self.paths.iter().filter(|(_, p)| p.is_live());
                live.filter(|(of, p)| answers_for(path, here, p, *of, trusted, shared))
                    .map(|(of, _)| of)
                    .collect()
            }
            _ => SmallVec::new(),
        };
        let mut acks = Acks::new();
        let mut told = Told::new();
        let live = self.paths.iter().filter(|(_, p)| p.is_live());
        for (path, p) in live.take(fitting.min(frame::MAX_REPORTS)) {
            let answers = (!shared && trusted) || answered.contains(&path);
            let along = !answers && trusted && p.incoming.is_unheard(now, p.figures.srtt());
            if (answers && p.incoming.has_news()) || along {
                let delay = p.incoming.held_back(now).as_micros() as u64;
                let report = PathReport { path, received: p.incoming.segments() };
                acks.push((report, delay.min(varint::MAX)));
            }
            if answers || along {
                told.push((path, answers));
            }
        }
        // What is only told along is no reason to send anything, and acknowledgements of acknowledgements
        // would never end. (A path that retires is settled by its counts.)
        let asks = |p: &Path| p.incoming.is_owed() || p.is_retiring();
        let asked = |id| self.paths.get(id).is_some_and(asks);
        let any = acks.iter().any(|(report, _)| told.contains(&(report.path, true)) && asked(report.path));
        if any {
            draft.put(&Frame::Ack(acks), None);
        }
        told
    }

    /// The segment that [`put_acks`](Self::put_acks) put something into leaves.
    pub(super) fn note_told(&mut self, told: &Told) {
        for (id, answers) in told {
            match self.paths.get_mut(*id) {
                Some(path) if *answers => path.incoming.note_told(),
                Some(path) => path.incoming.note_told_along(),
                None => {}
            }
        }
    }
}
