//! The bytes of an object, fetched in ranges over one or several connections. What breaks is fetched again
//! from the byte where it stopped, over another network where there is one.

use super::assembly::{Assembly, Want};
use super::line::Unsent;
use super::origins::{Decided, Lease, Origins};
use super::validator::{Span, Validator};
use crate::Destination;
use bytes::Bytes;
use http_body_util::{BodyExt as _, Either, Empty};
use hyper::body::Incoming;
use hyper::header::{HeaderValue, IF_RANGE, RANGE};
use hyper::http::request::Parts;
use hyper::{Request, Response, StatusCode};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::task::{AbortHandle, JoinSet};
use whimbrel_access::Intents;
use whimbrel_multiaccess::{Candidate, protocol::Way};

/// What a worker asks for before it knows how fast it is.
const FIRST_RANGE: u64 = 256 << 10;
/// A range is to take about so long: the next one is asked for meanwhile by the other worker of the same
/// network.
const RANGE_TIME: f64 = 0.5;
/// So many workers for each network, so that one waits for a head while the other reads.
const WORKERS_EACH: usize = 2;
/// Rounds without a byte, after which an object is given up.
const MOST_FRUITLESS: u32 = 8;
/// The pause after the first of them; it doubles.
const PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(8);
/// How much longer than usual a server may be silent when it was before.
const MOST_PATIENCE: u32 = 8;

/// An object that can be asked for again in ranges.
#[derive(Clone)]
pub(super) struct Object(Arc<Inner>);

struct Inner {
    origins: Arc<Origins>,
    to: Destination,
    /// The request for all of it, as it goes to the server.
    head: Parts,
    validator: Validator,
    total: u64,
    window: u64,
    /// Whether several connections may fetch it.
    may_split: bool,
    stall: Duration,
}

/// What makes an object.
pub(super) struct Described {
    pub(super) origins: Arc<Origins>,
    pub(super) to: Destination,
    pub(super) head: Parts,
    pub(super) validator: Validator,
    pub(super) total: u64,
    pub(super) window: u64,
    pub(super) may_split: bool,
    pub(super) stall: Duration,
}

/// An object that is being fetched. It ends when this is dropped.
pub(super) struct Fetching {
    assembly: Arc<Assembly>,
    task: AbortHandle,
}

impl Fetching {
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, String>>> {
        self.assembly.poll_next(cx)
    }
}

impl Drop for Fetching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Object {
    pub(super) fn new(of: Described) -> Self {
        let Described { origins, to, head, validator, total, window, may_split, stall } = of;
        Self(Arc::new(Inner { origins, to, head, validator, total, window, may_split, stall }))
    }

    /// Fetches it from this byte on, as was decided.
    pub(super) fn fetch(&self, start: u64, decided: Option<Decided>) -> Fetching {
        let assembly = Arc::new(Assembly::new(start, self.0.total, self.0.window));
        let task = tokio::spawn(supervise(Arc::clone(&self.0), Arc::clone(&assembly), decided));
        Fetching { assembly, task: task.abort_handle() }
    }

    /// A connection that was made this way broke.
    pub(super) fn path_failed(&self, by: &Candidate) {
        self.0.origins.failed(&self.0.to, by);
    }

    pub(super) fn total(&self) -> u64 {
        self.0.total
    }

    pub(super) fn stall(&self) -> Duration {
        self.0.stall
    }
}

/// Lets workers fetch until all has come. When all of them have failed, it asks anew which way to go.
async fn supervise(object: Arc<Inner>, assembly: Arc<Assembly>, decided: Option<Decided>) {
    let mut decided = decided;
    let mut fruitless = 0;
    loop {
        let before = assembly.received();
        let next = match decided.take() {
            Some(decided) => Ok(decided),
            None => object.origins.decide(&object.to, Intents::receive(assembly.left())).await,
        };
        let why = match next {
            Ok(decided) => round(&object, &assembly, decided, fruitless).await,
            Err(error) => error.to_string(),
        };
        if assembly.left() == 0 || assembly.has_failed() {
            return;
        }
        if assembly.received() > before {
            fruitless = 0;
            continue;
        }
        fruitless += 1;
        tracing::debug!(%why, to = %object.to, fruitless, "nothing came of an object");
        if fruitless >= MOST_FRUITLESS {
            return assembly.fail(format!("{} is not reached any more: {why}", object.to));
        }
        let pause = PAUSE.saturating_mul(1 << (fruitless - 1));
        tokio::time::sleep(pause.min(LONGEST_PAUSE)).await;
    }
}

