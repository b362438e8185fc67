//! One attempt to get a path: dial, join, and wait for the answer.
//!
//! QUIC opens, TCP carries: on the way to a peer that is some milliseconds away both carriers are dialled at
//! once. QUIC is answered a round trip sooner, because its first packets carry the JOIN and data. When TCP is
//! answered too, it takes over and the path over QUIC is retired: the kernel moves the same bytes at less
//! cost.
//!
//! Where large packets vanish on the way, TCP stands and its first flight is never acknowledged, because the
//! ClientHello alone needs a large one. Then TCP is dialled once more, with small segments, beside the one
//! that waits; the first that is answered wins.

use futures_util::FutureExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use smallvec::SmallVec;
use whimbrel_proto::{PathId, PathState};

use super::joining::{Joiner, Openings, Purpose};
use super::pending::{News, Pending, PendingPath};
use crate::carrier::CarrierKind;
use crate::dial::{Candidate, Dialled, Race, SegmentSize};

/// Paths of one attempt that may wait for answers at the same time.
const MAX_PENDING: usize = 4;
/// A path over TCP is opened so much later if data may be on its way over QUIC, whose answer is due by then:
/// what that path carries need not go twice.
const DUE: Duration = Duration::from_millis(3);

/// A carrier that stands, and since when.
struct Standing {
    dialled: Dialled,
    since: Instant,
}

/// One attempt: a race, and what came of it so far.
struct Attempt {
    joiner: Joiner,
    ways: Vec<Candidate>,
    race: Race,
    /// The race may bring further carriers.
    racing: bool,
    /// Carriers that wait for their turn.
    standing: Vec<Standing>,
    pending: Pending,
    /// A path over QUIC that was answered, which TCP is to take over from.
    predecessor: Option<PathId>,
    stands_by: bool,
    opened: Arc<Openings>,
}

impl Joiner {
    /// Dials, opens a path on each carrier that stands, and waits until the peer answers on one. Others are
    /// tried until then. What was opened meanwhile is given up if this is dropped. A path that `stands_by`
    /// says so before it carries anything. If QUIC was answered first, TCP may take over from it later, for
    /// which nobody waits.
    pub(crate) async fn attempt(
        &self,
        ways: Vec<Candidate>,
        stands_by: bool,
        opened: Arc<Openings>,
    ) -> Result<(), ()> {
        Attempt::new(self.clone(), ways, stands_by, opened).run().await
    }

    /// Gives paths up that were answered as well, perhaps at the same moment.
    fn retire(&self, paths: Vec<PathId>) {
        if paths.is_empty() {
            return;
        }
        self.shared.with(|state| {
            for path in paths {
                if state.engine.path_state(path) == Some(PathState::Active) {
                    state.engine.retire_path(Instant::now(), path);
                }
            }
        });
    }
}

/// How an attempt ended.
enum End {
    Answered(Box<PendingPath>),
    /// Nothing is left to try.
    Failed,
    /// The connection is over: no path is needed any more.
    Over,
}

impl Attempt {
    fn new(joiner: Joiner, ways: Vec<Candidate>, stands_by: bool, opened: Arc<Openings>) -> Self {
        let ahead = joiner.ahead.take(joiner.shared.wanted_peer(), &ways);
        let (race, dialled) = ahead.unwrap_or_else(|| (joiner.race(ways.clone()), Vec::new()));
        let since = Instant::now();
        let standing = dialled.into_iter().map(|dialled| Standing { dialled, since }).collect();
        let pending = Pending::default();
        Self { joiner, ways, race, racing: true, standing, pending, predecessor: None, stands_by, opened }
    }

    /// Dials all ways again, unless something was heard on one of them. What waits for an answer goes on
    /// waiting.
    fn dial_again(&mut self) {
        if self.predecessor.is_none() && self.pending.iter().all(|path| path.early) {
            self.race = self.joiner.race(self.ways.clone());
            self.racing = true;
        }
    }

    /// Returns once a path was answered, or nothing is left to try. Cancel-safe: what was opened is given up.
    async fn run(mut self) -> Result<(), ()> {
        match self.next_answer().await {
            End::Answered(path) => {
                self.answered(&path);
                self.retire_twins(&path);
                if self.has_successor(&path) {
                    self.predecessor = Some(path.id);
                    tokio::spawn(FutureExt::boxed(self.take_over(path.id)));
                } else {
                    self.joiner.retire(self.pending.iter().map(|other| other.id).collect());
                }
                Ok(())
            }
            End::Failed => {
                self.joiner.shared.want_other_peer();
                Err(())
            }
            End::Over => Ok(()),
        }
    }

