//! Standard input, which nobody can read again: what was read of it is kept until it is sent.

use std::os::unix::fs::FileExt as _;

use anyhow::{Context as _, Result, bail};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::task::block_in_place;

use super::super::CHUNK;
use super::super::spool::Spool;
use super::left::Rest;

/// Bytes that are kept on the disk at most, including those that were sent since.
const MOST: u64 = 1 << 30;

/// An input that can be read ahead into a file. What was read so comes first.
pub(in crate::transfer) struct Input {
    from: Box<dyn AsyncRead + Send + Sync + Unpin>,
    ahead: Option<Ahead>,
    /// What was read, and could not be written into that file. Comes behind it.
    kept: Vec<u8>,
    /// There is no more.
    ended: bool,
}

/// What was read ahead.
struct Ahead {
    spool: Spool,
    /// Bytes of it that were sent.
    at: u64,
}

impl Ahead {
    fn left(&self) -> u64 {
        self.spool.length() - self.at
    }
}

impl Input {
    /// What comes from there.
    pub(in crate::transfer) fn new(from: impl AsyncRead + Send + Sync + Unpin + 'static) -> Self {
        Self { from: Box::new(from), ahead: None, kept: Vec::new(), ended: false }
    }

    /// Reads the next bytes; 0 is the end. Cancel-safe.
    pub(super) async fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        if let Some(ahead) = self.ahead.as_mut().filter(|ahead| ahead.left() > 0) {
            let most = usize::try_from(ahead.left()).unwrap_or(usize::MAX).min(into.len());
            let n = block_in_place(|| ahead.spool.file().read_at(&mut into[..most], ahead.at));
            let n = n.context("cannot read what was read ahead")?;
            if n == 0 {
                bail!("what was read ahead became shorter");
            }
            ahead.at += n as u64;
            if ahead.left() == 0 {
                // The disk has its room back, also where this is read ahead again and again.
                self.ahead = None;
            }
            return Ok(n);
        }
        if !self.kept.is_empty() {
            let n = self.kept.len().min(into.len());
            into[..n].copy_from_slice(&self.kept[..n]);
            self.kept.drain(..n);
            return Ok(n);
        }
        if self.ended {
            return Ok(0);
        }
        let n = self.from.read(into).await.context("cannot read the input")?;
        self.ended = n == 0;
        Ok(n)
    }

    /// Reads to the end. What was read is kept also if this fails. Cancel-safe.
    pub(super) async fn read_ahead(&mut self) -> Result<()> {
        let ahead = match &mut self.ahead {
            Some(ahead) => ahead,
            none => none.insert(Ahead { spool: Spool::new()?, at: 0 }),
        };
        let mut buffer = vec![0; CHUNK];
        loop {
            if !self.kept.is_empty() {
                block_in_place(|| ahead.spool.append(&self.kept))?;
                self.kept.clear();
            }
            if self.ended {
                return Ok(());
            }
            if ahead.spool.length() >= MOST {
                bail!("standard input is too long: {} GiB of it are read ahead at most", MOST >> 30);
            }
            let n = self.from.read(&mut buffer).await.context("cannot read the input")?;
            self.kept.extend_from_slice(&buffer[..n]);
            self.ended = n == 0;
        }
    }

    /// What is left, once everything was read.
    pub(super) fn rest(&self) -> Option<Rest<'_>> {
        let ahead = self.ahead.as_ref().filter(|_| self.ended && self.kept.is_empty())?;
        Some(Rest { file: ahead.spool.file(), from: ahead.at, length: ahead.left() })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use tokio::io::AsyncWriteExt as _;

    use super::super::left::Left;
    use super::super::sum::Sum;
    use super::*;

    /// One that keeps what it reads ahead in a file of the test.
    fn input(from: impl AsyncRead + Send + Sync + Unpin + 'static) -> Input {
        let spool = Spool::of(tempfile::tempfile().unwrap());
        Input { ahead: Some(Ahead { spool, at: 0 }), ..Input::new(from) }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_was_read_ahead_comes_first_and_nothing_is_lost_where_the_end_is_not_known() {
        let (mut writer, reader) = tokio::io::duplex(64);
        let mut input = input(reader);
        writer.write_all(b"abc").await.unwrap();
        // There may be more.
        let ahead = tokio::time::timeout(Duration::from_millis(200), input.read_ahead()).await;
        assert!(ahead.is_err() && input.rest().is_none());
        let mut first = [0; 1];
        assert_eq!((input.read(&mut first).await.unwrap(), &first), (1, b"a"));
        writer.write_all(b"de").await.unwrap();
        drop(writer);
        input.read_ahead().await.unwrap();
        let rest = input.rest().unwrap();
        assert_eq!((rest.from, rest.length), (1, 4));
        let (mut left, mut found) = (Left::new(rest, Sum::Known([0; 32])), [0; 16]);
        let n = left.read(&mut found).unwrap();
        assert_eq!(&found[..n], b"bcde");
        // If it is not sent elsewhere, it is sent here.
        let n = input.read(&mut found).await.unwrap();
        assert_eq!((&found[..n], input.read(&mut first).await.unwrap()), (&b"bcde"[..], 0));
        assert!(input.ahead.is_none(), "nothing of it is on the disk any more");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn what_a_full_disk_does_not_take_is_sent_from_here() {
        let (mut writer, reader) = tokio::io::duplex(64);
        let full = std::fs::File::options().read(true).write(true).open("/dev/full").unwrap();
        let mut input = Input { ahead: Some(Ahead { spool: Spool::of(full), at: 0 }), ..Input::new(reader) };
        writer.write_all(b"abc").await.unwrap();
        let error = input.read_ahead().await.unwrap_err().to_string();
        assert!(error.contains("no space is left"), "{error}");
        assert!(input.rest().is_none());
        writer.write_all(b"de").await.unwrap();
        drop(writer);
        let mut all = Vec::new();
        loop {
            let mut found = [0; 2];
            let n = input.read(&mut found).await.unwrap();
            if n == 0 {
                break;
            }
            all.extend_from_slice(&found[..n]);
        }
        assert_eq!(all, b"abcde");
    }
}
