//! What all parts of a running manager share.

use crate::by_whimbrel::{anywhere, through, to_endpoint, why_through};
use crate::decide::{self, AskError, Candidate};
use crate::deciders::Deciders;
use crate::external::External;
use crate::names::Names;
use crate::protocol::{Answer, Ask, Report, Resized, Tried, Verdict, Wifi};
use crate::refusal::Refusal;
use crate::steering::Steering;
use crate::{Paths, Settings, load};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, Semaphore, broadcast, watch};
use whimbrel_base::Name;

/// Decisions that one who watches may be behind.
const BEHIND: usize = 1024;

/// The state of a manager. The paths are an immutable snapshot; one lock guards the policy and what it is
/// told of, and is held for microseconds.
pub(crate) struct Shared {
    pub(crate) settings: Settings,
    began: Instant,
    news: watch::Sender<Arc<Paths>>,
    deciders: Mutex<Deciders>,
    /// Those who watch decisions, so that nothing is written down for nobody.
    watchers: AtomicUsize,
    decisions: broadcast::Sender<Line>,
    /// Somebody asked: measurements are wanted.
    pub(crate) asked: Notify,
    pub(crate) external: External,
    names: Names,
    /// Interfaces that somebody else than the settings says to cost money.
    metered: Mutex<Arc<BTreeSet<String>>>,
    /// What is known of Wi-Fi, by the kernel's numbers of interfaces.
    wifi: Mutex<Arc<BTreeMap<u32, Wifi>>>,
    pub(crate) steering: Steering,
}

/// A decision for those who watch, and for which user, if that matters.
#[derive(Clone)]
struct Line {
    user: Option<u32>,
    text: Arc<str>,
}

impl Shared {
    pub(crate) fn new(settings: Settings) -> Result<Self, whimbrel_access::PolicyError> {
        let deciders = Deciders::new(&settings.policy)?;
        Ok(Self {
            external: External::new(settings.external.map(Duration::from_millis)),
            names: Names::default(),
            settings,
            began: Instant::now(),
            news: watch::Sender::new(Arc::default()),
            deciders: Mutex::new(deciders),
            watchers: AtomicUsize::new(0),
            decisions: broadcast::Sender::new(BEHIND),
            asked: Notify::new(),
            metered: Mutex::default(),
            wifi: Mutex::default(),
            steering: Steering::default(),
        })
    }

    /// The time on the manager's clock.
    pub(crate) fn now(&self) -> Duration {
        self.began.elapsed()
    }

    /// The paths at present.
    pub(crate) fn paths(&self) -> Arc<Paths> {
        Arc::clone(&self.news.borrow())
    }

    /// Hears of new measurements.
    pub(crate) fn follow(&self) -> watch::Receiver<Arc<Paths>> {
        self.news.subscribe()
    }

    /// Waits until interfaces, addresses or routes are others than these, also if they are already.
    pub(crate) async fn others_than(&self, seen: &Paths) {
        // The sender lives as long as this.
        let _ = self.follow().wait_for(|paths| paths.differs_from(seen)).await;
    }

    /// These are the paths from now on. Adds what clients know of them. Returns whether units are scheduled.
    pub(crate) fn publish(&self, mut paths: Paths) -> bool {
        let indices: Vec<(usize, u32)> = paths.present().map(|(id, path)| (id.index(), path.index)).collect();
        let now = self.now();
        let mut deciders = self.deciders();
        let is_busy = deciders.forget(now);
        let decider = deciders.own();
        for (at, index) in indices {
            decider.load.add_measured(index, &mut paths.estimates_mut()[at], now);
        }
        decider.load.add_scheduled(paths.estimates_mut(), now);
        drop(deciders);
        self.names.keep(&paths);
        self.news.send_replace(Arc::new(paths));
        is_busy
    }

    /// Decides for a client, and tells those who watch.
    pub(crate) fn decide(
        &self,
        client: u64,
        ask: &Ask,
        candidates: &[Candidate],
        chosen: Option<(&str, &crate::protocol::Chosen)>,
    ) -> Result<Verdict, AskError> {
        let verdict = self.settle(client, ask, candidates, chosen)?;
        self.told(client, ask, &verdict);
        Ok(verdict)
    }

