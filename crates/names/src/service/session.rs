//! One stream of one peer: requests in, replies and pushes out.

use futures_util::FutureExt;
use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use whimbrel_base::{EndpointId, Name};
use whimbrel_transport::{CloseCode, Connection, RecvHalf, SendHalf, Stream};

use super::answers::{accepted, seconds_until};
use super::broken::Broken;
use super::following::{self, Following};
use super::meetings::{self, Arrival};
use super::{Shared, batches, between_users, turns};
use crate::admission::{Domain, Terms};
use crate::clock::now;
use crate::error::{ErrorCode, NamesError};
use crate::protocol::{Decoder, Numbered, Reply, Request, Response, encode};
use crate::readers::Readers;
use crate::registry::{Accepted, Publication, Watcher};
use crate::voucher::{VOUCHED_FOR, Voucher};

/// Requests of one stream that are under way at once. Further ones wait unread.
pub const REQUESTS: usize = 32;

/// Replies that wait to be written. Whoever has more waits.
const REPLIES: usize = 64;

const READ_SIZE: usize = 16 * 1024;

type Replies = mpsc::Sender<Reply>;

/// Serves a stream until the peer ends it.
pub(super) async fn serve(stream: Stream, shared: Arc<Shared>) {
    let connection = stream.connection();
    if let Err(Broken::Protocol(error)) = serve_requests(stream, &connection, &shared).await {
        shared.counters.broken();
        tracing::info!(peer = %connection.peer_id().short(), %error, "the peer broke the protocol");
        connection.abort(CloseCode::PROTOCOL, &error.to_string());
    }
}

async fn serve_requests(stream: Stream, connection: &Connection, shared: &Arc<Shared>) -> Result<(), Broken> {
    let peer = connection.peer_id();
    let (mut read, write) = stream.into_split();
    let mut decoder = Decoder::new();
    let first = match first_request(&mut read, &mut decoder).await? {
        None => return Ok(()),
        Some(Numbered { number, request: Request::Meet { slot } }) => {
            let from = turns::address(connection);
            let arrival = Arrival { number, slot, peer, from, read, write, rest: decoder.into_rest() };
            return meetings::serve(arrival, shared).await;
        }
        Some(Numbered { number, request: Request::Follow { word } }) => {
            return following::serve(Following { number, word, read, write }, connection, shared).await;
        }
        Some(first) => first,
    };
    let (replies, queue) = mpsc::channel(REPLIES);
    let session = Session {
        peer,
        connection: connection.clone(),
        shared: shared.clone(),
        replies,
        permits: Arc::new(Semaphore::new(REQUESTS)),
        requests: JoinSet::new(),
        watches: HashMap::new(),
    };
    let (ended, _) = tokio::join!(session.run(first, decoder, read), write_replies(write, queue));
    ended
}

/// Reads up to the first request, which says what the stream is for.
async fn first_request(
    read: &mut RecvHalf,
    decoder: &mut Decoder<Numbered>,
) -> Result<Option<Numbered>, Broken> {
    let mut piece = vec![0; READ_SIZE];
    loop {
        if let Some(first) = decoder.next_message()? {
            return Ok(Some(first));
        }
        let n = read.read(&mut piece).await?;
        if n == 0 {
            return Ok(None);
        }
        decoder.push(&piece[..n]);
    }
}

struct Session {
    peer: EndpointId,
    connection: Connection,
    shared: Arc<Shared>,
    replies: Replies,
    permits: Arc<Semaphore>,
    requests: JoinSet<()>,
    watches: HashMap<u64, Watch>,
}

/// A task that pushes what a watcher gets. Ends when it is dropped.
struct Watch(JoinHandle<()>);

impl Drop for Watch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Session {
    async fn run(
        mut self,
        first: Numbered,
        mut decoder: Decoder<Numbered>,
        mut read: RecvHalf,
    ) -> Result<(), Broken> {
        self.take(first.number, first.request).await?;
        let mut piece = vec![0; READ_SIZE];
        loop {
            while let Some(Numbered { number, request }) = decoder.next_message()? {
                self.take(number, request).await?;
            }
            let n = tokio::select! {
                n = read.read(&mut piece) => n?,
                // Nobody reads the replies any more.
                () = self.replies.closed() => return Err(Broken::Stream),
            };
            if n == 0 {
                break;
            }
            decoder.push(&piece[..n]);
        }
        // What was asked is answered; watches end.
        self.watches.clear();
        while self.requests.join_next().await.is_some() {}
        Ok(())
    }

