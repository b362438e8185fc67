//! Networks that were lost under an object that comes over several: each of them is looked for until it
//! carries again. That it is there again is heard from the manager. One that is there and silent is knocked
//! at, by a connection to the server, which also tells the manager what it is like by now. One that was made
//! anew, of whose rate nobody knows anything, is tried: it carries ranges for a moment, and the manager
//! measures them.

use super::{LEAST_LEFT, LOST, PAUSE};
use crate::http::assembly::Assembly;
use crate::http::decided::Route;
use crate::http::object::Described;
use crate::http::present::Present;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::future::{poll_fn, ready};
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use whimbrel_access::Intents;
use whimbrel_multiaccess::Candidate;

/// After its second loss a network is left alone for so long; that doubles with each further one. After the
/// first it is not left alone at all.
const FIRST_REST: Duration = Duration::from_secs(1);
/// A loss so long ago says nothing of the next one.
const FORGOTTEN: Duration = Duration::from_secs(60);
/// How long a knock waits for an answer; twice as long with each one that is silent, up to the longest.
const KNOCK: Duration = Duration::from_secs(1);
const LONGEST_KNOCK: Duration = Duration::from_secs(4);
/// Once a network has answered, the manager is asked after this pause, which doubles: a measurement takes as
/// long.
const ANSWERED: Duration = Duration::from_millis(100);
/// A trial that left the rate unknown is followed by another one after this pause.
const TRIED: Duration = LOST;

/// The networks of an object, and the search for those that were lost.
#[derive(Default)]
pub(super) struct Lost {
    /// What counts as scheduled for the object, with the manager.
    unit: Option<u64>,
    /// `None` where nobody tells of networks.
    present: watch::Sender<Option<Present>>,
    /// As many as a manager knows: few.
    networks: Vec<Network>,
    /// At most one for each network. They go on while [`Lost::found`] is waited for, and need no tasks.
    searches: Vec<BoxFuture<'static, (String, Option<Found>)>>,
}

/// A network that carries again.
pub(super) struct Found {
    pub(super) route: Route,
    /// The manager does not know yet what it can carry: it is to be tried.
    pub(super) is_to_try: bool,
}

#[derive(Default)]
struct Network {
    name: String,
    /// How a connection was made that goes there.
    by: Option<Candidate>,
    losses: Losses,
    is_sought: bool,
    /// Ranges come over it, so that it is measured.
    is_tried: bool,
}

/// How often a network was lost lately.
#[derive(Debug, Default)]
struct Losses {
    count: u32,
    last: Option<Instant>,
}

impl Losses {
    /// It was lost once more. Returns for how long it is to be left alone, so that one that flaps takes less
    /// and less of an object.
    fn another(&mut self, now: Instant) -> Duration {
        let is_recent = |last: Instant| now.saturating_duration_since(last) < FORGOTTEN;
        self.count = if self.last.is_some_and(is_recent) { self.count.saturating_add(1) } else { 1 };
        self.last = Some(now);
        match self.count.checked_sub(2) {
            None => Duration::ZERO,
            Some(doubled) => FIRST_REST.saturating_mul(1 << doubled.min(8)).min(LOST),
        }
    }
}

impl Lost {
    /// Of an object that counts as this unit.
    pub(super) fn of(unit: Option<u64>) -> Self {
        Self { unit, ..Self::default() }
    }

    /// It is heard of which networks there are.
    pub(super) fn hear(&mut self, present: Option<Present>) {
        self.present.send_replace(present);
    }

    /// Whether that is heard already.
    pub(super) fn hears(&self) -> bool {
        self.present.borrow().is_some()
    }

    /// What is heard, from when it is heard on.
    pub(super) fn present(&self) -> watch::Receiver<Option<Present>> {
        self.present.subscribe()
    }

    /// A worker goes this way.
    pub(super) fn uses(&mut self, network: &str, by: Option<&Candidate>) {
        let known = self.known(network);
        known.by = by.cloned().or_else(|| known.by.take());
    }

