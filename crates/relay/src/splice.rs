//! Bytes from one socket to the other, both ways, until both have ended or one has broken.

use std::cell::RefCell;
use std::future::{Future as _, poll_fn};
use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};

#[cfg(target_os = "linux")]
use self::pipe::Pipe;

#[cfg(target_os = "linux")]
mod pipe;

/// What one side has sent and the other has not taken: at most so much is kept, each way, and nothing while both
/// keep up.
const BUFFER: usize = 64 * 1024;
/// When so much came at once, the next bytes are spliced, if the system can: fewer are copied in less time.
#[cfg(target_os = "linux")]
const BULK: usize = 16 * 1024;
/// When one direction has ended, the other one may be idle for so long.
const HALF_CLOSED: Duration = Duration::from_secs(60);
/// An idle peer is asked for a sign of life by its kernel after this, and given up after three that do not come.
const KEEPALIVE: Duration = Duration::from_secs(25);
/// A peer that acknowledges nothing for so long is gone.
#[cfg(target_os = "linux")]
const USER_TIMEOUT: Duration = Duration::from_secs(120);

thread_local! {
    /// Lent to whoever reads, so that those who wait hold nothing.
    static PIECE: RefCell<Vec<u8>> = RefCell::new(vec![0; BUFFER]);
}

/// Sets what sockets need that wait for long.
pub(crate) fn tune(socket: &TcpStream) -> io::Result<()> {
    let socket = SockRef::from(socket);
    socket.set_tcp_nodelay(true)?;
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 2);
    #[cfg(target_os = "linux")]
    let keepalive = keepalive.with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    #[cfg(target_os = "linux")]
    {
        // Accepted sockets inherit a path's limit, which would have us woken for each few packets. Without it the
        // kernel takes twice what is under way.
        socket.set_tcp_notsent_lowat(0)?;
        socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    }
    Ok(())
}

/// What is under way between two sockets.
#[derive(Default)]
pub struct Underway {
    /// From the one to the other.
    pub there: Direction,
    /// From the other to the one.
    pub back: Direction,
}

/// What is under way in one direction.
#[derive(Default)]
pub struct Direction {
    rest: Rest,
    way: Way,
    has_ended: bool,
}

impl Direction {
    /// Begins with bytes that were read already, or at the end.
    pub fn going_on(waiting: Vec<u8>, has_ended: bool) -> Self {
        Self { rest: Rest::Bytes { bytes: waiting, written: 0 }, way: Way::Copy, has_ended }
    }

    /// The bytes that were read and not written, and whether the end was passed on.
    ///
    /// # Errors
    /// When they cannot be had back from the system.
    pub fn into_parts(self) -> io::Result<(Vec<u8>, bool)> {
        Ok((self.rest.into_bytes()?, self.has_ended))
    }

