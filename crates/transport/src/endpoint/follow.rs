//! Follows the addresses of the host: sockets, connections and peers.

use futures_util::FutureExt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use whimbrel_base::address::AddressScope;
use whimbrel_proto::Side;

use crate::carrier::CarrierKind;
use crate::cause::DownCause;
use crate::dial::{Candidate, source};
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
/// Some programs renew a route, as a DHCP lease is renewed, by taking it away and giving it again: so long it
/// may be missing. However many routes go, paths are not asked about more often.
const RENEWAL: Duration = Duration::from_millis(100);
/// So many times as long as it took to ask about all paths passes before they are asked about again.
const LEISURE: u32 = 9;
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
    let mut ways = WaysDue::new(Instant::now());
    let mut some_lost = false;
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
                let is_lost = set.routes_lost != before.routes_lost;
                if is_lost || set.routes != before.routes {
                    ways.routes_changed(is_lost && !some_lost, Instant::now());
                }
                some_lost |= is_lost;
                before = set;
            }
            () = until(ways.at) => {
                let began = Instant::now();
                lose_ways(&core, &before, std::mem::take(&mut some_lost)).await;
                ways.asked(began, Instant::now());
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

/// When paths are asked about next, whether a route still leads to their peers.
#[derive(Debug)]
struct WaysDue {
    at: Option<Instant>,
    not_before: Instant,
}

impl WaysDue {
    fn new(now: Instant) -> Self {
        Self { at: None, not_before: now }
    }

    /// One is gone, or is just being renewed, or there is a new one. The first one that is gone has its time,
    /// whatever came before it.
    fn routes_changed(&mut self, is_first_lost: bool, now: Instant) {
        if is_first_lost {
            self.at = None;
        }
        self.at.get_or_insert(self.not_before.max(now + RENEWAL));
    }

    /// All paths were asked about.
    fn asked(&mut self, began: Instant, now: Instant) {
        let took = now.saturating_duration_since(began);
        *self = Self::new(now + took * LEISURE);
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Whether there is more news than that a route is gone, or why an address is.
fn differs(before: &AddressSet, set: &AddressSet) -> bool {
    let AddressSet { addresses, wakes, routes, without_link: _, routes_lost: _ } = set;
    (addresses, wakes, routes) != (&before.addresses, &before.wakes, &before.routes)
}

/// Gives up the paths whose last route went, if some were lost, and those that have strayed. Others than
/// theirs need not hear of it.
async fn lose_ways(core: &EndpointCore, set: &AddressSet, some_lost: bool) {
    for some in core.registry.all().chunks(ASKED_TOGETHER) {
        for shared in some {
            let chooses = shared.policy().is_selective();
            if !some_lost && !chooses {
                continue;
            }
            shared.lose_paths_without_way(|path, side| {
                let strays = chooses && side == Side::Client && has_strayed(path);
                !strays && (!some_lost || has_way(core, set, path, side))
            });
        }
        tokio::task::yield_now().await;
    }
}

/// Whether the peer's end of a path may still be reached. What leaves by a network with the address of
/// another one seldom arrives: of a path that was dialled, the address' own interface must lead there, or the
/// routes choose that very address for it still, as they may one that no network has (of `lo` or a dummy
/// interface).
fn has_way(core: &EndpointCore, set: &AddressSet, path: &PathIo, side: Side) -> bool {
    let (local, remote) = (path.local.ip(), path.remote.address().ip());
    // Within the host and on a link no routes are needed that anybody could take away.
    let is_near = core.has(set, remote) || AddressScope::of(remote) == AddressScope::LinkLocal;
    // MPTCP has several ways, of which the kernel knows.
    if is_near || local.is_unspecified() || path.kind() == CarrierKind::Mptcp {
        return true;
    }
    asks_the_kernel();
    let leads = |from: &LocalAddress| core.monitor.has_way(from, remote);
    let from_anywhere = LocalAddress { ip: local, interface: None };
    let is_own = |from: &&LocalAddress| from.ip == local && from.interface.is_some();
    let own: Vec<&LocalAddress> = set.addresses.iter().filter(is_own).collect();
    if side == Side::Server || own.is_empty() {
        return leads(&from_anywhere);
    }
    let is_chosen = || source(&Candidate { local: None, remote: path.remote }) == Some(local);
    own.into_iter().any(leads) || (is_chosen() && leads(&from_anywhere))
}

/// Whether a path that a policy has chosen leaves by another network than that of its address, because its
/// packets leave as the routes say and these have changed.
fn has_strayed(path: &PathIo) -> bool {
    let local = path.local.ip();
    if !path.follows_routes || local.is_unspecified() {
        return false;
    }
    source(&Candidate { local: None, remote: path.remote }).is_some_and(|from| from.to_canonical() != local)
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
        shared.lose_paths_without(|ip| (!core.has(set, ip)).then(|| DownCause::of_address(set, ip)));
        core.tell_peer(&shared);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_storm_of_routes_has_paths_asked_about_seldom_and_each_of_them_once_at_least() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut ways = WaysDue::new(start);
        assert_eq!(ways.at, None);
        ways.routes_changed(true, at(0));
        ways.routes_changed(false, at(60));
        assert_eq!(ways.at, Some(start + RENEWAL), "however many follow");
        ways.asked(at(100), at(150));
        assert_eq!(ways.at, None);
        ways.routes_changed(true, at(160));
        assert_eq!(ways.at, Some(at(150) + Duration::from_millis(50) * LEISURE));
        ways.asked(at(600), at(600));
        ways.routes_changed(false, at(2000));
        assert_eq!(ways.at, Some(at(2000) + RENEWAL));
        // One that is renewed just after another one came.
        ways.routes_changed(true, at(2090));
        assert_eq!(ways.at, Some(at(2090) + RENEWAL));
    }

    #[test]
    fn that_a_route_is_gone_or_an_address_without_a_link_concerns_no_other_path() {
        let before = AddressSet::default();
        let gone = AddressSet { routes_lost: 1, without_link: vec![[192, 0, 2, 1].into()], ..before.clone() };
        assert!(!differs(&before, &gone));
        assert!(differs(&before, &AddressSet { routes: 1, ..before.clone() }));
        assert!(differs(&before, &AddressSet { wakes: 1, ..before.clone() }));
        let addresses = vec![LocalAddress { ip: [192, 0, 2, 1].into(), interface: None }];
        assert!(differs(&before, &AddressSet { addresses, ..before.clone() }));
    }
}