    /// The last worker on this network has ended. A search for it begins, unless there is one already; where
    /// the server is at fault, after a while.
    pub(super) fn look_for(
        &mut self,
        network: &str,
        is_by_server: bool,
        object: &Arc<Described>,
        assembly: &Arc<Assembly>,
    ) {
        let known = self.known(network);
        known.is_tried = false;
        let rest = known.losses.another(Instant::now());
        let rest = if is_by_server { LOST } else { rest };
        self.search(network, rest, None, object, assembly);
    }

    /// Ranges come over this network from now on, so that it is measured.
    pub(super) fn tries(&mut self, network: &str) {
        self.known(network).is_tried = true;
    }

    /// The last worker on this network has ended, and nothing failed. If that was a trial, the manager is
    /// asked what it thinks of the network by now.
    pub(super) fn worked(&mut self, network: &str, object: &Arc<Described>, assembly: &Arc<Assembly>) {
        if std::mem::take(&mut self.known(network).is_tried) {
            self.search(network, Duration::ZERO, Some(Instant::now()), object, assembly);
        }
    }

    /// Begins a search after a rest, unless there is one already.
    fn search(
        &mut self,
        network: &str,
        rest: Duration,
        tried: Option<Instant>,
        object: &Arc<Described>,
        assembly: &Arc<Assembly>,
    ) {
        let known = self.known(network);
        if std::mem::replace(&mut known.is_sought, true) {
            return;
        }
        let by = known.by.clone();
        let search = Search {
            unit: self.unit,
            object: Arc::clone(object),
            assembly: Arc::clone(assembly),
            network: network.to_owned(),
            by,
            present: self.present.borrow().clone(),
        };
        let searching = async move {
            tokio::time::sleep(rest).await;
            let found = search.run(tried).await;
            (search.network, found)
        };
        self.searches.push(searching.boxed());
    }

    /// A network that carries again and is wanted, or has to be tried. Cancel-safe.
    pub(super) async fn found(&mut self) -> Found {
        poll_fn(|cx| self.poll_found(cx)).await
    }

    fn poll_found(&mut self, cx: &mut Context<'_>) -> Poll<Found> {
        let mut at = 0;
        while let Some(search) = self.searches.get_mut(at) {
            let Poll::Ready((network, found)) = search.as_mut().poll(cx) else {
                at += 1;
                continue;
            };
            drop(self.searches.swap_remove(at));
            self.known(&network).is_sought = false;
            if let Some(found) = found {
                return Poll::Ready(found);
            }
        }
        Poll::Pending
    }

    /// What is known of this network.
    fn known(&mut self, name: &str) -> &mut Network {
        let at = self.networks.iter().position(|network| network.name == name).unwrap_or_else(|| {
            self.networks.push(Network { name: name.to_owned(), ..Network::default() });
            self.networks.len() - 1
        });
        &mut self.networks[at]
    }
}

/// What came of a knock.
enum Knocked {
    Answered,
    /// It was told at once that no way leads there.
    Refused,
    Silent,
}

/// The search for a network.
struct Search {
    /// What counts as scheduled for the object, with the manager.
    unit: Option<u64>,
    object: Arc<Described>,
    assembly: Arc<Assembly>,
    network: String,
    by: Option<Candidate>,
    present: Option<Present>,
}

