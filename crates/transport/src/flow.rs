//! Messages: flows to send them on, and one place where all of the peer's arrive [mockets].

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use whimbrel_proto::{
    Connection as Engine, FlowError, FlowId, FlowOptions, Message, MessageId, Outcome, Refused, SendError,
    SendOptions, Tag,
};

use crate::connection::{Connection, Handle};
use crate::error::ConnectionError;
use crate::shared::{State, Wakers};

/// The driver has the connection's lock for as long as it makes a segment of messages, or messages of a
/// segment: other tasks of the thread could do something meanwhile. So often a sender leaves them the thread.
const YIELDS: u8 = 8;

impl Connection {
    /// Opens a flow of messages of one class, from this side to the peer. Waits only until the connection is
    /// established. Cancel-safe.
    ///
    /// # Errors
    /// [`FlowError::Unsupported`] if the peer takes no messages; others tell what is wrong with the options.
    pub async fn open_flow(&self, options: FlowOptions) -> Result<Flow, FlowError> {
        loop {
            let settled = self.shared().news.of_connection();
            tokio::pin!(settled);
            settled.as_mut().enable();
            let opened = self.shared().lock().engine.open_flow(options);
            match opened {
                Err(FlowError::NotEstablished) => {}
                opened => return opened.map(|id| Flow::new(self.handle.clone(), id)),
            }
            settled.await;
        }
    }

    /// The flows of this side that are open, by their numbers: how an application comes by them after
    /// [`Endpoint::resume`](crate::Endpoint::resume).
    #[must_use]
    pub fn flows(&self) -> Vec<Flow> {
        let ids = self.shared().lock().engine.known_flows();
        ids.into_iter().map(|id| Flow::new(self.handle.clone(), id)).collect()
    }

    /// The next message that arrived, on whichever of the peer's flows. Those that arrived before the
    /// connection ended can still be taken. If several tasks wait, each message goes to one of them.
    /// Cancel-safe.
    ///
    /// # Errors
    /// [`ConnectionError::Closed`] once the connection is over and all messages are taken.
    pub async fn recv_message(&self) -> Result<Message, ConnectionError> {
        poll_fn(|cx| {
            let mut inbox = self.shared().inbox.open();
            if !inbox.is_empty() {
                let coop = std::task::ready!(tokio::task::coop::poll_proceed(cx));
                if let Some((message, is_step)) = inbox.next() {
                    if is_step {
                        coop.made_progress();
                    }
                    if inbox.is_empty() {
                        // The peer may wait for credit, and the application for something else from now on.
                        let mut state = self.shared().lock();
                        inbox.refill(&mut state.engine);
                        drop(inbox);
                        drive_for_credit(&mut state);
                    }
                    return Poll::Ready(Ok(message));
                }
            }
            self.poll_next(cx, move |engine| inbox.take_through(engine), Wakers::wait_for_message)
        })
        .await
    }

    /// Waits for a message that `take` finds; `wait` notes the task meanwhile.
    pub(crate) async fn next_message(
        &self,
        take: impl Fn(&mut Engine) -> Option<Message>,
        wait: impl Fn(&mut Wakers, &Context<'_>),
    ) -> Result<Message, ConnectionError> {
        poll_fn(|cx| self.poll_next(cx, &take, &wait)).await
    }

    fn poll_next(
        &self,
        cx: &mut Context<'_>,
        take: impl FnOnce(&mut Engine) -> Option<Message>,
        wait: impl FnOnce(&mut Wakers, &Context<'_>),
    ) -> Poll<Result<Message, ConnectionError>> {
        let coop = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        let mut state = self.shared().lock();
        let taken = take(&mut state.engine);
        drive_for_credit(&mut state);
        if let Some(message) = taken {
            if state.effort.is_step(message.data.len()) {
                coop.made_progress();
            }
            return Poll::Ready(Ok(message));
        }
        if state.engine.end_reason().is_some() {
            drop(state);
            return Poll::Ready(Err(self.closed_error()));
        }
        wait(&mut state.wakers, cx);
        Poll::Pending
    }

    /// The largest message that the peer takes, in bytes; 0 if it takes none, or has not said so yet.
    #[must_use]
    pub fn largest_message(&self) -> u64 {
        self.shared().lock().engine.largest_message()
    }
}

/// More credit for the peer goes out with the next segment; a large grant at once.
fn drive_for_credit(state: &mut State) {
    if state.engine.has_urgent_control() {
        state.wakers.drive();
    }
}

/// A flow of messages to the peer. Cheap to clone. It is closed when the last clone is dropped: what was sent
/// still goes its way.
///
/// ```
/// # use whimbrel_transport::{Allow, Class, Endpoint, FlowOptions, ListenOptions, SendOptions, Tag};
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let (server, client) = (Endpoint::builder().bind().await?, Endpoint::builder().bind().await?);
/// # let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
/// # let connection = client.connect(server.addr()).await?;
/// # let accepted = listener.accept().await.ok_or("nobody came")?;
/// let readings = connection.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED)).await?;
/// let temperature = SendOptions { tag: Some(Tag(1)), ..SendOptions::default() };
/// readings.send("20.5", temperature).await?;
/// // What was not delivered of the old one is not worth sending any more.
/// let told = readings.replace("21.0", temperature).await?;
/// println!("{:?}", told.await);
/// # while accepted.recv_message().await?.data != b"21.0" {}
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Flow {
    inner: Arc<Inner>,
}

struct Inner {
    handle: Arc<Handle>,
    id: FlowId,
    /// It is open for as long as the connection lasts.
    lasts: bool,
}

impl Drop for Inner {
    fn drop(&mut self) {
        if self.lasts {
            return;
        }
        let mut state = self.handle.shared.lock();
        if !state.let_go_of_flow(self.id) {
            return;
        }
        state.engine.close_flow(self.id);
        state.wakers.forget_flow(self.id);
    }
}

impl fmt::Debug for Flow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Flow({})", self.inner.id.0)
    }
}

