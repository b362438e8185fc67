//! One attempt to get a path: dial, join, and wait for the answer.

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use whimbrel_proto::{PathState, Priority};

use super::pending::{News, Pending, PendingPath};
use crate::carrier::CarrierKind;
use crate::dial::{Candidate, Dialled, Dialler, Race};
use crate::endpoint_core::EndpointCore;
use crate::path_io::PathIo;
use crate::shared::Shared;

/// A path that was dialled must be answered within this, or a few round trips.
const ANSWER: Duration = Duration::from_secs(5);
/// What an answer may take beyond two round trips.
const SLACK: Duration = Duration::from_millis(50);
/// As long as nothing was measured (RFC 9002 §6.2.2).
const USUAL_RTT: Duration = Duration::from_millis(333);
/// Paths of one attempt that may wait for answers at the same time. Of OPENs only one counts, so that both sides
/// agree which.
const MAX_OPENS: usize = 1;
const MAX_JOINS: usize = 4;

/// A path that an attempt has opened.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) local: IpAddr,
    pub(crate) remote: SocketAddr,
    /// How long its answer should take at most.
    pub(crate) patience: Duration,
}

/// Opens paths of one connection.
#[derive(Clone)]
pub(crate) struct Joiner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) endpoint: Arc<EndpointCore>,
}

impl Joiner {
    /// Dials, opens a path on each carrier that stands, and waits until the peer answers on one. Others are tried
    /// until then. What was opened meanwhile is given up if this is dropped. A path that `stands_by` says so before
    /// it carries anything.
    pub(crate) async fn attempt(
        &self,
        ways: Vec<Candidate>,
        stands_by: bool,
        opened: &OnceLock<Opened>,
    ) -> Result<(), ()> {
        let attempt = Attempt {
            joiner: self,
            race: self.race(ways),
            racing: true,
            standing: VecDeque::new(),
            pending: Pending::default(),
            stands_by,
            opened,
        };
        attempt.run().await
    }

    fn race(&self, ways: Vec<Candidate>) -> Race {
        self.note_silence();
        let who = Dialler {
            peer: self.shared.peer,
            tls: self.endpoint.tls.client.clone(),
            quic: self.endpoint.quic.clone(),
            carriers: self.endpoint.config.carriers,
            reach: self.endpoint.reach.clone(),
            sizes: self.endpoint.sizes.clone(),
            rtt: self.shared.lock().engine.last_rtt(),
        };
        Race::new(who, self.through_loopback(ways))
    }

    /// Remembers between which addresses paths over TCP have fallen silent: what they carried may have been too large.
    fn note_silence(&self) {
        let state = self.shared.lock();
        let is_silent = |path: &&Arc<PathIo>| state.engine.path_state(path.id) == Some(PathState::Suspect);
        for path in state.paths.iter().filter(is_silent) {
            if path.kind() != CarrierKind::Quic {
                self.endpoint.sizes.silent(path.local.ip(), path.remote.ip(), Instant::now());
            }
        }
    }

    /// What is on this host is reached through the loopback interface, whatever address one comes from.
    fn through_loopback(&self, mut ways: Vec<Candidate>) -> Vec<Candidate> {
        let here = self.endpoint.addresses();
        let is_here = |ip: IpAddr| ip.is_loopback() || here.contains(ip);
        for way in ways.iter_mut().filter(|way| is_here(way.remote.ip())) {
            if let Some(local) = &mut way.local {
                local.interface = None;
            }
        }
        ways
    }

    /// Whether what an attempt opened can still become a path.
    pub(crate) fn is_worth_waiting_for(&self, opened: &Opened) -> bool {
        self.is_present(opened.local, opened.remote)
    }

    /// Both ends still have their addresses, as far as is known.
    fn is_present(&self, local: IpAddr, remote: SocketAddr) -> bool {
        self.shared.is_remote(remote) && !self.endpoint.has_lost(local)
    }

