//! Room on networks: how much is asked for over one at a time, as far as a server sends it at once.
//!
//! A server sends the first packets of an answer at once. Those of three small objects together overflow the
//! queue before a slow network that is near. Where the last packets of an object are lost nothing but a timer
//! tells, and that is longer than the object takes. So what does not fit waits here instead of there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::{timeout, timeout_at};

/// Networks with room, at once. What goes over others does not wait.
const MOST: usize = 64;
/// What has waited for so long goes on: a server may think for longer than its answer takes. About what a
/// network needs to carry all that it holds.
const LONGEST: Duration = Duration::from_millis(150);

/// So much a server sends on a new connection before it hears that anything has come: ten segments (RFC
/// 6928). By what it sends on one that has carried more, the window has shown what the network takes.
const BURST: u64 = 14_000;
/// So many answers of unknown size are to fit on a network at once, or two thirds of them: browsers ask a
/// server for six objects.
const AT_ONCE: u64 = 6;
/// Not less is asked for of any: many objects are no larger.
const SMALLEST: u64 = 2048;
/// What is asked for after so long a pause begins a page. It has the network for itself.
const PAUSE: Duration = Duration::from_secs(1);

/// What the head of an answer takes, about.
const HEAD: u64 = 400;
/// The headers of a packet of 1500 bytes are about this part of what it brings.
const HEADERS: u64 = 24;

/// All networks.
#[derive(Default)]
pub(super) struct Rooms(Mutex<HashMap<String, Arc<Network>>>);

/// A network.
#[derive(Default)]
struct Network {
    /// How many bytes have been asked for and have not come, headers included.
    under_way: AtomicU64,
    /// How many bytes it holds. 0: nobody knows.
    holds: AtomicU64,
    /// When room was last taken.
    taken: Mutex<Option<Instant>>,
    /// Those who wait, in order.
    queue: tokio::sync::Mutex<()>,
    freed: Notify,
}

/// Room for so many bytes, until this is dropped.
pub(super) struct Room {
    network: Arc<Network>,
    bytes: u64,
    /// It is not kept for longer, however slowly something comes.
    until: Instant,
}

impl Rooms {
    /// This network holds so many bytes at once. `None`: nobody knows.
    pub(super) fn know(&self, network: &str, holds: Option<u64>) {
        if let Some(network) = self.of(network) {
            network.holds.store(holds.unwrap_or(0), Ordering::Relaxed);
        }
    }

    /// Waits until an answer of so many bytes fits on this network, or it has waited for long. Of a larger
    /// one it is what a server sends at once. What is alone there always fits. `None`: nobody knows what it
    /// holds. Cancel-safe.
    pub(super) async fn take(&self, network: &str, bytes: u64) -> Option<Room> {
        let network = self.of(network)?;
        let (holds, bytes) = (network.holds()?, with_headers(bytes.min(BURST)).saturating_add(HEAD));
        *lock(&network.taken) = Some(Instant::now());
        if timeout(LONGEST, network.fits(holds, bytes)).await.is_err() {
            network.under_way.fetch_add(bytes, Ordering::Relaxed);
        }
        Some(Room { network, bytes, until: Instant::now() + 2 * LONGEST })
    }

    /// How many bytes to ask this network for first of an object of unknown size, at most so many. The
    /// objects of a page are asked for together. Where two thirds of it would fit it is all: what is left
    /// behind the first bytes takes a round trip more, however little that is.
    pub(super) fn step(&self, network: &str, most: u64) -> u64 {
        let known = lock(&self.0);
        let part = known.get(network).and_then(|network| network.part());
        part.filter(|part| *part <= most / 3 * 2).unwrap_or(most)
    }

    /// The least that is to be reckoned with of such an object over all networks in use.
    pub(super) fn least_step(&self, most: u64) -> u64 {
        lock(&self.0).values().filter_map(|network| network.part()).fold(most, u64::min)
    }

    fn of(&self, name: &str) -> Option<Arc<Network>> {
        let mut known = lock(&self.0);
        if known.len() >= MOST && !known.contains_key(name) {
            known.retain(|_, network| Arc::strong_count(network) > 1);
        }
        if known.len() >= MOST && !known.contains_key(name) {
            return None;
        }
        Some(Arc::clone(known.entry(name.to_owned()).or_default()))
    }
}

impl Network {
    fn holds(&self) -> Option<u64> {
        Some(self.holds.load(Ordering::Relaxed)).filter(|holds| *holds > 0)
    }

    /// The part of an object of which [`AT_ONCE`] fit on it. `None`: a page begins there, or nobody knows.
    fn part(&self) -> Option<u64> {
        let is_in_use = lock(&self.taken).is_some_and(|at| at.elapsed() < PAUSE);
        let holds = self.holds().filter(|_| is_in_use)?;
        let all = (holds / AT_ONCE).saturating_sub(HEAD);
        Some((all - all / HEADERS).max(SMALLEST))
    }

    /// Waits until they fit, and takes their room.
    async fn fits(&self, holds: u64, bytes: u64) {
        let _first = self.queue.lock().await;
        loop {
            let freed = self.freed.notified();
            let taken = self.under_way.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |under_way| {
                let all = under_way.saturating_add(bytes);
                (under_way == 0 || all <= holds).then_some(all)
            });
            if taken.is_ok() {
                return;
            }
            freed.await;
        }
    }
}

impl Room {
    /// So many bytes have come.
    pub(super) fn came(&mut self, bytes: u64) {
        let freed = with_headers(bytes).min(self.bytes);
        self.bytes -= freed;
        self.network.under_way.fetch_sub(freed, Ordering::Relaxed);
        self.network.freed.notify_one();
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.came(self.bytes);
    }
}

