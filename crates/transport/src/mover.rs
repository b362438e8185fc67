//! One task for each connection that was dialled: keeps it supplied with a path, wherever either
//! side goes [msocket §III-B3].

use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use whimbrel_base::{Name, SignedRecord};
use whimbrel_proto::{PathId, PathState};

use crate::dial::{Dialled, Dialler, Race, candidates};
use crate::endpoint::EndpointInner;
use crate::error::ResolveError;
use crate::shared::Shared;

const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// A path that was dialled must be answered within this, or a few round trips.
const ANSWER: Duration = Duration::from_secs(5);
/// What an answer may take beyond two round trips.
const SLACK: Duration = Duration::from_millis(50);
/// As long as nothing was measured (RFC 9002 §6.2.2).
const USUAL_RTT: Duration = Duration::from_millis(333);
/// The watched record, as long as somebody watches it for us.
type Records = Option<watch::Receiver<Option<SignedRecord>>>;

/// A path that an attempt has opened.
struct Opened {
    local: IpAddr,
    remote: SocketAddr,
    /// How long its answer should take at most.
    patience: Duration,
}

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
            if self.try_once(&mut records).await.is_err() {
                let asked = async {
                    tokio::time::sleep(pause).await;
                    self.ask_again().await;
                };
                tokio::select! {
                    () = asked => pause = (pause * 2).min(LONGEST_PAUSE),
                    () = self.shared.changed.notified() => {}
                    () = self.shared.restart.notified() => pause = FIRST_PAUSE,
                    () = self.follow(&mut records) => pause = FIRST_PAUSE,
                }
            }
        }
    }

    /// Attempts to get a path, until there is one, none is needed, or news make it worth starting anew.
    async fn try_once(&self, records: &mut Records) -> Result<(), ()> {
        let opened = OnceLock::new();
        let mut attempt = pin!(self.attempt(&opened));
        // A path that was opened just now is worth waiting for a little, whatever the news.
        let mut patience: Option<Instant> = None;
        loop {
            let impatient = async {
                match patience {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                result = &mut attempt => return result,
                () = self.shared.changed.notified() => {
                    // A suspect path may have come back, or the connection may be over.
                    if !self.shared.needs_path() {
                        return Ok(());
                    }
                    continue;
                }
                () = self.shared.restart.notified() => {}
                () = self.follow(records) => {}
                () = impatient => return Ok(()),
            }
            match opened.get().filter(|opened| self.is_worth_waiting_for(opened)) {
                Some(opened) => drop(patience.get_or_insert(Instant::now() + opened.patience)),
                None => return Ok(()),
            }
        }
    }

    fn is_worth_waiting_for(&self, opened: &Opened) -> bool {
        self.shared.remote().contains(&opened.remote) && !self.endpoint.has_lost(opened.local)
    }

    fn watch(&self) -> Records {
        let resolver = self.endpoint.resolver()?;
        Some(resolver.watch(self.name.as_ref()?))
    }

    /// Returns when the watched record brought new addresses.
    async fn follow(&self, records: &mut Records) {
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

    /// Dials until a carrier stands, and waits for the answer on a new path. A carrier that can be written
    /// to before it stands is a path at once, while others are still tried.
    async fn attempt(&self, opened: &OnceLock<Opened>) -> Result<(), ()> {
        let mut race = self.race();
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
                        if let Some(path) = self.open_path(dialled) {
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

    fn race(&self) -> Race {
        let ways = candidates(
            &self.endpoint.addresses(),
            &self.shared.remote(),
            &self.shared.suspect_locals(),
            self.endpoint.is_exclusive(),
        );
        let who = Dialler {
            peer: self.shared.peer,
            tls: self.endpoint.tls.client.clone(),
            quic: self.endpoint.quic.clone(),
            carriers: self.endpoint.config.carriers,
            reach: self.endpoint.reach.clone(),
            rtt: self.shared.lock().engine.last_rtt(),
        };
        Race::new(who, ways)
    }

    /// Adds a path over a fresh carrier; its first flight leaves at once.
    fn open_path(&self, mut dialled: Dialled) -> Option<PendingPath> {
        let (rtt, remote) = (dialled.rtt, dialled.remote);
        let early_limit = dialled.early_limit();
        let path = self.shared.with(|state| {
            let id = state.engine.open_path(Instant::now(), rtt, early_limit)?;
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
