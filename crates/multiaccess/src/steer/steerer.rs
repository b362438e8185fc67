//! All connections that are steered, the kernel that is asked about them, and the helper.

use super::helper_link::{HelperLink, News, OrderError};
use super::steered::Steered as Known;
use crate::decide::Candidate;
use crate::mptcp::{Action, Ends, Lookup, Subflow, What};
use crate::protocol::{Ask, Steered};
use crate::shared::Shared;
use crate::steering::Job;
use crate::subflows::{self, Wanted};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use whimbrel_access::{Granularity, PathId};
use whimbrel_base::order;

/// The most connections, of one client, and of one user of several.
const MOST: usize = 4096;
const MOST_OF_CLIENT: usize = 512;
const MOST_OF_USER: usize = 1024;
/// So many are looked at in a row; clients' words come between.
const LOT: usize = 32;
/// A helper that is not there is looked for again after this time, if there is something to do.
const AGAIN: Duration = Duration::from_secs(2);

/// The user that may speak of all connections.
const ROOT: u32 = 0;

/// Why a connection is not steered now.
#[derive(Debug)]
enum Trouble {
    /// It is none of this client's, or has ended.
    Gone(String),
    /// It may be later.
    Later(String),
}

pub(super) struct Steerer {
    shared: Arc<Shared>,
    lookup: Option<Lookup>,
    helper: Option<HelperLink>,
    /// A helper is not looked for before this time.
    not_before: Option<Instant>,
    connections: HashMap<Ends, Known>,
}

