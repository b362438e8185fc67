//! Opening, joining, losing and settling paths.

use std::time::{Duration, Instant};

use whimbrel_base::EndpointId;

use super::Connection;
use super::join_error::JoinError;
use super::receive::Heard;
use crate::content::Content;
use crate::error::ProtocolError;
use crate::event::{Event, PathEnd};
use crate::frame::{Join, MAX_REPORTS, Open, PathReport, Resume};
use crate::handover::{HandoverMode, Priority};
use crate::ids::{PathId, Side};
use crate::path::{First, Path};
use crate::session::tenure::{Judgement, Verdict};

/// Lost paths that are not settled yet; a client that has this many opens further ones without
/// sending data early, so that they leave nothing behind when they fail.
const MAX_UNSETTLED: usize = MAX_REPORTS / 2;
/// OPENs that were not answered and are told of in the next one; more are forgotten.
const MAX_OPENS_TOLD: usize = 16;
/// Lost paths that are kept until they are settled. Beyond, the oldest are forgotten: what they
/// carried goes again anyway, and duplicates are dropped by offset.
const MAX_LOST: usize = MAX_REPORTS;
/// Live paths that a server keeps for a connection; beyond, the oldest make room.
pub const MAX_PATHS: usize = 16;

impl Connection {
    /// Client: the connection is not over, or the server may still wait for our word on its end.
    #[must_use]
    pub fn may_open_path(&self) -> bool {
        !self.held && (!self.is_closed() || self.session.ending.owes_farewell())
    }

    /// Client: adds a path over a fresh carrier. `rtt` is what opening the carrier took;
    /// `early_limit` bounds the bytes sent before the peer answers (TLS early data); the frame that
    /// asks for the path, at most 4 KiB, goes in any case. `None` if no path [may be
    /// opened](Self::may_open_path).
    ///
    /// Several paths may be opening at the same time, those of a new connection too. Until one of them is
    /// answered, stream data goes on the first of them; see [`repeat_opening`](Self::repeat_opening) and
    /// [`leads_elsewhere`](Self::leads_elsewhere).
    pub fn open_path(&mut self, now: Instant, rtt: Option<Duration>, early_limit: u64) -> Option<PathId> {
        self.open_path_to(now, self.peer(), rtt, early_limit)
    }

    /// Client: as [`open_path`](Self::open_path), over a carrier at whose other end is this key: the
    /// server's, or the one that it [may have by now](Self::expected_peer).
    pub fn open_path_to(
        &mut self,
        now: Instant,
        server: EndpointId,
        rtt: Option<Duration>,
        early_limit: u64,
    ) -> Option<PathId> {
        debug_assert_eq!(self.side(), Side::Client);
        let is_server = server == self.peer() || self.expected_peer() == Some(server);
        if !self.may_open_path() || !is_server {
            return None;
        }
        let id = self.paths.give_id();
        let is_changed = server != self.peer() || self.is_untaken();
        let first = match self.is_established() {
            false => First::Open,
            true if is_changed => First::TakeOver,
            true => First::Join,
        };
        // Nothing goes to another key before that has shown that the server's owner meant it.
        let may_be_early = self.paths.unsettled() < MAX_UNSETTLED && server == self.peer();
        let early_limit = if may_be_early { early_limit } else { 0 };
        let mut path = Path::new(first, now, rtt, early_limit);
        path.beginning.set_meets(is_changed.then_some(server));
        path.priority = self.opening_priority();
        if path.priority.is_by(self.side()) {
            self.path_marks.priority(id);
        }
        self.paths.insert(id, path);
        self.contact.attached();
        Some(id)
    }

    /// Whether a path works on which what this side sends arrives, as far as anything shows it: the peer has
    /// acknowledged some of it, or the carrier's handshake is complete.
    #[must_use]
    pub fn is_heard(&self) -> bool {
        self.paths.iter().any(|(_, path)| path.is_active() && !path.is_unproven())
    }

    /// Client: `path` gives way to `other`, which was opened before it: if the other one is answered first,
    /// `path` retires as soon as it is answered too, in mode `single`. It may give way to several.
    pub fn give_way(&mut self, path: PathId, other: PathId) {
        if let Some(path) = self.paths.get_mut(path) {
            path.succession.give_way(other);
        }
    }

