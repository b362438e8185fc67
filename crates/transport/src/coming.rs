//! Connections that another endpoint is about to hand over to this one: their clients may be here before they
//! are.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use whimbrel_base::ConnectionId;

/// Connections on their way, each as often as it was offered. As many as the application accepts at once.
#[derive(Debug, Default)]
pub(crate) struct Coming(Mutex<HashMap<ConnectionId, Offers>>);

#[derive(Debug)]
struct Offers {
    count: usize,
    over: watch::Sender<()>,
}

/// A connection that is on its way. Whoever waits for it looks for it once this is dropped.
pub(crate) struct OnItsWay<'a> {
    coming: &'a Coming,
    id: ConnectionId,
}

/// The end of a wait for a connection.
pub(crate) struct Awaited(watch::Receiver<()>);

impl Coming {
    pub(crate) fn announce(&self, id: ConnectionId) -> OnItsWay<'_> {
        let mut coming = self.lock();
        coming.entry(id).or_insert_with(|| Offers { count: 0, over: watch::channel(()).0 }).count += 1;
        OnItsWay { coming: self, id }
    }

    /// `None` if the connection is not on its way: if it was, it has been registered or will not come.
    pub(crate) fn find(&self, id: &ConnectionId) -> Option<Awaited> {
        self.lock().get(id).map(|offers| Awaited(offers.over.subscribe()))
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ConnectionId, Offers>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        let mut coming = self.coming.lock();
        if let Some(offers) = coming.get_mut(&self.id) {
            offers.count -= 1;
            if offers.count == 0 {
                coming.remove(&self.id);
            }
        }
    }
}

impl Awaited {
    /// Waits until the connection is here, or is not coming any more. Cancel-safe.
    pub(crate) async fn over(mut self) {
        // It ends with the last offer.
        while self.0.changed().await.is_ok() {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[tokio::test]
    async fn who_waits_for_a_connection_waits_until_the_last_that_offers_it_is_through() {
        let (coming, id) = (Coming::default(), ConnectionId::random());
        assert!(coming.find(&id).is_none());
        let (first, second) = (coming.announce(id), coming.announce(id));
        assert!(coming.find(&ConnectionId::random()).is_none(), "it is no other one");
        let mut awaited = Box::pin(coming.find(&id).unwrap().over());
        assert!((&mut awaited).now_or_never().is_none());
        drop(first);
        assert!((&mut awaited).now_or_never().is_none());
        drop(second);
        awaited.await;
        assert!(coming.find(&id).is_none() && coming.lock().is_empty());
    }
}
