//! What asks.

use std::net::SocketAddr;

use anyhow::{Context as _, Result, bail, ensure};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use super::head::Head;

/// Read at once.
const PIECE: usize = 64 * 1024;
/// SOCKS 5 (RFC 1928): the version, a way without a password, CONNECT, an IPv4 address, success.
const SOCKS: u8 = 5;
const NO_PASSWORD: u8 = 0;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const SUCCESS: u8 = 0;
/// Version, what came of it, nothing, and an IPv4 address with a port.
const REPLY: usize = 10;

/// How a server is reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// As the server itself, or as what stands in its place.
    Plain,
    /// By a proxy that is asked for each object.
    Proxy,
    /// By a proxy's tunnel (CONNECT).
    Tunnel,
    /// By a SOCKS proxy.
    Socks,
}

/// Where connections begin, and where they lead.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dialler {
    pub(crate) at: SocketAddr,
    pub(crate) way: Way,
    pub(crate) server: SocketAddr,
}

impl Dialler {
    /// A connection that is ready for requests.
    pub(super) async fn dial(&self) -> Result<WebClient> {
        let stream =
            TcpStream::connect(self.at).await.with_context(|| format!("nothing is at {}", self.at))?;
        stream.set_nodelay(true)?;
        let mut stream = BufReader::with_capacity(PIECE, stream);
        let server = self.server;
        match self.way {
            Way::Plain | Way::Proxy => {}
            Way::Tunnel => {
                let asks = format!("CONNECT {server} HTTP/1.1\r\nHost: {server}\r\n\r\n");
                stream.write_all(asks.as_bytes()).await?;
                let head = Head::read(&mut stream).await?.context("the proxy hung up")?;
                ensure!(head.word(1) == "200", "no tunnel: {}", head.word(1));
            }
            Way::Socks => socks(&mut stream, server).await?,
        }
        let base = if self.way == Way::Proxy { format!("http://{server}") } else { String::new() };
        Ok(WebClient { stream, base, host: server.to_string() })
    }
}

async fn socks(stream: &mut BufReader<TcpStream>, server: SocketAddr) -> Result<()> {
    let SocketAddr::V4(server) = server else { bail!("{server} is no IPv4 address") };
    stream.write_all(&[SOCKS, 1, NO_PASSWORD]).await?;
    let mut chosen = [0; 2];
    stream.read_exact(&mut chosen).await?;
    ensure!(chosen == [SOCKS, NO_PASSWORD], "the proxy wants a password: {chosen:?}");
    let asks = [&[SOCKS, CONNECT, 0, IPV4][..], &server.ip().octets(), &server.port().to_be_bytes()].concat();
    stream.write_all(&asks).await?;
    let mut reply = [0; REPLY];
    stream.read_exact(&mut reply).await?;
    ensure!(reply[..2] == [SOCKS, SUCCESS], "the proxy does not connect: reply {}", reply[1]);
    Ok(())
}

/// What came of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Got {
    /// All of it, and the connection can be used again.
    Object,
    /// All of it, and the connection is closed.
    Last,
    /// No answer: the connection was closed before, if it was used before.
    Nothing,
}

/// A connection to a server.
pub(super) struct WebClient {
    stream: BufReader<TcpStream>,
    /// What stands before each path.
    base: String,
    host: String,
}

impl WebClient {
    /// Gets an object of so many bytes, and shows what comes as it does, with its offset.
    pub(super) async fn get(&mut self, bytes: u64, mut shown: impl FnMut(u64, &[u8])) -> Result<Got> {
        let Ok(Some(head)) = self.ask(bytes).await else { return Ok(Got::Nothing) };
        ensure!(head.word(1) == "200", "the answer is {} {}", head.word(1), head.word(2));
        let length: Option<u64> = head.field("content-length").and_then(|length| length.parse().ok());
        ensure!(length == Some(bytes), "{length:?} bytes are answered, not {bytes}");
        let mut at = 0;
        while at < bytes {
            let piece = self.stream.fill_buf().await?;
            ensure!(!piece.is_empty(), "it ends after {at} of {bytes} bytes");
            let most = usize::try_from(bytes - at).unwrap_or(usize::MAX).min(piece.len());
            shown(at, &piece[..most]);
            self.stream.consume(most);
            at += most as u64;
        }
        Ok(if head.closes(head.word(0)) { Got::Last } else { Got::Object })
    }

    async fn ask(&mut self, bytes: u64) -> std::io::Result<Option<Head>> {
        let asks = format!("GET {}/{bytes} HTTP/1.1\r\nHost: {}\r\n\r\n", self.base, self.host);
        self.stream.write_all(asks.as_bytes()).await?;
        Head::read(&mut self.stream).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::net::TcpListener;
    use whimbrel_multiaccess::Client;
    use whimbrel_proxy::{HttpProxy, HttpSettings, Managed, Socks, Upstream};

    use super::*;
    use crate::web::content::Content;
    use crate::web::server::accept;

    const LIMIT: Duration = Duration::from_secs(60);

    async fn listen() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        (listener, at)
    }

    #[tokio::test]
    async fn objects_come_whole_by_every_way() {
        let content = Content::new();
        let [(serving, server), (http, http_at), (socks, socks_at)] =
            [listen().await, listen().await, listen().await];
        tokio::spawn(accept(serving, content.clone()));
        // No manager listens there: the system chooses the network.
        let upstream: Arc<dyn Upstream> =
            Arc::new(Managed::new(Client::at(Path::new("/nonexistent/manager"))));
        let proxy = HttpProxy::new(upstream.clone(), HttpSettings::default());
        tokio::spawn(async move { proxy.serve(http).await });
        tokio::spawn(async move { Socks::new(upstream, None).serve(socks).await });
        let ways =
            [(Way::Plain, server), (Way::Proxy, http_at), (Way::Tunnel, http_at), (Way::Socks, socks_at)];
        for (way, at) in ways {
            let asking = async {
                let mut client = Dialler { at, way, server }.dial().await.unwrap();
                // Over one connection.
                for bytes in [10_000, 3_000_000, 0] {
                    let mut seen = 0;
                    let got = client.get(bytes, |at, piece| {
                        assert_eq!(at, seen);
                        for (at, found) in (at..).zip(piece) {
                            assert!(content.between(at, at + 1) == [*found], "{way:?}: byte {at}");
                        }
                        seen += piece.len() as u64;
                    });
                    assert_eq!(got.await.unwrap(), Got::Object, "{way:?}");
                    assert_eq!(seen, bytes, "{way:?}");
                }
            };
            tokio::time::timeout(LIMIT, asking).await.unwrap();
        }
    }
}
