//! How things are: what the plan is made from.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use whimbrel_proto::{HandoverMode, PathState, Priority};

use super::plan::{Local, Pair, Remote, Situation, View, Wanted};
use crate::dial::{Candidate, candidates, fits};
use crate::endpoint_core::EndpointCore;
use crate::locator::Locator;
use crate::monitor::AddressSet;
use crate::policy::PathPolicy;
use crate::shared::Shared;
use whimbrel_base::order;

/// The number of the interface that relays stand for; those that a peer announces are lower.
const RELAYS: u8 = u8::MAX;
/// Ways that are raced for one pair.
const MAX_WAYS: usize = 8;

/// How things are now; `doubtful` says which pairs were tried without success.
pub(crate) fn survey(
    shared: &Shared,
    endpoint: &EndpointCore,
    policy: &PathPolicy,
    doubtful: Vec<Pair>,
) -> Situation {
    let (set, exclusive) = endpoint.sources();
    // What an interface is may have to be asked of the kernel: not while the engine is locked.
    let forbidden: Vec<IpAddr> = set
        .addresses
        .iter()
        .filter(|address| !policy.permits(&policy.interface(address)))
        .map(|address| address.ip)
        .collect();
    let (mode, paths, announced) = {
        let state = shared.lock();
        let stats = state.engine.paths();
        let views = state.paths.iter().filter_map(|io| {
            let path = stats.iter().find(|path| path.id == io.id)?;
            Some(View {
                id: path.id,
                local: io.local.ip(),
                remote: io.remote,
                state: path.state,
                priority: path.priority,
                pinned: state.pins.holds(path.id),
                forbidden: forbidden.contains(&io.local.ip()),
                srtt: path.srtt,
            })
        });
        (state.engine.handover(), views.collect::<Vec<View>>(), state.engine.peer_addresses())
    };
    let locals = locals(&set, policy);
    let mut remotes = remotes(&announced, &shared.remote_by(&endpoint.distances), &paths);
    if mode != HandoverMode::Single {
        set_relays_apart(&mut remotes, &paths);
    }
    let ways = ways(&locals, &remotes, &set, exclusive);
    Situation { mode, locals, remotes, ways, doubtful, paths }
}

/// Our interfaces that may be used, best first.
fn locals(set: &AddressSet, policy: &PathPolicy) -> Vec<Local> {
    let mut locals: Vec<Local> = Vec::new();
    for address in &set.addresses {
        let interface = policy.interface(address);
        match locals.iter_mut().find(|local| local.interface.name == interface.name) {
            Some(local) => local.ips.push(address.ip),
            None if policy.permits(&interface) => locals.push(Local { interface, ips: vec![address.ip] }),
            None => {}
        }
    }
    order::by_key(&mut locals, |local| policy.rank(&local.interface));
    locals
}

/// The peer's interfaces, best first: those that it announced, and what else is known of where it is. That
/// is taken for another way to its first interface, as the outside of a gateway is.
fn remotes(announced: &[(u8, SocketAddr, Priority)], known: &[Locator], paths: &[View]) -> Vec<Remote> {
    let mut remotes: Vec<Remote> = Vec::new();
    for (id, address, priority) in announced {
        let (slot, reserve) = (id / 2, *priority == Priority::Backup);
        match remotes.iter_mut().find(|remote| remote.slot == slot) {
            Some(remote) => remote.places.push((*address).into()),
            None => remotes.push(Remote { slot, places: vec![(*address).into()], reserve }),
        }
    }
    order::by_key(&mut remotes, |remote| (remote.reserve, remote.slot));
    if remotes.is_empty() {
        remotes.push(Remote { slot: 0, places: Vec::new(), reserve: false });
    }
    let used = paths.iter().filter(|path| path.state != PathState::Opening).map(|path| path.remote);
    for place in used.chain(known.iter().copied()) {
        if !remotes.iter().any(|remote| remote.places.contains(&place)) {
            remotes[0].places.push(place);
        }
    }
    // What has worked comes first.
    for remote in &mut remotes {
        order::by_key(&mut remote.places, |place| !paths.iter().any(|path| path.remote == *place));
    }
    remotes.retain(|remote| !remote.places.is_empty());
    remotes
}

