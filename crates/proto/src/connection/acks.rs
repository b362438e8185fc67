//! Telling what was received, on whatever path is there (DESIGN §10.8).

use std::time::{Duration, Instant};

use smallvec::SmallVec;

use super::Connection;
use super::draft::Draft;
use super::schedule::answers_for;
use super::transmit::SMALL_FRAME;
use crate::frame::{self, Acks, Frame, PathReport};
use crate::ids::PathId;
use crate::path::{Path, PathState};
use crate::varint;

/// So many bytes are acknowledged at once; fewer after the acknowledgement delay.
const ACK_BYTES: u64 = 256 * 1024;
/// With several paths the sender needs to know soon how each of them does.
const SHARED_DELAY: Duration = Duration::from_millis(5);

/// Paths of which a segment tells what was received, and whether it is its place to do so.
pub(super) type Told = SmallVec<[(PathId, bool); 2]>;

impl Connection {
    pub(super) fn owe_ack(&mut self, now: Instant, id: PathId, size: usize) {
        let longest = if self.shares_paths() { SHARED_DELAY } else { Duration::MAX };
        let delay = self.config.params.max_ack_delay.min(longest);
        let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live()) else {
            return;
        };
        path.newest_eliciting = now;
        path.unreported_bytes += size as u64;
        let last = path.peer_end == Some(path.received);
        if path.unreported_bytes >= ACK_BYTES || last {
            path.ack_due = true;
            path.ack_deadline = None;
        } else if !path.ack_due {
            path.ack_deadline.get_or_insert(now + delay);
        }
    }

    /// Acknowledges, on `here`, what came in on the paths that it answers for. What another told some time ago is told along: that
    /// path may be dead in one direction.
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
            let along = !answers && trusted && p.is_unheard(now);
            if (answers && p.received > p.reported) || along {
                let delay = now.saturating_duration_since(p.newest_eliciting).as_micros() as u64;
                let report = PathReport { path, received: p.received };
                acks.push((report, delay.min(varint::MAX)));
            }
            if answers || along {
                told.push((path, answers));
            }
        }
        // What is only told along is no reason to send anything, and acknowledgements of acknowledgements would never end.
        // (A path that retires is settled by its counts.)
        let asks = |p: &Path| p.ack_due || p.unreported_bytes > 0 || p.state == PathState::Retiring;
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
                Some(path) if *answers => {
                    path.reported = path.received;
                    path.ack_deadline = None;
                    path.ack_due = false;
                    path.unreported_bytes = 0;
                }
                Some(path) => path.told_along = path.received,
                None => {}
            }
        }
    }
}
