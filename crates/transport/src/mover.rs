//! One task for each connection that was dialled: keeps it supplied with paths, wherever either
//! side goes [msocket §III-B3].

use futures_util::FutureExt;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use whimbrel_base::{Name, SignedRecord};
use whimbrel_proto::HandoverMode;

use crate::allow::Allow;
use crate::calls::Calls;
use crate::cause::DownCause;
use crate::endpoint_core::EndpointCore;
use crate::error::ResolveError;
use crate::manager::{Joiner, Joins, Kept, Openings, first_ways, plan, survey, upgrade};
use crate::pauses::{Failures, QUICK};
use crate::policy::PathPolicy;
use crate::shared::Shared;

/// The name service has so long for where the server is now.
const LOOKUP: Duration = Duration::from_secs(2);
const QUICK_LOOKUP: Duration = Duration::from_millis(400);

/// The watched record, as long as somebody watches it for us.
type Records = Option<watch::Receiver<Option<SignedRecord>>>;

/// Keeps one dialled connection supplied.
pub(crate) struct Mover {
    joiner: Joiner,
    name: Option<Name>,
    known: Mutex<Known>,
}

/// What was known when the last record came.
#[derive(Default)]
struct Known {
    /// Where that record says that the server is.
    addresses: Vec<SocketAddr>,
    /// The newest of the server's own notices by then.
    notices: u64,
}

impl Mover {
    pub(crate) fn new(
        shared: Arc<Shared>,
        endpoint: Arc<EndpointCore>,
        name: Option<Name>,
        ahead: Kept,
    ) -> Self {
        Self { joiner: Joiner { shared, endpoint, keeps: None, ahead }, name, known: Mutex::default() }
    }

    fn shared(&self) -> &Shared {
        &self.joiner.shared
    }

    fn endpoint(&self) -> &EndpointCore {
        &self.joiner.endpoint
    }

    /// Runs until the connection is over.
    pub(crate) async fn run(self) {
        let mut records = self.watch();
        let mut joins = Joins::default();
        let mut calls = Calls::default();
        let mut failures = Failures::default();
        while self.shared().may_need_paths() {
            // Known once the connection was accepted: from then on the server can call us.
            self.endpoint().registry.add_tag(&self.joiner.shared);
            self.weigh_new_owner();
            self.upgrade();
            let policy = self.shared().policy();
            if self.is_managed(&policy) {
                self.manage(&policy, &mut joins, &mut records, &mut calls).await;
                continue;
            }
            joins.clear();
            if !self.shared().needs_path() {
                failures = Failures::default();
                tokio::select! {
                    () = self.shared().mover.changed() => {}
                    () = self.shared().mover.anew() => {}
                    () = calls.next(self.shared().mover.called()) => {}
                    () = self.follow(&mut records) => {}
                }
                continue;
            }
            // This attempt starts from what is known now; older news is in it.
            forget(self.shared().mover.anew()).await;
            calls.forget(self.shared().mover.called()).await;
            let began = Instant::now();
            if self.try_once(&policy, &mut records, &mut calls).await.is_err() {
                let took = began.elapsed();
                let now = failures.and(took);
                let lookup = if took >= QUICK { QUICK_LOOKUP } else { LOOKUP };
                self.shared().whereabouts().failed();
                let asked = async {
                    tokio::time::sleep(now.pause(true)).await;
                    self.ask_again(lookup).await;
                };
                tokio::select! {
                    () = asked => failures = now,
                    // What was not waited for makes the next pause no longer.
                    () = self.shared().mover.changed() => {
                        if took >= QUICK {
                            failures = Failures::default();
                        }
                    }
                    () = self.shared().mover.anew() => failures = Failures::default(),
                    () = calls.next(self.shared().mover.called()) => failures = Failures::default(),
                    () = self.follow(&mut records) => failures = Failures::default(),
                }
            }
        }
    }

    /// Has a direct path looked for once the connection depends on a relay, in a task of its own.
    fn upgrade(&self) {
        if !self.endpoint().config.direct_paths {
            return;
        }
        let begins = {
            let mut state = self.shared().lock();
            let is_relayed = state.paths.iter().any(|path| path.remote.relayed().is_some());
            let established = state.engine.is_established();
            is_relayed && established && state.punching.begins_to_be_attended()
        };
        if begins {
            tokio::spawn(FutureExt::boxed(upgrade(self.joiner.clone())));
        }
    }

    /// Which paths there are is a matter of policy. In mode `single`, without any preference, any path will
    /// do.
    fn is_managed(&self, policy: &PathPolicy) -> bool {
        let state = self.shared().lock();
        let several = state.engine.handover() != HandoverMode::Single;
        // A connection that is over needs any path to say so, and a choice needs something to choose from.
        let can_choose = several || state.engine.has_active_path();
        state.engine.is_established()
            && state.engine.close_reason().is_none()
            && (several || policy.is_selective())
            && can_choose
    }

