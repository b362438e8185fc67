//! Follows the addresses of the host: sockets, connections and peers.

use futures_util::FutureExt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_proto::Side;

use crate::cause::DownCause;
use crate::endpoint_core::{EndpointCore, lock};
use crate::error::BindError;
use crate::locked::asks_the_kernel;
use crate::monitor::{AddressSet, LocalAddress};
use crate::notices;
use crate::path_io::PathIo;
use crate::sockets::Bound;

/// How often all connections are counted.
const HOUSEKEEPING: Duration = Duration::from_secs(10);
/// Connections whose paths are looked at together, while the endpoint has other things to do too.
const ASKED_TOGETHER: usize = 64;
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
                if differs(&before, &set) {
                    addresses_changed(&core, &before, &set);
                }
                if set.routes_lost != before.routes_lost {
                    lose_ways(&core, &set).await;
                }
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

/// Whether there is more news than that a route is gone.
fn differs(before: &AddressSet, set: &AddressSet) -> bool {
    AddressSet { routes_lost: before.routes_lost, ..set.clone() } != *before
}

/// Gives up the paths whose last route went. Others than theirs need not hear of it.
async fn lose_ways(core: &EndpointCore, set: &AddressSet) {
    for some in core.registry.all().chunks(ASKED_TOGETHER) {
        for shared in some {
            shared.lose_paths_without_way(|path, side| has_way(core, set, path, side));
        }
        tokio::task::yield_now().await;
    }
}

/// Whether the peer's end of a path may still be reached. What was dialled is bound to its interface, and what
/// came in is not.
fn has_way(core: &EndpointCore, set: &AddressSet, path: &PathIo, side: Side) -> bool {
    let (local, remote) = (path.local.ip(), path.remote.address().ip());
    // Within the host no routes are needed that anybody could take away.
    if local.is_unspecified() || core.has(set, remote) {
        return true;
    }
    asks_the_kernel();
    let bound = set.addresses.iter().find(|address| address.ip == local);
    let from_anywhere = LocalAddress { ip: local, interface: None };
    let by_interface = bound.filter(|from| side == Side::Client && from.interface.is_some());
    core.monitor.has_way(&from_anywhere, remote)
        && by_interface.is_none_or(|from| core.monitor.has_way(from, remote))
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
        shared.lose_paths_without(|ip| (!core.has(set, ip)).then(|| why_gone(set, ip)));
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

fn why_gone(set: &AddressSet, ip: IpAddr) -> DownCause {
    if set.without_link.contains(&ip) { DownCause::LinkDown } else { DownCause::AddressGone }
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
