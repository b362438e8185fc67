//! Messages to several peers at once, each over its own connection.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::{oneshot, watch};
use whimbrel_base::{EndpointId, Member, Name, NameError, RecordError};
use whimbrel_names::AskError;
use whimbrel_transport::{
    Connection, Flow, FlowError, FlowOptions, Outcome, Refused, SendError, SendOptions, Sent,
};

mod backlog;
mod named;
mod record;

use self::backlog::{Backlog, Handed};
use self::named::Following;
pub use self::record::GroupOptions;

/// Members that a group of this program's own may have. One that a [name](crate::Endpoint::group) stands for
/// has at most [`MAX_GROUP_MEMBERS`](whimbrel_base::MAX_GROUP_MEMBERS).
pub const MAX_MEMBERS: usize = 4096;

/// Peers that get the same messages. Each is reached by its own connection, with a flow, a path and an
/// outcome of its own: a slow or absent one holds nobody up. Cheap to clone; all clones are one group.
///
/// A member is **here** while its connection lasts, which survives that it is out of reach: what is sent then
/// waits in the connection, and what is still alive when the member is back arrives. A member that is only
/// [expected](Self::expect), or whose connection has ended, is **away**: what is sent waits in the group,
/// within the flow's [queue](FlowOptions::queue), until the member is [added](Self::add). What an ended
/// connection had not delivered is lost, and said to be.
///
/// A group is known to this side alone: its members learn nothing of each other. [`Endpoint::group`] has one
/// that a name stands for: its members are followed and called.
///
/// [`Endpoint::group`]: crate::Endpoint::group
///
/// ```
/// # use whimbrel::{Allow, Class, Endpoint, FlowOptions, Group, ListenOptions, SendOptions};
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let endpoint = Endpoint::builder().bind().await?;
/// # let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
/// # let [ada, bob] = [Endpoint::builder().bind().await?, Endpoint::builder().bind().await?];
/// # let theirs = [ada.connect(endpoint.addr()).await?, bob.connect(endpoint.addr()).await?];
/// # let first = listener.accept().await.ok_or("nobody came")?;
/// # let second = listener.accept().await.ok_or("nobody came")?;
/// let group = Group::new(FlowOptions::new(Class::RELIABLE_SEQUENCED));
/// group.add(&first).await?;
/// group.add(&second).await?;
/// for delivery in group.send("hello, everybody", SendOptions::default()) {
///     let member = delivery.member().clone();
///     println!("{member}: {:?}", delivery.await);
/// }
/// # for member in &theirs {
/// #     assert_eq!(member.recv_message().await?.data, b"hello, everybody");
/// # }
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Group {
    inner: Arc<Inner>,
}

struct Inner {
    options: FlowOptions,
    /// Of members that have others.
    own_options: Mutex<BTreeMap<Member, FlowOptions>>,
    /// What each member gets first on each of its connections.
    greeting: Option<Vec<u8>>,
    members: Mutex<BTreeMap<Member, Way>>,
    /// Told whenever a member is taken in, is here on another connection, or is out.
    changes: watch::Sender<()>,
    /// Of one that a name stands for.
    following: OnceLock<Following>,
}

/// How a member is reached.
enum Way {
    Here(Flow),
    Away(Backlog),
}

/// What becomes of a peer that is no member yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Newcomer {
    Taken,
    /// It was a member when it was called, and has been taken out meanwhile.
    LeftOut,
}

