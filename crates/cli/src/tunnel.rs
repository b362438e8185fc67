//! Bytes between a local byte stream and a whimbrel stream, both ways.
//!
//! An end in one direction is passed on as the end of that direction only. What breaks on one side
//! breaks on the other too, and never looks like an end: a program that reads to the end must not
//! take half a file for a whole one.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use whimbrel_transport::{CloseCode, Stream};

use crate::local::LocalSocket;

/// What a direction reads at once: little while little comes, so that thousands of idle ones cost little.
const LEAST: usize = 2 * 1024;
const MOST: usize = 64 * 1024;

/// The application behind the stream broke its connection.
pub(crate) const BROKEN: CloseCode = CloseCode::application(1);
/// The exposed program does not accept connections.
pub(crate) const TARGET_REFUSED: CloseCode = CloseCode::application(2);

/// Joins a TCP connection and a stream until both directions have ended.
///
/// # Errors
/// When either side breaks; the other is broken then too.
pub(crate) async fn join_tcp(socket: TcpStream, stream: Stream) -> io::Result<()> {
    // Small writes of interactive programs must not wait for one another.
    socket.set_nodelay(true)?;
    // A second handle, to reset the socket when the stream breaks.
    let (mut socket_read, mut socket_write) = socket.into_split();
    let (mut stream_read, mut stream_write) = stream.into_split();
    let result = {
        let out = copy(&mut socket_read, &mut stream_write);
        let back = copy(&mut stream_read, &mut socket_write);
        tokio::try_join!(out, back)
    };
    if let Err(error) = result {
        stream_write.stream().reset(BROKEN);
        stream_read.stream().stop(BROKEN);
        if let Ok(socket) = socket_read.reunite(socket_write) {
            abort(&socket);
        }
        return Err(error);
    }
    Ok(())
}

/// Joins a local program and a stream until both directions have ended.
///
/// # Errors
/// When either side breaks; the other is broken then too. A Unix socket has no reset: its program sees an end.
pub(crate) async fn join(socket: LocalSocket, stream: Stream) -> io::Result<()> {
    let socket = match socket {
        LocalSocket::Tcp(socket) => return join_tcp(socket, stream).await,
        LocalSocket::Unix(socket) => socket,
    };
    let (mut socket_read, mut socket_write) = socket.into_split();
    let (mut stream_read, mut stream_write) = stream.into_split();
    let out = copy(&mut socket_read, &mut stream_write);
    let back = copy(&mut stream_read, &mut socket_write);
    let result = tokio::try_join!(out, back);
    if result.is_err() {
        stream_write.stream().reset(BROKEN);
        stream_read.stream().stop(BROKEN);
    }
    result.map(drop)
}

/// Makes the socket's end a reset: the program there learns that bytes are missing.
fn abort(socket: &TcpStream) {
    // Without it the end is an ordinary one, which is the best that is left then.
    let _ = socket2::SockRef::from(socket).set_linger(Some(Duration::ZERO));
}

/// Resets a connection that cannot be served.
pub(crate) fn refuse(socket: LocalSocket) {
    if let LocalSocket::Tcp(socket) = socket {
        abort(&socket);
    }
}

/// Copies until the end, and passes the end on.
pub(crate) async fn copy(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let mut buffer = vec![0; LEAST];
    loop {
        let n = from.read(&mut buffer).await?;
        if n == 0 {
            return to.shutdown().await;
        }
        to.write_all(&buffer[..n]).await?;
        to.flush().await?;
        let fitting = fitting(buffer.len(), n);
        if fitting != buffer.len() {
            buffer = vec![0; fitting];
        }
    }
}

/// The size of the next buffer, after `n` bytes came into one of `size`.
fn fitting(size: usize, n: usize) -> usize {
    if n == size {
        (size * 4).min(MOST)
    } else if n <= LEAST {
        // What comes in small pieces, or has just ended, needs no more.
        LEAST
    } else {
        size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_grows_with_what_comes_and_shrinks_when_little_does() {
        let mut size = LEAST;
        for _ in 0..8 {
            size = fitting(size, size);
        }
        assert_eq!(size, MOST);
        assert_eq!(fitting(MOST, MOST / 2), MOST);
        assert_eq!(fitting(MOST, 100), LEAST);
        assert_eq!(fitting(LEAST, 100), LEAST);
    }
}
