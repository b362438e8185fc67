//! The end of a download that takes long comes another way, by the manager's word.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World};
use crate::support::field;
use whimbrel_lab::{Direction, Rate, require};

/// The ranges that were asked for, each by its first and last byte.
fn ranges(object: &Object) -> Vec<(u64, u64)> {
    let seen = object.origin.seen();
    let of = |head: &String| {
        let (first, last) = field(head, "range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse().ok()?))
    };
    seen.iter().filter_map(of).collect()
}

#[test]
fn when_the_network_of_one_part_becomes_slow_the_end_of_it_comes_over_the_other() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 20), (10, 20)], "");
    let large = Object::start(&world, 4 << 20);
    // A manager at rest may look too late at what came first.
    let _open = [world.warm_up(&large), world.warm_up(&large)];
    world.until_seen("each link has a rate", |path| path.down_best.is_some());
    // It comes in two parts, one over each network.
    let object = Object::start(&world, 6 << 20);
    let mut is_slow = false;
    object.download(&world, |_| {
        if !is_slow {
            is_slow = true;
            world.links[0].set_rate(Direction::Both, Rate::mbit(2));
        }
    });
    let asked = ranges(&object);
    // What moved ends where the part did that it was the end of.
    let is_end_of = |one: &(u64, u64), other: &(u64, u64)| one.1 == other.1 && one.0 > other.0;
    let has_moved = asked.iter().any(|one| asked.iter().any(|other| is_end_of(one, other)));
    assert!(has_moved && object.share(1) > 0.6, "{} of it over the fast one: {asked:?}", object.share(1));
}

#[test]
fn a_network_that_was_not_known_at_the_beginning_carries_its_share_of_a_download_once_it_is() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 20), (10, 20)], "");
    let large = Object::start(&world, 4 << 20);
    // A manager at rest may look too late at what came first. Without a rate the policy would take both for
    // equal.
    let _near = [world.fill(0, &large), world.fill(0, &large)];
    world.until_seen("the first link has a rate", |path| {
        path.interface != "link0" || (path.srtt_min_ms.is_some() && path.down_best.is_some())
    });
    // So large that the policy leaves the other one out, of which no rate is known.
    let object = Object::start(&world, 32 << 20);
    let mut far = None;
    object.download(&world, |count| {
        if count > 2 << 20 && far.is_none() {
            assert!(object.share(1) < 0.01, "it is used already");
            far = Some(world.fill(1, &large));
        }
    });
    assert!(far.is_some() && object.share(1) > 0.1, "{} of it over the network known late", object.share(1));
}