    /// Client: has the newest path that is opening carry what opening paths before it carry, and what
    /// follows. For use when another path was opened since and the answer to the first is overdue. What is
    /// acknowledged before it could be sent does not go again. Does nothing while a path is answered, since
    /// that one carries the data.
    pub fn repeat_opening(&mut self) {
        if self.paths.values().any(|p| p.is_live() && !p.is_opening()) {
            return;
        }
        let mut contents = Vec::new();
        let mut opening = self.paths.values_mut().rev().filter(|p| p.is_opening());
        let newest = opening.next();
        for path in opening.filter(|p| !p.beginning.is_passed_over()) {
            path.beginning.set_passed_over(true);
            contents.extend(path.repeat_elsewhere());
        }
        if let Some(path) = newest {
            path.beginning.set_passed_over(false);
        }
        self.put_back_reinjected(contents);
    }

    /// Client: `path` leads elsewhere than one that was opened before it and is not answered. What little is
    /// said while both are opening goes on both, since the answer may come from either.
    pub fn leads_elsewhere(&mut self, path: PathId) {
        if let Some(path) = self.paths.get_mut(path) {
            path.beginning.lead_elsewhere();
        }
    }

    /// Of the paths that are opening the one that carries data, as long as none is answered.
    pub(super) fn opening_carrier(&self) -> Option<PathId> {
        let opening = || self.paths.iter().filter(|(_, p)| p.is_opening());
        let first = opening().find(|(_, p)| !p.beginning.is_passed_over());
        first.or_else(|| opening().next_back()).map(|(id, _)| id)
    }

    /// The path began with an OPEN.
    pub(super) fn was_opened_by_open(&self, id: PathId) -> bool {
        self.paths.get(id).is_some_and(|path| path.beginning.is_by_open())
    }

    /// The path began with a JOIN or RESUME.
    pub(super) fn was_joined(&self, id: PathId) -> bool {
        let began = self.paths.get(id).map(|path| &path.beginning);
        began.is_some_and(|began| !began.is_by_open() && began.meets().is_none())
    }

    /// Server: takes the path of an OPEN into a new connection.
    pub(super) fn accept_open(&mut self, open: &Open, now: Instant) {
        self.paths.insert(open.path, Path::new(First::Accept, now, None, u64::MAX));
        self.contact.attached();
        self.note_reached(now);
        for report in &open.lost {
            // Nothing can have been received from paths that came before the connection.
            self.answer_unseen(report.path);
        }
    }

    /// Server: a further OPEN of this connection, over another path. It is answered like the first, and both
    /// paths stay, unless the OPEN says that the client gave the other one up.
    ///
    /// # Errors
    /// [`JoinError`] if this is not an OPEN of the same client, or one that was seen before.
    pub fn reopen(&mut self, now: Instant, open: &Open) -> Result<(), JoinError> {
        self.check_not_held()?;
        if self.is_closed() {
            return Err(JoinError::Closed);
        }
        // A client that does not know RETIRE has one OPEN under way at most.
        let equal = self.session.identity.both_retire();
        if !self.session.identity.is_peer_random(&open.random) || (self.is_confirmed() && !equal) {
            return Err(JoinError::AlreadyOpen);
        }
        self.check_path_id(open.path)?;
        if !equal {
            if !self.paths.is_highest(open.path) {
                return Err(JoinError::PathIdReused);
            }
            self.lose_all_but(now, open.path);
            for path in self.paths.values_mut() {
                // The client saw no answer, so nothing of ours arrived on them.
                path.final_heard();
            }
        }
        self.add_server_path(now, open.path, First::Accept, &open.lost);
        Ok(())
    }

    /// Server: lets a path into the connection whose TLS peer is the connection's peer. Hand the
    /// path's whole first segment to [`handle_segment`](Self::handle_segment) next.
    ///
    /// # Errors
    /// [`JoinError`] if the proof or the path id is wrong.
    pub fn join(&mut self, now: Instant, join: &Join) -> Result<(), JoinError> {
        self.check_not_held()?;
        let Judgement { verdict, tells_claim } = self.session.identity.hear_join(join);
        let first = if tells_claim { First::Resumed } else { First::Joined };
        self.let_in(now, verdict, join.path, first, &join.lost)
    }

