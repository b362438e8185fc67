//! An interface that is taken away under an object in parts and made anew, as that of a modem that is
//! unplugged and plugged in again: another one to the manager, which knows nothing of it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World};
use whimbrel_lab::{Link, Rate, require};
use whimbrel_multiaccess::protocol::PathReport;

const MIB: usize = 1 << 20;
/// Delay each way in milliseconds, and Mbit/s.
const SHAPE: (u64, u64) = (10, 20);

/// Both links are known, and have no connection any more.
fn known() -> World {
    let world = World::new(&[SHAPE, SHAPE], "");
    let known = Object::start(&world, 4 * MIB);
    let open = [world.warm_up(&known), world.warm_up(&known)];
    world.until_seen("each link has a rate", |path| path.down_best.is_some() && path.srtt_min_ms.is_some());
    drop(open);
    let is_idle = |path: &PathReport| path.connections == 0 && path.srtt_min_ms.is_some();
    world.until_seen("no link has a connection, and each had one", is_idle);
    world
}

/// The second link is removed once so many bytes have come, and made anew with this shape after these many.
/// Returns which share of the object came over it afterwards.
fn unplugged_under(world: &World, object: &Object, (out, back): (usize, usize), shape: (u64, u64)) -> f64 {
    let (mut is_out, mut anew) = (false, None::<Link>);
    let mut before = 0.0;
    object.download(world, |count| {
        if !is_out && count >= out {
            is_out = true;
            world.links[1].remove().unwrap();
        } else if is_out && anew.is_none() && count >= back {
            before = object.share(1);
            anew = Some(world.make_anew(1, shape));
        }
    });
    assert!(anew.is_some() && before > 0.01, "it carried {before} before it was unplugged");
    object.share(1) - before
}

#[test]
fn an_interface_that_was_made_anew_under_an_object_is_tried_and_carries_its_share_again() {
    if !require!() {
        return;
    }
    let world = known();
    let object = Object::start(&world, 64 * MIB);
    // It is away for about two seconds. Nothing but this object goes over it afterwards.
    let since = unplugged_under(&world, &object, (4 * MIB, 8 * MIB), SHAPE);
    // The trial alone brings at most 7.5 MB of 64 MiB. Half of 56 MiB is its share; 11 s without are allowed
    // for.
    assert!(since > 0.2, "{since} of the object came over the interface that was made anew");
}

#[test]
fn an_object_does_not_wait_for_an_interface_that_is_far_slower_when_it_is_made_anew() {
    if !require!() {
        return;
    }
    let world = known();
    // Fast enough that the slow one is not worth it afterwards: it has less than a twentieth.
    world.links[0].set_rate(world.links[0].from(&world.server), Rate::mbit(40));
    let object = Object::start(&world, 64 * MIB);
    let since = unplugged_under(&world, &object, (4 * MIB, 8 * MIB), (10, 1));
    // It was tried, and all else came another way: a tenth of it would have taken the slow link a minute.
    assert!(since > 0.001 && since < 0.1, "{since} of the object came over the slow interface");
}