    /// Does what the policy wants, then waits until that may have changed.
    async fn manage(&self, policy: &PathPolicy, joins: &mut Joins, records: &mut Records, calls: &mut Calls) {
        let situation = survey(self.shared(), self.endpoint(), policy, joins.doubtful());
        let plan = plan(&situation, policy);
        self.shared().apply(&plan.retire, &plan.priorities);
        let alone = !situation.has_active_path();
        let mut wanted = plan.join;
        if alone && wanted.is_empty() {
            // No interface leads to the peer, as far as is known: the system's routes may know better.
            wanted.extend(situation.by_routes(first_ways(self.shared(), self.endpoint(), policy)));
        }
        let due = joins.want(&self.joiner, wanted, alone);
        let retry = async {
            match due {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
            if alone {
                self.ask_again(LOOKUP).await;
            }
        };
        let weigh = async {
            match policy.weighs().filter(|_| situation.paths.len() > 1) {
                Some(time) => tokio::time::sleep(time).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.shared().mover.changed() => {}
            () = self.shared().mover.anew() => joins.start_anew(&self.joiner),
            () = calls.next(self.shared().mover.called()) => joins.start_anew(&self.joiner),
            () = self.follow(records) => joins.start_anew(&self.joiner),
            () = joins.ended() => {}
            () = retry => {}
            () = weigh => {}
        }
    }

    /// Attempts to get a path, until there is one, none is needed, or news make it worth starting anew.
    async fn try_once(
        &self,
        policy: &PathPolicy,
        records: &mut Records,
        calls: &mut Calls,
    ) -> Result<(), ()> {
        let opened = Arc::<Openings>::default();
        let ways = first_ways(self.shared(), self.endpoint(), policy);
        let mut attempt = pin!(self.joiner.attempt(ways, false, opened.clone()));
        // A path that was opened just now is worth waiting for a little, whatever the news.
        let mut patience: Option<Instant> = None;
        loop {
            let impatient = async {
                match patience {
                    Some(until) => tokio::time::sleep_until(until.into()).await,
                    None => std::future::pending().await,
                }
            };
            let is_enough = tokio::select! {
                // A path that came up ends the attempt, which has more to do then than to be dropped.
                biased;
                result = &mut attempt => return result,
                () = self.shared().mover.changed() => {
                    if self.shared().needs_path() {
                        // A path may have been answered and lost before anybody looked: from then on the
                        // server may call us.
                        self.endpoint().registry.add_tag(&self.joiner.shared);
                        self.weigh_new_owner();
                        continue;
                    }
                    // A suspect path may have come back, or the connection may be over.
                    true
                }
                () = self.shared().mover.anew() => {
                    opened.dial_again();
                    false
                }
                () = calls.next(self.shared().mover.called()) => false,
                () = self.follow(records) => false,
                () = impatient => true,
            };
            match opened.first().filter(|opened| self.joiner.is_worth_waiting_for(opened)) {
                Some(opened) if !is_enough => {
                    patience.get_or_insert(Instant::now() + opened.patience);
                }
                _ if self.joiner.gives_up(&opened) => return Ok(()),
                // It came up since it was looked at.
                _ => return attempt.now_or_never().unwrap_or(Ok(())),
            }
        }
    }

    fn watch(&self) -> Records {
        let resolver = self.endpoint().resolver()?;
        Some(resolver.watch(self.name.as_ref()?).0)
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
                tracing::debug!(connection = %self.shared().id, "the record has new addresses");
                return;
            }
        }
    }

    /// True if the record has new addresses. What was on its way to those that the server has left goes
    /// elsewhere.
    fn learn(&self, record: &SignedRecord) -> bool {
        if record.members().is_some() {
            // The name stands for several peers by now: that says nothing of this one.
            return false;
        }
        let record = record.record();
        if record.revoked {
            return false;
        }
        if record.id != self.shared().peer() {
            // The name is another key's by now: the connection may be, too, if that one can show it.
            if self.shared().lock().engine.can_hand_over() {
                self.shared().lock().assigned = Some(Box::new((record.id, record.addrs.clone())));
                self.weigh_new_owner();
            }
            return false;
        }
        let notices = self.shared().lock().engine.newest_notice();
        let before = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, Known { addresses: record.addrs.clone(), notices })
        };
        if !self.shared().set_remote(&record.addrs) {
            return false;
        }
        let has = |addresses: &[SocketAddr], ip: IpAddr| addresses.iter().any(|at| at.ip() == ip);
        let has_left = |ip| has(&before.addresses, ip) && !has(&record.addrs, ip);
        self.shared().with(|state| {
            let left =
                state.paths.iter().filter(|path| path.remote.direct().is_some_and(|at| has_left(at.ip())));
            for path in left.map(|path| path.id).collect::<Vec<_>>() {
                if before.notices == notices {
                    state.lose_path(Instant::now(), path, DownCause::PeerMoved);
                } else {
                    // The record may be older than what the server said itself: if the path works, it shows
                    // so.
                    state.engine.suspect_path(Instant::now(), path);
                }
            }
        });
        true
    }

    /// The server's owner may have said that its end goes to another key: looks for that one from now on, if
    /// the application lets it have the connection.
    fn weigh_new_owner(&self) {
        let Some(assigned) = self.shared().lock().assigned.take() else { return };
        let (id, addresses) = *assigned;
        let shared = self.joiner.shared.clone();
        match shared.heirs() {
            None | Some(Allow::Any) => shared.expect_peer(id, &addresses),
            Some(heirs) => drop(tokio::spawn(FutureExt::boxed(async move {
                match heirs.admit(id).await {
                    Ok(()) => shared.expect_peer(id, &addresses),
                    Err((_, reason)) => {
                        tracing::info!(connection = %shared.id, peer = %id.short(), %reason, "hand-over refused");
                    }
                }
            }))),
        }
    }

    /// After a failure: the record may have changed, and its push may have been lost.
    async fn ask_again(&self, limit: Duration) {
        let (Some(resolver), Some(name)) = (self.endpoint().resolver(), &self.name) else {
            return;
        };
        let lookup = tokio::time::timeout(limit, resolver.lookup(name)).await;
        match lookup {
            Ok(Ok(record)) => drop(self.learn(&record)),
            Ok(Err(ResolveError::NotFound)) | Err(_) => {}
            Ok(Err(error)) => tracing::debug!(%name, %error, "cannot look the name up again"),
        }
    }
}

/// Takes back a notification that nobody has waited for.
async fn forget(told: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = told => {}
        () = std::future::ready(()) => {}
    }
}