/// Why a member is not taken into a group, or what a name stands for can't be read or changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// The group is full.
    #[error("the group has {MAX_MEMBERS} members: remove one first")]
    TooMany,
    /// No flow to the member could be opened.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// What was given as a name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The name is an endpoint's.
    #[error(
        "{0} is no group: one endpoint has this name; connect to it, or give the group a name of its own"
    )]
    NotAGroup(Name),
    /// A user's own name says whose it is, and cannot stand for others.
    #[error("{0} is a user's own name; give the group a name below it, as team.{0}")]
    UserName(Name),
    /// The endpoint knows no name service.
    #[error("cannot ask for the group {0}: no name service is configured; give one with Builder::names")]
    NoResolver(Name),
    /// The endpoint's key is gone when it ends.
    #[error("this endpoint's key ends with it; give it one that lasts, with Builder::identity")]
    FleetingKey,
    /// More members than may be readers of the group's record.
    #[error(
        "{0} has more members than its record can have readers; say who may look it up (`GroupOptions::readers`)"
    )]
    TooManyReaders(Name),
    /// The name service did not do as asked.
    #[error(transparent)]
    Names(#[from] AskError),
    /// The record can't be made.
    #[error(transparent)]
    Record(#[from] RecordError),
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
        Self::greeting(options, None)
    }

    fn greeting(options: FlowOptions, greeting: Option<Vec<u8>>) -> Self {
        let (members, changes) = (Mutex::default(), watch::Sender::new(()));
        let following = OnceLock::new();
        let own_options = Mutex::default();
        Self { inner: Arc::new(Inner { options, own_options, greeting, members, changes, following }) }
    }

    /// Takes the peer of a connection in as a member that is here, instead of an older connection of the same
    /// peer. What waited for it is sent. Waits only until the connection is established. Cancel-safe.
    ///
    /// # Errors
    /// [`GroupError`] if the group is full, or the peer takes no messages.
    pub async fn add(&self, connection: &Connection) -> Result<(), GroupError> {
        self.inner.add(Member::Key(connection.peer_id()), connection, Newcomer::Taken).await
    }

    /// Says what a member's flow is like, instead of the group's: its class, its urgency, its queue and all
    /// else. Holds for what is sent while the member is away, and for its flow when it is [added](Self::add)
    /// next; one that is here keeps its flow until then. Forgotten when the member is
    /// [removed](Self::remove). False if [`MAX_MEMBERS`] others have options of their own.
    pub fn set_options(&self, member: impl Into<Member>, options: FlowOptions) -> bool {
        self.inner.set_options(member.into(), options)
    }

    /// Takes a peer in as a member that is away: what is sent from now on waits for it. False if it is a
    /// member already, or the group is full.
    pub fn expect(&self, member: EndpointId) -> bool {
        self.inner.expect(Member::Key(member))
    }

    /// Removes a member. What is under way to it still goes its way; what waits for it is lost. False if it
    /// was none. Its connection stays as it is.
    pub fn remove(&self, member: impl Into<Member>) -> bool {
        self.inner.remove(&member.into())
    }

    /// The members, in order: those known by their keys first.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.inner.lock().keys().cloned().collect()
    }

    /// The members that are here, each with the connection over which it is reached: to hear what it says,
    /// and whether it is in reach.
    #[must_use]
    pub fn here(&self) -> Vec<(Member, Connection)> {
        let members = self.inner.lock();
        let here = members.iter().filter_map(|(member, way)| match way {
            Way::Here(flow) => Some((member.clone(), flow.connection())),
            Way::Away(_) => None,
        });
        here.filter(|(_, connection)| connection.close_reason().is_none()).collect()
    }

    /// Tells of changes from now on: members that are taken in or are out, and those that are here on a new
    /// connection. That a connection ends is for the connection to tell.
    #[must_use]
    pub fn changes(&self) -> GroupChanges {
        GroupChanges(self.inner.changes.subscribe())
    }

    /// Sends a message to every member. Does not wait: for a member whose queue is full,
    /// [`Delivery`] says so.
    pub fn send(&self, data: impl AsRef<[u8]>, options: SendOptions) -> Vec<Delivery> {
        let data = data.as_ref();
        let mut members = self.inner.lock();
        let each = members.iter_mut();
        each.map(|(member, way)| Delivery {
            member: member.clone(),
            state: self.inner.put(member, way, data, options),
        })
        .collect()
    }
}

