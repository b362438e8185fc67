//! The bytes of an object, fetched in ranges over one or several connections. What breaks is fetched again
//! from the byte where it stopped, over another network where there is one.

mod helping;
mod lost;
mod reconsidering;

use super::assembly::{Assembly, LEAST_RANGE, Standing};
use super::budget::Share;
use super::decided::{Decided, Part, Route, Unit};
use super::object::{Described, Object};
use super::worker::{Begun, First, Start, Stopped, Trial, Worker};
use bytes::Bytes;
use futures_util::FutureExt;
use helping::Seen;
use lost::{Found, Lost};
use reconsidering::{LOOK, Pace};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use whimbrel_access::Intents;
use whimbrel_multiaccess::Candidate;

/// So many workers for each network, so that one waits for a head while the other reads.
const WORKERS_EACH: usize = 2;
/// Rounds without a byte, after which an object is given up. A round is one that brought less than the least
/// range.
const MOST_FRUITLESS: u32 = 8;
/// The first pause; it doubles. What an attempt took that brought little is a part of the pause behind it.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// A network that was lost is looked for at least so often: one that failed is avoided by the manager for ten
/// seconds.
const LOST: Duration = Duration::from_secs(11);
/// A network whose rate is unknown is tried for so long: twice what the manager needs to see it filled.
const TRIAL: Duration = Duration::from_secs(2);
/// With less to come nobody looks for a network that was lost, and one that stands still is left soon.
const LEAST_LEFT: u64 = 1 << 20;
/// How long a network may be silent that is left soon, unless the server's objects are late only after
/// longer: a packet that was lost has mostly come again by then. With more to come, what is lost by a break
/// counts for more than the wait.
const SOON: Duration = Duration::from_secs(1);
/// How many times longer than usual a server may be silent when it was before.
const MOST_PATIENCE: u32 = 8;

/// An object that is being fetched. It ends when this is dropped.
pub(super) struct Fetching {
    assembly: Arc<Assembly>,
    task: AbortHandle,
    _share: Option<Share>,
}

impl Fetching {
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, String>>> {
        self.assembly.poll_next(cx)
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        // Where all has come it ends by itself, and may have to say so yet.
        if self.assembly.left() > 0 {
            self.task.abort();
        }
    }
}

impl Object {
    /// Fetches it from this byte on, as was decided.
    pub(super) fn fetch(&self, start: u64, decided: Option<Decided>) -> Fetching {
        self.fetch_by(start, None, decided)
    }

    /// Fetches all of it: the rest as was decided, beside the first bytes or behind them.
    pub(super) fn fetch_behind(&self, begun: Begun, decided: Decided) -> Fetching {
        self.fetch_by(0, Some(begun), Some(decided))
    }

    fn fetch_by(&self, start: u64, begun: Option<Begun>, decided: Option<Decided>) -> Fetching {
        let window = self.0.window.min(self.0.total - start);
        let share = self.0.budget.take(window);
        // Without memory for more, it is read no further ahead than what is passed on is.
        let assembly = Assembly::new(start, self.0.total, if share.is_some() { window } else { 0 });
        if share.is_none() {
            assembly.goes_on_in_one();
        }
        let assembly = Arc::new(assembly);
        let first = (begun, decided);
        let task = FutureExt::boxed(supervise(Arc::clone(&self.0), Arc::clone(&assembly), first));
        let task = tokio::spawn(task);
        Fetching { assembly, task: task.abort_handle(), _share: share }
    }
}

/// Lets workers fetch until all has come. When all of them have failed, it asks anew which way to go.
async fn supervise(
    object: Arc<Described>,
    assembly: Arc<Assembly>,
    (mut begun, mut decided): (Option<Begun>, Option<Decided>),
) {
    let mut fruitless = 0;
    loop {
        let (before, began) = (assembly.received(), Instant::now());
        let next = match decided.take() {
            Some(decided) => Ok(decided),
            None => {
                let may_split = object.may_split && !assembly.is_in_one();
                let intents = Intents::receive(assembly.left());
                object.origins.decide(&object.to, intents, may_split).await
            }
        };
        let why = match next {
            Ok(decided) => {
                let stall = patience(&object, &assembly, &decided, fruitless);
                round(&object, &assembly, (begun.take(), decided), stall).await
            }
            Err(error) => error.to_string(),
        };
        if assembly.left() == 0 || assembly.has_failed() {
            return;
        }
        let progress = assembly.received() - before;
        if progress >= LEAST_RANGE {
            fruitless = 0;
            continue;
        }
        // With a little each time it may last, but not go round and round.
        fruitless = if progress > 0 { (fruitless + 1).min(MOST_FRUITLESS - 1) } else { fruitless + 1 };
        tracing::debug!(%why, to = %object.to, fruitless, progress, "little came of an object");
        if fruitless >= MOST_FRUITLESS {
            return assembly.fail(format!("{} is not reached any more: {why}", object.to));
        }
        let pause = PAUSE.saturating_mul(1 << (fruitless - 1)).min(LONGEST_PAUSE);
        tokio::time::sleep_until((began + pause).into()).await;
    }
}

