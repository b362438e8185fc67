//! One of those who fetch an object: ranges, one after the other, on connections of one network.

mod start;

pub(super) use start::{Begun, Start};

use super::assembly::{Assembly, LEAST_RANGE, Rest, Want};
use super::decided::Decided;
use super::fields;
use super::line::{Unsent, is_of_the_network};
use super::moving::Sent;
use super::object::Described;
use super::origins::Lease;
use super::present::Present;
use super::rooms::{self, Room};
use super::speaker::Coming;
use super::validator::Span;
use crate::UpstreamError;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use http_body_util::{BodyExt as _, Either, Empty};
use hyper::header::{HeaderValue, IF_RANGE, RANGE};
use hyper::{Request, Response, StatusCode};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use whimbrel_access::Intents;
use whimbrel_multiaccess::Candidate;
use whimbrel_multiaccess::protocol::Protocol;

/// What a worker asks for before it knows how fast it is.
const FIRST_RANGE: u64 = 256 << 10;
/// A range is to take about so many seconds: long beside a round trip, short beside what the window allows.
const RANGE_TIME: f64 = 0.5;
/// What was begun before the end of a trial may take so long beyond it: twice the time of a range.
const LATE: Duration = Duration::from_secs(1);

const GONE: &str = "its network is gone";

/// The trial of a network whose rate nobody knows: ranges begin small, and none begins after its end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trial {
    pub(super) until: Instant,
}

impl Trial {
    fn is_over(self) -> bool {
        Instant::now() >= self.until
    }

    /// Waits until a range that was begun in time should have come. Without a trial that is never.
    async fn late(trial: Option<Self>) {
        match trial {
            Some(trial) => tokio::time::sleep_until((trial.until + LATE).into()).await,
            None => std::future::pending().await,
        }
    }
}

/// Fetches ranges one after the other over connections of one network.
pub(super) struct Worker {
    pub(super) object: Arc<Described>,
    pub(super) assembly: Arc<Assembly>,
    pub(super) start: Start,
    /// What it fetches first.
    pub(super) first: Option<First>,
    /// It fetches to see what its network carries.
    pub(super) trial: Option<Trial>,
    /// How many there are in all: more, once the end of what comes has moved.
    pub(super) workers: Arc<AtomicUsize>,
    /// For how long nothing may come.
    pub(super) stall: Duration,
    /// Which networks there are, as soon as that is heard.
    pub(super) present: watch::Receiver<Option<Present>>,
}

/// What a worker fetches first.
pub(super) enum First {
    /// This range, which is nobody else's.
    Range(Range<u64>),
    /// The rest of one that stands still, beside its worker, if it still does once there is a connection; or
    /// what is left by then of one that is no more than slow.
    Rest { rest: Rest, slow: bool },
}

/// A range for a worker.
struct Task {
    /// Where the range begins that this is the rest of: all of it, unless another worker fetches it too.
    of: u64,
    range: Range<u64>,
    /// Another worker has it, and goes on whatever this one finds.
    is_second: bool,
    /// What comes of it already.
    coming: Option<(Coming, Option<Room>)>,
}

impl From<Range<u64>> for Task {
    fn from(range: Range<u64>) -> Self {
        Self { of: range.start, range, is_second: false, coming: None }
    }
}

/// Why a worker cannot go on.
pub(super) struct Stopped {
    /// In words.
    pub(super) why: String,
    /// The server does not want it, or does something wrong. That says nothing of the network.
    pub(super) is_by_server: bool,
}

impl Stopped {
    fn on_the_way(why: impl Display) -> Self {
        Self { why: why.to_string(), is_by_server: false }
    }

    fn by_server(why: impl Into<String>) -> Self {
        Self { why: why.into(), is_by_server: true }
    }
}

/// What an answer has.
struct Had {
    /// So many bytes of it come before the range.
    skipped: u64,
    /// The first byte of the object that is not in it, or behind the range.
    end: u64,
}

/// Why a range did not come to its end.
enum Broken {
    /// Its network did. Another one may have more luck.
    Path(String),
    /// The server ended it, or does not want to. What it does says nothing of the network.
    Server(String),
    /// The server sends the whole object to whoever asks for a part of it.
    Whole,
    /// What comes cannot be put together with what has come.
    Foreign(String),
    /// Something before it has to come first, and nobody else fetches that.
    Ahead,
}

impl Broken {
    fn of(error: &hyper::Error) -> Self {
        match is_of_the_network(error) {
            true => Self::Path(error.to_string()),
            false => Self::Server(error.to_string()),
        }
    }
}

impl Worker {
    /// Works until nothing is left, or what it was to help with is over. Returns why it cannot go on.
    pub(super) async fn run(mut self) -> Result<(), Stopped> {
        let helps = matches!(self.first, Some(First::Rest { .. }));
        let worked = self.work().await;
        if let Some(First::Range(range)) = self.first.take() {
            self.assembly.give_back(range.start);
        }
        if helps {
            self.workers.fetch_sub(1, Ordering::Relaxed);
        }
        worked
    }