/// Several paths at a time: a place behind a relay is no way to one of the peer's interfaces, but stands by
/// for them. While a direct path works, none is opened there.
fn set_relays_apart(remotes: &mut Vec<Remote>, paths: &[View]) {
    let is_relayed = |place: &Locator| place.relayed().is_some();
    let relayed: Vec<Locator> = remotes
        .iter_mut()
        .flat_map(|remote| remote.places.extract_if(.., |place| is_relayed(place)))
        .collect();
    remotes.retain(|remote| !remote.places.is_empty());
    let is_direct = |path: &View| path.state == PathState::Active && !is_relayed(&path.remote);
    let is_used = paths.iter().any(|path| relayed.contains(&path.remote));
    if !relayed.is_empty() && (is_used || !paths.iter().any(is_direct)) {
        remotes.push(Remote { slot: RELAYS, places: relayed, reserve: true });
    }
}

impl Situation {
    /// Ways that no interface of ours is known for, as a pair of its own.
    pub(crate) fn by_routes(&self, ways: Vec<Candidate>) -> Option<Wanted> {
        let pair = Pair { interface: Arc::from(""), slot: 0 };
        (!ways.is_empty()).then_some(Wanted { pair, ways, stands_by: false })
    }
}

fn ways(
    locals: &[Local],
    remotes: &[Remote],
    set: &AddressSet,
    exclusive: bool,
) -> Vec<(Pair, Vec<Candidate>)> {
    let mut all = Vec::new();
    for local in locals {
        for remote in remotes {
            let pair = Pair { interface: local.interface.name.clone(), slot: remote.slot };
            let ways = ways_between(local, &remote.places, set, exclusive);
            if !ways.is_empty() {
                all.push((pair, ways));
            }
        }
    }
    all
}

fn ways_between(local: &Local, remotes: &[Locator], set: &AddressSet, exclusive: bool) -> Vec<Candidate> {
    let mine = set.addresses.iter().filter(|address| local.ips.contains(&address.ip));
    let mine: Vec<_> = mine.collect();
    let to =
        |remote: Locator| mine.iter().find(|from| fits(from, remote, set, exclusive)).map(|f| (*f).clone());
    let ways = remotes.iter().filter_map(|&remote| Some(Candidate { local: Some(to(remote)?), remote }));
    ways.take(MAX_WAYS).collect()
}

