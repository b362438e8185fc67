//! What was asked, is watched and is published: what outlives a connection to the service.

use futures_util::FutureExt;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot, watch};
use whimbrel_base::{EndpointId, Name, SignedRecord};
use whimbrel_transport::{Connection, Watch, Watched};

use super::{ANSWER_LIMIT, AskError, verified};
use crate::clock::now;
use crate::error::ErrorCode;
use crate::proof::{DomainProof, ProofError};
use crate::protocol::{Numbered, Reply, Request, Response, encode};
use crate::readers::Readers;
use crate::trust::KnownPeers;

mod asked;
mod published;
mod wanted;

use self::asked::{Answer, Asked, generation, is_same_record, newer};
use self::published::Publications;
pub(super) use self::wanted::Wanted;

/// Questions without an answer.
const MAX_ASKED: usize = 1024;
/// Names that are watched.
const MAX_WATCHES: usize = 1024;
/// A watch that the service has no room for is tried again after this.
const WATCH_PAUSE: Duration = Duration::from_secs(30);
/// What is encoded in one go.
const FRAMES: usize = 64 * 1024;

/// Shared by the resolver's handles and the task that has the connection.
pub(super) struct Core {
    state: Mutex<State>,
    /// There is something to do for the connection's task.
    pub(super) work: Notify,
    /// The connection to the service, while there is one.
    connection: watch::Sender<Option<Connection>>,
    runtime: Handle,
    known: KnownPeers,
    /// Whose service is asked.
    service: EndpointId,
    /// What has to agree before the service's word counts.
    proof: OnceLock<Box<dyn DomainProof>>,
}

struct State {
    next_number: u64,
    asked: BTreeMap<u64, Asked>,
    /// Numbers of what was not written to this connection yet.
    queue: VecDeque<u64>,
    watches: HashMap<Name, Watching>,
    published: Publications,
    /// How many need the connection itself.
    wanted: usize,
    failure: String,
    used: Instant,
    /// Something was asked on a stream of its own on this connection, and not answered so far, that an older
    /// service does not know.
    probing: bool,
    /// Something was answered on a stream of its own on this connection.
    heard: bool,
    released: bool,
    ended: bool,
}

struct Watching {
    news: Arc<Watched<Option<SignedRecord>>>,
    /// The number of the request that began the watch on this connection.
    number: Option<u64>,
    /// The service had no room: when to try again.
    retry: Option<Instant>,
}

