//! The connections to this server that are told when requests between users change.
//!
//! What has changed is not said: the follower asks for it, and gets what it may see.

use std::sync::Arc;

use whimbrel_base::EndpointId;

use super::Limits;
use super::subscriptions::{Subscription, Subscriptions};
use crate::error::NamesError;

/// Of one peer. It needs one, and those of agents that were killed end only with their connections.
pub(super) const MOST_OF_A_PEER: usize = 64;

/// The connections that follow the requests of each user.
#[derive(Clone)]
pub(super) struct Followers(Arc<Subscriptions<EndpointId, ()>>);

impl Followers {
    pub(super) fn new(limits: Limits) -> Self {
        let watchers_per_peer = MOST_OF_A_PEER.min(limits.watchers_per_peer);
        Self(Subscriptions::new(Limits { watchers_per_peer, ..limits }))
    }

    /// Lets `peer`, who speaks for this user, hear of changes.
    pub(super) fn follow(&self, user: EndpointId, peer: EndpointId) -> Result<Follower, NamesError> {
        self.0.subscribe(user, peer).map(Follower).ok_or(NamesError::TooManyFollowers)
    }

    /// Tells those who follow for these users.
    pub(super) fn tell(&self, users: [EndpointId; 2]) {
        users.iter().for_each(|user| self.0.tell(user, |()| true));
    }
}

/// Hears when something changes that a user proposed or is asked. Ends when it is dropped.
pub struct Follower(Subscription<EndpointId, ()>);

impl Follower {
    /// Waits for the next change, for as long as it takes; several before it are one. Cancel-safe.
    pub async fn changed(&mut self) {
        self.0.next().await;
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (user, peer) = (self.0.topic(), self.0.peer());
        f.debug_struct("Follower").field("user", user).field("peer", peer).finish_non_exhaustive()
    }
}
