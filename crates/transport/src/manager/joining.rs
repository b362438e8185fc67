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
    /// Dials the ways, of which the first that stands wins, and waits for the answer on the new path. What
    /// was opened meanwhile is given up if this is dropped. A path that `stands_by` says so before it carries anything.
    pub(crate) async fn attempt(
        &self,
        ways: Vec<Candidate>,
        stands_by: bool,
        opened: &OnceLock<Opened>,
    ) -> Result<(), ()> {
        let who = Dialler { peer: self.shared.peer, tls: self.endpoint.tls.client.clone() };
        let dialled = Race::new(who, ways).next().await.map_err(|error| {
            tracing::debug!(connection = %self.shared.id, %error, "cannot dial");
        })?;
        let limit = ANSWER.max(dialled.rtt * 6);
        let (remote, patience) = (dialled.remote, dialled.rtt * 2 + SLACK);
        let mut path = self.open_path(dialled, stands_by).ok_or(())?;
        // Set once: there is one path an attempt.
        let _ = opened.set(Opened { local: path.local, remote, patience });
        tokio::time::timeout(limit, path.answered()).await.map_err(drop)?
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
            let id = state.engine.open_path(Instant::now(), Some(rtt), early_limit)?;
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

impl PendingPath {
    async fn answered(&mut self) -> Result<(), ()> {
        loop {
            let up = self.shared.notice_heard.notified();
            tokio::pin!(up);
            up.as_mut().enable();
            let state = {
                let state = self.shared.lock();
                if !state.engine.may_open_path() {
                    self.done = true;
                    return Ok(());
                }
                state.engine.path_state(self.id)
            };
            match state {
                Some(PathState::Opening) => {}
                Some(PathState::Lost) | None => {
                    self.done = true;
                    return Err(());
                }
                Some(_) => {
                    self.done = true;
                    return Ok(());
                }
            }
            tokio::select! {
                () = up => {}
                // Paths that fail are seen soon enough.
                () = tokio::time::sleep(Duration::from_millis(200)) => {}
            }
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