impl Core {
    pub(super) fn new(runtime: Handle, known: KnownPeers, service: EndpointId) -> Self {
        Self {
            state: Mutex::new(State {
                next_number: 0,
                asked: BTreeMap::new(),
                queue: VecDeque::new(),
                watches: HashMap::new(),
                published: Publications::default(),
                wanted: 0,
                failure: String::new(),
                used: Instant::now(),
                probing: false,
                heard: false,
                released: false,
                ended: false,
            }),
            work: Notify::new(),
            connection: watch::Sender::new(None),
            runtime,
            known,
            service,
            proof: OnceLock::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn known_peers(&self) -> &KnownPeers {
        &self.known
    }

    pub(super) fn require_proof(&self, proof: Box<dyn DomainProof>) {
        // The first one stays.
        let _ = self.proof.set(proof);
    }

    /// Fails if the owner of the name's domain does not want this service, where that has to be proved.
    async fn prove(&self, name: &Name) -> Result<(), AskError> {
        let Some(proof) = self.proof.get() else { return Ok(()) };
        let domain = name.domain();
        match tokio::time::timeout(ANSWER_LIMIT, proof.prove(domain, self.service)).await {
            Ok(proved) => Ok(proved?),
            Err(_) => {
                let (domain, why) = (domain.to_owned(), "no answer in time".to_owned());
                Err(ProofError::Unreachable { domain, why }.into())
            }
        }
    }

    /// The verified record, if its domain's owner wants this service, and it agrees with what is known of its
    /// own owner. That may be in a file.
    pub(super) async fn judged(&self, record: SignedRecord) -> Result<SignedRecord, AskError> {
        self.prove(&record.record().name).await?;
        if self.known.file().is_none() {
            self.known.judge(&record, now())?;
            return Ok(record);
        }
        let known = self.known.clone();
        let judgement = move || known.judge(&record, now()).map(|()| record);
        // It fails only when the runtime ends.
        Ok(self.runtime.spawn_blocking(judgement).await.map_err(|_| AskError::Closed)??)
    }

    /// Asks, and waits for the answer; for [`ANSWER_LIMIT`] at most.
    pub(super) async fn ask(&self, request: Request) -> Answer {
        let answer = self.state().ask(request)?;
        self.work.notify_one();
        match tokio::time::timeout(ANSWER_LIMIT, answer).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(AskError::Closed),
            Err(_) => Err(AskError::Unreachable(self.state().why())),
        }
    }

    pub(super) async fn publish(&self, record: SignedRecord) -> Answer {
        self.prove(&record.record().name).await?;
        let request = self.state().published.want(record);
        self.ask(request).await
    }

    pub(super) fn set_readers(&self, name: Name, readers: Readers, is_default: bool) -> Result<(), AskError> {
        self.state().set_readers(name, readers, is_default)?;
        self.work.notify_one();
        Ok(())
    }

    pub(super) fn set_lease(&self, user: Name, lease: Duration) {
        self.state().published.set_lease(user, lease);
    }

    pub(super) fn lease(&self, user: &Name) -> Option<Duration> {
        self.state().published.lease(user)
    }

    pub(super) fn watch(self: &Arc<Self>, name: &Name) -> Watch<Option<SignedRecord>> {
        let mut state = self.state();
        if let Some(watched) = state.watches.get(name) {
            let mut news = watched.news.watch();
            if news.current().is_some() {
                // News to this watch.
                news.renew();
            }
            return news;
        }
        let sender = Arc::new(Watched::new(None));
        let news = sender.watch();
        if state.ended || state.watches.len() >= MAX_WATCHES {
            tracing::warn!(%name, "not watched: too much is watched already, or the endpoint is closed");
            return news;
        }
        let mut watched = Watching { news: sender.clone(), number: None, retry: None };
        watched.number = Some(state.enqueue(Request::Watch { name: name.clone(), after: None }));
        state.watches.insert(name.clone(), watched);
        drop(state);
        self.work.notify_one();
        self.runtime.spawn(FutureExt::boxed(self.clone().end_watch(name.clone(), sender)));
        news
    }

    /// A record that was looked up, or a newer one of the same endpoint that a watch brought.
    pub(super) fn newest(&self, found: SignedRecord) -> SignedRecord {
        let state = self.state();
        let watched = state.watches.get(&found.record().name).and_then(|watched| watched.news.current());
        let is_newer = |watched: &SignedRecord| {
            let (watched, found) = (watched.record(), found.record());
            watched.id == found.id && watched.sequence > found.sequence
        };
        watched.filter(is_newer).unwrap_or(found)
    }

    /// Ends a watch when nobody receives it any more.
    async fn end_watch(self: Arc<Self>, name: Name, news: Arc<Watched<Option<SignedRecord>>>) {
        loop {
            news.unwatched().await;
            let mut state = self.state();
            if state.ended {
                return;
            }
            // Somebody may have begun to receive it meanwhile.
            if !news.is_watched() {
                if let Some(watch) = state.watches.remove(&name).and_then(|watched| watched.number) {
                    state.end_watch(watch);
                }
                break;
            }
        }
        self.work.notify_one();
    }

    /// Whether there is anything to have a connection for. `None` when there never will be.
    pub(super) fn is_wanted(&self) -> Option<bool> {
        let mut state = self.state();
        // What is published must be said again to a service that lost it.
        let publishes = !state.published.is_empty();
        // What was written to a service that was lost waits for the next connection.
        let waits = state.asked.values_mut().any(Asked::is_worth_repeating);
        let asked = !state.queue.is_empty() || waits || !state.watches.is_empty() || publishes;
        let wanted = asked || state.wanted > 0;
        (!state.ended).then_some(wanted)
    }

    pub(super) fn is_released(&self) -> bool {
        self.state().released
    }

    /// Whether nobody has asked or watched anything for `limit`.
    pub(super) fn is_idle_for(&self, limit: Duration) -> bool {
        let state = self.state();
        state.watches.is_empty() && state.wanted == 0 && state.used.elapsed() >= limit
    }

    pub(super) fn release(&self) {
        self.state().released = true;
        self.work.notify_one();
    }

    pub(super) fn end(&self) {
        let mut state = self.state();
        state.ended = true;
        // Those who wait hear of it.
        state.asked.clear();
        state.queue.clear();
        state.watches.clear();
        state.published.clear();
        drop(state);
        self.work.notify_one();
    }

    /// Why there is no connection, for those who wait for one.
    pub(super) fn failed(&self, why: String) {
        self.state().failure = why;
    }

    /// Why nothing is answered.
    pub(super) fn why(&self) -> String {
        self.state().why()
    }

    /// A new connection knows nothing: everything that is still wanted is to be said again.
    pub(super) fn begin_session(&self) {
        self.state().begin_session();
    }

    /// The service ended the connection over something that it does not know: it is of an older version. What
    /// it may not know is not asked again.
    pub(super) fn broken_off(&self) {
        let mut state = self.state();
        if std::mem::take(&mut state.probing) {
            // It is the most likely cause. Everything else is asked once more.
            return;
        }
        // So are the questions of the newest kind, where there are any.
        let sent = state.asked.values().filter(|asked| asked.sent);
        let newest = sent.map(|asked| generation(&asked.request)).max().unwrap_or_default();
        let may_be_it = |request: &Request| newest > 0 && generation(request) == newest;
        let unknown = state.asked.extract_if(.., |_, asked| asked.sent && may_be_it(&asked.request));
        unknown.for_each(|(_, asked)| {
            let what = newer(&asked.request).unwrap_or("this request");
            asked.answer(&Err(AskError::Unsupported(what)));
        });
    }

    /// Appends what is to be written, if `bytes` is empty; true if it isn't then.
    pub(super) fn fill(&self, bytes: &mut Vec<u8>) -> bool {
        if bytes.is_empty() {
            self.state().take_frames(bytes);
        }
        !bytes.is_empty()
    }

    /// Whether something was written and waits for its answer.
    pub(super) fn waits(&self) -> bool {
        self.state().asked.values().any(|asked| asked.sent)
    }

    /// When what was refused, a watch or a publication, is to be tried again.
    pub(super) fn retry_at(&self) -> Option<Instant> {
        let state = self.state();
        let watches = state.watches.values().filter_map(|watched| watched.retry);
        watches.chain(state.published.retry_at()).min()
    }

    pub(super) fn retry(&self) {
        self.state().retry();
    }

    /// Takes in what the service says.
    pub(super) async fn take(&self, reply: Reply) {
        match reply {
            Reply::Response { request, response } => self.state().answered(request, response),
            Reply::Update { watch, record } => self.pushed(watch, &record).await,
            // These come on a stream of their own.
            Reply::News { .. } => {}
        }
    }

    async fn pushed(&self, watch: u64, record: &[u8]) {
        let Some(name) = self.state().watched_name(watch) else { return };
        let usable = match verified(record, &name, now()) {
            Ok(record) => self.judged(record).await,
            Err(error) => Err(error),
        };
        match usable {
            Ok(record) => self.state().tell(watch, record),
            Err(error) => tracing::warn!(%name, %error, "a record was pushed that must not be used"),
        }
    }
}

impl State {
    fn ask(&mut self, request: Request) -> Result<oneshot::Receiver<Answer>, AskError> {
        if self.ended {
            return Err(AskError::Closed);
        }
        self.used = Instant::now();
        let (waiter, answer) = oneshot::channel();
        if let Some(asked) = self.asked.values_mut().find(|asked| asked.request == request) {
            asked.waiters.retain(|waiter| !waiter.is_closed());
            asked.waiters.push(waiter);
            return Ok(answer);
        }
        self.prune();
        if self.asked.len() >= MAX_ASKED {
            return Err(AskError::Busy);
        }
        let number = self.enqueue(request);
        if let Some(asked) = self.asked.get_mut(&number) {
            asked.waiters.push(waiter);
        }
        Ok(answer)
    }