/// Waits for the next thing that comes of an answer. After long enough it takes no room any more: its server
/// is slow, or its reader, and what others want to have over the network is not held up by it.
pub(super) async fn while_it_comes<T>(room: &mut Option<Room>, next: impl Future<Output = T>) -> T {
    let Some(Room { until, .. }) = room else { return next.await };
    let until = (*until).min(Instant::now() + LONGEST);
    tokio::pin!(next);
    match timeout_at(until.into(), &mut next).await {
        Ok(next) => next,
        Err(_) => {
            *room = None;
            next.await
        }
    }
}

fn with_headers(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / HEADERS)
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use futures_util::{FutureExt, poll};
    use std::time::Instant;

    /// Takes room on a network that holds the answers of 25 of these.
    async fn take(rooms: &Rooms, network: &str, bytes: u64) -> Room {
        rooms.know(network, Some(26_900));
        rooms.take(network, bytes * 1000).await.unwrap()
    }

    #[tokio::test]
    async fn what_does_not_fit_waits_until_something_has_come() {
        let rooms = Rooms::default();
        let first = take(&rooms, "wlan0", 10).now_or_never().unwrap();
        let second = take(&rooms, "wlan0", 10).now_or_never().unwrap();
        let elsewhere = take(&rooms, "usb0", 1000).now_or_never();
        assert!(elsewhere.is_some(), "what is alone always fits");
        let mut third = Box::pin(take(&rooms, "wlan0", 10));
        assert!(poll!(&mut third).is_pending());
        drop(first);
        let mut third = third.now_or_never().unwrap();
        let mut fourth = Box::pin(take(&rooms, "wlan0", 8));
        assert!(poll!(&mut fourth).is_pending());
        third.came(4000);
        let fourth = fourth.now_or_never().unwrap();
        drop((second, third, fourth));
        assert_eq!(rooms.of("wlan0").unwrap().under_way.load(Ordering::Relaxed), 0);
        assert!(rooms.take("eth0", 10).await.is_none(), "nobody knows what it holds");
    }

    #[tokio::test]
    async fn what_has_waited_for_long_enough_goes_on_and_counts() {
        let rooms = Rooms::default();
        let first = take(&rooms, "wlan0", 20).await;
        let began = Instant::now();
        let second = take(&rooms, "wlan0", 20).await;
        assert!(began.elapsed() >= LONGEST);
        drop(first);
        assert!(take(&rooms, "wlan0", 13).now_or_never().is_none());
        drop(second);
    }

    #[tokio::test]
    async fn they_get_room_in_the_order_in_which_they_came_and_who_left_holds_nobody_up() {
        let rooms = Rooms::default();
        let first = take(&rooms, "wlan0", 13).await;
        let mut leaves = Box::pin(take(&rooms, "wlan0", 13));
        assert!(poll!(&mut leaves).is_pending());
        let (mut large, mut small) =
            (Box::pin(take(&rooms, "wlan0", 13)), Box::pin(take(&rooms, "wlan0", 1)));
        assert!(poll!(&mut large).is_pending() && poll!(&mut small).is_pending());
        drop((leaves, first));
        assert!(poll!(&mut small).is_pending(), "it does not pass by");
        let large = large.now_or_never().unwrap();
        assert!(small.now_or_never().is_some());
        drop(large);
    }

    #[tokio::test]
    async fn what_a_slow_server_was_asked_for_takes_no_room_for_long() {
        let rooms = Rooms::default();
        let mut first = Some(take(&rooms, "wlan0", 13).await);
        while_it_comes(&mut first, std::future::ready(())).await;
        assert!(first.is_some());
        let mut next = Box::pin(take(&rooms, "wlan0", 13));
        assert!(poll!(&mut next).is_pending());
        while_it_comes(&mut first, tokio::time::sleep(LONGEST * 2)).await;
        assert!(first.is_none());
        // Nor does one of which a byte comes now and then.
        let mut slow = Some(next.await);
        for _ in 0..8 {
            while_it_comes(&mut slow, tokio::time::sleep(LONGEST / 3)).await;
        }
        assert!(slow.is_none());
    }

    #[tokio::test]
    async fn six_objects_of_unknown_size_fit_on_a_network_that_a_page_has_begun_on() {
        let rooms = Rooms::default();
        let step = || (rooms.step("wlan0", 12_800), rooms.least_step(12_800));
        rooms.know("wlan0", Some(24_600));
        assert_eq!(step(), (12_800, 12_800), "it begins a page");
        drop(rooms.take("wlan0", 12_800).await);
        assert_eq!((step(), rooms.step("usb0", 12_800)), ((3546, 3546), 12_800));
        let mut all = Vec::new();
        for _ in 0..AT_ONCE {
            all.push(rooms.take("wlan0", 3546).now_or_never().unwrap());
        }
        assert!(rooms.take("wlan0", 3546).now_or_never().is_none());
        rooms.know("wlan0", None);
        assert_eq!(step(), (12_800, 12_800));
        rooms.know("wlan0", Some(6000));
        assert_eq!(step(), (SMALLEST, SMALLEST));
        rooms.know("wlan0", Some(246_000));
        assert_eq!(step(), (12_800, 12_800));
        // Four objects of 12 800, and 9200 of each of six.
        rooms.know("wlan0", Some(60_000));
        assert_eq!(step(), (12_800, 9200), "what is left of each would take another round trip");
    }

    #[tokio::test]
    async fn networks_that_are_not_used_any_more_are_forgotten() {
        let rooms = Rooms::default();
        let held = take(&rooms, "tun0", 1).await;
        for number in 1..MOST {
            drop(take(&rooms, &format!("tun{number}"), 1).await);
        }
        drop(take(&rooms, "wlan0", 1).await);
        assert_eq!(rooms.0.lock().unwrap().len(), 2);
        drop(held);
    }
}
