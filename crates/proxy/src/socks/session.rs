//! One program's connection.

use super::Credentials;
use super::browser::{self, Verdict};
use super::message::{self, Greeting, LONGEST, Method, Reply, Wrong};
use crate::networks::Networks;
use crate::whole::{Whole, keep_alive};
use crate::{Destination, Duplex, NetworkTraffic, Reached, Upstream, UpstreamError, is_whimbrel_host};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use whimbrel_access::Intents;

/// For a program to say what it wants.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// For the last answer to be taken.
const LAST: Duration = Duration::from_secs(2);
/// For a program to begin, before what it wants is reached: a browser does at once. Where the service is the
/// one that begins, its program waits for it.
const BEGINS: Duration = Duration::from_millis(300);
/// Of each direction.
const BUFFER: usize = 32 * 1024;

/// What serves each connection.
pub(super) struct Session {
    upstream: Arc<dyn Upstream>,
    credentials: Option<Arc<Credentials>>,
    handshake: Duration,
    /// How many destinations were reached, and how many were not.
    connected: AtomicU64,
    failed: AtomicU64,
    networks: Networks,
}

/// The version that a program speaks: its answers differ.
#[derive(Clone, Copy)]
enum Version {
    V4,
    V5,
}

impl Version {
    async fn answer(self, socket: &mut TcpStream, reply: Reply) -> io::Result<()> {
        match self {
            Self::V4 => socket.write_all(&reply.v4()).await,
            Self::V5 => socket.write_all(&reply.v5()).await,
        }
    }
}

/// What was read, and not looked at yet.
struct Reader<'a> {
    socket: &'a mut TcpStream,
    buffer: Vec<u8>,
}

impl Reader<'_> {
    /// The next message, by a function of `message`.
    async fn next<T>(&mut self, read: impl Fn(&[u8]) -> message::Read<T>) -> io::Result<Result<T, Wrong>> {
        loop {
            match read(&self.buffer) {
                Ok(Some((found, length))) => {
                    self.buffer.drain(..length);
                    return Ok(Ok(found));
                }
                Ok(None) if self.buffer.len() >= LONGEST => return Ok(Err(Wrong::NoSocks)),
                Ok(None) => {}
                Err(wrong) => return Ok(Err(wrong)),
            }
            let room = LONGEST - self.buffer.len();
            if (&mut *self.socket).take(room as u64).read_buf(&mut self.buffer).await? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
    }
}

/// What a program wants, its version, and what it sent behind that.
type Wanted = (Version, Destination, Vec<u8>);

impl Session {
    pub(super) fn new(upstream: Arc<dyn Upstream>, credentials: Option<Credentials>) -> Self {
        Self::made(upstream, credentials.map(Arc::new), HANDSHAKE)
    }

    pub(super) fn with_handshake_limit(&self, handshake: Duration) -> Self {
        Self::made(Arc::clone(&self.upstream), self.credentials.clone(), handshake)
    }

    fn made(upstream: Arc<dyn Upstream>, credentials: Option<Arc<Credentials>>, handshake: Duration) -> Self {
        let (connected, failed, networks) = Default::default();
        Self { upstream, credentials, handshake, connected, failed, networks }
    }

    /// How many destinations were reached, and how many were not.
    pub(super) fn reached(&self) -> (u64, u64) {
        (self.connected.load(Ordering::Relaxed), self.failed.load(Ordering::Relaxed))
    }

    /// What has passed over each network.
    pub(super) fn traffic(&self) -> Vec<NetworkTraffic> {
        self.networks.traffic()
    }

    fn count(&self, is_reached: bool) {
        let counted = if is_reached { &self.connected } else { &self.failed };
        counted.fetch_add(1, Ordering::Relaxed);
    }

    /// What a connection is reached by, where that is decided for each.
    async fn chosen(&self, to: &Destination) -> Result<Arc<dyn Upstream>, UpstreamError> {
        let intents = Intents::default();
        match self.upstream.choose(to, &intents) {
            Some(choosing) => choosing.await,
            None => Ok(Arc::clone(&self.upstream)),
        }
    }