    async fn work(&mut self) -> Result<(), Stopped> {
        let helps = matches!(self.first, Some(First::Rest { .. }));
        let start = std::mem::replace(&mut self.start, Start::Decided(Decided::default()));
        // Looked at before there is a connection: the network may go before the first range is asked for.
        let seen = self.seen(start.network());
        let mut gone = self.gone(start.candidate(), seen.clone());
        let mut foreseen = start.foreseen();
        let leaves = matches!(start, Start::Begun { leaves: true, .. });
        let (mut lease, mut begun) = match start {
            // Not beside its network, which may go just now: the range has to be given back then.
            Start::Begun { begun, .. } => {
                let Begun { body, lease, room, length } = *begun;
                (lease, Some(Task { coming: Some((body, room)), ..Task::from(0..length) }))
            }
            start => {
                let leased = tokio::select! {
                    leased = self.lease(start) => leased.map_err(|error| error.to_string()),
                    () = &mut gone => Err(GONE.to_owned()),
                    () = self.is_not_needed() => return Ok(()),
                };
                (leased.map_err(Stopped::on_the_way)?, None)
            }
        };
        gone = self.gone(lease.by(), seen);
        let mut was_cut_off = false;
        let mut bytes = if self.trial.is_some() { LEAST_RANGE } else { FIRST_RANGE };
        loop {
            if self.trial.is_some_and(Trial::is_over) {
                lease.release();
                return Ok(());
            }
            let workers = self.workers() as u64;
            let want = if workers == 1 { Want::All } else { Want::About { bytes, workers } };
            let taken = match (begun.take(), self.first.take()) {
                (Some(task), first) => {
                    self.first = first;
                    Some(task)
                }
                (None, Some(first)) => self.task(first),
                // What it was to help with is over.
                (None, None) if helps => None,
                (None, None) => self.next(want, &lease).await.map(Task::from),
            };
            let Some(mut task) = taken else {
                lease.release();
                return Ok(());
            };
            let coming = task.coming.take();
            let has_begun = coming.is_some();
            // The server may have closed it after the last answer.
            if !has_begun && (lease.was_used() || was_cut_off) && !lease.line().is_ready().await {
                let by = lease.by().cloned();
                let seen = self.seen(by.as_ref().and_then(|by| by.interface.as_deref()).unwrap_or_default());
                let turn = lease.close();
                gone = self.gone(by.as_ref(), seen.clone());
                let again = tokio::select! {
                    again = self.again(by) => again.map_err(|error| error.to_string()),
                    () = &mut gone => Err(GONE.to_owned()),
                };
                lease = match again {
                    Ok(lease) => lease.with(turn),
                    Err(error) => {
                        self.assembly.give_back(task.of);
                        return Err(Stopped::on_the_way(error));
                    }
                };
                gone = self.gone(lease.by(), seen);
                was_cut_off = false;
            }
            let began = Instant::now();
            let mut at = task.range.start;
            let fetched = tokio::select! {
                biased;
                // Another worker that fetched it too was faster.
                () = self.assembly.is_over(task.of) => Ok(()),
                fetched = self.fetch(&mut lease, &task, (coming, foreseen.take()), &mut at) => fetched,
                // Others fetch the rest now, and not when it has been silent for long enough.
                () = &mut gone => Err(Broken::Path(GONE.to_owned())),
                // Nothing waits for long for a network that turns out to be slow.
                () = Trial::late(self.trial) => {
                    self.assembly.give_back(task.of);
                    return Ok(());
                }
            };
            match fetched {
                // A server may send less than it was asked for (RFC 9110, §15.3.7), but no crumbs.
                Ok(()) if at < self.assembly.end_of(task.of) => {
                    self.assembly.give_back(task.of);
                    if at - task.range.start < LEAST_RANGE {
                        return Err(Stopped::by_server("the server sends less than it is asked for"));
                    }
                }
                Ok(()) => {
                    self.assembly.done(task.of);
                    if at < task.range.end {
                        // The rest of it is another worker's, and must not take the network's time.
                        lease.line().cut_off();
                        was_cut_off = true;
                    }
                    if has_begun {
                        // That was a unit of its own. How fast it came says little.
                        lease.settle();
                        if leaves {
                            lease.release();
                            return Ok(());
                        }
                        continue;
                    }
                    let rate = (at - task.range.start) as f64 / began.elapsed().as_secs_f64().max(0.001);
                    bytes = ((rate * RANGE_TIME) as u64).min(self.assembly.window() / workers);
                }
                Err(Broken::Ahead) => {
                    self.assembly.give_back(task.of);
                    lease.line().cut_off();
                    was_cut_off = true;
                }
                Err(broken) => {
                    self.assembly.give_back(task.of);
                    if task.is_second {
                        // The first goes on, and what is wrong shows there, if anything is.
                        lease.line().leave();
                        return Err(Stopped::by_server("the rest of a range did not come there either"));
                    }
                    return Err(self.broke(broken, lease).await);
                }
            }
        }
    }

