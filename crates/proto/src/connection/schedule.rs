//! Which path carries what: stream data as the scheduler decides, everything else on paths that can be
//! trusted.

use std::time::{Duration, Instant};

use super::Connection;
use crate::handover::{HandoverMode, Priority};
use crate::ids::PathId;
use crate::message::turns::Levels;
use crate::path::{First, Path};
use crate::scheduler::{self, Choice, PathSnapshot, SMALL_CHUNK, SchedulerKind, Snapshots};

/// Before anything was acknowledged on a further path, and on an empty slow one: one packet. To an address
/// that is not proven yet, three times as much may be sent as came from there (RFC 9000 §8.1).
const FIRST_CHUNK: u64 = 1200;
/// A path that is slower by so little is as good.
const AS_QUICK: Duration = Duration::from_millis(2);

/// What may go into a segment.
pub(super) struct Plan {
    /// Bytes of stream data.
    pub(super) chunk: u64,
    /// Of which urgency it may be.
    pub(super) levels: Levels,
    /// When there is no such data: what other paths carry, and this one would bring sooner.
    pub(super) again: bool,
    /// Parts of messages that shall go on two paths.
    pub(super) copies: bool,
    /// Control frames, and acknowledgements for other paths.
    pub(super) trusted: bool,
    /// An acknowledgement is due.
    pub(super) acks: bool,
}

impl Connection {
    /// What may go on `path` now; `None` if that is nothing.
    pub(super) fn plan(&mut self, now: Instant, id: PathId) -> Option<Plan> {
        self.run_messages(now);
        self.update_close(now);
        let path = self.paths.get_mut(id).filter(|p| p.stays())?;
        path.figures.set_room(true);
        let (active, opening) = (path.is_active(), path.is_opening());
        let starts = path.beginning.first() != First::Done;
        let asked = path.ping || (path.last_word && active);
        if active {
            self.reinject_suspects();
        }
        let levels = self.pacing.open_levels(now, self.session.levels());
        let chance = self.chance(id);
        let waiting = self.session.waiting(levels, chance);
        let copies = !opening && self.has_copies(chance);
        let again = self.may_send_again(id);
        // What waits may go beyond a limit only later.
        let held = waiting > 0 || copies || again;
        let room = if held { self.pacing.room(now, waiting) } else { u64::MAX };
        let chunk = self.stream_chunk(now, id, if room > 0 { waiting } else { 0 }).min(room);
        let (again, copies) = (again && room > 0 && (waiting == 0 || chunk > 0), copies && room > 0);
        let trusted = self.is_trusted(now, id);
        if opening && !starts {
            let room = self.segment_limit(id) > crate::draft::MIN_PIECE as u64;
            let plan = Plan { chunk, levels, again, copies: false, trusted, acks: false };
            return (room && (chunk > 0 || again)).then_some(plan);
        }
        let acks = self.acks_wait(now, id, trusted);
        let any = starts
            || asked
            || chunk > 0
            || again
            || copies
            || acks
            || (trusted && self.owes_datagrams(now))
            || (trusted && self.has_urgent_control() && self.is_quick(now, id));
        any.then_some(Plan { chunk, levels, again, copies, trusted, acks })
    }

    /// Several paths may carry data.
    pub(super) fn shares_paths(&self) -> bool {
        self.handover() != HandoverMode::Single
            && self.paths.len() > 1
            && self.paths.values().filter(|p| p.stays()).count() > 1
    }

    pub(super) fn stream_chunk(&self, now: Instant, id: PathId, waiting: u64) -> u64 {
        if waiting == 0 {
            return 0;
        }
        let opening = self.paths.get(id).is_some_and(Path::is_opening);
        if opening && self.opening_carrier() != Some(id) {
            return 0;
        }
        if !self.shares_paths() {
            return if self.single_path() == Some(id) { self.lone_chunk(id) } else { 0 };
        }
        match scheduler::decide(self.sharing.kind().scheduler(), self.snapshots(now), id, waiting) {
            Choice::Send(bytes) => bytes,
            Choice::Leave => 0,
        }
    }

    /// A path that takes over from others has a small window: what arrives in one round trip should be
    /// whole. Over QUIC a server may not even send as much as that at first. Later a slow path should not
    /// be busy with one stream for long while another begins; and what goes on one that is empty leaves as
    /// one packet, which is read before the second one is there.
    fn lone_chunk(&self, id: PathId) -> u64 {
        let Some(path) = self.paths.get(id) else { return 0 };
        let chunk = path.figures.chunk();
        let (is_slow, is_empty) = (chunk == SMALL_CHUNK, path.outgoing.in_flight() == 0);
        let is_new = id.0 > 0 && path.figures.rate().is_none();
        if is_new || (is_slow && is_empty) { FIRST_CHUNK } else { chunk }
    }