    /// Paths that were opened beside one that was answered, over the same carrier, have their answers on the
    /// way, and perhaps data: they are retired when these are here, not given up before.
    fn retire_twins(&mut self, path: &PendingPath) {
        let mut twins = self.pending.take_twins_of(path);
        if twins.is_empty() {
            return;
        }
        let joiner = self.joiner.clone();
        joiner.shared.with(|state| twins.iter().for_each(|twin| state.engine.give_way(twin.id, path.id)));
        tokio::spawn(FutureExt::boxed(async move {
            while !twins.is_empty() {
                match twins.news(&joiner.shared).await {
                    News::Up(twin) => joiner.retire(vec![twin.id]),
                    News::Failed(_) => {}
                    News::Over => return,
                }
            }
        }));
    }

    /// Whether TCP is under way between the places of a path that was answered over QUIC. Nothing else is
    /// gone on with.
    fn has_successor(&mut self, path: &PendingPath) -> bool {
        if path.kind != CarrierKind::Quic || !self.race.prefers_tcp() {
            return false;
        }
        let is_sibling = |between, kind| between == path.between() && kind != CarrierKind::Quic;
        self.standing.retain(|next| is_sibling(next.dialled.between(), next.dialled.kind()));
        self.pending.retain(|other| is_sibling(other.between(), other.kind));
        self.racing &= self.race.narrow_to_tcp(path.between());
        self.racing || !self.standing.is_empty() || !self.pending.is_empty()
    }