    fn set_readers(&mut self, name: Name, readers: Readers, is_default: bool) -> Result<(), AskError> {
        if let Some(request) = self.published.set_readers(name, readers, is_default)? {
            self.say_standing(request);
        }
        Ok(())
    }

    fn enqueue(&mut self, request: Request) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        self.asked.insert(number, Asked { request, waiters: Vec::new(), sent: false, is_standing: false });
        self.queue.push_back(number);
        number
    }

    /// Asks whether or not anybody waits for the answer.
    fn enqueue_standing(&mut self, request: Request, waiters: Vec<oneshot::Sender<Answer>>) {
        let number = self.enqueue(request);
        if let Some(asked) = self.asked.get_mut(&number) {
            (asked.waiters, asked.is_standing) = (waiters, true);
        }
    }

    /// Forgets what nobody waits for: what was not written yet, and when there is much of it the rest too.
    fn prune(&mut self) {
        let full = self.asked.len() >= MAX_ASKED;
        self.asked.retain(|_, asked| (asked.sent && !full) || !asked.is_abandoned());
        self.queue.retain(|number| self.asked.contains_key(number));
    }

    fn begin_session(&mut self) {
        (self.probing, self.heard) = (false, false);
        let mut asked = std::mem::take(&mut self.asked);
        asked.retain(|_, asked| asked.is_worth_repeating());
        self.queue.clear();
        // First what others wait for.
        for request in self.published.again() {
            // Whom it is for may have changed meanwhile.
            let waiting = asked
                .iter()
                .find(|(_, asked)| is_same_record(&asked.request, &request))
                .map(|(number, _)| *number);
            let waiters = waiting.and_then(|number| asked.remove(&number)).map(|asked| asked.waiters);
            self.enqueue_standing(request, waiters.unwrap_or_default());
        }
        let mut watches = std::mem::take(&mut self.watches);
        for (name, watched) in &mut watches {
            watched.begin(name, self);
        }
        self.watches = watches;
        for (_, Asked { request, waiters, .. }) in asked {
            let number = self.enqueue(request);
            if let Some(asked) = self.asked.get_mut(&number) {
                asked.waiters = waiters;
            }
        }
    }