    /// Reaches a destination, by a stream of its own.
    async fn reach(
        &self,
        upstream: &dyn Upstream,
        to: &Destination,
    ) -> Result<Box<dyn Duplex>, UpstreamError> {
        let reached = upstream.reach(to, &Intents::default()).await;
        self.count(reached.is_ok());
        let Reached { stream, by, network } = reached?;
        tracing::debug!(%to, by, "connected");
        Ok(self.networks.counted(network.as_deref(), stream))
    }

    /// Serves a program until it is done.
    pub(super) async fn serve(&self, mut socket: TcpStream) {
        let wanted = match tokio::time::timeout(self.handshake, self.wanted(&mut socket)).await {
            Ok(Ok(Some(wanted))) => wanted,
            Ok(Ok(None)) => return last_words(socket).await,
            Ok(Err(error)) => return tracing::debug!(%error, "a program left before it said what it wants"),
            Err(_) => return tracing::debug!("a program did not say what it wants in time"),
        };
        if let Err(error) = self.connect(socket, wanted).await {
            tracing::debug!(%error, "a connection broke");
        }
    }

    /// Reads what a program wants. `None` if it was told that it does not get it.
    async fn wanted(&self, socket: &mut TcpStream) -> io::Result<Option<Wanted>> {
        // Small answers must not wait for one another.
        socket.set_nodelay(true)?;
        let mut reader = Reader { socket, buffer: Vec::with_capacity(LONGEST) };
        let (version, asked) = match reader.next(message::greeting).await? {
            Ok(Greeting::V5 { open, password }) => {
                if !self.lets_in(&mut reader, open, password).await? {
                    return Ok(None);
                }
                (Version::V5, reader.next(message::request).await?)
            }
            // It has no passwords.
            Ok(Greeting::V4(_)) if self.credentials.is_some() => {
                Version::V4.answer(reader.socket, Reply::NotAllowed).await?;
                return Ok(None);
            }
            Ok(Greeting::V4(asked)) => (Version::V4, asked),
            // Programs that speak something else, browsers that were sent here among them, get no answer.
            Err(wrong) => {
                tracing::debug!(%wrong, "a program was closed");
                return Ok(None);
            }
        };
        match asked {
            Ok(to) => Ok(Some((version, to, reader.buffer))),
            Err(wrong) => {
                tracing::debug!(%wrong, "a program was refused");
                version.answer(reader.socket, Reply::of_wrong(wrong)).await?;
                Ok(None)
            }
        }
    }

    /// Agrees with a program that speaks SOCKS5 how it shows who it is.
    async fn lets_in(&self, reader: &mut Reader<'_>, open: bool, password: bool) -> io::Result<bool> {
        let method = match &self.credentials {
            None if open => Method::Open,
            Some(_) if password => Method::Password,
            _ => Method::None,
        };
        reader.socket.write_all(&method.answer()).await?;
        match (&self.credentials, method) {
            (_, Method::None) => Ok(false),
            (Some(known), Method::Password) => {
                let login = |bytes: &[u8]| {
                    let found = message::login(bytes)?;
                    Ok(found.map(|((user, password), length)| (known.has(user, password), length)))
                };
                let is_right = reader.next(login).await?.unwrap_or(false);
                reader.socket.write_all(&message::login_answer(is_right)).await?;
                Ok(is_right)
            }
            _ => Ok(true),
        }
    }

    async fn connect(&self, mut socket: TcpStream, (version, to, early): Wanted) -> io::Result<()> {
        if is_whimbrel_host(to.host()) {
            return self.connect_to_name(socket, (version, to, early)).await;
        }
        let upstream = match self.chosen(&to).await {
            Ok(upstream) => upstream,
            Err(error) => {
                self.count(false);
                return decline(socket, version, &error).await;
            }
        };
        if let Some(opening) = upstream.session(&to) {
            match opening.await {
                Ok(Some((session, by))) => {
                    self.count(true);
                    tracing::debug!(%to, by, session = %session.id(), "connected");
                    keep_alive(&socket);
                    version.answer(&mut socket, Reply::Succeeded).await?;
                    return session.carry(socket, early).await.map(drop);
                }
                Ok(None) => {}
                Err(error) => {
                    self.count(false);
                    return decline(socket, version, &error).await;
                }
            }
        }
        let stream = match self.reach(&*upstream, &to).await {
            Ok(stream) => stream,
            Err(error) => return decline(socket, version, &error).await,
        };
        keep_alive(&socket);
        version.answer(&mut socket, Reply::Succeeded).await?;
        carry(Whole::new(socket), stream, early).await
    }