impl Flow {
    fn new(handle: Arc<Handle>, id: FlowId) -> Self {
        handle.shared.lock().hold_flow(id);
        Self { inner: Arc::new(Inner { handle, id, lasts: false }) }
    }

    /// A flow that stays open when its handles are dropped.
    pub(crate) fn lasting(handle: Arc<Handle>, id: FlowId) -> Self {
        Self { inner: Arc::new(Inner { handle, id, lasts: true }) }
    }

    /// The flow's number, which the peer finds in its [messages](Message::flow).
    #[must_use]
    pub fn id(&self) -> FlowId {
        self.inner.id
    }

    /// The connection that the flow belongs to.
    #[must_use]
    pub fn connection(&self) -> Connection {
        Connection { handle: self.inner.handle.clone() }
    }

    /// Sends a message; waits while the flow's queue is full. The message is sent although nobody waits for
    /// what is returned. Of several calls at a time, the one that returns first has sent first. Cancel-safe:
    /// a call that has not returned has sent nothing.
    ///
    /// # Errors
    /// [`SendError`], but for [`SendError::Full`].
    pub fn send(
        &self,
        data: impl Into<Vec<u8>>,
        options: SendOptions,
    ) -> impl Future<Output = Result<Sent, SendError>> {
        self.put(Parcel::new(data, options), YIELDS)
    }

    /// As [`send`](Self::send), but gives up when the queue has had no room for `limit`.
    ///
    /// # Errors
    /// [`SendError::Full`] after `limit`; otherwise as [`send`](Self::send).
    pub async fn send_timeout(
        &self,
        data: impl Into<Vec<u8>>,
        options: SendOptions,
        limit: Duration,
    ) -> Result<Sent, SendError> {
        // It is tried once in any case, and in earnest.
        let put = self.put(Parcel::new(data, options), 0);
        tokio::time::timeout(limit, put).await.unwrap_or(Err(SendError::Full))
    }

    /// As [`send`](Self::send), but does not wait.
    ///
    /// # Errors
    /// [`Refused`] gives the message back: with [`SendError::Full`] if the queue has no room.
    pub fn try_send(&self, data: impl Into<Vec<u8>>, options: SendOptions) -> Result<Sent, Refused> {
        let shared = &self.inner.handle.shared;
        let now = Instant::now();
        let mut state = shared.lock();
        let sent = self.offer(now, &mut state, Parcel::new(data, options));
        let sent = sent.map_err(|(error, parcel)| Refused { error, data: parcel.data })?;
        shared.after_write(state, Some(now));
        Ok(sent)
    }

    /// Takes the place of all messages of this flow with the tag in `options` that are not delivered yet, as
    /// far as the class allows: what did not begin to leave is dropped, what is wholly on its way may still
    /// arrive and is not sent again. Waits and fails as [`send`](Self::send).
    ///
    /// # Errors
    /// [`SendError::NoTag`] without a tag; otherwise as [`send`](Self::send).
    pub async fn replace(&self, data: impl Into<Vec<u8>>, options: SendOptions) -> Result<Sent, SendError> {
        self.replace_all(&[], data, options).await
    }