    /// Writes what was read. Cancel-safe.
    ///
    /// # Errors
    /// When the socket breaks.
    pub async fn flush(&mut self, to: &TcpStream) -> io::Result<()> {
        poll_fn(|cx| self.poll_flush(cx, to)).await
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>, to: &TcpStream) -> Poll<io::Result<()>> {
        while !self.rest.is_empty() {
            ready!(to.poll_write_ready(cx))?;
            match self.rest.write(to) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => result?,
            }
        }
        std::mem::take(&mut self.rest).done();
        Poll::Ready(Ok(()))
    }

    /// Passes on what there is. Ready when the end was passed on.
    fn poll_pass_on(
        &mut self,
        cx: &mut Context<'_>,
        from: &TcpStream,
        to: &TcpStream,
        bytes: &AtomicU64,
    ) -> Poll<io::Result<()>> {
        loop {
            ready!(self.poll_flush(cx, to))?;
            if self.has_ended {
                return Poll::Ready(Ok(()));
            }
            ready!(from.poll_read_ready(cx))?;
            match self.way.pass_on(from, to) {
                Ok((0, _)) => {
                    SockRef::from(to).shutdown(Shutdown::Write)?;
                    self.has_ended = true;
                }
                Ok((count, rest)) => {
                    self.rest = rest;
                    bytes.fetch_add(count as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }
}

/// Passes bytes on in both directions; an end of one direction is passed on as such. `bytes` counts. Cancel-safe: what
/// is under way is in `underway`.
///
/// # Errors
/// When either breaks, or is idle for long after the other direction has ended.
pub async fn splice(
    one: &TcpStream,
    other: &TcpStream,
    underway: &mut Underway,
    bytes: &AtomicU64,
) -> io::Result<()> {
    let Underway { there, back } = underway;
    let (mut idle, mut back_first) = (Idle::default(), false);
    // By hand: one future for both directions, without one for each wait in it.
    poll_fn(|cx| {
        // Each goes first in turn: the runtime lets a task do so much at a time, which one could use up.
        back_first = !back_first;
        let (is_there, is_back) = if back_first {
            let is_back = back.poll_pass_on(cx, other, one, bytes)?;
            (there.poll_pass_on(cx, one, other, bytes)?, is_back)
        } else {
            let is_there = there.poll_pass_on(cx, one, other, bytes)?;
            (is_there, back.poll_pass_on(cx, other, one, bytes)?)
        };
        match (is_there, is_back) {
            (Poll::Ready(()), Poll::Ready(())) => Poll::Ready(Ok(())),
            (Poll::Pending, Poll::Pending) => Poll::Pending,
            (Poll::Pending, Poll::Ready(())) => idle.poll(cx, there, bytes),
            (Poll::Ready(()), Poll::Pending) => idle.poll(cx, back, bytes),
        }
    })
    .await
}

/// How long one direction has been idle since the other one ended.
#[derive(Default)]
struct Idle {
    limit: Option<Pin<Box<Sleep>>>,
    /// Bytes that had been passed on when it was set.
    passed: u64,
}

impl Idle {
    /// Ready when it was idle for too long.
    fn poll(
        &mut self,
        cx: &mut Context<'_>,
        direction: &Direction,
        bytes: &AtomicU64,
    ) -> Poll<io::Result<()>> {
        if !direction.rest.is_empty() {
            // It waits for the one who takes it, whom the kernel watches.
            self.limit = None;
            return Poll::Pending;
        }
        let passed = bytes.load(Ordering::Relaxed);
        if passed != self.passed {
            (self.passed, self.limit) = (passed, None);
        }
        let limit = self.limit.get_or_insert_with(|| Box::pin(sleep(HALF_CLOSED)));
        limit.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

/// How the next bytes are passed on.
#[derive(Default)]
enum Way {
    /// Through this process.
    #[default]
    Copy,
    /// Through a pipe.
    #[cfg(target_os = "linux")]
    Splice,
    /// Through this process, whatever comes: the socket can't be spliced.
    #[cfg(target_os = "linux")]
    Plain,
}

impl Way {
    /// Reads once, and writes as much of it as `to` takes now. Returns how much was read, and what was not taken.
    fn pass_on(&mut self, from: &TcpStream, to: &TcpStream) -> io::Result<(usize, Rest)> {
        #[cfg(target_os = "linux")]
        if let Self::Splice = self
            && let Some(pipe) = Pipe::take()
        {
            match splice_on(pipe, from, to) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => *self = Self::Plain,
                passed => {
                    if passed.as_ref().is_ok_and(|(count, _)| *count < BULK) {
                        *self = Self::Copy;
                    }
                    return passed;
                }
            }
        }
        let passed = copy_on(from, to)?;
        #[cfg(target_os = "linux")]
        if let Self::Copy = self
            && passed.0 >= BULK
        {
            *self = Self::Splice;
        }
        Ok(passed)
    }
}

/// What was read and not written yet.
enum Rest {
    Bytes {
        bytes: Vec<u8>,
        written: usize,
    },
    #[cfg(target_os = "linux")]
    Pipe(Pipe),
}

impl Default for Rest {
    fn default() -> Self {
        Self::Bytes { bytes: Vec::new(), written: 0 }
    }
}

impl Rest {
    fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self {
            Self::Bytes { mut bytes, written } => Ok(bytes.split_off(written)),
            #[cfg(target_os = "linux")]
            Self::Pipe(pipe) => pipe.into_bytes(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Bytes { bytes, written } => *written == bytes.len(),
            #[cfg(target_os = "linux")]
            Self::Pipe(pipe) => pipe.is_empty(),
        }
    }

    /// Writes as much of it as `to` takes now.
    fn write(&mut self, to: &TcpStream) -> io::Result<()> {
        match self {
            Self::Bytes { bytes, written } => *written += to.try_write(&bytes[*written..])?,
            #[cfg(target_os = "linux")]
            Self::Pipe(pipe) => pipe.drain(to)?,
        }
        Ok(())
    }

    /// Lets others have what it took to keep it.
    fn done(self) {
        #[cfg(target_os = "linux")]
        if let Self::Pipe(pipe) = self {
            pipe.give_back();
        }
    }
}

fn copy_on(from: &TcpStream, to: &TcpStream) -> io::Result<(usize, Rest)> {
    PIECE.with_borrow_mut(|piece| {
        let count = from.try_read(piece)?;
        let written = match to.try_write(&piece[..count]) {
            _ if count == 0 => 0,
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok((count, Rest::Bytes { bytes: piece[written..count].to_vec(), written: 0 }))
    })
}

#[cfg(target_os = "linux")]
fn splice_on(mut pipe: Pipe, from: &TcpStream, to: &TcpStream) -> io::Result<(usize, Rest)> {
    let count = match pipe.fill(from) {
        Ok(count) => count,
        Err(error) => {
            pipe.give_back();
            return Err(error);
        }
    };
    match pipe.drain(to) {
        Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
        _ => Ok((count, Rest::Pipe(pipe))),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (dialled, listener.accept().await.unwrap().0)
    }

    /// A client, a server, and the splice between.
    async fn spliced() -> (TcpStream, TcpStream, tokio::task::JoinHandle<io::Result<u64>>) {
        let ((client, one), (server, other)) = (pair().await, pair().await);
        let task = tokio::spawn(async move {
            let bytes = AtomicU64::new(0);
            splice(&one, &other, &mut Underway::default(), &bytes).await.map(|()| bytes.into_inner())
        });
        (client, server, task)
    }

    #[tokio::test]
    async fn each_direction_ends_by_itself_and_no_byte_is_lost() {
        const SIZE: usize = 20 << 20;
        let (mut client, mut server, task) = spliced().await;
        let sent: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
        let expected = sent.clone();
        let sending = tokio::spawn(async move {
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            let mut answer = Vec::new();
            client.read_to_end(&mut answer).await.unwrap();
            answer
        });
        let mut heard = Vec::new();
        server.read_to_end(&mut heard).await.unwrap();
        assert!(heard == expected);
        server.write_all(b"heard").await.unwrap();
        drop(server);
        assert_eq!(sending.await.unwrap(), b"heard");
        assert_eq!(task.await.unwrap().unwrap(), SIZE as u64 + 5);
    }

    #[tokio::test]
    async fn what_is_under_way_outlives_those_who_pass_it_on() {
        const SIZE: usize = 24 << 20;
        let ((mut client, one), (mut server, other)) = (pair().await, pair().await);
        let sending = tokio::spawn(async move {
            let sent: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
            client.write_all(&sent).await.unwrap();
            client.shutdown().await.unwrap();
            client
        });
        let reading = tokio::spawn(async move {
            let (mut heard, mut piece) = (Vec::new(), vec![0; 100_000]);
            loop {
                match server.read(&mut piece).await.unwrap() {
                    0 => return heard,
                    count => heard.extend_from_slice(&piece[..count]),
                }
                // The relay is ahead of it: something waits in between, in a pipe or not.
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
        });
        let (bytes, mut underway, mut halts, mut waited) = (AtomicU64::new(0), Underway::default(), 0, 0);
        loop {
            let passing = splice(&one, &other, &mut underway, &bytes);
            if tokio::time::timeout(Duration::from_millis(2), passing).await.is_ok() || reading.is_finished()
            {
                break;
            }
            halts += 1;
            let Underway { there, back } = std::mem::take(&mut underway);
            let ((waiting, ended), (behind, _)) = (there.into_parts().unwrap(), back.into_parts().unwrap());
            assert!(behind.is_empty() && waiting.len() <= BUFFER);
            waited += usize::from(!waiting.is_empty());
            underway.there = Direction::going_on(waiting, ended);
        }
        let heard = reading.await.unwrap();
        assert!(heard.len() == SIZE && heard.iter().enumerate().all(|(n, byte)| *byte == (n % 251) as u8));
        assert!(halts > 10 && waited > 0, "{waited} of {halts} times something waited");
        assert_eq!(bytes.into_inner(), SIZE as u64);
        drop(sending.await.unwrap());
    }

    #[tokio::test]
    async fn a_side_that_breaks_ends_the_other() {
        let (client, mut server, task) = spliced().await;
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        assert!(task.await.unwrap().is_err());
        assert_eq!(server.read(&mut [0; 9]).await.unwrap_or(0), 0);
    }

    #[tokio::test]
    async fn a_reader_that_stalls_holds_the_sender_up_and_no_more_than_a_piece_is_kept() {
        let (client, server, task) = spliced().await;
        let mut total = 0_usize;
        let chunk = vec![0; 1 << 16];
        while let Ok(Ok(())) = tokio::time::timeout(Duration::from_millis(300), client.writable()).await {
            match client.try_write(&chunk) {
                Ok(count) => total += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            assert!(total < 256 << 20, "somebody keeps it all");
        }
        drop((client, server));
        task.abort();
    }

    /// Pipes of this process, by its own table of open files.
    #[cfg(target_os = "linux")]
    fn pipes() -> usize {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        links.filter(|link| link.to_string_lossy().starts_with("pipe:")).count()
    }

    #[cfg(target_os = "linux")]
    #[tokio::test]
    async fn connections_that_carried_much_and_are_idle_hold_no_pipes() {
        const CONNECTIONS: usize = 40;
        let mut open = Vec::new();
        let before = pipes();
        for _ in 0..CONNECTIONS {
            let (mut client, mut server, task) = spliced().await;
            let sending = tokio::spawn(async move {
                client.write_all(&vec![7; 4 << 20]).await.unwrap();
                client
            });
            server.read_exact(&mut vec![0; 4 << 20]).await.unwrap();
            open.push((sending.await.unwrap(), server, task));
        }
        // Other tests of this process have some under way; each of these would have two ends.
        assert!(pipes() < before + CONNECTIONS, "{} pipes, {before} before", pipes());
        for (mut client, mut server, _task) in open {
            client.write_all(b"?").await.unwrap();
            assert_eq!(server.read_u8().await.unwrap(), b'?');
        }
    }
}