/// Changes of a [`Group`].
#[derive(Debug)]
pub struct GroupChanges(watch::Receiver<()>);

impl GroupChanges {
    /// Waits until something has changed since it was called last. False once the group is gone. Cancel-safe.
    pub async fn next(&mut self) -> bool {
        self.0.changed().await.is_ok()
    }
}

impl Inner {
    /// Takes the peer of a connection in under this name or key.
    async fn add(
        &self,
        member: Member,
        connection: &Connection,
        newcomer: Newcomer,
    ) -> Result<(), GroupError> {
        let flow = connection.open_flow(self.options_of(&member)).await?;
        if let Some(greeting) = &self.greeting {
            // A flow that was opened just now has room; that the connection is over is heard of elsewhere.
            let _ = flow.try_send(&greeting[..], SendOptions { silent: true, ..SendOptions::default() });
        }
        let mut members = self.lock();
        let full = members.len() >= MAX_MEMBERS;
        let before = match members.entry(member) {
            Entry::Vacant(_) if newcomer == Newcomer::LeftOut => return Ok(()),
            Entry::Vacant(_) if full => return Err(GroupError::TooMany),
            Entry::Vacant(vacant) => {
                vacant.insert(Way::Here(flow));
                self.changes.send_replace(());
                return Ok(());
            }
            Entry::Occupied(mut occupied) => {
                if let Way::Away(backlog) = occupied.get_mut() {
                    backlog.hand_over(&flow);
                }
                occupied.insert(Way::Here(flow))
            }
        };
        drop(members);
        self.changes.send_replace(());
        drop(before);
        Ok(())
    }

    fn expect(&self, member: Member) -> bool {
        let mut members = self.lock();
        let full = members.len() >= MAX_MEMBERS;
        match members.entry(member) {
            Entry::Vacant(vacant) if !full => {
                vacant.insert(Way::Away(Backlog::default()));
                self.changes.send_replace(());
                true
            }
            _ => false,
        }
    }

    fn set_options(&self, member: Member, options: FlowOptions) -> bool {
        let mut own = self.own_options.lock().unwrap_or_else(PoisonError::into_inner);
        if own.len() >= MAX_MEMBERS && !own.contains_key(&member) {
            return false;
        }
        own.insert(member, options);
        true
    }

    fn options_of(&self, member: &Member) -> FlowOptions {
        let own = self.own_options.lock().unwrap_or_else(PoisonError::into_inner);
        own.get(member).copied().unwrap_or(self.options)
    }

    fn remove(&self, member: &Member) -> bool {
        self.own_options.lock().unwrap_or_else(PoisonError::into_inner).remove(member);
        let removed = self.lock().remove(member);
        if removed.is_some() {
            self.changes.send_replace(());
        }
        removed.is_some()
    }

    /// Sends to one member. One whose connection has ended is away from now on.
    fn put(&self, member: &Member, way: &mut Way, data: &[u8], options: SendOptions) -> State {
        if let Way::Here(flow) = way {
            match flow.try_send(data, options) {
                Ok(sent) => return State::Sent(sent),
                Err(Refused { error: SendError::ConnectionClosed(_), .. }) => {
                    *way = Way::Away(Backlog::default());
                }
                Err(Refused { error, .. }) => return State::Refused(error),
            }
        }
        match way {
            Way::Away(backlog) => backlog.put(data, options, &self.options_of(member)),
            Way::Here(_) => State::Refused(SendError::Full),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Member, Way>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A message on its way to one member of a group. Awaited, it tells what became of it there; dropped, it
/// changes nothing.
///
/// # Errors
/// [`SendError`] if the message was not taken: [`SendError::Full`] if what waits for the member fills its
/// queue.
#[must_use = "await it to learn what became of the message, or drop it"]
pub struct Delivery {
    member: Member,
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
    pub fn member(&self) -> &Member {
        &self.member
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
