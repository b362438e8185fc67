//! An object whose first bytes do not come: they are asked for over another network too, and whichever
//! answers first has the rest decided. A radio network may stand still for seconds and then go on, which no
//! forecast knows and no error tells.

use super::Download;
use crate::http::answers::UNKNOWN;
use crate::http::body::Body;
use crate::http::decided::{Counted, Decided};
use crate::http::origins::Lease;
use crate::http::problem::Problem;
use hyper::Response;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use whimbrel_access::Intents;

/// How often it is looked whether an object is late: others of its server may tell meanwhile what is usual.
const LOOK: Duration = Duration::from_millis(100);
/// So often the manager is asked whether an object would come sooner another way.
const MOST_ASKED: u32 = 8;
/// What was foreseen to be there by so much earlier is overdue, if the server did not take as long before.
const OVERDUE: Duration = Duration::from_millis(100);
/// What is there within this time is not asked for twice, and the manager is asked no sooner again.
const SHORT: Duration = Duration::from_millis(20);
/// What was asked for without need is read to its end for so long, so that its connection is left.
const LEFT: Duration = Duration::from_secs(2);

/// An object that was asked for.
pub(super) type Asked = Pin<Box<dyn Future<Output = Result<Response<Body>, Problem>> + Send>>;

/// What the two know of each other that ask for an object.
#[derive(Default)]
pub(super) struct Pair {
    /// The network that the first goes over.
    network: String,
    /// The second has begun: both stay where they are.
    are_two: bool,
    /// The second has brought the object: nobody waits for the first.
    is_over: bool,
    /// What the first counts as, until its size is known or its unit has ended.
    counts: Option<Counted>,
}

impl Download {
    /// The same object, to be asked for over another network than the first.
    pub(super) fn beside(&self) -> Box<Self> {
        self.pair().network = self.decided.network().to_owned();
        let (proxy, to) = (Arc::clone(&self.proxy), self.to.clone());
        let decided = Decided { routes: self.decided.routes.clone(), ..Decided::default() };
        let (head, decided_for, pair) = (self.head.clone(), self.decided_for, Arc::clone(&self.pair));
        Box::new(Self {
            proxy,
            to,
            head,
            decided,
            decided_for,
            pair,
            is_second: true,
            looks_for_others: false,
            began: self.began,
        })
    }

    /// Whether the first may go over this network instead, as it does then.
    pub(super) fn moves_to(&self, network: &str) -> bool {
        let mut pair = self.pair();
        if !pair.are_two {
            pair.network = network.to_owned();
        }
        !pair.are_two
    }

    /// The first counts as this with the manager.
    pub(super) fn counts_as(&self, counted: Option<Counted>) {
        if !self.is_second {
            self.pair().counts = counted;
        }
    }

    /// Its size is known, or its unit has ended. Returns how many bytes it counts as.
    pub(super) fn counts_no_more(&self) -> u64 {
        let counts = if self.is_second { None } else { self.pair().counts.take() };
        counts.map_or(self.decided_for, |counted| counted.bytes())
    }

    /// Less is to be expected of the first by now than it counts as. Else what comes next would leave a
    /// network for want of room that there is.
    fn counts_less(&self) {
        let expected = self.expected(self.decided_for.max(1));
        let mut pair = self.pair();
        if let Some(counted) = pair.counts.as_mut().filter(|counted| expected <= counted.bytes() / 2) {
            counted.resize(expected);
        }
    }

    /// Takes the best route over another network than the first goes over by now, if there is one.
    fn goes_elsewhere(&mut self) -> bool {
        let first = {
            let mut pair = self.pair();
            pair.are_two = true;
            pair.network.clone()
        };
        let mut routes = std::mem::take(&mut self.decided.routes).into_iter();
        let route = routes.find(|route| route.way.interface != first);
        self.decided = route.map(Decided::by).unwrap_or_default();
        self.began = Instant::now();
        !self.decided.routes.is_empty()
    }

    /// Whether the object has come from the other one that asks.
    pub(super) fn is_over(&self) -> bool {
        self.pair().is_over
    }

