//! Messages to several peers at once, each over its own connection.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use whimbrel_base::EndpointId;
use whimbrel_transport::{
    Connection, Flow, FlowError, FlowOptions, Outcome, Refused, SendError, SendOptions, Sent,
};

/// Members that a group may have.
pub const MAX_MEMBERS: usize = 4096;
/// What a message takes of a queue beside its bytes, as in a flow.
const MESSAGE_COST: u64 = 256;
/// As in a flow, an unreliable message without a lifetime of its own waits no longer than this.
const UNRELIABLE_PATIENCE: Duration = Duration::from_secs(1);

/// Peers that get the same messages. Each is reached by its own connection, with a flow, a path and an outcome of
/// its own: a slow or absent one holds nobody up. Cheap to clone; all clones are one group.
///
/// A member is **here** while its connection lasts, which survives that it is out of reach: what is sent then
/// waits in the connection, and what is still alive when the member is back arrives. A member that is only
/// [expected](Self::expect), or whose connection has ended, is **away**: what is sent waits in the group, within the
/// flow's [queue](FlowOptions::queue), until the member is [added](Self::add). What an ended connection had not
/// delivered is lost, and said to be.
///
/// A group is known to this side alone: its members learn nothing of each other.
///
/// ```no_run
/// # use whimbrel::{Class, Connection, FlowOptions, Group, SendOptions};
/// # async fn tell(first: Connection, second: Connection) -> Result<(), Box<dyn std::error::Error>> {
/// let group = Group::new(FlowOptions::new(Class::RELIABLE_SEQUENCED));
/// group.add(&first).await?;
/// group.add(&second).await?;
/// for delivery in group.send("hello, everybody", SendOptions::default()) {
///     println!("{}: {:?}", delivery.member(), delivery.await);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

struct Inner {
    options: FlowOptions,
    members: Mutex<BTreeMap<EndpointId, Member>>,
}

enum Member {
    Here(Flow),
    Away(Backlog),
}

/// What waits for a member that is away.
#[derive(Default)]
struct Backlog {
    waiting: VecDeque<Waiting>,
    held: u64,
}

struct Waiting {
    data: Vec<u8>,
    options: SendOptions,
    until: Option<Instant>,
    handed: oneshot::Sender<Handed>,
}

/// What became of a message that waited.
enum Handed {
    Sent(Sent),
    Refused(SendError),
    Ended(Outcome),
}

/// Why a member is not taken into a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The group is full.
    #[error("the group has {MAX_MEMBERS} members: remove one first")]
    TooMany,
    /// No flow to the member could be opened.
    #[error(transparent)]
    Flow(#[from] FlowError),
}

impl fmt::Debug for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Group").field("members", &self.members()).finish_non_exhaustive()
    }
}

impl Group {
    /// A group without members. Its messages go on flows with these options, one to each member.
    #[must_use]
    pub fn new(options: FlowOptions) -> Self {
        Self { inner: Arc::new(Inner { options, members: Mutex::default() }) }
    }

    /// Takes the peer of a connection in as a member that is here, instead of an older connection of the same
    /// peer. What waited for it is sent. Waits only until the connection is established. Cancel-safe.
    ///
    /// # Errors
    /// [`GroupError`] if the group is full, or the peer takes no messages.
    pub async fn add(&self, connection: &Connection) -> Result<(), GroupError> {
        let flow = connection.open_flow(self.inner.options).await?;
        let mut members = self.lock();
        let full = members.len() >= MAX_MEMBERS;
        let before = match members.entry(connection.peer_id()) {
            Entry::Vacant(_) if full => return Err(GroupError::TooMany),
            Entry::Vacant(vacant) => {
                vacant.insert(Member::Here(flow));
                return Ok(());
            }
            Entry::Occupied(mut occupied) => {
                if let Member::Away(backlog) = occupied.get_mut() {
                    backlog.hand_over(&flow);
                }
                occupied.insert(Member::Here(flow))
            }
        };
        drop(members);
        drop(before);
        Ok(())
    }

    /// Takes a peer in as a member that is away: what is sent from now on waits for it. False if it is a member
    /// already, or the group is full.
    pub fn expect(&self, member: EndpointId) -> bool {
        let mut members = self.lock();
        let full = members.len() >= MAX_MEMBERS;
        match members.entry(member) {
            Entry::Vacant(vacant) if !full => {
                vacant.insert(Member::Away(Backlog::default()));
                true
            }
            _ => false,
        }
    }

    /// Removes a member. What is under way to it still goes its way; what waits for it is lost. False if it was
    /// none. Its connection stays as it is.
    pub fn remove(&self, member: EndpointId) -> bool {
        let removed = self.lock().remove(&member);
        removed.is_some()
    }

    /// The members, in the order of their ids.
    #[must_use]
    pub fn members(&self) -> Vec<EndpointId> {
        self.lock().keys().copied().collect()
    }

