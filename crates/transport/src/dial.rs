//! Racing over addresses (Happy Eyeballs, RFC 8305): the first TCP connection that stands wins.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::time::{Duration, Instant};

use socket2::SockRef;
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use whimbrel_base::address::AddressScope;

use crate::monitor::{AddressSet, LocalAddress};
use crate::path_io::tune;

/// RFC 8305's recommended delay between attempts.
const STAGGER: Duration = Duration::from_millis(250);
/// The longest that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// More combinations than this are not worth trying at once.
const MAX_CANDIDATES: usize = 32;

/// One way to try: from where (`None`: as the kernel's routes say) to where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) local: Option<LocalAddress>,
    pub(crate) remote: SocketAddr,
}

/// A TCP connection that stands, and how long it took.
#[derive(Debug)]
pub(crate) struct Dialled {
    pub(crate) socket: TcpStream,
    pub(crate) rtt: Duration,
    pub(crate) remote: SocketAddr,
}

/// Which ways to try, best first. A pure function.
///
/// Local addresses in `avoid` (of suspect paths) come last. With `exclusive`, only the given local
/// addresses may be used; otherwise the kernel's own choice is tried too.
pub(crate) fn candidates(
    local: &AddressSet,
    remote: &[SocketAddr],
    avoid: &[IpAddr],
    exclusive: bool,
) -> Vec<Candidate> {
    let mut ways = Vec::new();
    for &remote in remote {
        let from_routes = Candidate { local: None, remote };
        let bound: Vec<Candidate> = local
            .addresses
            .iter()
            .filter(|l| fits(l, remote, local, exclusive))
            .map(|l| Candidate { local: Some(l.clone()), remote })
            .collect();
        let avoided = |c: &Candidate| c.local.as_ref().is_some_and(|l| avoid.contains(&l.ip));
        let (last, first): (Vec<_>, Vec<_>) = bound.into_iter().partition(avoided);
        let family_exists = local.addresses.iter().any(|l| l.ip.is_ipv4() == remote.is_ipv4());
        let mut mine = Vec::new();
        if !exclusive && avoid.is_empty() && family_exists {
            mine.push(from_routes.clone());
        }
        mine.extend(first);
        if !exclusive && !avoid.is_empty() {
            mine.push(from_routes);
        }
        mine.extend(last);
        ways.push(mine);
    }
    // First the best way to each remote address, then the second best, …
    let mut ways: Vec<_> = ways.into_iter().map(Vec::into_iter).collect();
    let mut ordered = Vec::new();
    loop {
        let round: Vec<Candidate> = ways.iter_mut().filter_map(Iterator::next).collect();
        if round.is_empty() || ordered.len() >= MAX_CANDIDATES {
            ordered.truncate(MAX_CANDIDATES);
            return ordered;
        }
        ordered.extend(round);
    }
}

/// Whether an address can be the source for a remote one.
pub(crate) fn fits(local: &LocalAddress, remote: SocketAddr, all: &AddressSet, exclusive: bool) -> bool {
    if local.ip.is_ipv4() != remote.is_ipv4() {
        return false;
    }
    if exclusive {
        return true;
    }
    // What is on this host is reached through the loopback interface; routes know best.
    if all.contains(remote.ip()) {
        return false;
    }
    let scope = |ip| AddressScope::of(ip);
    !matches!(scope(local.ip), AddressScope::Loopback | AddressScope::LinkLocal)
        && !matches!(scope(remote.ip()), AddressScope::Loopback | AddressScope::LinkLocal)
}

/// Tries the candidates, each a little after the one before or as soon as one failed.
pub(crate) async fn race(candidates: Vec<Candidate>) -> io::Result<Dialled> {
    let mut waiting = candidates.into_iter();
    let mut running = JoinSet::new();
    let mut last_error = io::Error::new(io::ErrorKind::AddrNotAvailable, "no address to try");
    let Some(first) = waiting.next() else {
        return Err(last_error);
    };
    // Most races have one runner, which needs no task of its own.
    let mut first = pin!(attempt(first));
    let mut first_runs = true;
    loop {
        let next = tokio::time::sleep(STAGGER);
        tokio::select! {
            result = &mut first, if first_runs => match result {
                Ok(dialled) => return Ok(dialled),
                Err(error) => (first_runs, last_error) = (false, error),
            },
            Some(result) = running.join_next() => match result {
                Ok(Ok(dialled)) => return Ok(dialled),
                Ok(Err(error)) => last_error = error,
                Err(error) => last_error = io::Error::other(error),
            },
            () = next, if waiting.len() > 0 => {}
        }
        match waiting.next() {
            Some(candidate) => drop(running.spawn(attempt(candidate))),
            None if running.is_empty() && !first_runs => return Err(last_error),
            None => {}
        }
    }
}