    /// Server: as [`join`](Self::join), for a client that was written down and read back. The first copy of
    /// it that comes has the connection, and what the one before it has is over.
    ///
    /// # Errors
    /// As [`join`](Self::join); [`JoinError::Superseded`] for any other copy.
    pub fn resume(&mut self, now: Instant, resume: &Resume) -> Result<(), JoinError> {
        self.check_not_held()?;
        if !self.session.identity.both_suspend() {
            return Err(JoinError::BadProof);
        }
        let Judgement { verdict, tells_claim } = self.session.identity.hear_resume(resume);
        let first = if tells_claim { First::Resumed } else { First::Joined };
        self.let_in(now, verdict, resume.path, first, &resume.lost)
    }

    pub(super) fn let_in(
        &mut self,
        now: Instant,
        verdict: Verdict,
        path: PathId,
        first: First,
        lost: &[PathReport],
    ) -> Result<(), JoinError> {
        match verdict {
            Verdict::Current => {}
            Verdict::New => self.lose_all_but(now, path),
            Verdict::Superseded => return Err(JoinError::Superseded),
            Verdict::Wrong => return Err(JoinError::BadProof),
        }
        self.check_path_id(path)?;
        if self.is_over() {
            return Err(JoinError::Closed);
        }
        self.session.identity.confirm();
        self.note_peer_back();
        self.joined += 1;
        self.add_server_path(now, path, first, lost);
        Ok(())
    }

    pub(super) fn check_path_id(&self, path: PathId) -> Result<(), JoinError> {
        if self.paths.is_fresh(path) { Ok(()) } else { Err(JoinError::PathIdReused) }
    }

    fn add_server_path(&mut self, now: Instant, id: PathId, first: First, lost: &[PathReport]) {
        self.paths.insert(id, Path::new(first, now, None, u64::MAX));
        self.contact.attached();
        self.note_reached(now);
        let live = self.paths.iter().filter(|(_, p)| p.is_live());
        let mut live: Vec<PathId> = live.map(|(id, _)| id).collect();
        live.truncate(live.len().saturating_sub(MAX_PATHS));
        for oldest in live {
            self.lose_path(now, oldest, PathEnd::Retired);
        }
        for report in lost {
            self.learn_final(now, *report);
        }
        self.events.push(Event::PathUp(id));
    }

    /// A carrier is gone, or its path is given up: what it had not delivered goes again elsewhere.
    pub fn path_lost(&mut self, now: Instant, id: PathId) {
        self.lose_path(now, id, PathEnd::Here);
    }

    /// As [`path_lost`](Self::path_lost), for a reason that the engine knows.
    pub(super) fn lose_path(&mut self, now: Instant, id: PathId, why: PathEnd) {
        let Some(path) = self.paths.get_mut(id).filter(|p| p.is_live()) else {
            return;
        };
        let why = match why {
            PathEnd::Here | PathEnd::ByPeer if path.is_retiring() => PathEnd::Retired,
            PathEnd::Here | PathEnd::ByPeer if path.is_suspect() => PathEnd::Silent,
            why => why,
        };
        let owes_word = path.lose();
        let forgettable = path.outgoing.is_unheard()
            && path.incoming.segments() == 0
            && path.outgoing.contents().all(is_first_flight);
        self.events.push(Event::PathDown(id, why));
        // The peer may never have heard of it, and nothing hangs on it. But if another path is
        // there it costs nothing to say so, and the peer might be sending on it.
        let forgettable =
            forgettable && !self.paths.values().any(Path::is_live) && !self.should_report_open();
        if forgettable && self.side() == Side::Client {
            let path = self.paths.remove(id);
            for content in path.iter().flat_map(|p| p.outgoing.contents()) {
                self.mark(content);
            }
        } else {
            self.requeue(id);
            if owes_word {
                self.path_marks.lost(id);
            }
            self.forget_oldest_lost();
        }
        self.tell_counts_again();
        if !self.paths.values().any(Path::is_live) {
            self.contact.detached(now);
        }
        self.note_contact(now);
        self.close_unheard();
    }

