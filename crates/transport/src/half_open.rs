//! Peers that have connected and not yet shown who they are: bounded in number, and fair between sources.

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

/// Peers in their handshake. When there are too many, the source that has the most of them makes room, so
/// that a flood from one place costs nobody else a handshake, however long that takes.
#[derive(Debug, Default)]
pub(crate) struct HalfOpen(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    /// Oldest first, with their place in the order of arrival.
    by_source: HashMap<Source, VecDeque<(u64, Revoke)>>,
    count: usize,
    arrived: u64,
}

/// An IPv4 address, or the first 64 bits of an IPv6 address: whoever has one of these has all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Source([u8; 8]);

/// Dropped to take a [`Place`] back.
type Revoke = oneshot::Sender<std::convert::Infallible>;

/// Leave to be in a handshake. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Place(oneshot::Receiver<std::convert::Infallible>);

impl Place {
    /// Runs a handshake; `None` if another peer got the place meanwhile.
    pub(crate) async fn hold<T>(self, handshake: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            result = handshake => Some(result),
            _ = self.0 => None,
        }
    }
}

impl From<IpAddr> for Source {
    fn from(ip: IpAddr) -> Self {
        let mut source = [0; 8];
        match ip.to_canonical() {
            // Below ::/64, from where nobody connects.
            IpAddr::V4(ip) => source[4..].copy_from_slice(&ip.octets()),
            IpAddr::V6(ip) => source.copy_from_slice(&ip.octets()[..8]),
        }
        Self(source)
    }
}

impl HalfOpen {
    /// Makes a place for one more; beyond `max`, the oldest of the most crowded source loses its own.
    pub(crate) fn add(&self, from: IpAddr, max: usize) -> Place {
        let (revoke, place) = oneshot::channel();
        let mut waiting = self.lock();
        if waiting.count >= max {
            waiting.forget_finished();
        }
        while waiting.count >= max.max(1) {
            waiting.drop_one();
        }
        let arrived = waiting.arrived;
        waiting.arrived += 1;
        waiting.count += 1;
        waiting.by_source.entry(from.into()).or_default().push_back((arrived, revoke));
        Place(place)
    }

    /// Whether half of `max` are there.
    pub(crate) fn is_crowded(&self, max: usize) -> bool {
        let mut waiting = self.lock();
        if waiting.count >= max / 2 {
            waiting.forget_finished();
        }
        waiting.count >= max / 2
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn forget_finished(&mut self) {
        self.by_source.retain(|_, peers| {
            peers.retain(|(_, revoke)| !revoke.is_closed());
            !peers.is_empty()
        });
        self.count = self.by_source.values().map(VecDeque::len).sum();
    }

    fn drop_one(&mut self) {
        let crowd = |peers: &VecDeque<(u64, Revoke)>| {
            (peers.len(), std::cmp::Reverse(peers.front().map(|(arrived, _)| *arrived)))
        };
        let crowded = self.by_source.iter().max_by_key(|(_, peers)| crowd(peers)).map(|(source, _)| *source);
        if let Some(source) = crowded
            && let Some(peers) = self.by_source.get_mut(&source)
        {
            drop(peers.pop_front());
            if peers.is_empty() {
                self.by_source.remove(&source);
            }
        }
        self.count = self.count.saturating_sub(1);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::task::JoinHandle;

    use super::*;

    const MAX: usize = 16;

    fn peer(half_open: &HalfOpen, from: &str) -> JoinHandle<()> {
        let place = half_open.add(from.parse().unwrap(), MAX);
        tokio::spawn(async move { place.hold(std::future::pending()).await.unwrap_or_default() })
    }

    async fn are_dropped(peers: &[JoinHandle<()>]) -> usize {
        // Aborted tasks end when the runtime gets to them.
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        peers.iter().filter(|peer| peer.is_finished()).count()
    }

    #[tokio::test]
    async fn a_flood_from_one_source_drops_only_its_own() {
        for network in ["198.51.100.7", "2001:db8:0:7::"] {
            let half_open = HalfOpen::default();
            let honest = ["192.0.2.1", "192.0.2.1", "2001:db8::1", "2001:db8:0:8::1"];
            let honest: Vec<_> = honest.iter().map(|from| peer(&half_open, from)).collect();
            let mut flood = Vec::new();
            for n in 1..500 {
                // Each from another address of the same network, where it has that many.
                let host = if network.ends_with(':') { format!("{n:x}") } else { String::new() };
                flood.push(peer(&half_open, &format!("{network}{host}")));
            }
            assert_eq!(are_dropped(&honest).await, 0);
            assert_eq!(are_dropped(&flood).await, flood.len() + honest.len() - MAX);
        }
    }

    #[tokio::test]
    async fn between_equals_the_oldest_makes_room() {
        let half_open = HalfOpen::default();
        let peers: Vec<_> = (0..MAX + 3).map(|n| peer(&half_open, &format!("192.0.2.{n}"))).collect();
        assert_eq!(are_dropped(&peers[..3]).await, 3);
        assert_eq!(are_dropped(&peers[3..]).await, 0);
    }

    #[tokio::test]
    async fn those_who_are_through_make_room_first() {
        let half_open = HalfOpen::default();
        let peers: Vec<_> = (0..MAX).map(|n| peer(&half_open, &format!("192.0.2.{n}"))).collect();
        peers[MAX - 1].abort();
        assert_eq!(are_dropped(&peers).await, 1);
        let _last = peer(&half_open, "192.0.2.200");
        assert_eq!(are_dropped(&peers).await, 1);
    }
}
