//! The web server: HTTP/1.1 with ranges, keep-alive, and an address for each virtual host.
//!
//! It listens by MPTCP where the kernel has it; clients that speak plain TCP get plain TCP.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::Deserialize;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use whimbrel_lab::{Host, Runtime};

use super::content::{byte, object_of};

/// Of every host.
pub(super) const PORT: u16 = 80;
/// Where browsers start: at the page's host, so that no other process has to take the page over, and at a
/// port of its own, so that no connection is open to the page's.
const START_PORT: u16 = 8080;
/// The last part of the first host's address, and how many there are.
const FIRST: u8 = 10;
pub(super) const HOSTS: u8 = 64;
/// The host of what belongs to no page.
pub(super) const ASIDE: u16 = 63;
const BACKLOG: i32 = 512;
/// After an error of the system's.
const PAUSE: Duration = Duration::from_millis(50);
/// The longest line of a head, and the most lines.
const LINE: u64 = 16 << 10;
const LINES: usize = 100;
/// The longest that a page has to say.
const SAYING: usize = 4096;
/// Written at once.
const CHUNK: u64 = 16 << 10;

/// The address of a host.
pub(super) fn address(host: u16) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, 9, FIRST + host as u8 % HOSTS)
}

/// What a page says when all of it is there.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct Said {
    /// From the beginning of the navigation until the last byte, in milliseconds.
    pub(super) ms: f64,
    /// Objects that the browser lists, without the document.
    pub(super) objects: usize,
    /// Objects that are no images.
    pub(super) bad: usize,
    /// Objects that have another size than they should, where the browser tells. Firefox does not of other
    /// hosts' objects.
    pub(super) wrong: usize,
}

/// A part of an object that was sent to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sent {
    pub(super) host: u16,
    pub(super) number: u16,
    pub(super) first: u64,
    pub(super) end: u64,
    /// Whom to.
    pub(super) to: IpAddr,
}

/// A running server. It ends when this is dropped.
pub(super) struct Server {
    state: Arc<State>,
    said: Mutex<Receiver<(String, Said)>>,
    tasks: Vec<JoinHandle<()>>,
}

struct State {
    documents: Vec<String>,
    sent: Mutex<Vec<Sent>>,
    saying: Mutex<Sender<(String, Said)>>,
}

impl Server {
    /// Serves these documents on a host that has the addresses of all virtual hosts.
    pub(super) fn start(host: &Host, runtime: &Runtime, documents: Vec<String>) -> Result<Self> {
        let (saying, said) = channel();
        let state = Arc::new(State { documents, sent: Mutex::default(), saying: Mutex::new(saying) });
        let mut tasks = Vec::new();
        for port in [PORT, START_PORT] {
            let listener = host.run(|| listen(port)).context("the web server cannot listen")?;
            let serving = Arc::clone(&state);
            tasks.push(runtime.spawn(async move {
                match TcpListener::from_std(listener) {
                    Ok(listener) => accept(listener, serving).await,
                    Err(error) => tracing::error!(%error, "the web server does not start"),
                }
            }));
        }
        Ok(Self { state, said: Mutex::new(said), tasks })
    }

    /// Where a browser starts: a page that goes on to a document as soon as the browser is at rest.
    pub(super) fn start_page(document: usize, token: &str) -> String {
        format!("http://{}:{START_PORT}/start?{document}&{token}", address(0))
    }

    /// Waits until the page with this token has said that it is there.
    pub(super) fn wait(&self, token: &str, limit: Duration) -> Result<Said> {
        let said = lock(&self.said);
        let end = Instant::now() + limit;
        loop {
            match said.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok((from, said)) if from == token => return Ok(said),
                // A page that was given up.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("the page did not say within {limit:?} that it is there")
                }
                Err(RecvTimeoutError::Disconnected) => bail!("the web server has ended"),
            }
        }
    }

    /// What was sent since this was asked last.
    pub(super) fn take_sent(&self) -> Vec<Sent> {
        std::mem::take(&mut lock(&self.state.sent))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn listen(port: u16) -> io::Result<std::net::TcpListener> {
    let plain = || Socket::new(Domain::IPV4, Type::STREAM, None);
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::MPTCP)).or_else(|_| plain())?;
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)).into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    let mut clients = JoinSet::new();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                let state = Arc::clone(&state);
                clients.spawn(async move {
                    if let Err(error) = serve(stream, &state).await {
                        tracing::debug!(%error, "a client's connection ended");
                    }
                });
            }
            // There are too many open files: some will be closed.
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
        while clients.try_join_next().is_some() {}
    }
}

/// A request, as far as it matters here.
#[derive(Default)]
struct Asked {
    method: String,
    path: String,
    range: Option<String>,
    if_range: Option<String>,
    length: usize,
    closes: bool,
}