    /// Client, before the first answer: a server that heard an OPEN keeps its path until it is told that the
    /// client does not. The newest ones are told.
    fn should_report_open(&self) -> bool {
        !self.is_established() && self.paths.unsettled() <= MAX_OPENS_TOLD
    }

    /// What was acknowledged on a path that died may not have arrived.
    pub(super) fn tell_counts_again(&mut self) {
        let live = self.paths.values_mut().filter(|p| p.is_live());
        live.for_each(|path| path.incoming.tell_again());
    }

    fn forget_oldest_lost(&mut self) {
        while let Some(id) = self.paths.forget_oldest_lost(MAX_LOST) {
            self.path_marks.lost_told(id);
        }
    }

    pub(super) fn lose_all_but(&mut self, now: Instant, keep: PathId) {
        self.session.candidates.peer_changed();
        self.session.observed.peer_changed();
        let others: Vec<PathId> =
            self.paths.iter().filter(|(id, path)| *id != keep && path.is_live()).map(|(id, _)| id).collect();
        for id in others {
            self.lose_path(now, id, PathEnd::ByPeer);
        }
    }

    /// Puts what the path has not delivered back into the queues.
    fn requeue(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(id) {
            path.copies.clear();
            let (contents, flying) = (path.outgoing.give_back(), path.datagrams.leaving.give_up());
            self.put_back(contents);
            self.datagrams_lost(&flying);
        }
    }

    /// Returns how many bytes of streams will go again.
    pub(super) fn put_back(&mut self, contents: Vec<Content>) -> u64 {
        let mut bytes = 0;
        for content in contents {
            match content {
                Content::Stream { elsewhere: true, .. } => {}
                Content::Stream { id, range, fin, .. } => {
                    bytes += self.session.streams.put_back(id, range, fin);
                }
                Content::Message { elsewhere: true, .. } | Content::Messages { elsewhere: true, .. } => {}
                Content::Messages { ids, .. } => {
                    self.session.messages.sender.all_come_back(ids, &mut self.events);
                }
                Content::Message { id, range, .. } => {
                    let range = range.start.into()..range.end.into();
                    self.session.messages.sender.come_back(id, range, &mut self.events);
                }
                content => self.mark(&content),
            }
        }
        bytes
    }

    /// Has what a lost segment said be said again. Stream data is left alone.
    fn mark(&mut self, content: &Content) {
        if let Content::Datagrams(id) = content
            && let Some(path) = self.paths.get_mut(*id).filter(|path| path.is_live())
        {
            path.datagrams.arriving.owe_now();
        }
        self.path_marks.mark(content);
        self.session.mark(content);
    }

    /// The peer gave a path up and tells what it received on it, for good.
    pub(super) fn learn_final(&mut self, now: Instant, report: PathReport) {
        let Some(path) = self.paths.get(report.path) else {
            // Settled and forgotten, or never seen here: then nothing was received.
            // A client's own repeated answer (received 0) needs none, or answers would never end.
            if self.side() == Side::Server || report.received > 0 {
                self.answer_unseen(report.path);
            }
            return;
        };
        if path.has_heard_final() {
            return;
        }
        // A lying peer hurts only itself: counts above what was sent are cut.
        let count = report.received.min(path.outgoing.count());
        self.apply_ack(now, report.path, count, Heard::Finally);
        self.lose_path(now, report.path, PathEnd::ByPeer);
        if let Some(path) = self.paths.get_mut(report.path) {
            path.final_heard();
        }
        self.forget_settled(report.path);
    }

    /// Will tell the peer that nothing was received on a path, once, until it is acknowledged.
    fn answer_unseen(&mut self, path: PathId) {
        if self.side() == Side::Server {
            // A path that was called unseen must stay so, however late its bytes arrive.
            self.paths.spend(path);
        }
        if self.paths.note_unseen(path) {
            self.path_marks.lost(path);
        }
    }

    /// Our own final count of a lost path has reached the peer.
    pub(super) fn final_was_told(&mut self, now: Instant, id: PathId) {
        self.paths.unseen_told(id);
        if self.paths.get_mut(id).is_some_and(Path::final_told) {
            self.lose_path(now, id, PathEnd::Retired);
            if let Some(path) = self.paths.get_mut(id) {
                path.final_told();
            }
        }
        self.forget_settled(id);
    }

