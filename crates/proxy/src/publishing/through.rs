//! Which host a client's HTTP is for: a connection is for one of them.

use super::desk::{Publications, Unreached, answered};
use super::message::Arrival;
use crate::http::by_host;
use crate::whole::{Breaks, Whole};
use crate::{Destination, Place, Publication, Reached, Reaching, Upstream, UpstreamError};
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use whimbrel_access::Intents;
use whimbrel_transport::Stream;

/// Serves one client.
pub(super) async fn serve(publications: &Publications, socket: TcpStream, from: SocketAddr, at: SocketAddr) {
    let idle = publications.settings().idle;
    let upstream = Through { publications: publications.clone(), from, at };
    by_host::serve(Arc::new(upstream), socket, from.ip().to_canonical(), idle).await;
}

/// Reaches what is published, for one client.
struct Through {
    publications: Publications,
    from: SocketAddr,
    at: SocketAddr,
}

fn host(to: &Destination) -> Publication {
    Publication::Http(to.host().to_owned())
}

impl Upstream for Through {
    fn reach<'a>(&'a self, to: &'a Destination, _intents: &'a Intents) -> Reaching<'a> {
        Box::pin(async move {
            let reached = async {
                let arrival = Arrival::new(host(to), self.from, self.at);
                let opened = self.publications.open(arrival, &[]).await?;
                let mut stream = Whole::new(Visit { stream: opened.stream, _place: opened.place });
                answered(&mut stream).await?;
                Ok::<_, Unreached>(stream)
            };
            match reached.await {
                Ok(stream) => {
                    let by = "through a publication".to_owned();
                    Ok(Reached { stream: Box::new(stream), by, network: None })
                }
                Err(why) => Err(unreached(to, why)),
            }
        })
    }

    fn knows(&self, to: &Destination) -> Result<(), UpstreamError> {
        if self.publications.has(&host(to)) { Ok(()) } else { Err(unreached(to, Unreached::Unknown)) }
    }
}

fn unreached(to: &Destination, why: Unreached) -> UpstreamError {
    let (to, text) = (to.host().to_owned(), why.to_string());
    match why {
        Unreached::Unknown => UpstreamError::NoWay { to, why: text },
        Unreached::Away(source) => UpstreamError::Unreachable { to, source },
        // Clients are not told more of what is behind it.
        Unreached::Declined(_) => {
            UpstreamError::Unreachable { to, source: io::ErrorKind::ConnectionRefused.into() }
        }
        Unreached::Full(_) => UpstreamError::Unreachable { to, source: io::Error::other("too many clients") },
    }
}

/// A stream that counts among the clients of a publication.
struct Visit {
    stream: Stream,
    _place: Place<Publication>,
}

impl Breaks for Visit {
    fn break_off(&self) {
        self.stream.break_off();
    }
}

impl AsyncRead for Visit {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Visit {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
