//! Follows the addresses of the host: sockets, connections and peers.

use futures_util::FutureExt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::endpoint_core::{EndpointCore, lock};
use crate::error::BindError;
use crate::monitor::AddressSet;
use crate::notices;
use crate::sockets::Bound;

/// How often all connections are counted.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Lost addresses that are remembered; only those lost a moment ago matter.
const MAX_LOST: usize = 256;
/// Between attempts to bind at a new address where the port is taken.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Runs until the endpoint is closed.
pub(super) async fn follow_addresses(core: Arc<EndpointCore>) {
    let mut addresses = core.addresses.clone();
    // A change since then is still unseen.
    let mut before = core.bound.borrow().clone();
    let mut housekeeping = tokio::time::interval(HOUSEKEEPING);
    let mut bound = true;
    let mut pause = FIRST_PAUSE;
    loop {
        tokio::select! {
            changed = addresses.changed() => {
                if changed.is_err() {
                    return;
                }
                let set = addresses.borrow_and_update().clone();
                // Sockets on all addresses, as the others have, need not follow.
                bound = !core.is_exclusive() || rebind(&core, &set).await;
                pause = FIRST_PAUSE;
                core.bound.send_replace(set.clone());
                addresses_changed(&core, &before, &set);
                before = set;
            }
            () = tokio::time::sleep(pause), if !bound => {
                bound = rebind(&core, &before).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            _ = housekeeping.tick() => {
                lock(&core.sockets).close_idle(Instant::now());
                core.registry.keep_house().await;
            }
        }
    }
}

/// Binds anew for these addresses, on the same port. False if that must be tried again.
async fn rebind(core: &Arc<EndpointCore>, set: &AddressSet) -> bool {
    let ips = core.plan.addresses(set, core.is_exclusive());
    let gone: Vec<Bound> = {
        let mut sockets = lock(&core.sockets);
        sockets.bound.extract_if(|ip, _| !ips.contains(ip)).map(|(_, bound)| bound).collect()
    };
    for bound in gone {
        bound.close().await;
    }
    let result = lock(&core.sockets).bind(core, &core.quic, &ips, core.plan.port);
    if let Err((address, error)) = &result {
        tracing::warn!(%address, %error, "cannot listen at the new address yet");
    }
    result.is_ok()
}

/// Reacts to a new set of addresses.
fn addresses_changed(core: &Arc<EndpointCore>, before: &AddressSet, set: &AddressSet) {
    note_lost(core, before, set);
    let new = set.addresses.iter().filter(|address| !before.contains(address.ip));
    new.for_each(|address| core.reach.forget(address.ip));
    // Loopback addresses, when nothing else is left, are no use to anybody elsewhere.
    let moved = before.reachable() != set.reachable() && !core.is_cut_off(set);
    core.update_announcements(set);
    if moved {
        core.observed.start_anew();
        core.distances.forget();
    }
    for shared in core.registry.all() {
        shared.lose_paths_without(|ip| core.has(set, ip));
        let told = core.notice_addresses();
        shared.with(|state| state.engine.set_notice_addresses(told));
        shared.tell_addresses();
        if set.wakes != before.wakes {
            shared.probe();
        }
    }
    for shared in core.registry.dialled() {
        if moved {
            shared.whereabouts().moved();
        }
        shared.mover.start_anew();
    }
    if moved {
        for shared in core.registry.accepted() {
            tokio::spawn(FutureExt::boxed(notices::tell(core.clone(), shared)));
        }
    }
}

fn note_lost(core: &EndpointCore, before: &AddressSet, set: &AddressSet) {
    let mut lost = lock(&core.lost);
    if lost.len() > MAX_LOST {
        lost.clear();
    }
    lost.extend(before.addresses.iter().map(|address| address.ip));
    lost.retain(|ip| !core.has(set, *ip));
}

pub(super) fn bind_error((address, source): (SocketAddr, std::io::Error)) -> BindError {
    BindError::Socket { address, source }
}