async fn serve(stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let to = stream.peer_addr()?.ip().to_canonical();
    let host = match stream.local_addr()?.ip().to_canonical() {
        IpAddr::V4(own) => u16::from(own.octets()[3].saturating_sub(FIRST)),
        IpAddr::V6(_) => 0,
    };
    let mut stream = BufReader::new(stream);
    while let Some(asked) = read_head(&mut stream).await? {
        if asked.length > SAYING {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut body = vec![0; asked.length];
        stream.read_exact(&mut body).await?;
        answer(stream.get_mut(), state, &asked, &body, host, to).await?;
        if asked.closes {
            return stream.shutdown().await;
        }
    }
    Ok(())
}

/// Reads a request's head. `None`: the client has nothing more to ask.
async fn read_head(stream: &mut BufReader<TcpStream>) -> io::Result<Option<Asked>> {
    let mut asked = Asked::default();
    for number in 0..LINES {
        let mut line = String::new();
        let length = (&mut *stream).take(LINE).read_line(&mut line).await?;
        if length == 0 && number == 0 {
            return Ok(None);
        }
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if number == 0 {
            let mut words = line.split(' ').map(str::to_owned);
            (asked.method, asked.path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        } else if line.is_empty() {
            return Ok(Some(asked));
        } else if let Some((name, value)) = line.split_once(':') {
            let value = value.trim().to_owned();
            match name.to_ascii_lowercase().as_str() {
                "range" => asked.range = Some(value),
                "if-range" => asked.if_range = Some(value),
                "content-length" => asked.length = value.parse().unwrap_or(usize::MAX),
                "connection" => asked.closes = value.eq_ignore_ascii_case("close"),
                _ => {}
            }
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

async fn answer(
    stream: &mut TcpStream,
    state: &State,
    asked: &Asked,
    body: &[u8],
    host: u16,
    to: IpAddr,
) -> io::Result<()> {
    let (path, query) = asked.path.split_once('?').unwrap_or((&asked.path, ""));
    if let Some((bytes, number)) = object_of(path) {
        let whole = Whole { kind: "image/png", tag: format!("\"{bytes}-{number}\""), bytes };
        let (first, end) = whole.head(stream, asked).await?;
        let mut at = first;
        while at < end {
            let chunk: Vec<u8> = (at..end.min(at + CHUNK)).map(|at| byte(number, at)).collect();
            at += chunk.len() as u64;
            if at == end {
                // Before its client can know that all of it is there.
                lock(&state.sent).push(Sent { host, number, first, end, to });
            }
            stream.write_all(&chunk).await?;
        }
        return Ok(());
    }
    let (kind, text) = match path {
        "/start" => ("text/html", start(query)),
        "/done" => {
            if let Ok(said) = serde_json::from_slice(body) {
                // It fails when the load was given up and is not waited for.
                let _ = lock(&state.saying).send((query.to_owned(), said));
            }
            ("text/plain", String::new())
        }
        _ => {
            let number = path.strip_prefix("/p/").and_then(|number| number.parse::<usize>().ok());
            match number.and_then(|number| state.documents.get(number)) {
                Some(document) => ("text/html", document.clone()),
                None => {
                    let head = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n";
                    return stream.write_all(head.as_bytes()).await;
                }
            }
        }
    };
    let whole = Whole { kind, tag: format!("\"{path}\""), bytes: text.len() as u64 };
    let (first, end) = whole.head(stream, asked).await?;
    stream.write_all(&text.as_bytes()[first as usize..end as usize]).await
}

/// What a path stands for.
struct Whole {
    kind: &'static str,
    tag: String,
    bytes: u64,
}

impl Whole {
    /// Writes the head of the answer. Returns which bytes are to follow.
    async fn head(&self, stream: &mut TcpStream, asked: &Asked) -> io::Result<(u64, u64)> {
        let Self { kind, tag, bytes } = self;
        let is_same = asked.if_range.as_ref().is_none_or(|wanted| wanted == tag);
        let range = asked.range.as_deref().filter(|_| is_same && asked.method == "GET");
        let range = range.and_then(|range| part(range, *bytes));
        let (first, end) = range.unwrap_or((0, *bytes));
        let status = match range {
            Some(_) => format!("206 Partial Content\r\nContent-Range: bytes {first}-{}/{bytes}", end - 1),
            None => "200 OK".to_owned(),
        };
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nETag: {tag}\r\n\
             Accept-Ranges: bytes\r\nCache-Control: no-store\r\nTiming-Allow-Origin: *\r\n\r\n",
            end - first
        );
        stream.write_all(head.as_bytes()).await?;
        Ok((first, end))
    }
}

/// The bytes that a range asks for, first and one behind the last.
fn part(range: &str, bytes: u64) -> Option<(u64, u64)> {
    let (first, last) = range.strip_prefix("bytes=")?.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    let end = last.parse::<u64>().map_or(bytes, |last| last.saturating_add(1).min(bytes));
    (first < end).then_some((first, end))
}

/// The page where a browser starts.
fn start(query: &str) -> String {
    let (document, token) = query.split_once('&').unwrap_or((query, ""));
    format!(
        "<!doctype html><meta charset=utf-8><title>start</title><link rel=icon href=\"data:,\">\
         <script>onload=function(){{requestIdleCallback(function(){{\
         location.replace('http://{}/p/{document}?{token}')}})}}</script>",
        address(0)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_cut_to_what_there_is() {
        assert_eq!(part("bytes=0-8191", 1000), Some((0, 1000)));
        assert_eq!(part("bytes=10-19", 1000), Some((10, 20)));
        assert_eq!(part("bytes=10-", 1000), Some((10, 1000)));
        assert_eq!(part("bytes=1000-", 1000), None);
        assert_eq!(part("bytes=-5", 1000), None);
    }
}
