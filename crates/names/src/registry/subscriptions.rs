//! The connections to this server that hear of topics, such as names.
//!
//! Each topic has one place for its newest news, however many hear of it; a subscriber that is slow finds the
//! newest there. So subscribers cost memory for themselves only, and nobody waits for them.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use whimbrel_base::EndpointId;

use super::Limits;

/// The subscribers of each topic, as many as watchers may be.
pub(super) struct Subscriptions<T, N> {
    limits: Limits,
    state: Mutex<State<T, N>>,
}

struct State<T, N> {
    topics: HashMap<T, watch::Sender<N>>,
    per_peer: HashMap<EndpointId, usize>,
    total: usize,
}

impl<T, N> Subscriptions<T, N> {
    fn state(&self) -> MutexGuard<'_, State<T, N>> {
        // Nothing under this lock panics half-way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone + Eq + Hash, N: Default> Subscriptions<T, N> {
    pub(super) fn new(limits: Limits) -> Arc<Self> {
        let state = State { topics: HashMap::new(), per_peer: HashMap::new(), total: 0 };
        Arc::new(Self { limits, state: Mutex::new(state) })
    }

    /// Lets a peer hear of what is news from now on; `None` if a limit is reached.
    pub(super) fn subscribe(self: &Arc<Self>, topic: T, peer: EndpointId) -> Option<Subscription<T, N>> {
        let mut state = self.state();
        let of_topic = state.topics.get(&topic).map_or(0, watch::Sender::receiver_count);
        let of_peer = state.per_peer.get(&peer).copied().unwrap_or(0);
        if of_topic >= self.limits.watchers_per_name
            || of_peer >= self.limits.watchers_per_peer
            || state.total >= self.limits.watchers
        {
            return None;
        }
        state.total += 1;
        *state.per_peer.entry(peer).or_default() += 1;
        let sender = state.topics.entry(topic.clone()).or_insert_with(|| watch::Sender::new(N::default()));
        // What others heard of this topic before counts as heard.
        let news = sender.subscribe();
        Some(Subscription { news: Some(news), topic, peer, subscriptions: Arc::clone(self) })
    }

    pub(super) fn has_subscribers(&self, topic: &T) -> bool {
        self.state().topics.contains_key(topic)
    }

    /// Changes the newest news of a topic that somebody hears of. They are told if this says so.
    pub(super) fn tell(&self, topic: &T, change: impl FnOnce(&mut N) -> bool) {
        if let Some(sender) = self.state().topics.get(topic) {
            sender.send_if_modified(change);
        }
    }
}

/// A peer's subscription to a topic. Ends when it is dropped.
pub(super) struct Subscription<T: Eq + Hash, N> {
    /// Always there until the drop.
    news: Option<watch::Receiver<N>>,
    topic: T,
    peer: EndpointId,
    subscriptions: Arc<Subscriptions<T, N>>,
}

impl<T: Eq + Hash, N: Clone> Subscription<T, N> {
    pub(super) fn topic(&self) -> &T {
        &self.topic
    }

    pub(super) fn peer(&self) -> &EndpointId {
        &self.peer
    }

    /// Waits for news, for as long as it takes; of several the newest counts. Cancel-safe.
    pub(super) async fn next(&mut self) -> N {
        let Some(news) = &mut self.news else { return std::future::pending().await };
        if news.changed().await.is_err() {
            // The sender outlives its receivers.
            return std::future::pending().await;
        }
        news.borrow_and_update().clone()
    }
}

impl<T: Eq + Hash, N> Drop for Subscription<T, N> {
    fn drop(&mut self) {
        let mut state = self.subscriptions.state();
        self.news = None;
        state.total -= 1;
        if let Some(count) = state.per_peer.get_mut(&self.peer) {
            *count -= 1;
            if *count == 0 {
                state.per_peer.remove(&self.peer);
            }
        }
        if state.topics.get(&self.topic).is_some_and(|news| news.receiver_count() == 0) {
            state.topics.remove(&self.topic);
        }
    }
}
