//! Bytes from one socket to the other, both ways, until both have ended or one has broken.

use std::cell::RefCell;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{SockRef, TcpKeepalive};
use tokio::net::TcpStream;

/// What one side has sent and the other has not taken: at most so much is kept, each way, and nothing while both
/// keep up.
const BUFFER: usize = 64 * 1024;
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
    socket.set_tcp_user_timeout(Some(USER_TIMEOUT))?;
    Ok(())
}

/// Passes bytes on in both directions; an end of one direction is passed on as such. `bytes` counts. Cancel-safe
/// in that both sockets can be closed then.
///
/// # Errors
/// When either breaks, or is idle for long after the other direction has ended.
pub async fn splice(one: &TcpStream, other: &TcpStream, bytes: &AtomicU64) -> io::Result<()> {
    let half_closed = tokio::sync::Notify::new();
    let there = pump(one, other, bytes, &half_closed);
    let back = pump(other, one, bytes, &half_closed);
    tokio::try_join!(there, back)?;
    Ok(())
}

async fn pump(
    from: &TcpStream,
    to: &TcpStream,
    bytes: &AtomicU64,
    half_closed: &tokio::sync::Notify,
) -> io::Result<()> {
    let mut is_last = false;
    loop {
        let readable = async {
            loop {
                if is_last {
                    let limit = tokio::time::timeout(HALF_CLOSED, from.readable()).await;
                    return limit.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
                }
                tokio::select! {
                    ready = from.readable() => return ready,
                    () = half_closed.notified() => is_last = true,
                }
            }
        };
        readable.await?;
        let (count, rest) = match pass_on(from, to) {
            Ok((0, _)) => {
                half_closed.notify_one();
                return SockRef::from(to).shutdown(Shutdown::Write);
            }
            Ok(passed) => passed,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        };
        let mut rest = &rest[..];
        while !rest.is_empty() {
            to.writable().await?;
            match to.try_write(rest) {
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        bytes.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Reads once, and writes as much of it as `to` takes now. Returns how much was read, and what was not taken.
fn pass_on(from: &TcpStream, to: &TcpStream) -> io::Result<(usize, Vec<u8>)> {
    PIECE.with_borrow_mut(|piece| {
        let count = from.try_read(piece)?;
        let written = match to.try_write(&piece[..count]) {
            _ if count == 0 => 0,
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            Err(error) => return Err(error),
        };
        Ok((count, piece[written..count].to_vec()))
    })
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
            splice(&one, &other, &bytes).await.map(|()| bytes.into_inner())
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
}