impl Steerer {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self { shared, lookup: None, helper: None, not_before: None, connections: HashMap::new() }
    }

    /// When something is to be done next.
    pub(super) fn due(&self) -> Option<Instant> {
        let due = self.connections.values().filter_map(Known::due).min()?;
        Some(self.not_before.map_or(due, |at| due.max(at)))
    }

    /// The networks changed.
    pub(super) fn want_all(&mut self) {
        let now = Instant::now();
        for known in self.connections.values_mut() {
            known.forget_attempts();
            known.want(now);
        }
    }

    /// Waits until the helper tells something, and notes it. Cancel-safe.
    pub(super) async fn heard(&mut self) {
        let Some(helper) = &mut self.helper else { return std::future::pending().await };
        let news = helper.news().await;
        let now = Instant::now();
        match news {
            Ok(News::Of(happened)) if happened.what == What::Closed => {
                self.connections.remove(&happened.connection);
            }
            // Subflows lead to the address that a connection was made to, whatever others the peer has.
            Ok(News::Of(happened)) if matches!(happened.what, What::Announced | What::Removed) => {}
            Ok(News::Of(happened)) => {
                if let Some(known) = self.connections.get_mut(&happened.connection) {
                    if happened.what == What::Established {
                        // Before, the kernel opens no further subflow.
                        known.forget_attempts();
                    }
                    known.want(now);
                }
            }
            Ok(News::Lost) => self.connections.values_mut().for_each(|known| known.want(now)),
            Err(error) => {
                tracing::warn!(%error, "the helper is gone; subflows stay as they are until there is one");
                self.lost();
            }
        }
    }

    /// The helper is gone. All connections are told to the next one.
    fn lost(&mut self) {
        let now = Instant::now();
        self.helper = None;
        self.not_before = Some(now + AGAIN);
        self.connections.values_mut().for_each(|known| known.want(now));
    }

    /// Takes a client's word about a connection, and answers it.
    pub(super) async fn take(&mut self, job: Job) {
        let Job { user, client, presence, steer, answer } = job;
        if presence.strong_count() == 0 {
            return;
        }
        let ends = Ends { local: canonical(steer.local), remote: canonical(steer.remote) };
        let done = match self.has_room(ends, client, user) {
            true => {
                let before = self.connections.insert(ends, Known::new(user, client, presence, steer.intents));
                let settled = self.settle(ends).await;
                if let Err(trouble) = &settled {
                    // What was said before by whose it is goes on to count.
                    self.connections.remove(&ends);
                    if let Some(mut before) = before.filter(Known::is_present) {
                        if let Trouble::Later(_) = trouble {
                            // The next helper is to hear of it as of all others.
                            before.want(Instant::now());
                        }
                        self.connections.insert(ends, before);
                    }
                }
                settled.map_err(|(Trouble::Gone(why) | Trouble::Later(why))| why)
            }
            false => Err(format!(
                "{MOST_OF_CLIENT} connections of a client are steered, {MOST_OF_USER} of a user, {MOST} in all"
            )),
        };
        // The client may have left.
        let _ = answer.send(done);
    }

    /// Whether there is room for this connection. Makes room by forgetting those whose clients are gone.
    fn has_room(&mut self, ends: Ends, client: u64, user: u32) -> bool {
        if self.connections.contains_key(&ends) {
            return true;
        }
        let most_of_user = if self.shared.is_apart(client) { MOST_OF_USER } else { MOST };
        let has_room = |connections: &HashMap<Ends, Known>| {
            let of_client = connections.values().filter(|known| known.client == client).count();
            let of_user = connections.values().filter(|known| known.user == user).count();
            connections.len() < MOST && of_client < MOST_OF_CLIENT && of_user < most_of_user
        };
        has_room(&self.connections) || {
            self.connections.retain(|_, known| known.is_present());
            has_room(&self.connections)
        }
    }

    /// Looks at some of the connections that are due; the others stay due.
    pub(super) async fn work(&mut self) {
        let now = Instant::now();
        self.connections.retain(|_, known| known.is_present());
        let due = self.connections.iter().filter_map(|(ends, known)| {
            let at = known.due().filter(|at| *at <= now)?;
            Some((at, *ends))
        });
        let mut due: Vec<(Instant, Ends)> = due.collect();
        order::by_key(&mut due, |(at, _)| *at);
        due.truncate(LOT);
        for (_, ends) in due {
            // A helper that is not there, or hangs, is not tried for each of them.
            if self.not_before.is_some_and(|at| at > Instant::now()) {
                return;
            }
            let is_due = self.connections.get_mut(&ends).is_some_and(|known| known.take_due(now));
            if !is_due {
                continue;
            }
            match self.settle(ends).await {
                Ok(_) => {}
                Err(Trouble::Gone(why)) => {
                    tracing::debug!(%why, "a connection is not steered any more");
                    self.connections.remove(&ends);
                }
                Err(Trouble::Later(why)) => {
                    tracing::debug!(%why, "a connection cannot be steered now");
                    if let Some(known) = self.connections.get_mut(&ends) {
                        known.at(Instant::now() + AGAIN);
                    }
                }
            }
        }
    }

    /// Has a connection have the subflows that the policy wants, as far as that is possible now. Returns
    /// them.
    async fn settle(&mut self, ends: Ends) -> Result<Vec<Steered>, Trouble> {
        let Some(known) = self.connections.get(&ends) else {
            return Err(Trouble::Gone("it is forgotten".to_owned()));
        };
        let (user, client, intents) = (known.user, known.client, known.intents);
        self.connect().await.map_err(Trouble::Later)?;
        self.check(ends, user).await?;
        let subflows = self.subflows(ends).await?;
        let ask = Ask {
            intents,
            granularity: Granularity::Connection,
            to: Some(ends.remote.to_string()),
            addresses: vec![ends.remote],
            ..Ask::default()
        };
        let candidates = [Candidate { address: ends.remote, interface: None }];
        let verdict = self.shared.decide(client, &ask, &candidates, None);
        let verdict = verdict.map_err(|error| Trouble::Gone(error.to_string()))?;
        let paths = self.shared.paths();
        let wanted = subflows::wanted(&verdict, &intents, &paths, ends.remote.ip());
        let actions = subflows::plan(&subflows, &wanted, &paths, ends.remote);
        if let Some(known) = self.connections.get_mut(&ends) {
            let working = subflows.iter().filter(|subflow| subflow.is_established);
            working
                .filter_map(|subflow| subflows::path_of(subflow, &paths))
                .for_each(|path| known.worked(path));
        }
        for action in actions {
            self.act(ends, action, &wanted).await?;
        }
        Ok(wanted.into_iter().map(told).collect())
    }

    /// Whether the connection with these ends is this user's. The helper may have more rights than the user.
    async fn check(&mut self, ends: Ends, user: u32) -> Result<(), Trouble> {
        let mut lookup = self.lookup()?;
        let found = lookup.connection(ends).await.map_err(untold)?;
        self.lookup = Some(lookup);
        // Of another user's connection nothing is said, not even that there is one.
        found.filter(|found| user == ROOT || found.user == user).map(drop).ok_or_else(|| {
            let Ends { local, remote } = ends;
            Trouble::Gone(format!("you have no connection of Multipath TCP from {local} to {remote}"))
        })
    }

    /// The subflows of a connection, of which the helper tells from then on: before Linux 6.15 the kernel
    /// says to those alone who have its rights which subflow belongs to which connection.
    async fn subflows(&mut self, ends: Ends) -> Result<Vec<Subflow>, Trouble> {
        let helper = self.helper()?;
        match helper.subflows(ends).await {
            Ok(found) => Ok(found),
            Err(OrderError::Refused(why)) => Err(Trouble::Gone(why)),
            Err(error @ OrderError::Lost(_)) => Err(self.lost_by(&error)),
        }
    }

    fn helper(&mut self) -> Result<&mut HelperLink, Trouble> {
        self.helper.as_mut().ok_or_else(|| Trouble::Later("the helper is gone".to_owned()))
    }

    fn lost_by(&mut self, error: &OrderError) -> Trouble {
        self.lost();
        Trouble::Later(error.to_string())
    }

    /// The socket for questions to the kernel. It is put back when it has answered: else an answer may be
    /// half read.
    fn lookup(&mut self) -> Result<Lookup, Trouble> {
        self.lookup.take().map_or_else(Lookup::open, Ok).map_err(untold)
    }

    /// Does one thing. A refusal is no reason not to do the others.
    async fn act(&mut self, ends: Ends, action: Action, wanted: &[Wanted]) -> Result<(), Trouble> {
        let now = Instant::now();
        if let Some(path) = opened(&action, wanted)
            && let Some(known) = self.connections.get_mut(&ends)
        {
            if !known.may_try(path, now) {
                return Ok(());
            }
            known.tried(path, now);
        }
        let done = self.order(ends, action).await;
        if let Some(known) = self.connections.get_mut(&ends) {
            known.look_again(now);
        }
        done
    }

    /// Tells the helper. What it refuses is noted in the log.
    async fn order(&mut self, ends: Ends, action: Action) -> Result<(), Trouble> {
        let helper = self.helper()?;
        match helper.order(ends, action).await {
            Ok(()) => Ok(()),
            Err(OrderError::Refused(why)) => {
                tracing::info!(%why, ?action, "the helper refuses");
                Ok(())
            }
            Err(error @ OrderError::Lost(_)) => Err(self.lost_by(&error)),
        }
    }

    /// Connects to the helper, if that was not done before.
    async fn connect(&mut self) -> Result<(), String> {
        if self.helper.is_none() {
            let opened = HelperLink::open(&self.shared.settings.helper()).await;
            self.not_before = opened.is_err().then(|| Instant::now() + AGAIN);
            self.helper = Some(opened?);
        }
        Ok(())
    }
}

/// The path over which this opens a subflow.
fn opened(action: &Action, wanted: &[Wanted]) -> Option<PathId> {
    let Action::Create { interface, .. } = action else { return None };
    wanted.iter().find(|want| want.index == *interface).map(|want| want.path)
}

fn untold(error: std::io::Error) -> Trouble {
    Trouble::Later(format!("the kernel does not tell of connections: {error}"))
}

fn told(want: Wanted) -> Steered {
    Steered { interface: want.interface, source: want.source, backup: want.is_backup }
}

/// Sockets of IPv6 that speak IPv4 have addresses in other clothes.
fn canonical(address: std::net::SocketAddr) -> std::net::SocketAddr {
    std::net::SocketAddr::new(address.ip().to_canonical(), address.port())
}
