//! Messages to several peers at once, for programs without an async runtime.

use whimbrel_base::{EndpointId, Member};
use whimbrel_transport::{FlowOptions, Outcome, SendError, SendOptions};

use super::Connection;
use super::runtime::Background;
use crate::GroupError;

/// As [`crate::Group`]: peers that get the same messages, each over its own connection.
#[derive(Clone, Debug)]
pub struct Group {
    group: crate::Group,
    runtime: Background,
}

impl Group {
    pub(super) fn new(group: crate::Group, runtime: Background) -> Self {
        Self { group, runtime }
    }

    /// Takes the peer of a connection in as a member that is here; see [`crate::Group::add`].
    ///
    /// # Errors
    /// [`GroupError`] if the group is full, or the peer takes no messages.
    pub fn add(&self, connection: &Connection) -> Result<(), GroupError> {
        self.runtime.wait(self.group.add(connection.inner()))
    }

    /// Says what a member's flow is like, instead of the group's; see [`crate::Group::set_options`].
    pub fn set_options(&self, member: impl Into<Member>, options: FlowOptions) -> bool {
        self.group.set_options(member, options)
    }

    /// Takes a peer in as a member that is away: what is sent from now on waits for it. False if it is a
    /// member already, or the group is full.
    pub fn expect(&self, member: EndpointId) -> bool {
        self.group.expect(member)
    }

    /// Removes a member; see [`crate::Group::remove`].
    pub fn remove(&self, member: impl Into<Member>) -> bool {
        self.group.remove(member)
    }

    /// The members, in order: those known by their keys first.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        self.group.members()
    }

    /// Sends a message to every member. Does not wait: for a member whose queue is full, [`Delivery`] says
    /// so.
    pub fn send(&self, data: impl AsRef<[u8]>, options: SendOptions) -> Vec<Delivery> {
        // What waits for a member that is away has a timer.
        let _inside = self.runtime.enter();
        let each = self.group.send(data, options).into_iter();
        each.map(|delivery| Delivery { delivery, runtime: self.runtime.clone() }).collect()
    }
}

/// A message on its way to one member of a group. Dropped, it changes nothing.
#[must_use = "wait for it to learn what became of the message, or drop it"]
#[derive(Debug)]
pub struct Delivery {
    delivery: crate::Delivery,
    runtime: Background,
}

impl Delivery {
    /// Whom it goes to.
    #[must_use]
    pub fn member(&self) -> &Member {
        self.delivery.member()
    }

    /// Waits until it is known what became of the message there.
    ///
    /// # Errors
    /// [`SendError`] if it was not taken: [`SendError::Full`] if what waits for the member fills its queue.
    pub fn outcome(self) -> Result<Outcome, SendError> {
        self.runtime.wait(self.delivery)
    }
}