    /// The same, where a connection of Whimbrel may be the answer: to an endpoint, or through the gateway.
    pub(crate) fn answer(
        &self,
        client: u64,
        ask: &Ask,
        endpoint: Option<&Name>,
        candidates: &[Candidate],
        chosen: Option<(&str, &crate::protocol::Chosen)>,
    ) -> Result<Verdict, AskError> {
        let verdict = match endpoint {
            Some(endpoint) => to_endpoint(self.settle(client, &anywhere(ask), &[], chosen)?, endpoint),
            None => {
                let verdict = self.settle(client, ask, candidates, chosen)?;
                self.with_gateway(client, ask, candidates, verdict)?
            }
        };
        let gateway = self.settings.gateway.as_ref().map(ToString::to_string);
        let verdict = Verdict { gateway, ..verdict };
        self.told(client, ask, &verdict);
        Ok(verdict)
    }

    fn with_gateway(
        &self,
        client: u64,
        ask: &Ask,
        candidates: &[Candidate],
        verdict: Verdict,
    ) -> Result<Verdict, AskError> {
        let Some(gateway) = self.settings.gateway.as_ref().filter(|_| !verdict.local) else {
            return Ok(verdict);
        };
        let Some(why) = why_through(gateway, ask, candidates) else { return Ok(verdict) };
        // Where no network leads to it, one may lead to the gateway. The unit is scheduled already.
        let networks = Ask { track: false, ..anywhere(ask) };
        let apart = match verdict.ways.is_empty() {
            true => Some(self.settle(client, &networks, &[], None)?),
            false => None,
        };
        let whimbrel = through(apart.as_ref().unwrap_or(&verdict), gateway, why);
        Ok(Verdict { whimbrel, ..verdict })
    }

    /// Decides for a client, whoever hears of it.
    fn settle(
        &self,
        client: u64,
        ask: &Ask,
        candidates: &[Candidate],
        chosen: Option<(&str, &crate::protocol::Chosen)>,
    ) -> Result<Verdict, AskError> {
        let paths = self.paths();
        let mut deciders = self.deciders();
        let verdict = deciders.of(client).decide(self.now(), client, &paths, ask, candidates, chosen)?;
        drop(deciders);
        self.asked.notify_one();
        Ok(verdict)
    }

    /// Tells those who watch. What stays where it is is no news.
    fn told(&self, client: u64, ask: &Ask, verdict: &Verdict) {
        let is_news = ask.under_way.is_none() || !verdict.ways.is_empty();
        if is_news && self.watchers.load(Ordering::Relaxed) > 0 {
            let user = self.deciders().user_of(client);
            self.tell(user, ask, verdict);
        }
    }

    /// The question to the program that decides.
    pub(crate) fn question(&self, n: u64, ask: &Ask, candidates: &[Candidate]) -> crate::protocol::Deciding {
        let paths = self.paths();
        self.deciders().own().question(self.now(), n, &paths, ask, candidates)
    }

    fn tell(&self, user: Option<u32>, ask: &Ask, verdict: &Verdict) {
        let answer = Answer { decided: Some(decide::told(ask, verdict)), ..Answer::default() };
        if let Ok(line) = serde_json::to_string(&answer) {
            // Those who watch may just have left.
            let _ = self.decisions.send(Line { user, text: line.into() });
        }
    }

    /// Hears of decisions until it is dropped: of all, or of those for the client's user, if that is decided
    /// for apart.
    pub(crate) fn watch_decisions(self: &Arc<Self>, client: u64) -> Decisions {
        let user = self.deciders().user_of(client);
        self.watchers.fetch_add(1, Ordering::Relaxed);
        Decisions { shared: Arc::clone(self), receiver: self.decisions.subscribe(), user }
    }

    /// Looks a name up by each interface for itself.
    pub(crate) async fn look_up(
        &self,
        host: &str,
        port: u16,
    ) -> Result<(Vec<Candidate>, Vec<String>), Refusal> {
        let paths = self.paths();
        self.names.look_up(&paths, &self.settings, host, port).await
    }