    async fn take(&mut self, number: u64, request: Request) -> Result<(), Broken> {
        self.shared.turns.request(self.peer, turns::address(&self.connection)).await;
        self.shared.counters.request();
        match request {
            Request::Watch { name, after } => self.watch(number, name, after).await,
            Request::Unwatch { watch } => {
                if let Some(mut watch) = self.watches.remove(&watch) {
                    // Only when it has ended can nothing of it follow our answer.
                    watch.0.abort();
                    let _ = (&mut watch.0).await;
                }
                self.reply(number, Response::Unwatched).await
            }
            Request::Meet { .. } | Request::Follow { .. } => {
                let message = "this needs a stream of its own; ask for it first on a new one".to_owned();
                self.reply(number, Response::refusal(ErrorCode::Malformed, message)).await
            }
            request => {
                let permit = self.permits.clone().acquire_owned().await.map_err(io::Error::other)?;
                while self.requests.try_join_next().is_some() {}
                let (shared, replies) = (self.shared.clone(), self.replies.clone());
                let (peer, connection) = (self.peer, self.connection.clone());
                self.requests.spawn(FutureExt::boxed(async move {
                    let response = shared.answer(peer, &connection, request).await;
                    // If it can't be sent, the stream is over.
                    let _ = replies.send(Reply::Response { request: number, response }).await;
                    drop(permit);
                }));
                Ok(())
            }
        }
    }

    async fn reply(&self, request: u64, response: Response) -> Result<(), Broken> {
        if matches!(response, Response::Error { .. }) {
            self.shared.counters.refused();
        }
        let reply = Reply::Response { request, response };
        self.replies.send(reply).await.map_err(|_| Broken::Stream)
    }

    async fn watch(&mut self, number: u64, name: Name, after: Option<u64>) -> Result<(), Broken> {
        if self.watches.contains_key(&number) {
            let message = format!("the number {number} was used before; give each request a new one");
            return self.reply(number, Response::refusal(ErrorCode::Malformed, message)).await;
        }
        let watcher = match self.shared.registry.watch(&name, self.peer, after, now()).await {
            Ok(watcher) => watcher,
            Err(error) => return self.reply(number, Response::error(&error)).await,
        };
        // Before the task that pushes begins, so that nothing of the watch comes first.
        self.reply(number, Response::Watching).await?;
        let pushes = push(number, watcher, self.shared.clone(), self.replies.clone());
        self.watches.insert(number, Watch(tokio::spawn(FutureExt::boxed(pushes))));
        Ok(())
    }
}

async fn push(watch: u64, watcher: Watcher, shared: Arc<Shared>, replies: Replies) {
    // It has the store, which must be free when nobody has `shared` any more: variables are dropped before
    // parameters, and these in an order that is easy to overlook.
    let mut watcher = watcher;
    let _counted = shared.counters.watch();
    loop {
        let record = watcher.next().await.encode().to_vec();
        if replies.send(Reply::Update { watch, record }).await.is_err() {
            return;
        }
        shared.counters.pushed();
    }
}

impl Shared {
    async fn answer(&self, peer: EndpointId, connection: &Connection, request: Request) -> Response {
        let result = match request {
            Request::Publish { record } => {
                let taken = self.register(peer, connection, &record, Readers::Public).await;
                taken.map(|taken| accepted(taken.expires))
            }
            Request::Register { record, readers } => {
                let taken = self.register(peer, connection, &record, readers).await;
                taken.map(|taken| Response::Registered {
                    seconds: seconds_until(taken.expires),
                    lease: seconds_until(taken.held_until),
                })
            }
            Request::Revoke { record } => self.registry.revoke(peer, &record, now()).await.map(accepted),
            Request::Lookup { name } => {
                self.counters.lookup();
                self.registry.lookup(&name, peer, now()).await.map(|found| Response::Record {
                    record: found.record.encode().to_vec(),
                    seconds: seconds_until(found.expires),
                })
            }
            Request::Find { id } => {
                self.counters.lookup();
                self.registry.find(&id, peer, now()).await.map(|found| Response::Record {
                    record: found.record.encode().to_vec(),
                    seconds: seconds_until(found.expires),
                })
            }
            Request::Redeem { .. } if !self.turns.redeem(peer, turns::address(connection)) => {
                Err(NamesError::TooOften)
            }
            Request::Redeem { code } => {
                let redeemed = self.registry.redeem(peer, &code, now()).await;
                redeemed.map(|domain| Response::Admitted { domain })
            }
            Request::Invite { domain, uses, seconds } => {
                let terms = Terms { domain, uses, valid: Duration::from_secs(seconds.into()) };
                self.registry.invite(peer, terms, now()).await.map(|code| Response::Invited { code })
            }
            Request::Renew { delegation } => {
                self.registry.renew(peer, &delegation, now()).await.map(accepted)
            }
            Request::Renewed { name } => {
                let renewed = self.registry.renewal(&name, peer, now()).await;
                renewed.map(|delegation| Response::Delegation { delegation: delegation.encode() })
            }
            Request::Appoint { appointment } => {
                self.registry.appoint(peer, &appointment, now()).await.map(accepted)
            }
            Request::Appointed { name } => {
                let left = self.registry.appointment(&name, peer, now()).await;
                left.map(|left| Response::Appointment { appointment: left.encode() })
            }
            Request::Vouch { domain } => self.vouch(peer, domain).await,
            Request::Propose { .. } if !self.turns.propose(peer, turns::address(connection)) => {
                Err(NamesError::TooOften)
            }
            Request::Propose { .. }
            | Request::Decide { .. }
            | Request::Proposals { .. }
            | Request::Withdraw { .. } => between_users::answer(&self.registry, peer, request).await,
            Request::Leave { .. } if !self.turns.leave(peer, turns::address(connection)) => {
                Err(NamesError::TooOften)
            }
            Request::Leave { word, batch } => {
                let left = self.registry.leave_batch(peer, word.as_deref(), batch, now()).await;
                left.map(accepted)
            }
            Request::Fetch { word, after } => {
                let fetched = self.registry.batches(peer, word.as_deref(), after, now()).await;
                fetched.map(batches::page)
            }
            Request::Mail { user, code } => self.prove_mail(peer, connection, &user, code.as_deref()).await,
            Request::Devices { user, after } => {
                self.counters.lookup();
                // It looks at many names.
                for _ in 1..turns::OF_DEVICES {
                    self.turns.request(peer, turns::address(connection)).await;
                }
                between_users::devices(&self.registry, peer, &user, after.as_ref()).await
            }
            Request::Heartbeat { names } => Ok(self.heartbeat(peer, &names).await),
            // These belong to the stream, which handles them.
            Request::Watch { .. }
            | Request::Unwatch { .. }
            | Request::Meet { .. }
            | Request::Follow { .. } => Ok(Response::Unwatched),
        };
        let response = result.unwrap_or_else(|error| refusal(&error));
        match &response {
            Response::Accepted { .. } | Response::Registered { .. } => self.counters.published(),
            Response::Error { .. } => self.counters.refused(),
            _ => {}
        }
        response
    }