    fn end_watch(&mut self, watch: u64) {
        // What was not written need not be taken back.
        match self.asked.get(&watch) {
            Some(asked) if !asked.sent => {
                self.asked.remove(&watch);
                self.queue.retain(|number| *number != watch);
            }
            _ => {
                self.enqueue(Request::Unwatch { watch });
            }
        }
    }

    fn retry(&mut self) {
        let now = Instant::now();
        let mut watches = std::mem::take(&mut self.watches);
        for (name, watched) in &mut watches {
            if watched.retry.is_some_and(|retry| retry <= now) {
                watched.begin(name, self);
            }
        }
        self.watches = watches;
        for request in self.published.retries(now) {
            self.enqueue_standing(request, Vec::new());
        }
    }

    fn take_frames(&mut self, bytes: &mut Vec<u8>) {
        while bytes.len() < FRAMES
            && let Some(number) = self.queue.pop_front()
        {
            let Some(asked) = self.asked.get_mut(&number) else { continue };
            if asked.is_abandoned() && !matches!(asked.request, Request::Register { .. }) {
                self.asked.remove(&number);
                continue;
            }
            match encode(&Numbered { number, request: asked.request.clone() }) {
                Ok(frame) => {
                    asked.sent = true;
                    bytes.extend_from_slice(&frame);
                }
                Err(error) => {
                    let error = AskError::Invalid(error.to_string());
                    self.asked
                        .remove(&number)
                        .into_iter()
                        .for_each(|asked| asked.answer(&Err(error.clone())));
                }
            }
        }
    }