/// One attempt, over as many connections as were decided. Returns why the last of them ended.
async fn round(object: &Arc<Inner>, assembly: &Arc<Assembly>, decided: Decided, fruitless: u32) -> String {
    let mut decided = decided;
    // It counts as scheduled for as long as this goes on.
    let _unit = decided.unit.take();
    let patience = (1 << fruitless.min(8)).min(MOST_PATIENCE);
    let worker = |start, first, workers| Worker {
        object: Arc::clone(object),
        assembly: Arc::clone(assembly),
        start,
        first,
        workers,
        stall: object.stall * patience,
    };
    let mut tasks = JoinSet::new();
    let parts = std::mem::take(&mut decided.parts);
    if parts.len() < 2 || !object.may_split {
        tasks.spawn(worker(Start::Decided(decided), None, 1).run());
    } else if let Some(ranges) = assembly.cut(&parts.iter().map(|part| part.bytes).collect::<Vec<_>>()) {
        let workers = parts.len();
        for (part, range) in parts.into_iter().zip(ranges) {
            tasks.spawn(worker(Start::by(part.way), Some(range), workers).run());
        }
    } else {
        let workers = parts.len() * WORKERS_EACH;
        for part in parts {
            // Before the first one takes an open connection away.
            let candidate = object.origins.candidate(&object.to, &part.way);
            tasks.spawn(worker(Start::by(part.way), None, workers).run());
            for by in candidate.into_iter().cycle().take(WORKERS_EACH - 1) {
                tasks.spawn(worker(Start::New(by), None, workers).run());
            }
        }
    }
    let mut why = String::new();
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Ok(())) => {}
            Ok(Err(error)) => why = error,
            // What it had taken is lost, and would be waited for.
            Err(error) => assembly.fail(error.to_string()),
        }
    }
    why
}

/// How a worker comes to its connection.
enum Start {
    Decided(Decided),
    New(Candidate),
}

impl Start {
    fn by(way: Way) -> Self {
        Self::Decided(Decided { ways: vec![way], ..Decided::default() })
    }
}

/// Fetches ranges one after the other over connections of one network.
struct Worker {
    object: Arc<Inner>,
    assembly: Arc<Assembly>,
    start: Start,
    first: Option<Range<u64>>,
    workers: usize,
    stall: Duration,
}

/// Why a range did not come to its end.
enum Broken {
    /// Somebody else may have more luck.
    Path(String),
    /// The server does not want to.
    Server(String),
    /// The object is not the same any more.
    Changed(String),
}

impl Worker {
    async fn run(mut self) -> Result<(), String> {
        let start = std::mem::replace(&mut self.start, Start::Decided(Decided::default()));
        let leased = match start {
            Start::Decided(decided) => {
                self.object.origins.lease(&self.object.to, &Intents::default(), decided).await
            }
            Start::New(by) => self.again(Some(by)).await,
        };
        let mut lease = match leased {
            Ok(lease) => lease,
            Err(error) => {
                if let Some(range) = self.first.take() {
                    self.assembly.give_back(range);
                }
                return Err(error.to_string());
            }
        };
        let mut bytes = FIRST_RANGE;
        loop {
            let workers = self.workers as u64;
            let want = if workers == 1 { Want::All } else { Want::About { bytes, workers } };
            let taken = match self.first.take() {
                Some(range) => Some(range),
                None => self.assembly.take(want).await,
            };
            let Some(range) = taken else {
                lease.release();
                return Ok(());
            };
            // The server may have closed it after the last answer.
            if lease.was_used() && !lease.line().is_ready().await {
                lease = match self.again(lease.by().cloned()).await {
                    Ok(lease) => lease,
                    Err(error) => {
                        self.assembly.give_back(range);
                        return Err(error.to_string());
                    }
                };
            }
            let began = Instant::now();
            let mut at = range.start;
            match self.fetch(&mut lease, &range, &mut at).await {
                Ok(()) => {
                    self.assembly.done();
                    let rate = (range.end - range.start) as f64 / began.elapsed().as_secs_f64().max(0.001);
                    bytes = ((rate * RANGE_TIME) as u64).min(self.assembly.window() / workers);
                }
                Err(broken) => {
                    self.assembly.give_back(at..range.end);
                    return Err(self.broke(broken, lease));
                }
            }
        }
    }

