//! Asks a friend's device which devices the friend has, whenever that was heard: so what changed is known
//! soon.

use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::sync::Notify;
use tokio::time::Instant;
use whimbrel_base::EndpointId;
use whimbrel_transport::Connection;

use super::{Shared, listing, policy};
use crate::presence;

/// Between two questions on one connection.
const GAP: Duration = Duration::from_secs(1);
/// An older program ends the connection when it is asked. It is not asked again for so long.
const REST: Duration = Duration::from_secs(60 * 60);
/// It is taken for one when it did so that often: once it may be that the friend took the right to see
/// anything back.
const TIMES: u32 = 2;
/// Devices of which it is remembered.
const MOST: usize = 512;

/// Devices that end the connection when they are asked: few, if any.
#[derive(Debug, Default)]
pub(super) struct Older(Vec<Ended>);

#[derive(Debug)]
struct Ended {
    peer: EndpointId,
    times: u32,
    last: Instant,
}

impl Older {
    fn may_ask(&self, peer: EndpointId, now: Instant) -> bool {
        let is_older = |ended: &Ended| ended.times >= TIMES && now.duration_since(ended.last) < REST;
        !self.0.iter().any(|ended| ended.peer == peer && is_older(ended))
    }

    fn answered(&mut self, peer: EndpointId) {
        self.0.retain(|ended| ended.peer != peer);
    }

    /// A device ended the connection in place of an answer.
    pub(super) fn ended(&mut self, peer: EndpointId, now: Instant) {
        self.0.retain(|ended| now.duration_since(ended.last) < REST);
        if let Some(ended) = self.0.iter_mut().find(|ended| ended.peer == peer) {
            (ended.times, ended.last) = (ended.times.saturating_add(1), now);
        } else if self.0.len() < MOST {
            self.0.push(Ended { peer, times: 1, last: now });
        }
    }
}

/// Asks each time that the peer was heard, if it is a friend's; `is_open` while there is no answer.
pub(super) async fn follow(
    shared: &Shared,
    connection: &Connection,
    heard: &Notify,
    is_open: &AtomicBool,
) -> Result<Infallible> {
    let peer = connection.peer_id();
    loop {
        heard.notified().await;
        let now = Instant::now();
        let may_ask = shared.older().may_ask(peer, now);
        let friend = policy::friend_to_ask(&shared.known().group, peer).filter(|_| may_ask);
        if let Some(friend) = friend {
            is_open.store(true, Ordering::Relaxed);
            match listing::ask(connection).await {
                Ok(listed) => {
                    is_open.store(false, Ordering::Relaxed);
                    shared.older().answered(peer);
                    let now = presence::now();
                    // The group may be another one by now.
                    let devices = listing::believed(&shared.known().group, friend, listed, now);
                    shared.shown().hear(friend, peer, devices, now);
                }
                Err(error) => tracing::debug!(%peer, %error, "a friend's devices are not known"),
            }
        }
        tokio::time::sleep(GAP).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u16) -> EndpointId {
        let mut secret = [3; 32];
        secret[..2].copy_from_slice(&number.to_be_bytes());
        whimbrel_base::SecretKey::from_bytes(&secret).id()
    }

    #[test]
    fn a_device_that_ends_each_connection_when_it_is_asked_is_left_alone_for_an_hour() {
        let (mut older, start) = (Older::default(), Instant::now());
        assert!(older.may_ask(id(1), start));
        older.ended(id(1), start);
        assert!(older.may_ask(id(1), start), "it may have been by chance");
        older.answered(id(1));
        older.ended(id(1), start);
        assert!(older.may_ask(id(1), start), "it has answered since");
        older.ended(id(1), start);
        assert!(!older.may_ask(id(1), start + REST - Duration::from_secs(1)));
        assert!(older.may_ask(id(2), start));
        assert!(older.may_ask(id(1), start + REST), "it may be a newer program by now");
        older.ended(id(1), start + REST);
        assert!(older.may_ask(id(1), start + REST), "what was an hour ago does not count");
    }

    #[test]
    fn no_more_older_devices_are_remembered_than_may_be() {
        let (mut older, start) = (Older::default(), Instant::now());
        for number in 0..600 {
            older.ended(id(number), start);
        }
        assert_eq!(older.0.len(), MOST);
        older.ended(id(0), start);
        assert!(!older.may_ask(id(0), start), "those that are known are counted on");
        older.ended(id(599), start + REST);
        assert_eq!(older.0.len(), 1);
    }
}
