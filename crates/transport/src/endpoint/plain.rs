//! Plain TCP connections of an endpoint: to relays, directly or through its HTTP proxy.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::{Duration, Instant};

use futures_util::future::{Either, select};
use socket2::Domain;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

use super::Endpoint;
use crate::carrier::{CarrierKind, stream_socket};
use crate::dial::fits;
use crate::locator::{Locator, Proxied};

/// How long a place is dialled directly before the HTTP proxy is asked for it too, as for paths.
const HEAD_START: Duration = Duration::from_millis(250);
/// How long a place is dialled directly once the HTTP proxy has not connected there.
const AFTER_REFUSAL: Duration = Duration::from_secs(5);
/// Connections that an HTTP proxy is asked for at the same time: it serves others of the network too.
pub(super) const PROXY_TURNS: usize = 32;

/// A plain TCP connection that stands.
#[derive(Debug)]
#[non_exhaustive]
pub struct PlainTcp {
    /// The connection. An HTTP proxy on its way has said what it had to say.
    pub socket: TcpStream,
    /// What a round trip to the remote end took. Through an HTTP proxy: until that had connected.
    pub rtt: Duration,
}

impl Endpoint {
    /// Opens a plain TCP connection, from an address that this endpoint may use. Where that takes longer than
    /// 250 ms, the endpoint's [HTTP proxy](crate::Config::http_proxy) is asked for the place as well, if it
    /// has one for such places, and the first connection that stands is taken; if the proxy does not connect,
    /// the place has five seconds more to answer, and the error is the proxy's. For a
    /// [proxied](Locator::Proxied) place, as paths have it, the proxy alone is asked: for at most 32
    /// connections at the same time; further ones wait. Cancel-safe.
    ///
    /// # Errors
    /// When there is no such address, or nobody accepts there, or the proxy does not connect. Has no time
    /// limit but the system's.
    pub async fn connect_tcp(&self, remote: Locator) -> io::Result<PlainTcp> {
        if let Some(proxied) = remote.proxied() {
            return self.connect_by_proxy(proxied).await;
        }
        let address = remote.address();
        let Some(proxied) = self.way_by_proxy(address) else { return self.connect_directly(address).await };
        let direct = pin!(self.connect_directly(address));
        let by_proxy = pin!(async {
            tokio::time::sleep(HEAD_START).await;
            self.connect_by_proxy(proxied).await
        });
        match select(direct, by_proxy).await {
            Either::Left((Ok(connected), _)) | Either::Right((Ok(connected), _)) => Ok(connected),
            Either::Left((Err(_), by_proxy)) => by_proxy.await,
            Either::Right((Err(refused), direct)) => match timeout(AFTER_REFUSAL, direct).await {
                Ok(Ok(connected)) => Ok(connected),
                // What a proxy says tells more than that a firewall says nothing.
                Ok(Err(_)) | Err(_) => Err(refused),
            },
        }
    }

    /// Whether its [HTTP proxy](crate::Config::http_proxy), if it has one, is asked for one of these
    /// addresses: what leads there through that begins a moment later than what leads there directly, and
    /// takes round trips more.
    #[must_use]
    pub fn may_use_proxy(&self, to: &[SocketAddr]) -> bool {
        to.iter().any(|address| self.way_by_proxy(*address).is_some())
    }

    async fn connect_directly(&self, remote: SocketAddr) -> io::Result<PlainTcp> {
        let socket = stream_socket(Domain::for_address(remote), CarrierKind::Tcp)?;
        let socket = TcpSocket::from_std_stream(socket.into());
        // As for paths: the endpoint may want to listen on the port that the kernel picks.
        socket.set_reuseaddr(true)?;
        if let Some(local) = self.source_for(remote)? {
            socket.bind(local)?;
        }
        let begun = Instant::now();
        let socket = socket.connect(remote).await?;
        Ok(PlainTcp { socket, rtt: begun.elapsed() })
    }

    async fn connect_by_proxy(&self, Proxied { proxy: at, place }: Proxied) -> io::Result<PlainTcp> {
        let core = self.inner();
        // What it is shown is for it alone.
        let Some(proxy) = core.config.http_proxy.as_ref().filter(|proxy| proxy.is_at(at)) else {
            let why = format!("{at} is not the HTTP proxy of this endpoint");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        };
        let _turn = core.proxy_turns.acquire().await.map_err(io::Error::other)?;
        let mut socket = self.connect_directly(at).await?.socket;
        let begun = Instant::now();
        proxy.ask(&mut socket, Locator::from(place).address()).await?;
        Ok(PlainTcp { socket, rtt: begun.elapsed() })
    }