    fn pair(&self) -> MutexGuard<'_, Pair> {
        lock(&self.pair)
    }

    /// How long after it was asked for an object of the server is late.
    pub(super) fn late(&self) -> Duration {
        self.proxy.answers.of(&self.to).map_or(UNKNOWN, |answers| answers.late())
    }

    /// What the server takes at most by itself, and half of that more. `None`: nothing is known.
    pub(super) fn usual(&self) -> Option<Duration> {
        Some(self.proxy.answers.of(&self.to)?.usual() * 3 / 2)
    }

    /// Waits until the object is to be asked for over another network too, which is the one that this goes
    /// over then. Returns whether there is one.
    async fn is_wanted(&mut self) -> bool {
        let (mut asked, mut last) = (0, None);
        loop {
            let proxy = Arc::clone(&self.proxy);
            let _ = tokio::time::timeout(LOOK, proxy.sizes.news()).await;
            self.counts_less();
            if self.began.elapsed() >= self.late() {
                return self.goes_elsewhere();
            }
            let is_soon = last.is_some_and(|last: Instant| last.elapsed() < SHORT);
            if is_soon || asked == MOST_ASKED || !self.may_be_sooner() {
                continue;
            }
            (asked, last) = (asked + 1, Some(Instant::now()));
            let going = tokio::time::timeout(LOOK, self.goes_where_it_is_sooner());
            if going.await == Ok(true) {
                return true;
            }
        }
    }

    /// Whether it may come sooner another way: less is to be expected of it than it was sent this way for,
    /// and it still takes a while; or it is overdue.
    fn may_be_sooner(&self) -> bool {
        let hint = self.proxy.sizes.hint(&self.to);
        let is_smaller = hint.is_some_and(|bytes| bytes < self.decided_for);
        (is_smaller && self.left().is_some_and(|left| left > SHORT)) || self.overdue().is_some()
    }

    /// How long it takes from now on if it comes as was foreseen. `None`: nothing was.
    fn left(&self) -> Option<Duration> {
        Some(self.decided.foreseen()?.saturating_sub(self.began.elapsed()))
    }

    /// How long ago it should have come. `None`: not long ago, or its server takes about as long by itself.
    fn overdue(&self) -> Option<Duration> {
        let (foreseen, elapsed) = (self.decided.foreseen()?, self.began.elapsed());
        let usual = self.usual()?;
        (elapsed > usual.max(foreseen + OVERDUE)).then(|| elapsed - foreseen)
    }

    /// Goes another way than the first, if that is much sooner by what is known now: in half of the time that
    /// it still takes, or before it is overdue for twice as long. Cancel-safe.
    async fn goes_where_it_is_sooner(&mut self) -> bool {
        let hint = self.proxy.sizes.hint(&self.to).unwrap_or(self.decided_for);
        let bytes = hint.clamp(1, self.decided_for.max(1));
        let Ok(decided) = self.proxy.origins.weigh(&self.to, Intents::receive(bytes)).await else {
            return false;
        };
        let within = self.overdue().or_else(|| self.left().map(|left| left / 2)).unwrap_or_default();
        let is_sooner = decided.foreseen().is_some_and(|foreseen| foreseen < within);
        {
            let mut pair = self.pair();
            let goes_as_foreseen = pair.network == self.decided.network();
            if !is_sooner || !goes_as_foreseen || pair.network == decided.network() {
                return false;
            }
            pair.are_two = true;
        }
        (self.decided, self.decided_for, self.began) = (decided, bytes, Instant::now());
        true
    }

    /// It has come, or the head of it if it is large. What nobody waits for any more tells nothing of what is
    /// usual.
    pub(super) fn has_begun(&self, lease: &Lease) {
        if self.is_over() {
            return;
        }
        let network = lease.by().and_then(|by| by.interface.as_deref()).unwrap_or_default();
        let took = self.began.elapsed();
        let answers = self.proxy.answers.of(&self.to).unwrap_or_default();
        self.proxy.answers.put(&self.to, answers.after(network, took));
    }
}

fn lock(pair: &Mutex<Pair>) -> MutexGuard<'_, Pair> {
    pair.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The object as it was asked for, or, if that is late, as it comes by the other way, whichever is sooner.
/// One that fails waits for the other.
pub(super) async fn sooner(mut asked: Asked, mut beside: Box<Download>) -> Result<Response<Body>, Problem> {
    let began = beside.began;
    tokio::select! {
        biased;
        answer = &mut asked => return answer,
        is_wanted = beside.is_wanted() => if !is_wanted {
            return asked.await;
        },
    }
    let (proxy, pair) = (Arc::clone(&beside.proxy), Arc::clone(&beside.pair));
    let (to, network) = (beside.to.clone(), beside.decided.network());
    tracing::debug!(%to, network, "an object is asked for there too");
    let first = beside.first();
    let mut beside: Asked = Box::pin(beside.in_two_steps(first));
    tokio::select! {
        biased;
        answer = &mut asked => match answer {
            Ok(answer) => {
                // Else a server that thinks for long would be asked twice for ever.
                if let Some(answers) = proxy.answers.of(&to) {
                    proxy.answers.put(&to, answers.after_server_took(began.elapsed()));
                }
                Ok(answer)
            }
            Err(_) => beside.await,
        },
        answer = &mut beside => match answer {
            Ok(answer) => {
                lock(&pair).is_over = true;
                tokio::spawn(tokio::time::timeout(LEFT, asked));
                Ok(answer)
            }
            Err(_) => asked.await,
        },
    }
}