    async fn register(
        &self,
        peer: EndpointId,
        connection: &Connection,
        record: &[u8],
        readers: Readers,
    ) -> Result<Accepted, NamesError> {
        let may_be_new = || self.turns.new_name(turns::address(connection));
        let publication = Publication { record, readers, may_be_new: &may_be_new };
        self.registry.register(peer, publication, now()).await
    }

    async fn vouch(&self, peer: EndpointId, domain: Domain) -> Result<Response, NamesError> {
        let Some(key) = self.key.get() else {
            let message = "this name service vouches for nobody; its operator has to run a newer one";
            return Ok(Response::refusal(ErrorCode::NoName, message.to_owned()));
        };
        let now = now();
        if !self.registry.has_name_of(peer, &domain, now).await? {
            return Err(NamesError::NoName(domain));
        }
        let expires = now.saturating_add(VOUCHED_FOR);
        let voucher = Voucher { domain, id: peer, expires }.sign(key);
        Ok(Response::Voucher { voucher })
    }

    async fn heartbeat(&self, peer: EndpointId, names: &[Name]) -> Response {
        let mut codes = Vec::with_capacity(names.len());
        for name in names {
            let code = match self.registry.heartbeat(name, peer, now()).await {
                Ok(_) => 0,
                Err(error) => error.code().number(),
            };
            codes.push(code);
        }
        Response::Heard { codes }
    }
}

fn refusal(error: &NamesError) -> Response {
    if let NamesError::Unavailable(cause) = error {
        tracing::error!(error = %cause, "the store fails");
    }
    Response::error(error)
}

/// Writes replies until nobody can send any more; what has gathered goes in one piece.
async fn write_replies(mut write: SendHalf, mut queue: mpsc::Receiver<Reply>) -> io::Result<()> {
    let mut batch = Vec::with_capacity(REPLIES);
    let mut bytes = Vec::new();
    while queue.recv_many(&mut batch, REPLIES).await > 0 {
        bytes.clear();
        for reply in batch.drain(..) {
            match encode(&reply) {
                Ok(message) => bytes.extend_from_slice(&message),
                // Records and texts are bounded far below what a message may have.
                Err(error) => tracing::error!(%error, "a reply is too large"),
            }
        }
        write.write_all(&bytes).await?;
    }
    write.shutdown().await
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::super::{Counters, Meetings, Turns};
    use super::*;
    use crate::admission::Admission;
    use crate::registry::{Limits, Registry};
    use crate::store::RedbStore;

    /// A service stops while a watch of it still ends.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_watch_lets_go_of_the_store_before_it_says_so() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("names.redb");
        let registry = Registry::new(RedbStore::open(&file).unwrap(), Admission::any(), Limits::default());
        let peer = SecretKey::from_bytes(&[1; 32]).id();
        let watcher = registry.watch(&"anna@example.org".parse().unwrap(), peer, None, now()).await.unwrap();
        let (sender, mut alive) = mpsc::channel(1);
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            meetings: Meetings::new(registry.limits().meetings),
            turns: Turns::new(registry.limits()),
            peers: Default::default(),
            key: Default::default(),
            smtp: Default::default(),
            registry,
            _alive: sender,
        });
        let (replies, _queue) = mpsc::channel(1);
        let mut pushes = Box::pin(push(1, watcher, shared, replies));
        let waiting = tokio::time::timeout(std::time::Duration::from_millis(10), &mut pushes).await;
        assert!(waiting.is_err(), "there is nothing to push");
        let next = std::thread::spawn(move || {
            alive.blocking_recv();
            RedbStore::open(&file).map(drop)
        });
        drop(pushes);
        next.join().unwrap().unwrap();
    }
}