    /// Waits until what this was to help with is over.
    async fn is_not_needed(&self) {
        match &self.first {
            Some(First::Rest { rest, .. }) => self.assembly.is_over(rest.start).await,
            _ => std::future::pending().await,
        }
    }

    /// `None`: there is nothing to help with any more.
    fn task(&self, first: First) -> Option<Task> {
        match first {
            First::Range(range) => Some(range.into()),
            First::Rest { rest, slow } => {
                let range = self.assembly.join(&rest, slow)?;
                Some(Task { is_second: true, of: rest.start, ..Task::from(range) })
            }
        }
    }

    /// The next range. While it waits for the reader, or for what others may give back, its turn is free.
    async fn next(&self, want: Want, lease: &Lease) -> Option<Range<u64>> {
        let taking = self.assembly.take(want);
        tokio::pin!(taking);
        tokio::select! {
            biased;
            taken = &mut taking => return taken,
            () = std::future::ready(()) => lease.rest(),
        }
        let taken = taking.await;
        lease.moved();
        taken
    }

    fn workers(&self) -> usize {
        self.workers.load(Ordering::Relaxed)
    }

    /// This network, and which arrival brought it.
    fn seen(&self, network: &str) -> Option<(String, u64)> {
        let arrival = self.present.borrow().as_ref()?.arrival(network)?;
        Some((network.to_owned(), arrival))
    }

