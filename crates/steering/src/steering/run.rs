//! The task that hears of connections and of the manager, asks, and measures.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use whimbrel_access::Intents;
use whimbrel_base::ConnectionId;
use whimbrel_multiaccess::ClientError;
use whimbrel_multiaccess::protocol::{Ask, OpenConnection, PathReport, Report, Tried, Verdict};
use whimbrel_transport::{
    CarrierKind, ConnectionEvent, ConnectionInfo, EndpointEvent, EndpointEvents, PathInfo, PathState,
    Priority, Side,
};

use super::Inner;
use crate::change::{Change, change};
use crate::measured::{Flow, Meter};
use crate::signals::signals;
use crate::standing::Standing;
use crate::table::Question;
use crate::usage::{Usage, granularity};

/// How often paths are measured while there are any.
const EACH: Duration = Duration::from_secs(1);
/// Estimates change all the time: no more often are all asked for again for that.
const ROUNDS: Duration = Duration::from_secs(2);
/// After a manager that did not answer one is asked again.
const LOST: Duration = Duration::from_secs(5);
/// Paths of a connection that are told of.
const MAX_PATHS: usize = 16;

/// The state of the task.
pub(super) struct Run {
    inner: Arc<Inner>,
    standing: watch::Receiver<Standing>,
    events: EndpointEvents,
    /// The paths that the manager saw when all were asked for last.
    known: Vec<PathReport>,
    is_there: bool,
    /// When all were asked for last.
    round: Instant,
    /// What new connections are to use is to be asked.
    asks_for_new: bool,
    meter: Meter,
    began: Instant,
}

impl Run {
    pub(super) fn new(inner: Arc<Inner>, standing: watch::Receiver<Standing>) -> Self {
        let events = inner.endpoint.events();
        let now = Instant::now();
        Self {
            inner,
            standing,
            events,
            known: Vec::new(),
            is_there: false,
            round: now,
            asks_for_new: false,
            meter: Meter::default(),
            began: now,
        }
    }

    /// Asks for what there is, for the first time.
    pub(super) async fn begin(&mut self) {
        self.find();
        self.look();
        if !self.is_there {
            let why = match &*self.standing.borrow() {
                Standing::Gone(why) => why.clone(),
                _ => "the manager does not answer in time".to_owned(),
            };
            self.inner.go_on_alone(&why);
        }
        self.ask().await;
    }

