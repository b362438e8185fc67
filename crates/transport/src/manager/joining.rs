//! One attempt to get a path: dial, join, and wait for the answer.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use whimbrel_proto::{PathId, PathState, Priority};

use crate::dial::{Candidate, Dialled, Dialler, Race};
use crate::endpoint::EndpointInner;
use crate::shared::Shared;

/// A path that was dialled must be answered within this, or a few round trips.
const ANSWER: Duration = Duration::from_secs(5);
/// What an answer may take beyond two round trips.
const SLACK: Duration = Duration::from_millis(50);
/// As long as nothing was measured (RFC 9002 §6.2.2).
const USUAL_RTT: Duration = Duration::from_millis(333);

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
    pub(crate) endpoint: Arc<EndpointInner>,
}

impl Joiner {
    /// Dials until a carrier stands, and waits for the answer on a new path. A carrier that can be written
    /// to before it stands is a path at once, while others are still tried. What was opened meanwhile is given
    /// up if this is dropped. A path that `stands_by` says so before it carries anything.
    pub(crate) async fn attempt(
        &self,
        ways: Vec<Candidate>,
        stands_by: bool,
        opened: &OnceLock<Opened>,
    ) -> Result<(), ()> {
        let mut race = self.race(ways);
        let (mut racing, mut pending) = (true, Vec::new());
        let mut until = Instant::now() + ANSWER;
        while racing || !pending.is_empty() {
            tokio::select! {
                dialled = race.next(), if racing => match dialled {
                    Ok(dialled) => {
                        racing = dialled.rtt.is_none();
                        let usual = || self.shared.lock().engine.last_rtt().unwrap_or(USUAL_RTT);
                        let rtt = dialled.rtt.unwrap_or_else(usual);
                        until = Instant::now() + ANSWER.max(rtt * 6);
                        let (remote, patience) = (dialled.remote, rtt * 2 + SLACK);
                        if let Some(path) = self.open_path(dialled, stands_by) {
                            // The first is what news are weighed against.
                            let _ = opened.set(Opened { local: path.local, remote, patience });
                            pending.push(path);
                        }
                    }
                    Err(error) => {
                        tracing::debug!(connection = %self.shared.id, %error, "cannot dial");
                        racing = false;
                    }
                },
                answer = answered(&self.shared, &mut pending), if !pending.is_empty() => {
                    if answer.is_ok() {
                        return Ok(());
                    }
                }
                () = tokio::time::sleep_until(until.into()), if !pending.is_empty() => return Err(()),
            }
        }
        Err(())
    }

    fn race(&self, ways: Vec<Candidate>) -> Race {
        let who = Dialler {
            peer: self.shared.peer,
            tls: self.endpoint.tls.client.clone(),
            quic: self.endpoint.quic.clone(),
            carriers: self.endpoint.config.carriers,
            reach: self.endpoint.reach.clone(),
            rtt: self.shared.lock().engine.last_rtt(),
        };
        Race::new(who, self.through_loopback(ways))
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
        self.shared.is_remote(opened.remote) && !self.endpoint.has_lost(opened.local)
    }

    /// Adds a path over a fresh carrier; its first flight leaves at once.
    fn open_path(&self, mut dialled: Dialled, stands_by: bool) -> Option<PendingPath> {
        let (rtt, remote) = (dialled.rtt, dialled.remote);
        let early_limit = dialled.early_limit();
        let path = self.shared.with(|state| {
            let id = state.engine.open_path(Instant::now(), rtt, early_limit)?;
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
        tracing::debug!(connection = %self.shared.id, path = %id, %remote, ?rtt, "path dialled");
        Some(PendingPath { shared: self.shared.clone(), id, local, done: false })
    }
}

/// A path whose answer has not come. Given up when dropped.
struct PendingPath {
    shared: Arc<Shared>,
    id: PathId,
    local: IpAddr,
    done: bool,
}

/// Waits until one of the paths is answered, or none is needed; an error once all of them are lost.
/// Cancel-safe.
async fn answered(shared: &Shared, pending: &mut Vec<PendingPath>) -> Result<(), ()> {
    loop {
        let up = shared.notice_heard.notified();
        tokio::pin!(up);
        up.as_mut().enable();
        {
            let state = shared.lock();
            let state_of = |path: &PendingPath| state.engine.path_state(path.id);
            pending.retain_mut(|path| {
                path.done = matches!(state_of(path), Some(PathState::Lost) | None);
                !path.done
            });
            let up = pending.iter_mut().find(|path| state_of(path) != Some(PathState::Opening));
            if let Some(path) = up {
                path.done = true;
                return Ok(());
            }
            if !state.engine.may_open_path() {
                pending.iter_mut().for_each(|path| path.done = true);
                return Ok(());
            }
        }
        if pending.is_empty() {
            return Err(());
        }
        tokio::select! {
            () = up => {}
            // Paths that fail are seen soon enough.
            () = tokio::time::sleep(Duration::from_millis(200)) => {}
        }
    }
}

impl Drop for PendingPath {
    fn drop(&mut self) {
        if !self.done {
            self.shared.with(|state| {
                if state.engine.path_state(self.id) == Some(PathState::Opening) {
                    state.engine.path_lost(Instant::now(), self.id);
                }
            });
        }
    }
}