    /// Waits until the network of a connection that is made so goes, as it was seen before there was one.
    fn gone(&self, by: Option<&Candidate>, seen: Option<(String, u64)>) -> BoxFuture<'static, ()> {
        // One over several networks goes on without its first.
        let by = by.filter(|by| by.protocol == Protocol::Tcp);
        let network = by.and_then(|by| by.interface.clone());
        let Some(network) = network else { return std::future::pending().boxed() };
        let arrival = seen.filter(|(name, _)| *name == network).map(|(_, arrival)| arrival);
        let mut present = self.present.clone();
        let going = async move {
            let heard = present.wait_for(Option::is_some).await.map(|present| present.clone());
            match heard.ok().flatten() {
                Some(present) => present.goes(&network, arrival).await,
                None => std::future::pending().await,
            }
        };
        going.boxed()
    }

    async fn broke(&self, broken: Broken, lease: Lease) -> Stopped {
        let mut lease = lease;
        match broken {
            Broken::Path(why) => {
                lease.line().leave();
                if let Some(by) = lease.by() {
                    self.object.origins.failed(&self.object.to, by).await;
                }
                Stopped::on_the_way(why)
            }
            Broken::Server(why) => Stopped::by_server(why),
            Broken::Ahead => Stopped::by_server("something else is to come first"),
            Broken::Whole => {
                self.object.without_ranges.put(&self.object.to, ());
                self.assembly.goes_on_in_one();
                Stopped::by_server("the server has no ranges")
            }
            Broken::Foreign(why) => {
                self.assembly.fail(why.clone());
                Stopped::by_server(why)
            }
        }
    }

    /// Waits for a turn on its network, and gives a connection.
    async fn lease(&self, start: Start) -> Result<Lease, UpstreamError> {
        let (origins, to) = (&self.object.origins, &self.object.to);
        let turn = async |network| origins.turn(to, network, true).await;
        match start {
            // It has its turn.
            Start::Begun { begun, .. } => Ok(begun.lease),
            Start::Decided(decided) => {
                let turn = turn(decided.network()).await;
                Ok(origins.lease(to, &Intents::default(), decided).await?.with(turn))
            }
            Start::New(by) => {
                let turn = turn(by.interface.as_deref().unwrap_or_default()).await;
                Ok(self.again(Some(by)).await?.with(turn))
            }
        }
    }

    async fn again(&self, by: Option<Candidate>) -> Result<Lease, UpstreamError> {
        let (origins, ways) = (&self.object.origins, by.into_iter().collect());
        origins.lease_new(&self.object.to, &Intents::default(), ways, false).await
    }

    /// Fetches a range. `at` is the first byte of it that has not come.
    async fn fetch(
        &self,
        lease: &mut Lease,
        task: &Task,
        (coming, foreseen): (Option<(Coming, Option<Room>)>, Option<Duration>),
        at: &mut u64,
    ) -> Result<(), Broken> {
        let Task { of, range, .. } = task;
        if let Some((body, room)) = coming {
            let had = Had { skipped: 0, end: range.end };
            return self.read(body, *of, had, (at, room), lease).await;
        }
        let request = self.request(range);
        let mut room = self.object.origins.room(lease, range.end - range.start).await;
        if let Some(on) = lease.on() {
            self.assembly.asked_on(*of, on, foreseen);
        }
        let sending = lease.line().send(request, self.stall);
        let answer = rooms::while_it_comes(&mut room, sending).await.map_err(|unsent| match unsent {
            Unsent::Returned(_) => Broken::Server("the connection was closed".to_owned()),
            Unsent::Ended(error) => Broken::of(&error),
            Unsent::Nonsense(error) => Broken::Server(error.to_string()),
            Unsent::Late => Broken::Path("the server does not answer".to_owned()),
        })?;
        let had = self.check(&answer, range)?;
        if let Some(on) = lease.on() {
            self.assembly.comes_on(*of, on, answer.status() == StatusCode::PARTIAL_CONTENT);
        }
        self.read(answer.into_body(), *of, had, (at, room), lease).await
    }

    fn request(&self, range: &Range<u64>) -> Request<Sent> {
        let mut head = self.object.head.clone();
        if let Ok(value) = HeaderValue::from_str(&format!("bytes={}-{}", range.start, range.end - 1)) {
            head.headers.insert(RANGE, value);
        }
        head.headers.insert(IF_RANGE, self.object.validator.value().clone());
        Request::from_parts(head, Either::Right(Empty::new()))
    }

    /// Checks that an answer has bytes of the object from where the range begins, and returns which it has.
    fn check(&self, answer: &Response<Coming>, range: &Range<u64>) -> Result<Had, Broken> {
        let object = &self.object;
        let changed = || {
            let to = &object.to;
            Broken::Foreign(format!("the object at {to} changed while it was fetched, or it is not said"))
        };
        let length = fields::check_answer(answer.headers());
        let length = length.map_err(|problem| Broken::Foreign(problem.into_text()))?;
        if answer.status().is_success() && !object.validator.is_said(answer.headers()) {
            // The next object of this server is asked for whole.
            object.without_ranges.put(&object.to, ());
        }
        let is_same = object.validator.is_of(answer.headers());
        match answer.status() {
            StatusCode::PARTIAL_CONTENT => {
                let Some(span) = Span::of(answer.headers()) else {
                    return Err(Broken::Server("the server does not say which part it sends".to_owned()));
                };
                if !is_same || span.total != object.total {
                    return Err(changed());
                }
                if span.first != range.start || span.last >= range.end {
                    return Err(Broken::Server(
                        "the server sends another part than was asked for".to_owned(),
                    ));
                }
                Ok(Had { skipped: 0, end: span.last + 1 })
            }
            // Whole: the object has changed, or this server has no ranges, unlike the one that answered
            // first.
            StatusCode::OK if !is_same || length.is_some_and(|length| length != object.total) => {
                Err(changed())
            }
            // Each of several workers would have to skip what the others fetch.
            StatusCode::OK if self.workers() > 1 => Err(Broken::Whole),
            StatusCode::OK => Ok(Had { skipped: range.start, end: range.end }),
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PRECONDITION_FAILED => Err(changed()),
            StatusCode::NOT_FOUND | StatusCode::GONE => Err(changed()),
            status => Err(Broken::Server(format!("the server answers {status} to a part"))),
        }
    }

    /// Reads until there is no more of it, or the rest is another worker's.
    async fn read(
        &self,
        mut body: Coming,
        of: u64,
        had: Had,
        (at, mut room): (&mut u64, Option<Room>),
        lease: &Lease,
    ) -> Result<(), Broken> {
        let Had { mut skipped, end } = had;
        while *at < end.min(self.assembly.end_of(of)) {
            if !rooms::while_it_comes(&mut room, self.assembly.room_at(*at)).await {
                return Err(Broken::Ahead);
            }
            let frame = rooms::while_it_comes(&mut room, body.frame());
            let Ok(frame) = tokio::time::timeout(self.stall, frame).await else {
                return Err(Broken::Path("nothing comes any more".to_owned()));
            };
            let Some(frame) = frame else {
                return Err(Broken::Server("the answer ended before its end".to_owned()));
            };
            let frame = frame.map_err(|error| Broken::of(&error))?;
            lease.moved();
            let Ok(mut bytes) = frame.into_data() else { continue };
            room.iter_mut().for_each(|room| room.came(bytes.len() as u64));
            let before = skipped.min(bytes.len() as u64);
            skipped -= before;
            bytes = bytes.slice(before as usize..);
            // What comes behind the range is somebody else's.
            let most = end - *at;
            bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            if !bytes.is_empty() {
                *at += self.assembly.put(*at, bytes);
            }
        }
        Ok(())
    }
}