/// How long a network may be silent in this attempt.
fn patience(object: &Described, assembly: &Assembly, decided: &Decided, fruitless: u32) -> Duration {
    if fruitless == 0 && decided.has_choice() && assembly.left() < LEAST_LEFT {
        return object.stall.min(object.late.max(SOON));
    }
    object.stall * (1 << fruitless.min(8)).min(MOST_PATIENCE)
}

/// One attempt, over as many connections as were decided. Returns why the last of them ended.
async fn round(
    object: &Arc<Described>,
    assembly: &Arc<Assembly>,
    (begun, mut decided): (Option<Begun>, Decided),
    stall: Duration,
) -> String {
    // It counts as scheduled for as long as this goes on.
    let scheduled = decided.unit.take();
    let unit = scheduled.as_ref().and_then(Unit::number);
    let mut team = Team {
        object: Arc::clone(object),
        assembly: Arc::clone(assembly),
        stall,
        workers: Arc::new(AtomicUsize::new(1)),
        tasks: JoinSet::new(),
        at_work: HashMap::new(),
        alone: None,
        pace: Pace::default(),
        helped: None,
        seen: Seen::default(),
        unit,
        units: Vec::new(),
        lost: Lost::of(unit),
    };
    let was_begun = begun.is_some();
    team.begin(begun, decided);
    let why = team.run().await;
    // Without memory it comes as its reader takes it. What was not decided may have come last.
    if assembly.left() == 0 && !assembly.is_in_one() && !(was_begun && assembly.ended_with(0)) {
        scheduled.into_iter().for_each(Unit::came);
    }
    why
}

/// Those who fetch an object at the same time.
struct Team {
    object: Arc<Described>,
    assembly: Arc<Assembly>,
    stall: Duration,
    /// How many there are, when all networks work.
    workers: Arc<AtomicUsize>,
    tasks: JoinSet<Ended>,
    /// How many of them are on each interface.
    at_work: HashMap<String, usize>,
    /// How another connection is made beside that of a worker that began alone.
    alone: Option<(String, Candidate)>,
    pace: Pace,
    /// Of what stood still the manager was asked last.
    helped: Option<Standing>,
    seen: Seen,
    /// What was decided first, with the manager.
    unit: Option<u64>,
    /// What has moved counts as scheduled for as long as this is there.
    units: Vec<Unit>,
    lost: Lost,
}

/// A worker that has nothing left to do, or failed.
struct Ended {
    interface: String,
    result: Result<(), Stopped>,
}

impl Team {
    /// Begins as was decided. What has begun already goes on.
    fn begin(&mut self, begun: Option<Begun>, decided: Decided) {
        let (mut begun, mut decided) = (begun, decided);
        let parts = std::mem::take(&mut decided.parts);
        self.hear();
        begun.iter().for_each(|begun| self.assembly.first(begun.length, begun.lease.on()));
        if parts.len() < 2 || !self.object.may_split || self.assembly.is_in_one() {
            self.begin_in_one(&mut begun, decided);
        } else {
            self.begin_in_parts(&mut begun, parts);
        }
        if let Some(begun) = begun {
            self.go_on(begun, None, true);
        }
    }

    /// All comes one way. Where what has begun comes on that, it carries the rest behind it.
    fn begin_in_one(&mut self, begun: &mut Option<Begun>, decided: Decided) {
        let interface = decided.network().to_owned();
        let best = decided.routes.first();
        self.alone = best.and_then(|route| route.by.clone()).map(|by| (interface.clone(), by));
        // Without memory nothing is put together that comes beside each other.
        let is_in_one = self.assembly.is_in_one();
        match begun.take_if(|begun| is_in_one || best.is_none_or(|route| begun.is_on(route))) {
            Some(begun) => self.go_on(begun, None, false),
            None => self.add(interface, Start::Decided(decided), None, None),
        }
    }

    /// The same in parts, each of which may come on what has begun.
    fn begin_in_parts(&mut self, begun: &mut Option<Begun>, parts: Vec<Part>) {
        let sizes: Vec<u64> = parts.iter().map(|part| part.bytes).collect();
        let Some(ranges) = self.assembly.cut(&sizes) else {
            self.workers.store(parts.len() * WORKERS_EACH, Ordering::Relaxed);
            for Part { route, .. } in parts {
                match begun.take_if(|begun| begun.is_on(&route)) {
                    Some(begun) => {
                        self.go_on(begun, None, false);
                        self.add_beside(&route.way.interface, route.by.as_ref(), None);
                    }
                    None => self.add_all_of(route, None),
                }
            }
            return;
        };
        self.workers.store(parts.len(), Ordering::Relaxed);
        for (Part { route, .. }, range) in parts.into_iter().zip(ranges) {
            let first = Some(First::Range(range));
            match begun.take_if(|begun| begun.is_on(&route)) {
                Some(begun) => self.go_on(begun, first, false),
                None => self.add(route.way.interface.clone(), Start::by(route), first, None),
            }
        }
    }