    fn forget_settled(&mut self, id: PathId) {
        if self.paths.get(id).is_some_and(Path::is_settled) {
            self.paths.remove(id);
            self.path_marks.lost_told(id);
        }
    }

    /// The peer answered our OPEN or JOIN on `id`.
    pub(super) fn path_answered(
        &mut self,
        now: Instant,
        id: PathId,
        lost: &[PathReport],
    ) -> Result<(), ProtocolError> {
        let path = self.paths.get_mut(id).ok_or(ProtocolError::Unexpected("answer"))?;
        if !path.answer(now) {
            return Err(ProtocolError::Unexpected("second answer"));
        }
        self.session.identity.tenure.peer_answered();
        self.note_reached(now);
        self.drop_opening_copies();
        for report in lost {
            self.learn_final(now, *report);
        }
        self.events.push(Event::PathUp(id));
        if self.handover() == HandoverMode::Single {
            self.retire_older(now, id);
        }
        Ok(())
    }

    /// Handover mode `single`: the newest path that answered is the only one. The client decides; the server
    /// follows its RETIRE or PATH_LOST. One that [gives way](Self::give_way) to a path that is answered
    /// already is no newer than that. A path that is opening may be meant to take over: whoever opened it
    /// gives it up, or has it do so.
    fn retire_older(&mut self, now: Instant, newest: PathId) {
        let is_active = |id: &PathId| self.paths.get(*id).is_some_and(Path::is_active);
        let (stays, kept) = match self.paths.get(newest) {
            Some(Path { succession, .. }) => {
                (succession.gives_way_to(is_active), succession.keeps().filter(is_active))
            }
            None => (None, None),
        };
        if stays.is_some() {
            return self.retire_or_lose(now, newest);
        }
        let answered = |path: &Path| path.is_live() && !path.is_opening();
        let older = self.paths.iter().filter(|(id, path)| *id < newest && answered(path));
        for id in older.map(|(id, _)| id).collect::<Vec<_>>() {
            match kept == Some(id) {
                true => self.set_priority(id, Priority::Backup),
                false => {
                    self.replace(id, newest);
                    self.retire_or_lose(now, id);
                }
            }
        }
    }

    /// The carrier itself made progress on `id` (the kernel saw acknowledgements at `at`), although
    /// no segment was acknowledged: a slow path is not a dead one.
    pub fn carrier_progress(&mut self, id: PathId, at: Instant) {
        if let Some(path) = self.paths.get_mut(id) {
            path.liveness.carrier_progressed(at);
        }
    }

    /// The carrier of `id` heard the other end at `at`, and perhaps nothing that can be read yet: a part of
    /// something large, or what stands behind a loss.
    pub fn carrier_heard(&mut self, id: PathId, at: Instant) {
        if let Some(path) = self.paths.get_mut(id) {
            path.liveness.hear(at);
        }
    }

    /// Server: the carrier of `id` would not have come up if nothing of this side reached the peer (TCP's
    /// handshake does not end, QUIC's with early data may not have begun). Until this is said, or something
    /// is acknowledged on it, the path carries nothing while another one works.
    pub fn path_proven(&mut self, id: PathId) {
        if let Some(path) = self.paths.get_mut(id) {
            path.beginning.prove();
        }
    }

    /// Marks a path as suspect because of outside knowledge (its carrier stalls).
    pub fn suspect_path(&mut self, now: Instant, id: PathId) {
        if self.paths.get_mut(id).is_some_and(Path::suspect) {
            self.note_contact(now);
            self.events.push(Event::PathSuspect(id));
        }
    }

    /// A path stopped working.
    fn note_contact(&mut self, now: Instant) {
        if !self.has_active_path() {
            self.note_out_of_reach(now);
        }
    }

    /// True if some path carries data or may soon.
    #[must_use]
    pub fn has_active_path(&self) -> bool {
        self.paths.values().any(Path::is_active)
    }
}

/// Content that belongs to the opening of a path alone, or is repeated anyway.
fn is_first_flight(content: &Content) -> bool {
    matches!(content, Content::PathLost(_) | Content::Accept | Content::Word(_))
}
