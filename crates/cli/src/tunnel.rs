//! Bytes between a local byte stream and a whimbrel stream, both ways.
//!
//! An end in one direction is passed on as the end of that direction only. What breaks on one side
//! breaks on the other too, and never looks like an end: a program that reads to the end must not
//! take half a file for a whole one.
//!
//! A tunnel can be [halted](crate::halt) at any moment, and goes on later or in another process: what was
//! read and not yet written is part of it.

pub(crate) mod direction;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use whimbrel_transport::{CloseCode, RecvHalf, SendHalf, Stream};

use self::direction::Direction;
use crate::halt::Tie;
use crate::local::LocalSocket;

/// The application behind the stream broke its connection.
pub(crate) const BROKEN: CloseCode = CloseCode::application(1);
/// The exposed program does not accept connections.
pub(crate) const TARGET_REFUSED: CloseCode = CloseCode::application(2);

/// A local socket and a stream that are joined.
pub(crate) struct Tunnel {
    pub(crate) socket: LocalSocket,
    pub(crate) read: RecvHalf,
    pub(crate) write: SendHalf,
    /// From the socket into the stream.
    pub(crate) out: Direction,
    /// From the stream to the socket.
    pub(crate) back: Direction,
    /// Without a byte for so long, it breaks.
    idle: Option<Duration>,
}

/// What was halted.
pub(crate) enum Halted {
    Tunnel(Tunnel),
    /// A local socket that waits for its stream.
    Socket(LocalSocket),
    /// A stream that waits for its local socket. It must be kept until its connection sleeps: dropping it
    /// ends it.
    Stream(Stream),
}

/// Tunnels halt wherever they wait, so this is for a machine that is very busy.
pub(crate) const HALT_LIMIT: Duration = Duration::from_secs(5);

impl Tunnel {
    /// One through which nothing has gone yet.
    pub(crate) fn new(socket: LocalSocket, stream: Stream) -> Self {
        Self::going_on(socket, stream, Direction::default(), Direction::default())
    }

    /// One that was halted.
    pub(crate) fn going_on(socket: LocalSocket, stream: Stream, out: Direction, back: Direction) -> Self {
        let (read, write) = stream.into_split();
        Self { socket, read, write, out, back, idle: None }
    }

    /// Breaks without a byte for so long, and before twice that.
    pub(crate) fn with_idle_limit(self, idle: Duration) -> Self {
        Self { idle: Some(idle), ..self }
    }

    /// Carries bytes until both directions have ended, or `tie` halts it.
    ///
    /// # Errors
    /// When either side breaks; the other is broken then too. A Unix socket has no reset: its program sees an
    /// end.
    pub(crate) async fn run(mut self, tie: &Tie<Halted>) -> io::Result<()> {
        let result = tokio::select! {
            result = self.carry_while_busy() => result,
            () = tie.is_to_halt() => {
                tie.give(Halted::Tunnel(self)).await;
                return Ok(());
            }
        };
        if result.is_err() {
            self.write.stream().reset(BROKEN);
            self.read.stream().stop(BROKEN);
            refuse(&self.socket);
        }
        result
    }

    async fn carry_while_busy(&mut self) -> io::Result<()> {
        let Some(idle) = self.idle else { return self.carry().await };
        loop {
            let before = self.out.written() + self.back.written();
            match tokio::time::timeout(idle, self.carry()).await {
                Ok(result) => return result,
                Err(_) if self.out.written() + self.back.written() == before => {
                    let why = format!("nothing came for {}", humantime::format_duration(idle));
                    return Err(io::Error::new(io::ErrorKind::TimedOut, why));
                }
                Err(_) => {}
            }
        }
    }

    /// Cancel-safe: what is under way is in the directions.
    async fn carry(&mut self) -> io::Result<()> {
        let Self { socket, read, write, out, back, .. } = self;
        match socket {
            LocalSocket::Tcp(socket) => {
                // Small writes of interactive programs must not wait for one another.
                socket.set_nodelay(true)?;
                let (from, to) = socket.split();
                both(out, back, from, to, read, write).await
            }
            LocalSocket::Unix(socket) => {
                let (from, to) = socket.split();
                both(out, back, from, to, read, write).await
            }
        }
    }
}

async fn both(
    out: &mut Direction,
    back: &mut Direction,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    read: &mut RecvHalf,
    write: &mut SendHalf,
) -> io::Result<()> {
    tokio::try_join!(out.carry(&mut from, write), back.carry(read, &mut to)).map(drop)
}

/// Makes the socket's end a reset: the program there learns that bytes are missing.
fn abort(socket: &TcpStream) {
    // Without it the end is an ordinary one, which is the best that is left then.
    let _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// Has a socket that cannot be served (any more) end with a reset, when it is dropped.
pub(crate) fn refuse(socket: &LocalSocket) {
    if let LocalSocket::Tcp(socket) = socket {
        abort(socket);
    }
}