    /// Sends a message to every member. Does not wait: for a member whose queue is full,
    /// [`Delivery`] says so.
    pub fn send(&self, data: impl AsRef<[u8]>, options: SendOptions) -> Vec<Delivery> {
        let data = data.as_ref();
        let mut members = self.lock();
        let each = members.iter_mut();
        each.map(|(id, member)| Delivery { member: *id, state: self.put(member, data, options) }).collect()
    }

    /// Sends to one member. One whose connection has ended is away from now on.
    fn put(&self, member: &mut Member, data: &[u8], options: SendOptions) -> State {
        if let Member::Here(flow) = member {
            match flow.try_send(data, options) {
                Ok(sent) => return State::Sent(sent),
                Err(Refused { error: SendError::ConnectionClosed(_), .. }) => {
                    *member = Member::Away(Backlog::default());
                }
                Err(Refused { error, .. }) => return State::Refused(error),
            }
        }
        match member {
            Member::Away(backlog) => backlog.put(data, options, &self.inner.options),
            Member::Here(_) => State::Refused(SendError::Full),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<EndpointId, Member>> {
        self.inner.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn cost(data: &[u8]) -> u64 {
    data.len() as u64 + MESSAGE_COST
}

impl Backlog {
    fn put(&mut self, data: &[u8], options: SendOptions, flow: &FlowOptions) -> State {
        let now = Instant::now();
        self.drop_dead(now);
        if self.held > 0 && self.held + cost(data) > flow.queue {
            return State::Refused(SendError::Full);
        }
        let patience = (!flow.class.reliable).then_some(UNRELIABLE_PATIENCE);
        let until = options.lifetime.or(patience).and_then(|time| now.checked_add(time));
        let (handed, waits) = oneshot::channel();
        self.held += cost(data);
        self.waiting.push_back(Waiting { data: data.to_vec(), options, until, handed });
        let sleep = until.map(|at| Box::pin(tokio::time::sleep_until(at.into())));
        State::Waits { waits, sleep }
    }

    /// What has outlived its lifetime is not kept.
    fn drop_dead(&mut self, now: Instant) {
        let dead = |waiting: &Waiting| waiting.until.is_some_and(|at| at <= now);
        let mut left = VecDeque::new();
        for waiting in self.waiting.drain(..) {
            if dead(&waiting) {
                self.held -= cost(&waiting.data);
                // Nobody may wait for it.
                let _ = waiting.handed.send(Handed::Ended(Outcome::Expired));
            } else {
                left.push_back(waiting);
            }
        }
        self.waiting = left;
    }

    /// The member is here: sends what is still alive.
    fn hand_over(&mut self, flow: &Flow) {
        let now = Instant::now();
        self.drop_dead(now);
        for Waiting { data, mut options, until, handed } in self.waiting.drain(..) {
            options.lifetime = until.map(|at| at.saturating_duration_since(now));
            let handed_over = match flow.try_send(data, options) {
                Ok(sent) => Handed::Sent(sent),
                Err(Refused { error, .. }) => Handed::Refused(error),
            };
            let _ = handed.send(handed_over);
        }
        self.held = 0;
    }
}

/// A message on its way to one member of a group. Awaited, it tells what became of it there; dropped, it changes
/// nothing.
///
/// # Errors
/// [`SendError`] if the message was not taken: [`SendError::Full`] if what waits for the member fills its queue.
#[must_use = "await it to learn what became of the message, or drop it"]
pub struct Delivery {
    member: EndpointId,
    state: State,
}

enum State {
    Refused(SendError),
    Sent(Sent),
    Waits { waits: oneshot::Receiver<Handed>, sleep: Option<Pin<Box<tokio::time::Sleep>>> },
}

impl Delivery {
    /// Whom it goes to.
    #[must_use]
    pub fn member(&self) -> EndpointId {
        self.member
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("member", &self.member).finish_non_exhaustive()
    }
}

impl Future for Delivery {
    type Output = Result<Outcome, SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let next = match &mut self.state {
                State::Refused(error) => return Poll::Ready(Err(*error)),
                State::Sent(sent) => return Pin::new(sent).poll(cx).map(Ok),
                State::Waits { waits, sleep } => match Pin::new(waits).poll(cx) {
                    Poll::Ready(Ok(handed)) => handed,
                    // The member was removed, or the group dropped.
                    Poll::Ready(Err(_)) => return Poll::Ready(Ok(Outcome::Lost)),
                    Poll::Pending => {
                        let over = sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(cx).is_ready());
                        return if over { Poll::Ready(Ok(Outcome::Expired)) } else { Poll::Pending };
                    }
                },
            };
            self.state = match next {
                Handed::Sent(sent) => State::Sent(sent),
                Handed::Refused(error) => State::Refused(error),
                Handed::Ended(outcome) => return Poll::Ready(Ok(outcome)),
            };
        }
    }
}
