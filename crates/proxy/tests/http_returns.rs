//! A network that is lost under an object in parts, and comes back before its end.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World};
use std::time::{Duration, Instant};
use whimbrel_lab::require;
use whimbrel_multiaccess::protocol::PathReport;

const MIB: usize = 1 << 20;

/// Two links of 20 Mbit/s that the manager knows, and on which no other program has a connection any more.
fn known(stall: Option<Duration>) -> World {
    let world = World::with(&[(10, 20), (10, 20)], "", |settings| {
        settings.stall = stall.unwrap_or(settings.stall);
    });
    let known = Object::start(&world, 4 * MIB);
    // A manager at rest may look too late at what came first.
    let open = [world.warm_up(&known), world.warm_up(&known)];
    world.until_seen("each link has a rate", |path| path.down_best.is_some() && path.srtt_min_ms.is_some());
    drop(open);
    let is_idle = |path: &PathReport| path.connections == 0 && path.srtt_min_ms.is_some();
    world.until_seen("no link has a connection, and each had one", is_idle);
    world
}

/// The second link goes and comes back each time that so many bytes have come.
struct Changes<'a> {
    world: &'a World,
    at: &'a [usize],
    done: usize,
}

impl Changes<'_> {
    /// So many bytes have come. Returns whether a change was made just now.
    fn follow(&mut self, count: usize) -> bool {
        if self.at.get(self.done).is_none_or(|at| count < *at) {
            return false;
        }
        match self.done % 2 {
            0 => self.world.links[1].end(&self.world.client).set_up(false).unwrap(),
            _ => self.world.client.restore("link1").unwrap(),
        }
        self.done += 1;
        true
    }
}

#[test]
fn a_network_that_was_lost_under_an_object_carries_again_soon_after_it_is_back() {
    if !require!() {
        return;
    }
    let world = known(None);
    let object = Object::start(&world, 48 * MIB);
    // It is away for about two seconds. What is left then takes the other link alone seventeen.
    let mut changes = Changes { world: &world, at: &[4 * MIB, 8 * MIB], done: 0 };
    let (mut before, mut until_back) = (0.0, 0.0);
    object.download(&world, |count| {
        if changes.follow(count) {
            (before, until_back) = (until_back, object.share(1));
        }
    });
    assert!(changes.done == 2 && before > 0.01, "it carried {before} before it was lost");
    // Half of 40 MiB, and less by 1.2 MiB for each second in which it does not carry: eight are allowed for.
    let since = object.share(1) - until_back;
    assert!(since > 0.2, "{since} of the object came over the network after it was back");
}

#[test]
fn an_object_does_not_wait_for_a_network_that_comes_and_goes() {
    if !require!() {
        return;
    }
    // The proxy itself would not notice that the network is gone.
    let world = known(Some(Duration::from_secs(40)));
    let object = Object::start(&world, 28 * MIB);
    // The first time it is away for longer than anything is fetched ahead of the reader.
    let at = [3 * MIB, 16 * MIB, 18 * MIB, 20 * MIB, 22 * MIB];
    let mut changes = Changes { world: &world, at: &at, done: 0 };
    let (mut last, mut longest, mut before) = (Instant::now(), Duration::ZERO, 0.0);
    object.download(&world, |count| {
        longest = longest.max(last.elapsed());
        if changes.follow(count) && changes.done == 1 {
            before = object.share(1);
        }
        last = Instant::now();
    });
    assert!(changes.done == at.len() && before > 0.01, "it carried {before} before it was lost");
    // The kernel gives the connection up after twenty, three of which others fetch ahead of the reader.
    assert!(longest < Duration::from_secs(12), "nothing came for {longest:?}");
}