    /// Handover mode `single`: stream data goes on the newest path that is not suspect. As long as none is
    /// answered, on the first that may be.
    fn single_path(&self) -> Option<PathId> {
        let newest = self.paths.iter().rev().find(|(_, p)| p.is_active());
        newest.map(|(id, _)| id).or_else(|| self.opening_carrier())
    }

    /// The paths that may carry data, as they stand.
    pub(super) fn snapshots(&self, now: Instant) -> Snapshots {
        let usable = self
            .paths
            .iter()
            .filter(|(id, p)| p.is_active() || (p.is_opening() && self.opening_carrier() == Some(*id)));
        usable.map(|(id, path)| path.snapshot(id, now)).collect()
    }

    /// Whether acknowledgements and control frames may be entrusted to `path`: what goes on a path
    /// that stalls, or that nobody answered yet, is late although another path would be in time. A backup
    /// path carries nothing while a normal one works.
    pub(super) fn is_trusted(&self, now: Instant, id: PathId) -> bool {
        let sure = self.has_sure_path(now);
        let best = self.paths.values().filter(|p| p.stays()).map(|p| distrust(p, sure)).min();
        self.paths.get(id).map(|p| distrust(p, sure)) == best
    }

    /// No other path would bring a control frame noticeably sooner.
    pub(super) fn is_quick(&self, now: Instant, id: PathId) -> bool {
        let Some(here) = self.paths.get(id).filter(|_| self.shares_paths()) else {
            return true;
        };
        let sure = self.has_sure_path(now);
        let trusted = |p: &Path| distrust(p, sure) == distrust(here, sure);
        let quicker = |p: &Path| p.stays() && p.figures.has_room() && trusted(p) && is_slower(here, p);
        !self.paths.values().any(quicker)
    }

    /// A path works for sure, so none need be tried out. In mode `single` the newest is meant to take over.
    fn has_sure_path(&self, now: Instant) -> bool {
        self.shares_paths() && self.snapshots(now).iter().any(PathSnapshot::is_sure)
    }

    /// Whether an acknowledgement that waits may go on `id`.
    fn acks_wait(&self, now: Instant, id: PathId, trusted: bool) -> bool {
        let Some(here) = self.paths.get(id) else {
            return false;
        };
        let due = |p: &Path| p.incoming.is_due(now);
        let mut live = self.paths.iter().filter(|(_, p)| p.is_live());
        let shared = self.shares_paths();
        live.any(|(of, p)| due(p) && answers_for(here, id, p, of, trusted, shared))
    }

    /// The driver's carrier for `id` takes no more for now; it does again when the path is polled next. Other
    /// paths may then have something to send.
    pub fn path_blocked(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(id) {
            path.figures.set_room(false);
        }
    }

    /// Chooses how this side shares its data out among the paths.
    pub fn set_scheduler(&mut self, kind: SchedulerKind) {
        self.sharing.set_kind(kind);
        if !self.sharing.is_redundant() {
            self.paths.values_mut().for_each(|path| path.copies.clear());
        }
    }

    /// How this side shares its data out among the paths.
    #[must_use]
    pub fn scheduler(&self) -> SchedulerKind {
        self.sharing.kind()
    }
}

/// Whether `here` may tell what was received on the path `of`: its own news, and that of paths that
/// cannot tell it themselves. So round trips are measured on one path each, and no acknowledgement depends on
/// one.
pub(super) fn answers_for(
    here: &Path,
    id: PathId,
    path: &Path,
    of: PathId,
    trusted: bool,
    shared: bool,
) -> bool {
    if !trusted {
        return id == of && here.is_active() && shared;
    }
    id == of || !shared || !path.is_active() || !path.figures.has_room()
}

fn is_slower(path: &Path, than: &Path) -> bool {
    path.figures.srtt() > than.figures.srtt() * 5 / 4 + AS_QUICK
}

/// The less, the better; `sure`: a path is known to work.
fn distrust(path: &Path, sure: bool) -> impl Ord + use<> {
    let active = path.is_active();
    let backup = path.priority.value == Priority::Backup;
    (!active, active && sure && path.is_unproven(), active && backup)
}
