//! One task for each connection that was dialled: keeps it supplied with a path, wherever either
//! side goes [msocket §III-B3].

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use whimbrel_base::{Name, SignedRecord};
use whimbrel_proto::PathId;

use crate::dial::{Dialled, candidates, race};
use crate::endpoint::EndpointInner;
use crate::error::ResolveError;
use crate::path_io::PathIo;
use crate::shared::Shared;
use crate::tls::TlsChannel;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A path that was dialled must be answered within this, or a few round trips.
const ANSWER: Duration = Duration::from_secs(5);
/// What may be sent before the answer: TLS early data, and no more than a first TCP window.
const EARLY_LIMIT: u64 = 14_000;
/// Without early data there is no reason to hold back what the receiver must take anyway.
const UNANSWERED_LIMIT: u64 = 64 * 1024;

/// Keeps one dialled connection supplied.
pub(crate) struct Mover {
    pub(crate) shared: Arc<Shared>,
    pub(crate) endpoint: Arc<EndpointInner>,
    pub(crate) name: Option<Name>,
}

impl Mover {
    /// Runs until the connection is over.
    pub(crate) async fn run(self) {
        let mut records = self.watch();
        let mut pause = FIRST_PAUSE;
        while self.shared.lock().engine.may_open_path() {
            // Known once the connection was accepted: from then on the server can call us.
            self.endpoint.registry.add_tag(&self.shared);
            if !self.shared.needs_path() {
                pause = FIRST_PAUSE;
                tokio::select! {
                    () = self.shared.changed.notified() => {}
                    () = self.shared.restart.notified() => {}
                    () = self.follow(&mut records) => {}
                }
                continue;
            }
            // This attempt starts from what is known now; older news is in it.
            forget(&self.shared.restart).await;
            let attempt = self.attempt();
            tokio::pin!(attempt);
            let failed = loop {
                tokio::select! {
                    result = &mut attempt => break result.is_err(),
                    () = self.shared.changed.notified() => {
                        // A suspect path may have come back, or the connection may be over.
                        if !self.shared.needs_path() {
                            break false;
                        }
                    }
                    () = self.shared.restart.notified() => break false,
                    () = self.follow(&mut records) => break false,
                }
            };
            if failed {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {
                        pause = (pause * 2).min(LONGEST_PAUSE);
                        self.ask_again().await;
                    }
                    () = self.shared.changed.notified() => {}
                    () = self.shared.restart.notified() => pause = FIRST_PAUSE,
                    () = self.follow(&mut records) => pause = FIRST_PAUSE,
                }
            }
        }
    }

    fn watch(&self) -> Option<watch::Receiver<Option<SignedRecord>>> {
        let resolver = self.endpoint.resolver()?;
        Some(resolver.watch(self.name.as_ref()?))
    }

    /// Returns when the watched record brought new addresses.
    async fn follow(&self, records: &mut Option<watch::Receiver<Option<SignedRecord>>>) {
        loop {
            let Some(watch) = records.as_mut() else {
                return std::future::pending().await;
            };
            if watch.changed().await.is_err() {
                *records = None;
                continue;
            }
            let record = watch.borrow_and_update().clone();
            if let Some(record) = record
                && self.learn(&record)
            {
                tracing::debug!(connection = %self.shared.id, "the record has new addresses");
                return;
            }
        }
    }

    fn learn(&self, record: &SignedRecord) -> bool {
        let record = record.record();
        record.id == self.shared.peer && !record.revoked && self.shared.set_remote(&record.addrs)
    }

    /// After a failure: the record may have changed, and its push may have been lost.
    async fn ask_again(&self) {
        let (Some(resolver), Some(name)) = (self.endpoint.resolver(), &self.name) else {
            return;
        };
        let lookup = tokio::time::timeout(Duration::from_secs(2), resolver.lookup(name)).await;
        match lookup {
            Ok(Ok(record)) => drop(self.learn(&record)),
            Ok(Err(ResolveError::NotFound)) | Err(_) => {}
            Ok(Err(error)) => tracing::debug!(%name, %error, "cannot look the name up again"),
        }
    }

    /// Dials once and waits for the answer on the new path.
    async fn attempt(&self) -> Result<(), ()> {
        let ways = candidates(
            &self.endpoint.addresses(),
            &self.shared.remote(),
            &self.shared.suspect_locals(),
            self.endpoint.is_exclusive(),
        );
        let dialled = race(ways).await.map_err(|error| {
            tracing::debug!(connection = %self.shared.id, %error, "cannot dial");
        })?;
        let limit = ANSWER.max(dialled.rtt * 6);
        let mut path = self.open_path(dialled).ok_or(())?;
        tokio::time::timeout(limit, path.answered()).await.map_err(drop)?
    }

    /// Adds a path over a fresh socket; its first flight leaves at once.
    fn open_path(&self, dialled: Dialled) -> Option<PendingPath> {
        let Dialled { socket, rtt, remote } = dialled;
        let mut tls = TlsChannel::client(self.endpoint.tls.client.clone(), self.shared.peer).ok()?;
        let early_limit = if tls.early_room() > 0 { EARLY_LIMIT } else { UNANSWERED_LIMIT };
        let mut path = None;
        let id = self.shared.with(|state| {
            let id = state.engine.open_path(Instant::now(), Some(rtt), early_limit)?;
            match PathIo::new(id, socket, remote, tls, Vec::new()) {
                Ok(io) => state.paths.push(path.insert(Arc::new(io)).clone()),
                Err(_) => state.engine.path_lost(Instant::now(), id),
            }
            Some(id)
        })?;
        if let Some(path) = path {
            if self.endpoint.has_lost(path.local.ip()) {
                self.shared.with(|state| state.engine.path_lost(Instant::now(), id));
                return None;
            }
            // The first flight leaves now; the driver sees an error if there is one.
            let _ = path.flush(&self.shared);
        }
        tracing::debug!(connection = %self.shared.id, path = %id, %remote, ?rtt, "path dialled");
        Some(PendingPath { shared: self.shared.clone(), id, done: false })
    }
}

/// Takes back a notification that nobody has waited for.
async fn forget(notify: &tokio::sync::Notify) {
    tokio::select! {
        biased;
        () = notify.notified() => {}
        () = std::future::ready(()) => {}
    }
}

/// A path whose answer has not come. Given up when dropped.
struct PendingPath {
    shared: Arc<Shared>,
    id: PathId,
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
                Some(whimbrel_proto::PathState::Opening) => {}
                Some(whimbrel_proto::PathState::Lost) | None => {
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
                if state.engine.path_state(self.id) == Some(whimbrel_proto::PathState::Opening) {
                    state.engine.path_lost(Instant::now(), self.id);
                }
            });
        }
    }
}