    /// Waits until TCP is answered too, or has failed, or the path over QUIC is gone.
    async fn take_over(mut self, from: PathId) {
        let shared = self.joiner.shared.clone();
        let (joiner, opened) = (self.joiner.clone(), self.opened.clone());
        let gone = async {
            loop {
                let changed = shared.news.of_paths();
                tokio::pin!(changed);
                changed.as_mut().enable();
                // Another one that was dialled beside it may have taken its place.
                if joiner.over_quic(&opened).is_empty() {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            biased;
            end = self.next_answer() => match end {
                End::Answered(path) => {
                    tracing::debug!(connection = %shared.id, path = %path.id, %from, "takes over");
                    self.answered(&path);
                    self.joiner.retire(self.joiner.over_quic(&self.opened).to_vec());
                }
                // The peer may be gone, which nothing would tell while there is nothing to send.
                End::Failed => {
                    let paths = self.joiner.over_quic(&self.opened);
                    shared.with(|state| paths.iter().for_each(|path| state.engine.ping(Instant::now(), *path)));
                }
                End::Over => {}
            },
            () = gone => {}
        }
    }

    /// Waits for the next path that is answered.
    async fn next_answer(&mut self) -> End {
        let (shared, opened) = (self.joiner.shared.clone(), self.opened.clone());
        loop {
            let turn = self.open_what_may();
            self.dial_small_where_large_vanish();
            let turn = turn.into_iter().chain(self.pending.ask_at()).min();
            if !self.racing && self.pending.is_empty() && self.standing.is_empty() {
                return End::Failed;
            }
            let turn = async {
                match turn {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                news = self.pending.news(&shared) => match news {
                    News::Up(path) => return End::Answered(Box::new(path)),
                    News::Failed(path) => self.failed(&path),
                    News::Over => return End::Over,
                },
                dialled = self.race.next(), if self.racing => match dialled {
                    Ok(dialled) => self.standing.push(Standing { dialled, since: Instant::now() }),
                    Err(error) => {
                        tracing::debug!(connection = %shared.id, %error, "cannot dial");
                        self.racing = false;
                    }
                },
                () = turn => {}
                () = opened.asked_again() => self.dial_again(),
            }
        }
    }

    /// Opens paths on the carriers whose turn it is. Tells when the next one has its turn.
    fn open_what_may(&mut self) -> Option<Instant> {
        loop {
            let now = Instant::now();
            let turns = self.standing.iter().enumerate().map(|(index, next)| (self.turn(next), index));
            let (turn, index) = turns.min()?;
            if turn > now {
                return Some(turn);
            }
            if self.pending.len() >= MAX_PENDING
                && let Some(late) = self.pending.pop_oldest()
            {
                self.note_failure(&late);
            }
            let Standing { dialled, .. } = self.standing.remove(index);
            let purpose = self.purpose(&dialled);
            if let Some(path) = self.joiner.open_path(dialled, purpose) {
                self.opened.note(&path);
                self.pending.push(path);
            }
        }
    }

    fn dial_small_where_large_vanish(&mut self) {
        while let Some((way, kind)) = self.pending.next_too_large(Instant::now()) {
            tracing::debug!(remote = %way.remote, %kind, "large packets may vanish: dialling with small segments");
            self.race.dial_small(&way, kind);
            self.racing = true;
        }
    }

    /// The other carrier's paths between the places of `dialled`.
    fn siblings(&self, dialled: &Dialled) -> impl Iterator<Item = &PendingPath> {
        let is_quic = |kind| kind == CarrierKind::Quic;
        let (kind, between) = (dialled.kind(), dialled.between());
        let is_beside = move |path: &&PendingPath| path.between() == between;
        self.pending.iter().filter(is_beside).filter(move |path| is_quic(path.kind) != is_quic(kind))
    }

    fn purpose(&self, dialled: &Dialled) -> Purpose {
        let siblings: SmallVec<[PathId; 4]> = self.siblings(dialled).map(|path| path.id).collect();
        // A QUIC handshake that is complete has room for data; TLS over TCP may have begun before, and is not
        // so far.
        let is_quic = dialled.kind() == CarrierKind::Quic;
        let (predecessors, successor) = match self.predecessor {
            Some(_) => (self.joiner.over_quic(&self.opened), None),
            None if is_quic => (SmallVec::new(), siblings.first().copied()),
            None => (siblings, None),
        };
        let is_twin =
            |path: &&PendingPath| (path.between(), path.kind) == (dialled.between(), dialled.kind());
        Purpose {
            stands_by: self.stands_by,
            predecessors,
            successor,
            twins: self.pending.iter().filter(is_twin).map(|path| path.id).collect(),
            is_apart: self.pending.iter().any(|path| path.remote() != dialled.way.remote),
            repeats: (is_quic && !dialled.is_early())
                || self.pending.iter().any(|path| path.early || Self::is_small_twin(dialled, path)),
        }
    }

    /// Whether a carrier was dialled because another one between its places sent too large packets.
    fn is_small_twin(dialled: &Dialled, path: &PendingPath) -> bool {
        dialled.segments == SegmentSize::Small
            && path.segments == SegmentSize::Usual
            && (dialled.between(), dialled.kind()) == (path.between(), path.kind)
    }

    /// When a path may be opened on a carrier.
    fn turn(&self, next: &Standing) -> Instant {
        match (self.pending.oldest(), self.siblings(&next.dialled).next()) {
            (Some(oldest), _) if self.pending.len() >= MAX_PENDING => oldest.late_at(),
            _ if next.dialled.kind() == CarrierKind::Quic => next.since,
            (_, Some(sibling)) if sibling.early => next.since + DUE,
            // Its handshake is complete, so it is heard: the answer will come.
            (_, Some(sibling)) => sibling.late_at(),
            _ if self.race.awaits_quic(next.dialled.between()) => next.since + DUE,
            _ => next.since,
        }
    }

    fn answered(&mut self, path: &PendingPath) {
        self.note(path, true);
        self.race.answered(path.remote(), path.kind);
        let joiner = &self.joiner;
        let paths = joiner.shared.lock().engine.paths();
        if let Some(stats) = paths.iter().find(|stats| stats.id == path.id) {
            joiner.endpoint.reach.note_rtt(joiner.shared.peer(), stats.srtt);
            if let Some(place) = path.remote().behind() {
                joiner.weigh(place, stats.srtt, &path.way);
            }
        }
        let (twins, others): (Vec<_>, Vec<_>) = self.pending.iter().partition(|other| other.is_twin_of(path));
        others.into_iter().filter(|other| other.is_late()).for_each(|other| self.note_failure(other));
        let is_usual = |twin: &&PendingPath| twin.segments == SegmentSize::Usual;
        if path.segments == SegmentSize::Small && twins.iter().any(is_usual) {
            // The carrier works there, but for its size.
            self.joiner.endpoint.sizes.silent(path.local, path.remote().ip(), Instant::now());
        }
    }

    fn failed(&mut self, path: &PendingPath) {
        tracing::debug!(path = %path.id, remote = %path.remote(), kind = %path.kind, "path not answered");
        self.note_failure(path);
        // What the server tells once one was answered is good.
        if self.predecessor.is_none() {
            self.joiner.doubt_aliases(path.local, path.remote());
        }
        self.race.failed();
        // The relay had nobody behind it, or let go of one that had moved away: a server that comes back is
        // there at once, and must not wait until the last of all ways has had its time.
        let is_closed = path.kind != CarrierKind::Quic && Instant::now() < path.until;
        if is_closed && path.remote().relayed().is_some() && self.predecessor.is_none() {
            self.racing |= self.race.dial_once_more(&path.way, path.kind);
        }
    }

    fn note_failure(&self, path: &PendingPath) {
        // If either side is elsewhere now, that says nothing about the network.
        if self.joiner.is_present(path.local, path.remote()) {
            self.note(path, false);
        }
    }

    fn note(&self, path: &PendingPath, worked: bool) {
        let reach = &self.joiner.endpoint.reach;
        reach.note(path.local, path.remote(), path.kind, worked, Instant::now());
        // TCP stood, so small segments pass there.
        if !worked && path.kind != CarrierKind::Quic {
            self.joiner.endpoint.sizes.silent(path.local, path.remote().ip(), Instant::now());
        }
    }
}