    fn broke(&self, broken: Broken, lease: Lease) -> String {
        match broken {
            Broken::Path(why) => {
                if let Some(by) = lease.by() {
                    self.object.origins.failed(&self.object.to, by);
                }
                why
            }
            Broken::Server(why) => why,
            Broken::Changed(why) => {
                self.assembly.fail(why.clone());
                why
            }
        }
    }

    async fn again(&self, by: Option<Candidate>) -> Result<Lease, crate::UpstreamError> {
        self.object.origins.lease_new(&self.object.to, &Intents::default(), by.into_iter().collect()).await
    }

    /// Fetches a range. `at` is the first byte of it that has not come.
    async fn fetch(&self, lease: &mut Lease, range: &Range<u64>, at: &mut u64) -> Result<(), Broken> {
        let request = self.request(range);
        let answer = lease.line().send(request, self.stall).await.map_err(|unsent| match unsent {
            Unsent::Returned(_) => Broken::Path("the connection was closed".to_owned()),
            Unsent::Ended(error) => Broken::Path(error.to_string()),
            Unsent::Nonsense(error) => Broken::Server(error.to_string()),
            Unsent::Late => Broken::Path("the server does not answer".to_owned()),
        })?;
        let skipped = self.check(&answer, range)?;
        self.read(answer.into_body(), skipped, range, at).await
    }

    fn request(&self, range: &Range<u64>) -> Request<super::line::Sent> {
        let mut head = self.object.head.clone();
        if let Ok(value) = HeaderValue::from_str(&format!("bytes={}-{}", range.start, range.end - 1)) {
            head.headers.insert(RANGE, value);
        }
        head.headers.insert(IF_RANGE, self.object.validator.value().clone());
        Request::from_parts(head, Either::Right(Empty::new()))
    }

    /// Checks that an answer has these bytes of the object, and returns how many come before them.
    fn check(&self, answer: &Response<Incoming>, range: &Range<u64>) -> Result<u64, Broken> {
        let object = &self.object;
        let changed = || Broken::Changed(format!("the object at {} changed while it was fetched", object.to));
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
                Ok(0)
            }
            // Whole: the object has changed, or this server has no ranges, unlike the one that answered
            // first.
            StatusCode::OK if !is_same => Err(changed()),
            StatusCode::OK => Ok(range.start),
            StatusCode::RANGE_NOT_SATISFIABLE | StatusCode::PRECONDITION_FAILED => Err(changed()),
            StatusCode::NOT_FOUND | StatusCode::GONE => Err(changed()),
            status => Err(Broken::Server(format!("the server answers {status} to a part"))),
        }
    }

    async fn read(
        &self,
        mut body: Incoming,
        skipped: u64,
        range: &Range<u64>,
        at: &mut u64,
    ) -> Result<(), Broken> {
        let mut skipped = skipped;
        while *at < range.end {
            self.assembly.room_at(*at).await;
            let Ok(frame) = tokio::time::timeout(self.stall, body.frame()).await else {
                return Err(Broken::Path("nothing comes any more".to_owned()));
            };
            let Some(frame) = frame else {
                return Err(Broken::Path("the answer ended before its end".to_owned()));
            };
            let frame = frame.map_err(|error| Broken::Path(error.to_string()))?;
            let Ok(mut bytes) = frame.into_data() else { continue };
            let before = skipped.min(bytes.len() as u64);
            skipped -= before;
            bytes = bytes.slice(before as usize..);
            // What comes behind the range is somebody else's.
            let most = range.end - *at;
            bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            if !bytes.is_empty() {
                let length = bytes.len() as u64;
                self.assembly.put(*at, bytes);
                *at += length;
            }
        }
        Ok(())
    }
}