    /// No web page may use its reader's key: whose words these are is judged before the name is reached. A
    /// program begins only once it has been told that it is connected; so where the name is not reached after
    /// all, its connection breaks.
    async fn connect_to_name(&self, mut socket: TcpStream, (version, to, early): Wanted) -> io::Result<()> {
        if let Err(error) = self.upstream.knows(&to) {
            return decline(socket, version, &error).await;
        }
        version.answer(&mut socket, Reply::Succeeded).await?;
        keep_alive(&socket);
        let (mut socket, mut words) = (Whole::new(socket), early);
        // Cancel-safe: what was read is in `words`.
        let first = tokio::time::timeout(BEGINS, first_words(&mut socket, &mut words)).await;
        if let Ok(judged) = first
            && !judged?
        {
            return refuse_browser(socket, &to).await;
        }
        let mut stream = match self.reach(&*self.upstream, &to).await {
            Ok(stream) => stream,
            Err(error) => {
                tracing::info!(%error, "a destination was not reached");
                return Ok(());
            }
        };
        // It may have had nothing to say until now.
        match is_program(&mut socket, &mut stream, &mut words).await? {
            true => carry(socket, stream, words).await,
            false => refuse_browser(socket, &to).await,
        }
    }
}

/// Tells a program why it is not connected.
async fn decline(mut socket: TcpStream, version: Version, error: &UpstreamError) -> io::Result<()> {
    tracing::info!(%error, "a destination was not reached");
    version.answer(&mut socket, Reply::of_error(error)).await?;
    last_words(socket).await;
    Ok(())
}

async fn refuse_browser(mut socket: Whole<TcpStream>, to: &Destination) -> io::Result<()> {
    tracing::info!(%to, "a browser was refused");
    socket.write_all(browser::ANSWER).await?;
    last_words(socket).await;
    Ok(())
}

/// Carries bytes, these first. What breaks on one side breaks on the other: both are dropped.
async fn carry(mut socket: Whole<TcpStream>, mut stream: Box<dyn Duplex>, first: Vec<u8>) -> io::Result<()> {
    stream.write_all(&first).await?;
    tokio::io::copy_bidirectional_with_sizes(&mut socket, &mut stream, BUFFER, BUFFER).await.map(drop)
}

/// Reads a program's first words until it is known whether they are a browser's. False if they are.
async fn first_words(program: &mut Whole<TcpStream>, words: &mut Vec<u8>) -> io::Result<bool> {
    loop {
        match browser::judge(words) {
            Verdict::Browser => return Ok(false),
            Verdict::Program => return Ok(true),
            Verdict::More if program.read_buf(words).await? == 0 => return Ok(true),
            Verdict::More => {}
        }
    }
}

/// The same, and passes on meanwhile what the other side says: it may be the one that begins.
async fn is_program(
    program: &mut Whole<TcpStream>,
    stream: &mut (impl Duplex + ?Sized),
    words: &mut Vec<u8>,
) -> io::Result<bool> {
    let mut back = [0; 2048];
    let (mut has_ended, mut other_has_ended) = (false, false);
    loop {
        match browser::judge(words) {
            Verdict::Browser => return Ok(false),
            Verdict::More if !has_ended => {}
            Verdict::More | Verdict::Program => return Ok(true),
        }
        tokio::select! {
            read = program.read_buf(words) => has_ended = read? == 0,
            read = stream.read(&mut back), if !other_has_ended => match read? {
                0 => {
                    other_has_ended = true;
                    program.shutdown().await?;
                }
                n => program.write_all(&back[..n]).await?,
            },
        }
    }
}

/// Lets a program read the last answer: what it sent and nobody read would have the system reset the
/// connection.
async fn last_words(mut socket: impl Duplex) {
    let reading = async {
        socket.shutdown().await?;
        let mut sink = [0; 4096];
        while socket.read(&mut sink).await? > 0 {}
        io::Result::Ok(())
    };
    // A program that does not leave is left.
    let _ = tokio::time::timeout(LAST, reading).await;
}