    /// Notes what a client tells.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn note(&self, client: u64, report: Report) -> Result<(), String> {
        let (now, paths) = (self.now(), self.paths());
        let index = |interface: &str| {
            let path = paths.named(interface).and_then(|id| paths.get(id));
            path.map(|path| path.index)
                .ok_or_else(|| format!("there is no interface {interface} with a path"))
        };
        let mut deciders = self.deciders();
        let decider = deciders.of(client);
        let ended = report.done.map(|unit| (unit, decider.load.done(client, unit)));
        let came = report.came.map(|unit| (unit, decider.load.came(client, unit, now)));
        if let Some((unit, _)) = ended.into_iter().chain(came).find(|(_, was_there)| !was_there) {
            return Err(format!("unit {unit} is not scheduled: it ended, or 60 seconds have passed"));
        }
        if let Some(Resized { unit, bytes }) = report.resized
            && !decider.load.resize(client, unit, bytes)
        {
            return Err(format!("unit {unit} is not scheduled over one network"));
        }
        if let Some(Tried { interface, destination }) = report.failed {
            decider.failures.failed(now, index(&interface)?, destination);
        }
        if let Some(Tried { interface, destination }) = report.worked {
            decider.failures.worked(index(&interface)?, destination);
        }
        if let Some(measured) = report.measured {
            if !load::is_possible(&measured) {
                return Err(
                    "measured: a round trip of a minute, a terabyte a second and a loss of 1 are the \
                            most that counts, and nothing is less than 0"
                        .to_owned(),
                );
            }
            let index = index(&measured.interface)?;
            decider.load.measured(client, index, measured, now);
        }
        Ok(())
    }

    /// These interfaces cost money, beside those of the settings, from the next measurement on.
    pub(crate) fn set_metered(&self, interfaces: BTreeSet<String>) {
        let mut known = self.metered.lock().unwrap_or_else(PoisonError::into_inner);
        if **known != interfaces {
            *known = Arc::new(interfaces);
            self.asked.notify_one();
        }
    }

    /// The interfaces that cost money beside those of the settings.
    pub(crate) fn metered(&self) -> Arc<BTreeSet<String>> {
        Arc::clone(&self.metered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// This is known of Wi-Fi from now on.
    pub(crate) fn set_wifi(&self, known: BTreeMap<u32, Wifi>) {
        *self.wifi.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(known);
    }

    /// What is known of Wi-Fi.
    pub(crate) fn wifi(&self) -> Arc<BTreeMap<u32, Wifi>> {
        Arc::clone(&self.wifi.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Has a client of this user decided for apart from those of others.
    ///
    /// # Errors
    /// Why it is not let in, in words.
    pub(crate) fn enter(&self, client: u64, user: u32) -> Result<(), String> {
        self.deciders().enter(client, user)
    }

    /// Whether a client is decided for apart: then it has no say in what is decided for others.
    pub(crate) fn is_apart(&self, client: u64) -> bool {
        self.deciders().user_of(client).is_some()
    }

    /// What a client looks names up by: as many at a time as there is room for.
    pub(crate) fn look_ups(&self, client: u64) -> Arc<Semaphore> {
        self.deciders().look_ups(client)
    }

    /// Forgets a client.
    pub(crate) fn gone(&self, client: u64) {
        self.deciders().leave(client);
        self.external.gone(client);
    }

    /// Nothing in a decision leaves it half done; a policy that panicked is asked again.
    fn deciders(&self) -> MutexGuard<'_, Deciders> {
        self.deciders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The decisions for all clients, as lines.
pub(crate) struct Decisions {
    shared: Arc<Shared>,
    receiver: broadcast::Receiver<Line>,
    /// Those for this user alone.
    user: Option<u32>,
}

impl Decisions {
    /// The next one, or how many were missed. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Result<Arc<str>, u64> {
        loop {
            match self.receiver.recv().await {
                Ok(line) if self.user.is_none() || self.user == line.user => return Ok(line.text),
                Ok(_) => {}
                Err(broadcast::error::RecvError::Lagged(count)) => return Err(count),
                // The sender lives in what this holds.
                Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
            }
        }
    }
}

impl Drop for Decisions {
    fn drop(&mut self) {
        self.shared.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}