    /// As [`replace`](Self::replace), and cancels all messages with the tags of `drop` in the same step:
    /// "no delta frame any more, and this key frame instead of the last".
    ///
    /// # Errors
    /// As [`replace`](Self::replace).
    pub async fn replace_all(
        &self,
        drop: &[(FlowId, Tag)],
        data: impl Into<Vec<u8>>,
        options: SendOptions,
    ) -> Result<Sent, SendError> {
        self.put(Parcel { replaces: Some(drop), ..Parcel::new(data, options) }, YIELDS).await
    }

    /// Cancels all messages of this flow with a tag, as far as they are not wholly on their way. Does not
    /// wait.
    pub fn cancel(&self, tag: Tag) {
        self.inner.handle.shared.with(|state| state.engine.cancel_messages(self.inner.id, tag));
    }

    /// The task gives way so many times to others, if the connection is locked, before its thread waits.
    fn put<'a>(&'a self, parcel: Parcel<'a>, yields: u8) -> Put<'a> {
        Put { flow: self, parcel: Some(parcel), yields }
    }

    fn poll_put(
        &self,
        cx: &mut Context<'_>,
        parcel: &mut Option<Parcel<'_>>,
        yields: &mut u8,
    ) -> Poll<Result<Sent, SendError>> {
        let coop = std::task::ready!(tokio::task::coop::poll_proceed(cx));
        let shared = &self.inner.handle.shared;
        // Others should not wait for the clock to be read.
        let now = Instant::now();
        let Some(mut state) = shared.lock_or_yield(cx, yields) else { return Poll::Pending };
        let Some(waiting) = parcel.take() else { return Poll::Pending };
        let size = waiting.data.len();
        let result = match self.offer(now, &mut state, waiting) {
            Err((SendError::Full, back)) => {
                *parcel = Some(back);
                state.wakers.wait_for_room(self.inner.id, cx);
                return Poll::Pending;
            }
            Err((error, _)) => Err(error),
            Ok(sent) => Ok(sent),
        };
        if state.effort.is_step(size) {
            coop.made_progress();
        }
        shared.after_write(state, Some(now));
        Poll::Ready(result)
    }

    /// Gives the parcel back if it is not taken.
    fn offer<'a>(
        &self,
        now: Instant,
        state: &mut State,
        parcel: Parcel<'a>,
    ) -> Result<Sent, (SendError, Parcel<'a>)> {
        let Parcel { data, options, replaces } = parcel;
        let flow = self.inner.id;
        let taken = match replaces {
            None => state.engine.send_message(now, flow, data, options),
            Some(drop) => state.engine.replace_messages(now, drop, flow, data, options),
        };
        match taken {
            Ok(id) => {
                let outcome = (!options.silent).then(|| state.outcomes.expect(id));
                // What it replaced has its end.
                self.inner.handle.shared.dispatch(state);
                Ok(Sent { id, outcome })
            }
            Err(Refused { error, data }) => Err((error, Parcel { data, options, replaces })),
        }
    }
}

/// Sends a message. What `async` makes of the same is moved about more than it is worked on.
struct Put<'a> {
    flow: &'a Flow,
    /// Until it is taken.
    parcel: Option<Parcel<'a>>,
    yields: u8,
}

impl Future for Put<'_> {
    type Output = Result<Sent, SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Put { flow, parcel, yields } = &mut *self;
        flow.poll_put(cx, parcel, yields)
    }
}

/// A message that waits to be taken.
struct Parcel<'a> {
    data: Vec<u8>,
    options: SendOptions,
    /// It replaces others, and these are cancelled.
    replaces: Option<&'a [(FlowId, Tag)]>,
}

impl Parcel<'_> {
    fn new(data: impl Into<Vec<u8>>, options: SendOptions) -> Self {
        Self { data: data.into(), options, replaces: None }
    }
}

/// A message that was sent. Awaited, it tells what became of the message; dropped, it changes nothing.
#[derive(Debug)]
pub struct Sent {
    id: MessageId,
    outcome: Option<oneshot::Receiver<Outcome>>,
}

impl Sent {
    /// The message's number, never used twice in a connection.
    #[must_use]
    pub fn id(&self) -> MessageId {
        self.id
    }
}

/// [`Outcome::Lost`] as well if the connection ended first, or nobody was to be told
/// ([`silent`](SendOptions::silent)).
impl Future for Sent {
    type Output = Outcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Outcome> {
        match &mut self.outcome {
            Some(outcome) => Pin::new(outcome).poll(cx).map(|told| told.unwrap_or(Outcome::Lost)),
            None => Poll::Ready(Outcome::Lost),
        }
    }
}