    fn answered(&mut self, number: u64, response: Response) {
        let Some(mut asked) = self.asked.remove(&number) else { return };
        let answer = match response {
            Response::Error { code, message } => {
                Err(AskError::Refused { code: ErrorCode::from_number(code), message })
            }
            response => Ok(response),
        };
        match &answer {
            Ok(_) => self.accepted(&asked.request),
            Err(error) => {
                let is_waited_for = asked.has_waiters();
                self.refused(number, &asked.request, is_waited_for, error);
            }
        }
        asked.answer(&answer);
    }

    fn accepted(&mut self, request: &Request) {
        if let Request::Register { record, .. } = request {
            self.published.accepted(record);
        }
        if let Some(correction) = self.published.correction(request) {
            self.say_standing(correction);
        }
    }

    /// Publishes a record again, for other readers. What is under way for others is followed by a correction.
    fn say_standing(&mut self, request: Request) {
        match self.asked.values_mut().find(|asked| is_same_record(&asked.request, &request)) {
            Some(asked) if !asked.sent => (asked.request, asked.is_standing) = (request, true),
            Some(_) => {}
            None => self.enqueue_standing(request, Vec::new()),
        }
    }

    fn refused(&mut self, number: u64, request: &Request, is_waited_for: bool, error: &AskError) {
        match request {
            Request::Watch { name, .. } => {
                tracing::warn!(%name, %error, "not watched for now");
                if let Some(watched) = self.watches.get_mut(name).filter(|w| w.number == Some(number)) {
                    watched.number = None;
                    watched.retry = Some(Instant::now() + WATCH_PAUSE);
                }
            }
            Request::Register { record, .. } if !is_waited_for => {
                tracing::warn!(%error, "the name service refuses what it was told again; asking once more");
                self.published.refused_again(record, Instant::now());
            }
            Request::Register { record, .. } if !error.code().is_some_and(ErrorCode::is_temporary) => {
                self.published.refused(record);
            }
            _ => {}
        }
    }

    fn watched_name(&self, watch: u64) -> Option<Name> {
        let found = self.watches.iter().find(|(_, watched)| watched.number == Some(watch));
        found.map(|(name, _)| name.clone())
    }

    fn tell(&self, watch: u64, record: SignedRecord) {
        // The watch may have ended meanwhile.
        if let Some(watched) = self.watches.values().find(|watched| watched.number == Some(watch)) {
            watched.tell(record);
        }
    }

    fn why(&self) -> String {
        if self.failure.is_empty() {
            return format!("no answer within {} s", ANSWER_LIMIT.as_secs());
        }
        self.failure.clone()
    }
}

impl Watching {
    /// Begins the watch behind the newest record that is known.
    fn begin(&mut self, name: &Name, state: &mut State) {
        let after = self.news.current().as_ref().map(|record| record.record().sequence);
        self.retry = None;
        self.number = Some(state.enqueue(Request::Watch { name: name.clone(), after }));
    }

    fn tell(&self, record: SignedRecord) {
        self.news.update_if(|newest| {
            let news =
                newest.as_ref().is_none_or(|newest| newest.record().sequence < record.record().sequence);
            if news {
                *newest = Some(record);
            }
            news
        });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
