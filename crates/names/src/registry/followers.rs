//! The connections to this server that are told when requests between users change.
//!
//! What has changed is not said: the follower asks for it, and gets what it may see.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use whimbrel_base::EndpointId;

use super::Limits;
use crate::error::NamesError;

/// Of one peer. It needs one, and those of agents that were killed end only with their connections.
pub(super) const MOST_OF_A_PEER: usize = 64;

pub(super) struct Followers {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    users: HashMap<EndpointId, watch::Sender<()>>,
    per_peer: HashMap<EndpointId, usize>,
    total: usize,
}

impl Followers {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// Lets `peer`, who speaks for this user, hear of changes.
    pub(super) fn follow(
        followers: &Arc<Self>,
        user: EndpointId,
        peer: EndpointId,
    ) -> Result<Follower, NamesError> {
        let mut state = followers.state();
        let of_user = state.users.get(&user).map_or(0, watch::Sender::receiver_count);
        let of_peer = state.per_peer.get(&peer).copied().unwrap_or(0);
        if of_user >= followers.limits.watchers_per_name
            || of_peer >= MOST_OF_A_PEER.min(followers.limits.watchers_per_peer)
            || state.total >= followers.limits.watchers
        {
            return Err(NamesError::TooManyFollowers);
        }
        state.total += 1;
        *state.per_peer.entry(peer).or_default() += 1;
        let news = state.users.entry(user).or_insert_with(|| watch::Sender::new(())).subscribe();
        Ok(Follower { news: Some(news), user, peer, followers: followers.clone() })
    }

    /// Tells those who follow for these users.
    pub(super) fn tell(&self, users: [EndpointId; 2]) {
        let state = self.state();
        users.iter().filter_map(|user| state.users.get(user)).for_each(|news| {
            news.send_replace(());
        });
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Hears when something changes that a user proposed or is asked. Ends when it is dropped.
pub struct Follower {
    /// Always there until the drop.
    news: Option<watch::Receiver<()>>,
    user: EndpointId,
    peer: EndpointId,
    followers: Arc<Followers>,
}

impl Follower {
    /// Waits for the next change, for as long as it takes; several before it are one. Cancel-safe.
    pub async fn changed(&mut self) {
        let Some(news) = &mut self.news else { return std::future::pending().await };
        if news.changed().await.is_err() {
            // The sender outlives its receivers.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut state = self.followers.state();
        self.news = None;
        state.total -= 1;
        if let Some(count) = state.per_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                state.per_peer.remove(&self.peer);
            }
        }
        if state.users.get(&self.user).is_some_and(|news| news.receiver_count() == 0) {
            state.users.remove(&self.user);
        }
    }
}

impl std::fmt::Debug for Follower {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follower").field("user", &self.user).field("peer", &self.peer).finish_non_exhaustive()
    }
}
