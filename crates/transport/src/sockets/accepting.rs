//! A listener whose connections are had before the runtime knows of them.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use socket2::Socket;
use tokio::io::Interest;
use tokio::net::TcpStream as Watched;

/// A socket for TCP that listens.
///
/// The runtime's own type for those registers what it accepts before anybody can read from it. To the runtime
/// any socket for TCP is what it calls a stream: something of which it says when it is readable.
#[derive(Debug)]
pub(crate) struct Accepting {
    socket: Watched,
    /// Whether nothing waits in it that came before its options were set last.
    is_even: AtomicBool,
}

impl Accepting {
    /// What accepts from a socket that listens and does not block, and had its options before anybody came if
    /// it `is_new`. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the runtime cannot watch it.
    pub(super) fn new(socket: Socket, is_new: bool) -> io::Result<Self> {
        Ok(Self { socket: Watched::from_std(socket.into())?, is_even: AtomicBool::new(is_new) })
    }

    /// Sets options for those that come from now on. For whoever accepts.
    ///
    /// # Errors
    /// Those of `set`.
    pub(crate) fn set(&self, set: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>) -> io::Result<()> {
        let outcome = set(self.as_fd());
        self.is_even.store(false, Ordering::Relaxed);
        outcome
    }

    /// Whether the connection that was accepted last has the options as they are: those that wait have them
    /// as they were when they came, and so may all until none was left once.
    pub(crate) fn is_even(&self) -> bool {
        self.is_even.load(Ordering::Relaxed)
    }

    /// The next connection, which does not block, and where it comes from. Cancel-safe.
    ///
    /// # Errors
    /// Those of accept(2).
    pub(crate) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
        let next = || {
            accept(self.as_fd()).inspect_err(|error| {
                if error.kind() == io::ErrorKind::WouldBlock {
                    self.is_even.store(true, Ordering::Relaxed);
                }
            })
        };
        self.socket.async_io(Interest::READABLE, next).await
    }
}

impl AsFd for Accepting {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(target_os = "linux")]
fn accept(listener: BorrowedFd<'_>) -> io::Result<(TcpStream, SocketAddr)> {
    use rustix::net::{SocketFlags, acceptfrom_with};

    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (socket, remote) = rustix::io::retry_on_intr(|| acceptfrom_with(listener, flags))?;
    let remote = remote.ok_or(io::ErrorKind::NotConnected)?;
    Ok((socket.into(), SocketAddr::try_from(remote)?))
}

#[cfg(not(target_os = "linux"))]
fn accept(listener: BorrowedFd<'_>) -> io::Result<(TcpStream, SocketAddr)> {
    let (socket, remote) = socket2::SockRef::from(&listener).accept()?;
    socket.set_nonblocking(true)?;
    let remote = remote.as_socket().ok_or(io::ErrorKind::NotConnected)?;
    Ok((socket.into(), remote))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::sync::Arc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;
    use crate::carrier::CarrierKind;
    use crate::sockets::listener;

    /// More than a busy machine needs.
    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn those_who_come_together_are_accepted_one_after_another_and_block_nobody() {
        let accepting = listener("127.0.0.1:0".parse().unwrap(), CarrierKind::Tcp).unwrap();
        let at = socket2::SockRef::from(&accepting).local_addr().unwrap().as_socket().unwrap();
        let accepting = Arc::new(accepting);
        for count in [1, 3] {
            let waiting = accepting.clone();
            let first = tokio::spawn(async move { waiting.accept().await });
            tokio::task::yield_now().await;
            let mut clients: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(at).unwrap()).collect();
            let mut came = vec![timeout(LIMIT, first).await.unwrap().unwrap().unwrap()];
            while came.len() < count {
                came.push(timeout(LIMIT, accepting.accept()).await.unwrap().unwrap());
            }
            for (socket, remote) in &mut came {
                assert_eq!(socket.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
                socket.write_all(&remote.port().to_be_bytes()).unwrap();
            }
            for client in &mut clients {
                let mut heard = [0; 2];
                client.set_read_timeout(Some(LIMIT)).unwrap();
                client.read_exact(&mut heard).unwrap();
                assert_eq!(u16::from_be_bytes(heard), client.local_addr().unwrap().port());
            }
        }
    }

    #[tokio::test]
    async fn options_are_those_of_all_once_none_is_left_that_came_before() {
        let handed_over = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        handed_over.set_nonblocking(true).unwrap();
        let at = handed_over.local_addr().unwrap();
        let _waiting = TcpStream::connect(at).unwrap();
        let accepting = Arc::new(Accepting::new(handed_over.into(), false).unwrap());
        timeout(LIMIT, accepting.accept()).await.unwrap().unwrap();
        assert!(!accepting.is_even(), "it came before");
        for _ in 0..2 {
            let waiting = accepting.clone();
            let next = tokio::spawn(async move { waiting.accept().await });
            let none_is_left = async {
                while !accepting.is_even() {
                    tokio::task::yield_now().await;
                }
            };
            timeout(LIMIT, none_is_left).await.unwrap();
            let _client = TcpStream::connect(at).unwrap();
            timeout(LIMIT, next).await.unwrap().unwrap().unwrap();
            assert!(accepting.is_even(), "it came afterwards");
            accepting.set(|_| Ok(())).unwrap();
            assert!(!accepting.is_even(), "others may wait");
        }
    }
}
