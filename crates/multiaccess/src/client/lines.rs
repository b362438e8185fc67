//! What every connection to a manager begins with, and the lines that come on it.

use super::ClientError;
use std::io;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, BufReader};
use tokio::net::UnixStream;

/// The manager is on this host.
const CONNECT: Duration = Duration::from_secs(2);
/// Longer than any line of a manager.
const MAX_ANSWER: usize = 1 << 20;

/// Connects to the manager with this socket, if it is one of this user or of root.
///
/// # Errors
/// [`ClientError::Absent`] or [`ClientError::Stranger`].
pub(crate) async fn open(socket: &Path) -> Result<UnixStream, ClientError> {
    let absent = |source| ClientError::Absent { socket: socket.to_owned(), source };
    let connected = tokio::time::timeout(CONNECT, UnixStream::connect(socket)).await;
    let stream = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(absent)?;
    let uid = stream.peer_cred().map_err(absent)?.uid();
    if uid != 0 && uid != rustix::process::geteuid().as_raw() {
        return Err(ClientError::Stranger { socket: socket.to_owned(), uid });
    }
    Ok(stream)
}

/// The lines of a manager.
pub(crate) struct Lines<R> {
    reader: BufReader<R>,
    line: Vec<u8>,
    /// The longest line, its end included.
    most: usize,
}

impl<R: AsyncRead + Unpin> Lines<R> {
    pub(super) fn of(reader: R) -> Self {
        Self::up_to(MAX_ANSWER, reader)
    }

    /// Those of somebody whose lines have at most so many bytes.
    pub(crate) fn up_to(most: usize, reader: R) -> Self {
        Self { reader: BufReader::new(reader), line: Vec::new(), most }
    }

    /// The next line with its end. Cancel-safe: what was read of one stays.
    ///
    /// # Errors
    /// What the system says; that the manager has ended; that it says more on a line than it may.
    pub(crate) async fn next(&mut self) -> io::Result<&[u8]> {
        if self.line.ends_with(b"\n") {
            self.line.clear();
        }
        let room = self.most.saturating_sub(self.line.len());
        (&mut self.reader).take(room as u64).read_until(b'\n', &mut self.line).await?;
        match self.line.ends_with(b"\n") {
            true => Ok(&self.line),
            false if self.line.len() >= self.most => {
                Err(io::Error::new(io::ErrorKind::InvalidData, "it says more on a line than it may"))
            }
            false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended")),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn lines_come_whole_and_have_a_limit_and_an_end() {
        let mut lines = Lines::of(&b"one\n\ntwo\nhalf"[..]);
        for expected in ["one\n", "\n", "two\n"] {
            assert_eq!(lines.next().await.unwrap(), expected.as_bytes());
        }
        assert_eq!(lines.next().await.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let long = vec![b'x'; MAX_ANSWER + 1];
        let error = Lines::of(&long[..]).next().await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn what_was_read_of_a_line_stays_when_nobody_waits_for_its_end() {
        let (ours, mut theirs) = tokio::io::duplex(64);
        let mut lines = Lines::of(ours);
        tokio::io::AsyncWriteExt::write_all(&mut theirs, b"on").await.unwrap();
        let early = tokio::time::timeout(Duration::from_millis(20), lines.next()).await.map(|_| ());
        assert!(early.is_err());
        tokio::io::AsyncWriteExt::write_all(&mut theirs, b"e\n").await.unwrap();
        assert_eq!(lines.next().await.unwrap(), b"one\n");
    }
}
