//! A small browser without a screen: it loads a page by the rules of the paper's model, always in the same
//! way.
//!
//! At most six connections to a host, which are kept; an object is asked for as soon as it is known and a
//! connection is free, in the order in which objects become known. Every byte is checked.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::content::{byte, object_path};
use super::server::{PORT, address};
use super::site::{Object, Site};

/// Connections to a host, as in browsers and in the simulator.
const MOST_EACH: usize = 6;
const LINE: u64 = 16 << 10;
const LINES: usize = 100;
const CHUNK: usize = 32 << 10;
/// The only status that an object comes with.
const OK: &str = "200";

/// Loads one page.
pub(super) struct Loader<'a> {
    site: &'a Site,
    /// The number of the document at the server.
    document: usize,
    proxy: Option<SocketAddr>,
    waiting: HashMap<u16, VecDeque<u16>>,
    idle: HashMap<u16, Vec<Connection>>,
    open: HashMap<u16, usize>,
    running: JoinSet<(u16, io::Result<Connection>)>,
}

type Connection = BufReader<TcpStream>;

/// One object to fetch.
struct Fetch {
    to: SocketAddr,
    /// As it is asked for: a proxy gets the whole URL.
    target: String,
    host: String,
    number: u16,
    bytes: u64,
}

impl<'a> Loader<'a> {
    pub(super) fn new(site: &'a Site, document: usize, proxy: Option<SocketAddr>) -> Self {
        let (waiting, idle, open) = (HashMap::new(), HashMap::new(), HashMap::new());
        Self { site, document, proxy, waiting, idle, open, running: JoinSet::new() }
    }

    /// Loads it. Returns how long that took, until the last byte. Must run inside the client's runtime.
    pub(super) async fn load(mut self, limit: Duration) -> Result<Duration> {
        let began = Instant::now();
        let loading = self.all();
        tokio::time::timeout(limit, loading).await.context("the page took too long")??;
        Ok(began.elapsed())
    }

    async fn all(&mut self) -> Result<()> {
        let mut left = self.site.objects.len();
        self.know(0);
        while left > 0 {
            let ended = self.running.join_next().await.context("nothing is under way")?;
            let (number, fetched) = ended.context("a fetch panicked")?;
            let connection = fetched.with_context(|| format!("object {number}"))?;
            let host = self.object(number).host;
            self.idle.entry(host).or_default().push(connection);
            left -= 1;
            let site = self.site;
            site.children[usize::from(number)].iter().for_each(|child| self.know(*child));
            self.begin(host);
        }
        ensure!(self.running.is_empty(), "more was fetched than there is");
        Ok(())
    }

    fn object(&self, number: u16) -> Object {
        self.site.objects[usize::from(number)]
    }

    /// An object is known from now on.
    fn know(&mut self, number: u16) {
        let host = self.object(number).host;
        self.waiting.entry(host).or_default().push_back(number);
        self.begin(host);
    }

    /// Asks for what a host has connections for.
    fn begin(&mut self, host: u16) {
        loop {
            let idle = self.idle.entry(host).or_default();
            let open = self.open.entry(host).or_default();
            if idle.is_empty() && *open >= MOST_EACH {
                return;
            }
            let Some(number) = self.waiting.get_mut(&host).and_then(VecDeque::pop_front) else { return };
            let connection = idle.pop();
            *open += usize::from(connection.is_none());
            let fetch = self.fetch(number);
            self.running.spawn(async move { (number, fetch.run(connection).await) });
        }
    }

    fn fetch(&self, number: u16) -> Fetch {
        let object = self.object(number);
        let path = match number {
            0 => format!("/p/{}", self.document),
            _ => object_path(number, object.bytes),
        };
        let host = address(object.host).to_string();
        let target = if self.proxy.is_some() { format!("http://{host}{path}") } else { path };
        let to = self.proxy.unwrap_or_else(|| (address(object.host), PORT).into());
        Fetch { to, target, host, number, bytes: object.bytes }
    }
}

impl Fetch {
    /// Fetches it, over a connection that is open or over a new one, and gives the connection back.
    async fn run(self, connection: Option<Connection>) -> io::Result<Connection> {
        if let Some(mut connection) = connection {
            match self.ask(&mut connection).await {
                Ok(()) => return Ok(connection),
                // It was closed meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotConnected => {}
                Err(error) => return Err(error),
            }
        }
        let stream = TcpStream::connect(self.to).await?;
        stream.set_nodelay(true)?;
        let mut connection = BufReader::with_capacity(CHUNK, stream);
        self.ask(&mut connection).await?;
        Ok(connection)
    }

    /// `NotConnected`: nothing came, not even the first byte.
    async fn ask(&self, connection: &mut Connection) -> io::Result<()> {
        let request = format!(
            "GET {} HTTP/1.1\r\nHost: {}\r\nUser-Agent: whimbrel-bench\r\nAccept: */*\r\n\r\n",
            self.target, self.host
        );
        let asked = connection.get_mut().write_all(request.as_bytes()).await;
        let is_there = asked.is_ok() && matches!(connection.fill_buf().await, Ok(bytes) if !bytes.is_empty());
        if !is_there {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let (status, length) = read_head(connection).await?;
        if status != OK {
            let mut says = vec![0; usize::try_from(length).unwrap_or(CHUNK).min(CHUNK)];
            connection.read_exact(&mut says).await?;
            return Err(wrong(format!("{status}: {}", String::from_utf8_lossy(&says))));
        }
        if length != self.bytes {
            return Err(wrong(format!("{length} bytes instead of {}", self.bytes)));
        }
        self.read_body(connection).await
    }

    async fn read_body(&self, connection: &mut Connection) -> io::Result<()> {
        let (mut at, mut buffer) = (0, vec![0; CHUNK]);
        while at < self.bytes {
            let most = usize::try_from(self.bytes - at).unwrap_or(CHUNK).min(CHUNK);
            let length = connection.read(&mut buffer[..most]).await?;
            if length == 0 {
                return Err(wrong(format!("it ends after {at} bytes")));
            }
            let is_right = (at..).zip(&buffer[..length]).all(|(at, found)| *found == byte(self.number, at));
            // The document's text is the server's own.
            if self.number != 0 && !is_right {
                return Err(wrong(format!("other bytes behind byte {at}")));
            }
            at += length as u64;
        }
        Ok(())
    }
}

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// Reads the head of an answer, and returns its status and how long its body is.
async fn read_head(connection: &mut Connection) -> io::Result<(String, u64)> {
    let (mut status, mut length) = (String::new(), None);
    for number in 0..LINES {
        let mut line = String::new();
        (&mut *connection).take(LINE).read_line(&mut line).await?;
        if !line.ends_with('\n') {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        if number == 0 {
            status = line.split(' ').nth(1).unwrap_or_default().to_owned();
        }
        if line.is_empty() {
            let length = length.ok_or_else(|| wrong("the answer has no length".to_owned()));
            return length.map(|length| (status, length));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok();
        }
    }
    Err(wrong("the head has no end".to_owned()))
}