    /// Adds a path over a fresh carrier; its first flight leaves at once.
    fn open_path(&self, mut dialled: Dialled, stands_by: bool) -> Option<PendingPath> {
        let (hint, remote, kind) = (dialled.rtt, dialled.remote, dialled.kind());
        let rtt = hint.unwrap_or_else(|| self.shared.lock().engine.last_rtt().unwrap_or(USUAL_RTT));
        let early_limit = dialled.early_limit();
        let path = self.shared.with(|state| {
            let id = state.engine.open_path(Instant::now(), hint, early_limit)?;
            if stands_by {
                state.engine.set_priority(id, Priority::Backup);
            }
            let path = Arc::new(dialled.into_path(id));
            state.paths.push(path.clone());
            Some(path)
        })?;
        let (id, local) = (path.id, path.local.ip());
        if self.endpoint.has_lost(local) {
            self.shared.with(|state| state.engine.path_lost(Instant::now(), id));
            return None;
        }
        // The first flight leaves now; the driver sees an error if there is one.
        let _ = path.flush(&self.shared);
        tracing::debug!(connection = %self.shared.id, path = %id, %remote, %kind, ?hint, "path dialled");
        let limit = ANSWER.max(rtt * 6);
        Some(PendingPath::new(self.shared.clone(), id, kind, (local, remote), rtt, limit))
    }
}

/// One attempt: a race, and what came of it so far.
struct Attempt<'a> {
    joiner: &'a Joiner,
    race: Race,
    /// The race may bring further carriers.
    racing: bool,
    /// Carriers that wait for their turn.
    standing: VecDeque<Dialled>,
    pending: Pending,
    stands_by: bool,
    opened: &'a OnceLock<Opened>,
}

impl Attempt<'_> {
    /// Returns once a path was answered, or nothing is left to try.
    async fn run(mut self) -> Result<(), ()> {
        let shared = &self.joiner.shared;
        loop {
            let turn = self.open_what_may();
            if !self.racing && self.pending.is_empty() && self.standing.is_empty() {
                return Err(());
            }
            let turn = async {
                match turn {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                dialled = self.race.next(), if self.racing => match dialled {
                    Ok(dialled) => self.standing.push_back(dialled),
                    Err(error) => {
                        tracing::debug!(connection = %shared.id, %error, "cannot dial");
                        self.racing = false;
                    }
                },
                news = self.pending.news(shared) => match news {
                    News::Up(path) => {
                        self.answered(&path);
                        return Ok(());
                    }
                    News::Failed(path) => self.failed(&path),
                    News::Over => return Ok(()),
                },
                () = turn => {}
            }
        }
    }

    /// Opens paths on carriers that stand, as many as may wait for answers at the same time. Tells when that may
    /// change by itself.
    fn open_what_may(&mut self) -> Option<Instant> {
        while !self.standing.is_empty() {
            if self.pending.len() >= self.most()
                && let Some(oldest) = self.pending.oldest()
            {
                if !oldest.is_late() {
                    return Some(oldest.late_at());
                }
                if let Some(late) = self.pending.pop_oldest() {
                    self.note_failure(&late);
                }
            }
            let Some(dialled) = self.standing.pop_front() else { break };
            if let Some(path) = self.joiner.open_path(dialled, self.stands_by) {
                let patience = path.rtt * 2 + SLACK;
                // The first is what news are weighed against.
                let _ = self.opened.set(Opened { local: path.local, remote: path.remote, patience });
                self.pending.push(path);
            }
        }
        None
    }

    /// How many paths may wait for answers at the same time.
    fn most(&self) -> usize {
        let established = self.joiner.shared.lock().engine.is_established();
        if established { MAX_JOINS } else { MAX_OPENS }
    }

    fn answered(&mut self, path: &PendingPath) {
        self.note(path, true);
        self.race.answered(path.remote, path.kind);
        while let Some(other) = self.pending.pop_oldest() {
            if other.is_late() {
                self.note_failure(&other);
            }
        }
    }

    fn failed(&mut self, path: &PendingPath) {
        tracing::debug!(path = %path.id, remote = %path.remote, kind = %path.kind, "path not answered");
        self.note_failure(path);
        self.race.failed();
    }

    fn note_failure(&self, path: &PendingPath) {
        // If either side is elsewhere now, that says nothing about the network.
        if self.joiner.is_present(path.local, path.remote) {
            self.note(path, false);
        }
    }

    fn note(&self, path: &PendingPath, worked: bool) {
        let reach = &self.joiner.endpoint.reach;
        reach.note(path.local, path.remote, path.kind, worked, Instant::now());
        // TCP stood, so small segments pass there.
        if !worked && path.kind != CarrierKind::Quic {
            self.joiner.endpoint.sizes.silent(path.local, path.remote.ip(), Instant::now());
        }
    }
}