    /// Lets what has begun go on. Its connection carries this range next, or whatever is left, unless it
    /// `leaves` the rest to others.
    fn go_on(&mut self, begun: Begun, next: Option<First>, leaves: bool) {
        let interface = begun.network().to_owned();
        self.add(interface, Start::Begun { begun: Box::new(begun), leaves }, next, None);
    }

    /// Which networks are there is heard of, also while one carries the object alone: when it goes, another
    /// one is asked for.
    fn hear(&mut self) {
        if !self.lost.hears() {
            let present = self.object.origins.present(&self.object.to);
            self.lost.hear(present);
        }
    }

    /// As many as a network gets.
    fn add_all_of(&mut self, route: Route, trial: Option<Trial>) {
        let (candidate, interface) = (route.by.clone(), route.way.interface.clone());
        self.add(interface.clone(), Start::by(route), None, trial);
        self.add_beside(&interface, candidate.as_ref(), trial);
    }

    /// The same where one of them is there.
    fn add_beside(&mut self, interface: &str, by: Option<&Candidate>, trial: Option<Trial>) {
        for by in by.into_iter().cycle().take(WORKERS_EACH - 1) {
            self.add(interface.to_owned(), Start::New(by.clone()), None, trial);
        }
    }

    fn add(&mut self, interface: String, start: Start, first: Option<First>, trial: Option<Trial>) {
        *self.at_work.entry(interface.clone()).or_default() += 1;
        self.lost.uses(&interface, start.candidate());
        let worker = Worker {
            object: Arc::clone(&self.object),
            assembly: Arc::clone(&self.assembly),
            start,
            first,
            trial,
            workers: Arc::clone(&self.workers),
            stall: self.stall,
            present: self.lost.present(),
        };
        self.tasks.spawn(async move { Ended { interface, result: worker.run().await } });
    }

    /// Waits for all to end. A network that was lost meanwhile is looked for, and the end of what takes long
    /// may move to another one.
    async fn run(mut self) -> String {
        let mut why = String::new();
        let mut pace = tokio::time::interval(LOOK);
        pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut standing = tokio::time::interval(helping::LOOK);
        standing.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                ended = self.tasks.join_next() => match ended {
                    Some(Ok(ended)) => {
                        if let Some(error) = self.ended(ended) {
                            why = error;
                        }
                    }
                    // What it had taken is lost, and would be waited for.
                    Some(Err(error)) => self.assembly.fail(error.to_string()),
                    None => return why,
                },
                found = self.lost.found() => self.take_in(found),
                _ = pace.tick() => self.reconsider().await,
                _ = standing.tick() => self.help().await,
            }
        }
    }

    /// A worker has ended. Returns why, if it was not for want of work; then its network is looked for, where
    /// others carry the object meanwhile.
    fn ended(&mut self, ended: Ended) -> Option<String> {
        let Ended { interface, result } = ended;
        let still = self.at_work.get(&interface).map_or(0, |count| count.saturating_sub(1));
        self.at_work.insert(interface.clone(), still);
        let Err(Stopped { why, is_by_server }) = result else {
            if still == 0 && self.are_several() {
                self.lost.worked(&interface, &self.object, &self.assembly);
            }
            return None;
        };
        if still == 0 && self.are_several() {
            tracing::debug!(network = %interface, to = %self.object.to, %why, "an object lost a network");
            self.lost.look_for(&interface, is_by_server, &self.object, &self.assembly);
        }
        Some(why)
    }

    /// Has a network carry again that was lost, or tries what it carries.
    fn take_in(&mut self, found: Found) {
        let Found { route, is_to_try } = found;
        let is_there = self.at_work.get(&route.way.interface).is_some_and(|count| *count > 0);
        if is_there || !self.are_several() {
            return;
        }
        let trial = is_to_try.then(|| Trial { until: Instant::now() + TRIAL });
        if is_to_try {
            tracing::debug!(network = %route.way.interface, to = %self.object.to, "a network is tried");
            self.lost.tries(&route.way.interface);
        }
        self.add_all_of(route, trial);
    }

    /// Whether several may fetch it.
    fn are_several(&self) -> bool {
        self.workers.load(Ordering::Relaxed) > 1 && !self.assembly.is_in_one()
    }
}
