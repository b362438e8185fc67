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
