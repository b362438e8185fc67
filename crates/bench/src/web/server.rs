//! The server.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};
use socket2::SockRef;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use whimbrel_lab::Runtime;

use super::content::Content;
use super::head::Head;

/// So much of an object goes with the head.
const WITH_HEAD: u64 = 16 << 10;
const NOT_FOUND: &[u8] = b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";

/// A server of `/BYTES`. It takes no more connections once this is dropped.
pub(crate) struct WebServer {
    pub(crate) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for WebServer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl WebServer {
    /// On the host of that runtime.
    pub(crate) fn start(runtime: &Runtime, at: SocketAddr, content: Arc<Content>) -> Result<Self> {
        Self::on(listen(runtime, at)?, runtime, content)
    }

    /// The same, but the kernel holds no more than so many bytes for each connection of what the server has
    /// said: all hosts of the lab share what TCP may hold (tcp_mem of tcp(7)), and many would take it all.
    pub(crate) fn start_holding(
        bytes: usize,
        runtime: &Runtime,
        at: SocketAddr,
        content: Arc<Content>,
    ) -> Result<Self> {
        let listener = listen(runtime, at)?;
        hold(&listener, bytes)?;
        Self::on(listener, runtime, content)
    }

    fn on(listener: TcpListener, runtime: &Runtime, content: Arc<Content>) -> Result<Self> {
        let address = listener.local_addr()?;
        Ok(Self { address, task: runtime.spawn(accept(listener, content)) })
    }
}

fn listen(runtime: &Runtime, at: SocketAddr) -> Result<TcpListener> {
    runtime.block_on(TcpListener::bind(at)).context("the web server does not listen")
}

/// Bounds what the kernel holds of what is written to each connection that is accepted there.
fn hold(listener: &TcpListener, bytes: usize) -> Result<()> {
    SockRef::from(listener).set_send_buffer_size(bytes).context("the kernel takes no bound of what it holds")
}

/// Serves all clients, until this is dropped.
pub(super) async fn accept(listener: TcpListener, content: Arc<Content>) {
    while let Ok((stream, _)) = listener.accept().await {
        let content = content.clone();
        tokio::spawn(async move {
            if let Err(error) = serve(stream, &content).await {
                tracing::debug!(%error, "a connection of the web server ended");
            }
        });
    }
}

async fn serve(stream: TcpStream, content: &Content) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    while let Some(head) = Head::read(&mut stream).await? {
        answer(stream.get_mut(), &head, content).await?;
        if head.closes(head.word(2)) {
            return stream.shutdown().await;
        }
    }
    Ok(())
}

async fn answer(stream: &mut TcpStream, head: &Head, content: &Content) -> io::Result<()> {
    // A proxy may ask by the whole URL (RFC 9112, §3.2.2).
    let path = head.word(1).rsplit('/').next().unwrap_or_default();
    let Some(bytes) = path.parse::<u64>().ok().filter(|_| matches!(head.word(0), "GET" | "HEAD")) else {
        return stream.write_all(NOT_FOUND).await;
    };
    let (says, first, end) = wanted(head, bytes);
    let mut text = says.into_bytes();
    let mut at = first;
    if head.word(0) == "HEAD" {
        at = end;
    }
    let little = content.between(at, end.min(at.saturating_add(WITH_HEAD)));
    text.extend_from_slice(little);
    at += little.len() as u64;
    stream.write_all(&text).await?;
    while at < end {
        let piece = content.between(at, end);
        stream.write_all(piece).await?;
        at += piece.len() as u64;
    }
    Ok(())
}

/// The head of the answer, and which bytes follow: from the first to before the last.
fn wanted(head: &Head, bytes: u64) -> (String, u64, u64) {
    let tag = format!("\"{bytes}\"");
    let is_same = head.field("if-range").is_none_or(|wanted| wanted == tag);
    let range = head.field("range").filter(|_| is_same && head.word(0) == "GET");
    let range = range.and_then(|range| part(range, bytes));
    let (first, end) = range.unwrap_or((0, bytes));
    let status = match range {
        Some(_) => format!("206 Partial Content\r\nContent-Range: bytes {first}-{}/{bytes}", end - 1),
        None => "200 OK".to_owned(),
    };
    let says = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/octet-stream\r\nContent-Length: {}\r\nETag: {tag}\r\n\
         Accept-Ranges: bytes\r\n\r\n",
        end - first
    );
    (says, first, end)
}

/// The bytes that a range asks for.
fn part(range: &str, bytes: u64) -> Option<(u64, u64)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    let end = last.parse::<u64>().map_or(bytes, |last| last.saturating_add(1).min(bytes));
    (first < end).then_some((first, end))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    async fn asked(text: &str) -> (String, u64, u64) {
        wanted(&Head::read(&mut text.as_bytes()).await.unwrap().unwrap(), 1000)
    }

    #[tokio::test]
    async fn parts_are_given_of_the_version_that_is_meant() {
        let (says, first, end) = asked("GET /1000 HTTP/1.1\r\nRange: bytes=10-19\r\n\r\n").await;
        assert!(says.starts_with("HTTP/1.1 206 ") && says.contains("Content-Range: bytes 10-19/1000\r\n"));
        assert_eq!((first, end), (10, 20));
        let both = |tag: &str| format!("GET /1000 HTTP/1.1\r\nRange: bytes=990-\r\nIf-Range: {tag}\r\n\r\n");
        assert_eq!(asked(&both("\"1000\"")).await.1, 990);
        let (says, first, end) = asked(&both("\"7\"")).await;
        assert!(says.starts_with("HTTP/1.1 200 ") && says.contains("Content-Length: 1000\r\n"));
        assert_eq!((first, end), (0, 1000));
        // What cannot be had is answered by all.
        assert_eq!(asked("GET /1000 HTTP/1.1\r\nRange: bytes=1000-\r\n\r\n").await.2, 1000);
    }

    #[tokio::test]
    async fn the_kernel_holds_no_more_of_what_is_said_than_it_was_told() {
        const MOST: usize = 64 * 1024;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        hold(&listener, MOST).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        // The kernel counts what it needs beside the bytes.
        assert!(SockRef::from(&server).send_buffer_size().unwrap() <= 2 * MOST);
        drop(client);
    }
}
