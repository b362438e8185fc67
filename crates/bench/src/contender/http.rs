//! Application-level handover, as in [mptcp-handover §4.1]: an HTTP client over plain TCP that watches its
//! addresses and, when the one in use is gone, asks for the rest of the file over the other link, with a
//! Range header.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use whimbrel_transport::{AddressMonitor, AddressSet, NetlinkMonitor, Watch};

use super::{PORT, sockets};
use crate::flow::Notes;
use crate::lab::TwoLinks;
use crate::system::{Channel, Handler};

const CHUNK: usize = 64 * 1024;
/// Longest line of a header that is read.
const LONGEST_LINE: u64 = 1024;

pub(super) struct Client {
    server: SocketAddr,
    /// In order of preference.
    addresses: [IpAddr; 2],
    host: Watch<Arc<AddressSet>>,
    _monitor: NetlinkMonitor,
}

impl Client {
    pub(super) fn start(net: &TwoLinks) -> Result<Self> {
        let server = net.server_address(PORT);
        net.server.wait("listen", async { sockets::listen(sockets::Kind::Tcp, server, files()) })??;
        let monitor = net.client.wait("watch addresses", NetlinkMonitor::start())??;
        let addresses = [0, 1].map(|link| net.address(link));
        Ok(Self { server, addresses, host: monitor.watch(), _monitor: monitor })
    }

    /// Gets a file of so many bytes, over whatever address is there.
    pub(super) async fn download(&mut self, size: u64, notes: &Notes) -> io::Result<()> {
        let unwatched = || io::Error::other("the addresses are not watched any more");
        let mut received = 0;
        while received < size {
            let known = self.host.current();
            let Some(&from) = self.addresses.iter().find(|ip| known.contains(**ip)) else {
                let addresses = self.addresses;
                let back = self.host.wait_for(|set| addresses.iter().any(|ip| set.contains(*ip))).await;
                back.ok_or_else(unwatched)?;
                continue;
            };
            let mut host = self.host.clone();
            let gone = host.wait_for(|set| !set.contains(from));
            tokio::select! {
                ended = get(self.server, from, size, &mut received, notes) => ended?,
                gone = gone => drop(gone.ok_or_else(unwatched)?),
            }
        }
        Ok(())
    }
}

async fn get(
    server: SocketAddr,
    from: IpAddr,
    size: u64,
    received: &mut u64,
    notes: &Notes,
) -> io::Result<()> {
    let channel = sockets::connect(sockets::Kind::Tcp, Some(from), server).await.map_err(io::Error::other)?;
    let mut channel = BufReader::with_capacity(CHUNK, channel);
    let request = format!("GET /{size} HTTP/1.1\r\nHost: {server}\r\nRange: bytes={received}-\r\n\r\n");
    channel.write_all(request.as_bytes()).await?;
    let head = head(&mut channel).await?;
    if !head.first().is_some_and(|line| line.starts_with("HTTP/1.1 206 ")) {
        return Err(io::Error::other(format!("the server answers {head:?}")));
    }
    let mut buffer = vec![0; CHUNK];
    while *received < size {
        let n = channel.read(&mut buffer).await?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        *received += n as u64;
        notes.arrived(n as u64);
    }
    Ok(())
}

/// The lines of a request or an answer, up to the empty one.
async fn head(channel: &mut BufReader<Channel>) -> io::Result<Vec<String>> {
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        (&mut *channel).take(LONGEST_LINE).read_line(&mut line).await?;
        let line = line.trim_end();
        if line.is_empty() {
            return Ok(lines);
        }
        lines.push(line.to_owned());
    }
}

/// A server of files that are as long as their names say.
fn files() -> Handler {
    Arc::new(|channel| {
        Box::pin(async move {
            if let Err(error) = serve(channel).await {
                tracing::debug!(%error, "a request ended");
            }
        })
    })
}

async fn serve(channel: Channel) -> io::Result<()> {
    let mut channel = BufReader::new(channel);
    let (size, first) = wanted(&head(&mut channel).await?).ok_or(io::ErrorKind::InvalidData)?;
    let last = size.saturating_sub(1);
    let answer = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {first}-{last}/{size}\r\nContent-Length: {}\r\n\r\n",
        size - first
    );
    channel.write_all(answer.as_bytes()).await?;
    let chunk = vec![0x5a; CHUNK];
    let mut left = size - first;
    while left > 0 {
        let part = left.min(CHUNK as u64);
        channel.write_all(&chunk[..part as usize]).await?;
        left -= part;
    }
    channel.flush().await
}

/// The file's size, and the first byte that is wanted of it.
fn wanted(head: &[String]) -> Option<(u64, u64)> {
    let size = head.first()?.strip_prefix("GET /")?.split(' ').next()?.parse().ok()?;
    let range = head.iter().find_map(|line| line.strip_prefix("Range: bytes="))?;
    let first = range.strip_suffix('-')?.parse().ok().filter(|first| *first <= size)?;
    Some((size, first))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_server_sends_from_the_byte_that_is_asked_for() {
        let (one, other) = tokio::io::duplex(1000);
        tokio::spawn(files()(Channel::new(other)));
        let mut client = BufReader::new(Channel::new(one));
        client.write_all(b"GET /100000 HTTP/1.1\r\nRange: bytes=99000-\r\n\r\n").await.unwrap();
        let head = head(&mut client).await.unwrap();
        assert!(head.contains(&"Content-Range: bytes 99000-99999/100000".to_owned()), "{head:?}");
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest.len(), 1000);
    }

    #[test]
    fn a_range_beyond_the_file_is_not_served() {
        let head = |range: &str| vec!["GET /10 HTTP/1.1".to_owned(), format!("Range: bytes={range}")];
        assert_eq!(wanted(&head("4-")), Some((10, 4)));
        assert_eq!(wanted(&head("11-")), None);
        assert_eq!(wanted(&head("x-")), None);
    }
}