async fn attempt(candidate: Candidate) -> io::Result<Dialled> {
    let remote = candidate.remote;
    let socket = if remote.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // Our listener may be moving to this address too, and the kernel may pick the very port that it wants there. With
    // this option on both, one may listen on a port that the other dials from.
    socket.set_reuseaddr(true)?;
    if let Some(local) = &candidate.local {
        bind_device(&socket, local);
        socket.bind(SocketAddr::new(local.ip, 0))?;
    }
    let start = Instant::now();
    let socket = tokio::time::timeout(ATTEMPT, socket.connect(remote))
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let rtt = start.elapsed();
    tune(SockRef::from(&socket))?;
    Ok(Dialled { socket, rtt, remote })
}

/// Binds to the interface too, so that the path really uses it, whatever the routes prefer.
fn bind_device(socket: &TcpSocket, local: &LocalAddress) {
    #[cfg(target_os = "linux")]
    if let Some(interface) = &local.interface
        && let Err(error) = SockRef::from(socket).bind_device(Some(interface.as_bytes()))
    {
        // Older kernels allow it to root only; the source address alone often suffices.
        tracing::debug!(%interface, %error, "cannot bind to the interface");
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (socket, local);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn set(addresses: &[(&str, &str)]) -> AddressSet {
        let addresses = addresses.iter().map(|(ip, interface)| LocalAddress {
            ip: ip.parse().unwrap(),
            interface: Some((*interface).into()),
        });
        AddressSet { addresses: addresses.collect(), ..AddressSet::default() }
    }

    fn names(ways: &[Candidate]) -> Vec<String> {
        let interface = |c: &Candidate| c.local.as_ref().and_then(|l| l.interface.clone());
        ways.iter().map(|c| interface(c).map_or("routes".into(), |i| i.to_string())).collect()
    }

    #[test]
    fn routes_come_first_on_a_healthy_host() {
        let local = set(&[("127.0.0.1", "lo"), ("10.0.0.2", "wifi0"), ("10.1.0.2", "lte0")]);
        let ways = candidates(&local, &["192.0.2.1:1".parse().unwrap()], &[], false);
        assert_eq!(names(&ways), ["routes", "wifi0", "lte0"]);
    }

    #[test]
    fn s10_06_another_interface_than_the_suspect_one_comes_first() {
        let local = set(&[("10.0.0.2", "wifi0"), ("10.1.0.2", "lte0")]);
        let ways =
            candidates(&local, &["192.0.2.1:1".parse().unwrap()], &["10.0.0.2".parse().unwrap()], false);
        assert_eq!(names(&ways), ["lte0", "routes", "wifi0"]);
    }

    #[test]
    fn a_remote_on_this_host_is_left_to_the_routes() {
        let local = set(&[("127.0.0.1", "lo"), ("10.0.0.2", "eth0")]);
        for remote in ["127.0.0.1:1", "10.0.0.2:1"] {
            assert_eq!(names(&candidates(&local, &[remote.parse().unwrap()], &[], false)), ["routes"]);
        }
    }

    #[test]
    fn an_exclusive_monitor_allows_its_own_addresses_only() {
        let local = set(&[("127.0.0.2", "a")]);
        assert_eq!(names(&candidates(&local, &["127.0.0.9:1".parse().unwrap()], &[], true)), ["a"]);
        assert!(candidates(&set(&[]), &["127.0.0.9:1".parse().unwrap()], &[], true).is_empty());
    }

    #[tokio::test]
    async fn the_port_that_a_path_is_dialled_from_can_still_be_listened_on() {
        let remote = TcpSocket::new_v4().unwrap();
        remote.bind("127.0.171.1:0".parse().unwrap()).unwrap();
        let remote = remote.listen(4).unwrap();
        let local = LocalAddress { ip: "127.0.171.2".parse().unwrap(), interface: None };
        let way = Candidate { local: Some(local), remote: remote.local_addr().unwrap() };
        let dialled = race(vec![way]).await.unwrap();
        crate::sockets::listener(dialled.socket.local_addr().unwrap()).unwrap();
    }

    #[test]
    fn every_remote_gets_its_best_way_before_any_gets_its_second() {
        let local = set(&[("10.0.0.2", "a"), ("fd00::2", "b")]);
        let remotes = ["192.0.2.1:1".parse().unwrap(), "[2001:db8::1]:1".parse().unwrap()];
        let ways = candidates(&local, &remotes, &[], false);
        assert_eq!(ways[0].remote, remotes[0]);
        assert_eq!(ways[1].remote, remotes[1]);
    }
}
