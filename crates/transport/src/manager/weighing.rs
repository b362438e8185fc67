//! Client: learns how far a server's relays are, so that the next path or connection begins with the nearest one.

use futures_util::FutureExt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;
use whimbrel_base::RelayedAddr;

use super::joining::Joiner;
use crate::dial::{Candidate, HttpProxy, round_trip};
use crate::locator::Locator;

/// A relay that answers later than this is too far.
const PATIENCE: Duration = Duration::from_secs(3);

impl Joiner {
    /// A path through a relay was answered, over which a round trip takes so long. Measures what it takes to
    /// open a TCP connection to each of the server's relays, from where the path comes and by the HTTP proxy
    /// if it leads through that, if there are several and that is not known. For this nobody waits.
    pub(super) fn weigh(&self, place: RelayedAddr, rtt: Duration, path: &Candidate) {
        let (distances, now) = (&self.endpoint.distances, Instant::now());
        distances.note_place(place, rtt, now);
        let relays = distances.to_measure(&self.shared.remote(), now);
        if relays.is_empty() {
            return;
        }
        let (here, proxy) = (self.endpoint.addresses(), &self.endpoint.config.http_proxy);
        for relay in relays {
            let ways = ways_to(relay, path, proxy.as_deref(), |ip| here.contains(ip));
            let (distances, proxy) = (distances.clone(), proxy.clone());
            let turns = self.endpoint.proxy_turns.clone();
            tokio::spawn(FutureExt::boxed(async move {
                if let Some(rtt) = first_of(ways, proxy, &turns).await {
                    tracing::debug!(%relay, ?rtt, "relay measured");
                    distances.note_relay(relay, rtt);
                }
            }));
        }
    }
}

/// The ways along which it is measured how far a relay is, one after the other until one leads there. Where a
/// path goes through the HTTP proxy, nothing goes directly to what that is asked for; where a path goes
/// directly, that may be true of datagrams alone, and TCP go through the proxy.
fn ways_to(
    relay: SocketAddr,
    path: &Candidate,
    proxy: Option<&HttpProxy>,
    is_here: impl Fn(IpAddr) -> bool,
) -> Vec<Candidate> {
    let to_relay = Candidate { local: path.local.clone(), remote: Locator::Direct(relay) };
    let through = proxy.map(|proxy| proxy.ways(std::slice::from_ref(&to_relay), is_here)).unwrap_or_default();
    let is_proxied = path.remote.proxied().is_some() && !through.is_empty();
    let fits = path.local.as_ref().is_none_or(|local| local.ip.is_ipv4() == relay.is_ipv4());
    let direct = (fits && !is_proxied).then_some(to_relay);
    direct.into_iter().chain(through).collect()
}

/// A round trip along the first way that leads there.
async fn first_of(
    ways: Vec<Candidate>,
    proxy: Option<Arc<HttpProxy>>,
    turns: &Semaphore,
) -> Option<Duration> {
    for way in ways {
        let measuring = async {
            // It serves others of the network too.
            let _turn = match way.remote.proxied() {
                Some(_) => Some(turns.acquire().await.map_err(io::Error::other)?),
                None => None,
            };
            round_trip(&way, proxy.as_deref()).await
        };
        if let Ok(Ok(rtt)) = tokio::time::timeout(PATIENCE, measuring).await {
            return Some(rtt);
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use whimbrel_base::Place;

    use super::*;
    use crate::locator::Proxied;
    use crate::monitor::LocalAddress;

    /// No step takes longer.
    const LIMIT: Duration = Duration::from_secs(30);
    const RELAY: &str = "203.0.113.5:443";

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn proxy() -> HttpProxy {
        HttpProxy::new(address("10.0.0.1:3128"))
    }

    fn by(proxy: SocketAddr, relay: &str) -> Locator {
        Locator::Proxied(Proxied { proxy, place: Place::Direct(address(relay)) })
    }

    fn path(remote: Locator) -> Candidate {
        let local = LocalAddress { ip: "10.0.0.2".parse().unwrap(), interface: None };
        Candidate { local: Some(local), remote }
    }

    /// Where these ways lead.
    fn ways(relay: &str, remote: Locator, proxy: Option<&HttpProxy>) -> Vec<Locator> {
        let is_here = |ip: IpAddr| ip == address("203.0.113.9:1").ip();
        ways_to(address(relay), &path(remote), proxy, is_here).iter().map(|way| way.remote).collect()
    }

    #[test]
    fn relays_are_measured_along_the_way_that_paths_go() {
        let at = proxy();
        let through = by(address("10.0.0.1:3128"), RELAY);
        let [direct, other] = [RELAY, "203.0.113.6:443"].map(|to| Locator::Direct(address(to)));
        assert_eq!(ways(RELAY, other, None), [direct]);
        assert_eq!(ways(RELAY, through, Some(&at)), [through], "directly nothing gets out");
        assert_eq!(ways(RELAY, other, Some(&at)), [direct, through], "UDP may get out alone");
        // Whom the proxy is not asked for is reached without it: this host, and what is excepted.
        for of in ["203.0.113.9:443", "10.0.0.7:443"] {
            assert_eq!(ways(of, through, Some(&at)), [Locator::Direct(address(of))]);
        }
        let without = proxy().without([(address(RELAY).ip(), 32)]);
        assert_eq!(ways(RELAY, through, Some(&without)), [direct]);
        // From an address of the other family there is no way but the proxy.
        let of_v6 = "[2001:db8::5]:443";
        assert!(ways(of_v6, other, None).is_empty());
        assert_eq!(ways(of_v6, through, Some(&at)), [by(address("10.0.0.1:3128"), of_v6)]);
    }

    #[tokio::test]
    async fn what_a_proxy_takes_to_connect_is_the_round_trip_and_one_that_refuses_is_none() {
        let away = Duration::from_millis(300);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let answering = tokio::spawn(async move {
            for answer in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.1 403 Filtered\r\n\r\n"] {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut request = [0; 1024];
                let length = socket.read(&mut request).await.unwrap();
                assert!(request[..length].starts_with(b"CONNECT 203.0.113.5:443 "));
                tokio::time::sleep(away).await;
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        let (proxy, turns) = (Some(Arc::new(HttpProxy::new(at))), Semaphore::new(1));
        let way = || vec![Candidate { local: None, remote: by(at, RELAY) }];
        let measured = tokio::time::timeout(LIMIT, first_of(way(), proxy.clone(), &turns)).await.unwrap();
        assert!(measured.is_some_and(|rtt| rtt >= away), "{measured:?}");
        assert_eq!(tokio::time::timeout(LIMIT, first_of(way(), proxy, &turns)).await.unwrap(), None);
        answering.await.unwrap();
        assert_eq!(turns.available_permits(), 1, "turns are given back");
    }
}