    /// The way through the endpoint's HTTP proxy, if it has one that is asked for this address.
    fn way_by_proxy(&self, to: SocketAddr) -> Option<Proxied> {
        let core = self.inner();
        let is_here = core.addresses().contains(to.ip());
        core.config.http_proxy.as_ref().filter(|_| !is_here)?.way(to)
    }

    /// What to bind to before dialling there, if routes may not choose.
    pub(super) fn source_for(&self, remote: SocketAddr) -> io::Result<Option<SocketAddr>> {
        let (set, exclusive) = self.inner().sources();
        if !exclusive {
            return Ok(None);
        }
        let usable = |local: &&crate::LocalAddress| fits(local, remote.into(), &set, true);
        let local = set.addresses.iter().find(usable).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Some(SocketAddr::new(local.ip, 0)))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;
    use whimbrel_base::relayed::Place;

    use super::*;
    use crate::{Config, HttpProxy, ManualMonitor};

    /// No step takes longer.
    const LIMIT: Duration = Duration::from_secs(30);
    /// What would be there by then, if it came at all.
    const MOMENT: Duration = Duration::from_millis(100);

    async fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    async fn endpoint(proxy: HttpProxy) -> Endpoint {
        let monitor = ManualMonitor::new([IpAddr::from(Ipv4Addr::LOCALHOST)]);
        let config = Config { http_proxy: Some(Arc::new(proxy)), ..Config::default() };
        Endpoint::builder().monitor(monitor).config(config).bind().await.unwrap()
    }

    fn by(proxy: SocketAddr) -> Locator {
        Locator::Proxied(Proxied { proxy, place: Place::Direct(SocketAddr::from(([203, 0, 113, 5], 443))) })
    }

    #[tokio::test]
    async fn a_proxy_that_answers_nobody_is_asked_for_so_many_and_those_that_are_given_up_make_room() {
        let (listener, at) = listener().await;
        let endpoint = endpoint(HttpProxy::new(at)).await;
        let mut asking = JoinSet::new();
        for _ in 0..PROXY_TURNS + 8 {
            let endpoint = endpoint.clone();
            asking.spawn(async move { endpoint.connect_tcp(by(at)).await });
        }
        let mut asked = Vec::new();
        while asked.len() < PROXY_TURNS {
            asked.push(timeout(LIMIT, listener.accept()).await.unwrap().unwrap());
        }
        assert!(timeout(MOMENT, listener.accept()).await.is_err(), "further ones wait");
        asking.abort_all();
        let answering = async {
            let (mut socket, _) = listener.accept().await.unwrap();
            let mut request = [0; 1024];
            let length = socket.read(&mut request).await.unwrap();
            assert!(request[..length].starts_with(b"CONNECT 203.0.113.5:443 "));
            socket.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").await.unwrap();
        };
        let both = async { tokio::join!(endpoint.connect_tcp(by(at)), answering) };
        let (connected, ()) = timeout(LIMIT, both).await.unwrap();
        let mut heard = [0; 5];
        timeout(LIMIT, connected.unwrap().socket.read_exact(&mut heard)).await.unwrap().unwrap();
        assert_eq!(&heard, b"hello");
    }

    #[tokio::test]
    async fn what_a_proxy_is_shown_is_shown_to_no_other_one() {
        let ((_own, own), (other, at)) = (listener().await, listener().await);
        let endpoint = endpoint(HttpProxy::new(own).authorized_by("Basic eA==")).await;
        let error = endpoint.connect_tcp(by(at)).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{error}");
        assert!(timeout(MOMENT, other.accept()).await.is_err(), "it is not even dialled");
    }

    #[tokio::test]
    async fn a_proxy_that_closes_or_is_gone_is_an_error_and_not_waited_for() {
        let (listener, at) = listener().await;
        let endpoint = endpoint(HttpProxy::new(at)).await;
        let closing = async { drop(listener.accept().await.unwrap()) };
        let both = async { tokio::join!(endpoint.connect_tcp(by(at)), closing) };
        timeout(LIMIT, both).await.unwrap().0.unwrap_err();
        drop(listener);
        timeout(LIMIT, endpoint.connect_tcp(by(at))).await.unwrap().unwrap_err();
    }
}