/// Which ways to try to get any path at all, best first.
pub(crate) fn first_ways(shared: &Shared, endpoint: &EndpointCore, policy: &PathPolicy) -> Vec<Candidate> {
    let (set, exclusive) = endpoint.sources();
    let (remote, suspects) = (shared.remote_by(&endpoint.distances), shared.suspect_locals());
    if !policy.is_selective() {
        return candidates(&set, &remote, &suspects, exclusive);
    }
    let locals = locals(&set, policy);
    let bound = locals.iter().flat_map(|local| ways_between(local, &remote, &set, exclusive));
    let suspect = |way: &Candidate| way.local.as_ref().is_some_and(|local| suspects.contains(&local.ip));
    let (last, mut ways): (Vec<_>, Vec<_>) = bound.partition(suspect);
    ways.extend(last);
    // What is on this host has no interface to prefer.
    let here = remote.iter().filter(|remote| !exclusive && set.contains(remote.ip()));
    ways.extend(here.map(|&remote| Candidate { local: None, remote }));
    ways
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Instant;

    use tokio::net::{TcpListener, TcpStream};
    use whimbrel_base::{ConnectionId, SecretKey};
    use whimbrel_proto::{Config, Connection as Engine};

    use super::*;
    use crate::Endpoint;
    use crate::carrier::{CarrierKind, TcpCarrier};
    use crate::locked;
    use crate::monitor::{InterfaceKind, LocalAddress, ManualMonitor};
    use crate::path_io::PathIo;
    use crate::tls::TlsChannel;

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn set(addresses: &[(&str, &str)]) -> AddressSet {
        let addresses = addresses.iter().map(|(ip, interface)| LocalAddress {
            ip: ip.parse().unwrap(),
            interface: Some((*interface).into()),
        });
        AddressSet { addresses: addresses.collect(), ..AddressSet::default() }
    }

    #[test]
    fn addresses_of_one_interface_are_one_link() {
        let set = set(&[("10.0.0.2", "a"), ("fd00::2", "a"), ("10.1.0.2", "b")]);
        let locals = locals(&set, &PathPolicy::default());
        assert_eq!(locals.len(), 2);
        let remotes = remotes(
            &[
                (0, address("192.0.2.1:1"), Priority::Normal),
                (1, address("[2001:db8::1]:1"), Priority::Normal),
                (2, address("192.0.2.2:1"), Priority::Backup),
            ],
            &[],
            &[],
        );
        assert_eq!(remotes.iter().map(|r| (r.slot, r.reserve)).collect::<Vec<_>>(), [(0, false), (1, true)]);
        let ways = ways(&locals, &remotes, &set, false);
        assert_eq!(ways.iter().map(|(_, ways)| ways.len()).collect::<Vec<_>>(), [2, 1, 1, 1]);
    }

    #[test]
    fn where_the_peer_was_reached_counts_although_it_does_not_know_of_it() {
        let announced = [(0, address("10.9.9.9:1"), Priority::Normal)];
        let remotes = remotes(&announced, &["192.0.2.1:4", "10.9.9.9:1"].map(|at| address(at).into()), &[]);
        assert_eq!(remotes.len(), 1);
        assert_eq!(remotes[0].places.len(), 2);
    }

    #[test]
    fn a_relay_stands_by_for_all_interfaces_of_the_peer_and_is_not_dialled_beside_a_direct_path() {
        let token = whimbrel_base::RelayToken::from_bytes([7; 10]);
        let relay = address("203.0.113.5:443");
        let relayed = Locator::Relayed(whimbrel_base::RelayedAddr { relay, token });
        let direct = Locator::Direct(address("192.0.2.1:4"));
        let view = |id, remote| View {
            id: whimbrel_proto::PathId(id),
            local: "10.0.0.2".parse().unwrap(),
            remote,
            state: PathState::Active,
            priority: Priority::Normal,
            pinned: false,
            forbidden: false,
            srtt: std::time::Duration::ZERO,
        };
        let apart = |paths: &[View]| {
            let mut remotes = remotes(&[], &[relayed, direct], paths);
            set_relays_apart(&mut remotes, paths);
            remotes.into_iter().map(|remote| (remote.slot, remote.places, remote.reserve)).collect::<Vec<_>>()
        };
        let both = [(0, vec![direct], false), (RELAYS, vec![relayed], true)];
        assert_eq!(apart(&[]), both);
        assert_eq!(apart(&[view(0, relayed), view(1, direct)]), both);
        assert_eq!(apart(&[view(1, direct)]), both[..1]);
    }

    #[test]
    fn interfaces_that_are_not_allowed_are_left_out() {
        let policy = PathPolicy { interfaces: vec!["b".parse().unwrap()], ..PathPolicy::default() };
        let locals = locals(&set(&[("10.0.0.2", "a"), ("10.1.0.2", "b")]), &policy);
        assert_eq!(locals.iter().map(|l| &*l.interface.name).collect::<Vec<_>>(), ["b"]);
    }

    /// A connection with a path over TCP, whose socket the kernel can be asked about.
    async fn over_tcp(core: &EndpointCore) -> (Arc<Shared>, TcpListener) {
        let (peer, now) = (SecretKey::generate().id(), Instant::now());
        let mut engine =
            Engine::client(Config::default(), ConnectionId::random(), core.id, peer, [1; 32], now);
        let id = engine.open_path(now, None, u64::MAX).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (local, remote) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        let tls = TlsChannel::client(core.tls.clients.direct(peer).unwrap(), peer).unwrap();
        let carrier = TcpCarrier::new(id, CarrierKind::Tcp, socket, tls, Vec::new());
        let shared = core.shared(engine, vec![remote.into()]);
        shared.with(|state| state.paths.push(Arc::new(PathIo::tcp(id, local, remote.into(), carrier))));
        (shared, listener)
    }

    /// Everything else that wants something of the connection would wait for the kernel's answer.
    #[tokio::test]
    async fn the_kernel_is_not_asked_while_a_connection_is_locked() {
        let ip = "127.0.172.1".parse().unwrap();
        let monitor = ManualMonitor::new([ip]);
        monitor.set_local([LocalAddress { ip, interface: Some("lo".into()) }]);
        let endpoint = Endpoint::builder().monitor(monitor).bind().await.unwrap();
        let core = endpoint.inner();
        let (shared, _listener) = over_tcp(core).await;
        // What it is must be asked.
        let policy = PathPolicy { interfaces: vec!["other".parse().unwrap()], ..PathPolicy::default() };
        let before = locked::asked();
        // These would panic.
        let situation = survey(&shared, core, &policy, Vec::new());
        assert_eq!((situation.paths.len(), situation.locals.len()), (1, 1));
        let after_survey = locked::asked();
        let stats = crate::connection::stats(&shared);
        assert!(stats.paths[0].carrier_stats.is_some());
        assert!(before < after_survey && after_survey < locked::asked(), "the kernel was not asked");
        let locked = shared.lock();
        let asks = || InterfaceKind::of("lo");
        assert!(std::panic::catch_unwind(asks).is_err(), "nobody would notice");
        drop(locked);
        assert_eq!(asks(), InterfaceKind::Other);
    }
}