impl Search {
    /// Looks until the manager wants what is left to come over this network too, or the network has to be
    /// tried before it can say so. `tried`: when that was done last. `None`: too little is left.
    async fn run(&self, tried: Option<Instant>) -> Option<Found> {
        let mut tried = tried;
        let (mut pause, mut patience, mut has_answered) = (PAUSE, KNOCK, false);
        if tried.is_some() {
            (pause, has_answered) = (ANSWERED, true);
        }
        loop {
            if self.comes().await {
                (pause, patience, has_answered, tried) = (PAUSE, KNOCK, false, None);
            }
            let left = self.assembly.left();
            if left < LEAST_LEFT || self.assembly.is_in_one() {
                return None;
            }
            if let Some(route) = self.wanted(left).await {
                return Some(Found { route, is_to_try: false });
            }
            if !has_answered {
                match self.knock(patience).await {
                    Knocked::Answered => (pause, has_answered) = (ANSWERED, true),
                    Knocked::Refused => {}
                    Knocked::Silent => (pause, patience) = (PAUSE, (2 * patience).min(LONGEST_KNOCK)),
                }
            }
            if has_answered
                && tried.is_none_or(|tried| tried.elapsed() >= TRIED)
                && let Some(route) = self.to_try().await
            {
                return Some(Found { route, is_to_try: true });
            }
            tokio::time::sleep(pause).await;
            pause = (2 * pause).min(LOST);
        }
    }

    /// Waits until the network is there. Returns whether it was away.
    async fn comes(&self) -> bool {
        let Some(present) = &self.present else { return false };
        let mut coming = pin!(present.comes(&self.network));
        tokio::select! {
            biased;
            () = &mut coming => return false,
            () = ready(()) => {}
        }
        // Where nobody tells of networks any more it is looked for all the same.
        let _ = tokio::time::timeout(LOST, coming).await;
        true
    }

    /// The way over this network, if the manager wants a part of so many bytes to come over it.
    async fn wanted(&self, left: u64) -> Option<Route> {
        let decided = self.object.origins.decide_rest(&self.object.to, left, self.unit).await.ok()?;
        let mut routes = decided.parts.into_iter().map(|part| part.route);
        routes.find(|route| route.way.interface == self.network)
    }

    /// Opens a connection to the server over this network, which waits for the worker that is to come.
    async fn knock(&self, patience: Duration) -> Knocked {
        let Some(by) = self.way().await else { return Knocked::Refused };
        // So that the manager is told that it works.
        let by = Candidate { failed_lately: true, ..by };
        let (origins, to, intents) = (&self.object.origins, &self.object.to, Intents::default());
        let opening = origins.lease_new(to, &intents, vec![by], false);
        match tokio::time::timeout(patience, opening).await {
            Ok(Ok(lease)) => {
                lease.release();
                Knocked::Answered
            }
            Ok(Err(error)) => {
                tracing::debug!(%error, %to, network = %self.network, "a lost network does not carry");
                Knocked::Refused
            }
            Err(_) => Knocked::Silent,
        }
    }

    /// How a connection is made over this network: as the manager says by now, or as the last one was.
    async fn way(&self) -> Option<Candidate> {
        self.little().await.and_then(|route| route.by).or_else(|| self.by.clone())
    }

    /// The way over this network, if its rate was never measured and the manager lets little things go there.
    async fn to_try(&self) -> Option<Route> {
        let present = self.present.as_ref().filter(|present| present.is_to_be_tried(&self.network));
        match present {
            Some(_) => self.little().await,
            None => None,
        }
    }

    /// The way of something small over this network: so little may go over one of which nothing is known.
    async fn little(&self) -> Option<Route> {
        let asked = self.object.origins.decide(&self.object.to, Intents::receive(1), false).await;
        let mut routes = asked.map(|decided| decided.routes).unwrap_or_default().into_iter();
        routes.find(|route| route.way.interface == self.network)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_left_alone_for_longer_with_each_further_loss_and_not_after_the_first() {
        let (mut losses, mut now) = (Losses::default(), Instant::now());
        let rests = [0, 1, 2, 4, 8, 11, 11];
        for seconds in rests {
            assert_eq!(losses.another(now), Duration::from_secs(seconds));
            now += Duration::from_secs(20);
        }
        now += FORGOTTEN;
        assert_eq!(losses.another(now), Duration::ZERO, "it had carried for long");
    }
}