    /// Goes on until the endpoint is gone.
    pub(super) async fn go_on(mut self) {
        let mut tick = tokio::time::interval(EACH);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let due = self.inner.table.due().filter(|_| self.is_there);
            let asking = async {
                match due {
                    Some(at) => tokio::time::sleep_until(at.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                event = self.events.next() => match event {
                    Some(event) => self.hear(event),
                    None => return,
                },
                changed = self.standing.changed() => match changed {
                    Ok(()) => self.look(),
                    Err(_) => return,
                },
                _ = tick.tick() => self.measure(),
                () = self.inner.nudge.notified() => {}
                () = asking => {}
            }
            self.ask().await;
        }
    }

    /// Looks at what the manager says of itself and its paths.
    fn look(&mut self) {
        let now = Instant::now();
        let standing = self.standing.borrow_and_update().clone();
        match standing {
            Standing::Unknown => {}
            Standing::Gone(why) => {
                self.inner.tell_signals(BTreeMap::new());
                if std::mem::take(&mut self.is_there) {
                    self.inner.go_on_alone(&why);
                }
            }
            Standing::There(paths) => {
                self.inner.tell_signals(signals(&paths));
                let is_due = match change(&self.known, &paths) {
                    _ if !self.is_there => true,
                    Change::Networks => true,
                    Change::Estimates => now.saturating_duration_since(self.round) >= ROUNDS,
                    Change::Nothing => false,
                };
                self.is_there = true;
                if is_due {
                    (self.known, self.round, self.asks_for_new) = (paths, now, true);
                    self.inner.table.want_all(now);
                }
            }
        }
    }

    /// Takes note of what happened to a connection.
    fn hear(&mut self, event: EndpointEvent) {
        let now = Instant::now();
        let table = &self.inner.table;
        match event {
            EndpointEvent::Established { id, peer, side: Side::Client } => table.add(id, peer, now),
            EndpointEvent::Connection { id, side: Side::Client, event, .. } => match event {
                ConnectionEvent::Closed { .. } => table.remove(id),
                ConnectionEvent::PathUp { .. }
                | ConnectionEvent::PathSuspect { .. }
                | ConnectionEvent::PathDown { .. }
                | ConnectionEvent::Missed(_) => {
                    table.want(id, now);
                    if let Some(info) = self.inner.endpoint.connection(id) {
                        self.check_paths(&info, now);
                    }
                }
                _ => {}
            },
            EndpointEvent::Missed(_) => {
                self.find();
                self.inner.table.want_all(now);
            }
            _ => {}
        }
    }

    /// Tells the manager which paths of a connection have failed, or work again.
    fn check_paths(&self, info: &ConnectionInfo, now: Instant) {
        for path in &info.stats.paths {
            let Some(tried) = self.tried(path) else { continue };
            let (table, id) = (&self.inner.table, info.id);
            let report = match path.state {
                PathState::Suspect if table.failed(id, &tried, now) => {
                    Report { failed: Some(tried), ..Report::default() }
                }
                PathState::Active if table.worked(id, &tried, now) => {
                    Report { worked: Some(tried), ..Report::default() }
                }
                _ => continue,
            };
            self.inner.client.tell(report);
        }
    }

    /// The way of a path, as the manager knows it.
    fn tried(&self, path: &PathInfo) -> Option<Tried> {
        let interface = self.interface(path.local.ip())?.to_owned();
        Some(Tried { interface, destination: path.remote.address() })
    }

    /// The interface that has this address.
    fn interface(&self, ip: IpAddr) -> Option<&str> {
        let ip = ip.to_canonical();
        let path = self.known.iter().find(|path| path.addresses.contains(&ip));
        path.map(|path| path.interface.as_str())
    }

    /// The connections that were dialled, of which nothing is forgotten.
    fn find(&self) -> Vec<ConnectionInfo> {
        let mut all = self.inner.endpoint.connections();
        all.retain(|info| info.side == Side::Client);
        let ids: HashSet<ConnectionId> = all.iter().map(|info| info.id).collect();
        self.inner.table.keep(&ids);
        let now = Instant::now();
        all.iter().for_each(|info| self.inner.table.add(info.id, info.peer, now));
        all
    }

    /// Tells the manager how the paths of QUIC do: those of TCP it sees itself.
    fn measure(&mut self) {
        let all = self.find();
        // Those that were woken from sleep tell the endpoint nothing.
        let now = Instant::now();
        all.iter().for_each(|info| self.check_paths(info, now));
        let paths = all.iter().flat_map(|info| info.stats.paths.iter().map(move |path| (info.id, path)));
        let works = |path: &PathInfo| path.carrier == CarrierKind::Quic && path.state == PathState::Active;
        let flows = paths.filter(|(_, path)| works(path)).filter_map(|(id, path)| {
            let interface = self.interface(path.local.ip())?.to_owned();
            let (srtt, received, sent) = (path.srtt, path.bytes_received, path.bytes_sent);
            Some(Flow { key: (id, path.id), interface, srtt, received, sent })
        });
        let flows: Vec<Flow> = flows.collect();
        let measured = self.meter.measure(self.began.elapsed(), &flows);
        for measured in measured.into_iter().filter(|_| self.is_there) {
            self.inner.client.tell(Report { measured: Some(measured), ..Report::default() });
        }
    }

    /// Asks for all whose turn it is.
    async fn ask(&mut self) {
        if !self.is_there {
            return;
        }
        if std::mem::take(&mut self.asks_for_new) {
            let intents = self.inner.intents;
            let ask = Ask { intents, granularity: granularity(&intents), ..Ask::default() };
            match self.inner.client.ask(ask).await {
                Ok(verdict) => self.inner.apply_to_new(self.usage(&verdict, &intents)),
                Err(ClientError::Refused(why)) => self.inner.tell_refusal(why),
                // What holds goes on to hold; that it went away is heard of otherwise.
                Err(error) => {
                    tracing::debug!(%error, "the manager has no word for new connections");
                    self.asks_for_new = true;
                }
            }
        }
        for question in self.inner.table.take_due(Instant::now()) {
            self.ask_for(question).await;
        }
    }

    async fn ask_for(&self, question: Question) {
        let Some(info) = self.inner.endpoint.connection(question.id) else { return };
        let (id, intents) = (question.id, question.intents.unwrap_or(self.inner.intents));
        match self.inner.client.ask(self.form(question, &info, intents)).await {
            Ok(verdict) => self.inner.apply(id, self.usage(&verdict, &intents)),
            Err(ClientError::Refused(why)) => {
                self.inner.tell_refusal(why);
                self.inner.apply(id, self.inner.own.clone());
            }
            Err(error) => {
                // One that has gone is heard of otherwise; one that is busy has said nothing new.
                tracing::debug!(connection = %id, %error, "the manager does not say what it is to use");
                self.inner.table.want(id, Instant::now() + LOST);
            }
        }
    }

    /// The question, with what is open: the connection stays where it is if that makes no difference.
    fn form(&self, question: Question, info: &ConnectionInfo, intents: Intents) -> Ask {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        for path in info.stats.paths.iter().take(MAX_PATHS) {
            let address = path.remote.address();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        if addresses.is_empty() {
            addresses = question.addresses;
        } else {
            self.inner.table.reached(question.id, &addresses);
        }
        let carries = |path: &&PathInfo| {
            let works = path.state == PathState::Active && path.priority == Priority::Normal;
            works && self.interface(path.local.ip()).is_some()
        };
        let carrying = info.stats.paths.iter().filter(carries).take(MAX_PATHS);
        let connections = carrying.filter_map(|path| {
            let (id, source) = (u32::try_from(path.id).ok()?, path.local.ip().to_canonical());
            Some(OpenConnection { id, source, scheduled: 0 })
        });
        Ask {
            intents,
            granularity: granularity(&intents),
            // A name alone would be looked up.
            to: (!addresses.is_empty()).then_some(question.label),
            connections: connections.collect(),
            addresses,
            ..Ask::default()
        }
    }

    fn usage(&self, verdict: &Verdict, intents: &Intents) -> Usage {
        Usage::of(verdict, intents, &self.known, &self.inner.own)
    }
}
