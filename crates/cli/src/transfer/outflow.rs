//! The bytes of one file on their way to its receiver. They can stop behind any of them, and go on there or
//! at another device.

mod input;
mod left;
mod origin;
mod sum;

pub(super) use self::input::Input;
pub(super) use self::left::Left;
pub(super) use self::origin::{Origin, Part};

use std::fs::File;
use std::io;

use anyhow::{Context as _, Result};
use sha2::Sha256;
use tokio::io::AsyncWriteExt as _;
use tokio::task::block_in_place;
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

use self::sum::Sum;
use super::answers::{done, with_reason};
use super::message::{self, Message};
use super::pace::Pace;
use super::spool::Spool;
use super::{CHUNK, Trouble, chunk};
use crate::progress::Board;

/// Bytes of the sum that come behind what is left of a file.
pub(crate) const SUM: usize = sum::LENGTH;
/// No more waits to be written into a stream: a chunk with its length.
pub(crate) const MOST_WAITING: usize = CHUNK + 4;

/// What a file was, once it has arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sent {
    pub(crate) size: u64,
    /// Bytes that the receiver had before.
    pub(crate) resumed_from: u64,
    /// Bytes on the way.
    pub(crate) carried: u64,
    pub(crate) sha256: String,
}

/// A file whose receiver has said where it begins.
pub(super) struct Begun {
    pub(super) origin: Origin,
    /// Of what the receiver has.
    pub(super) hasher: Sha256,
    /// Bytes that it has.
    pub(super) from: u64,
    /// The others go in chunks.
    pub(super) chunks: bool,
}

/// How far a file is that has stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stopped {
    /// What it is called at the receiver.
    pub(crate) name: String,
    /// Bytes that the receiver had before.
    pub(crate) before: u64,
    /// Bytes that are in the stream, or wait to be.
    pub(crate) at: u64,
    /// Those behind them.
    pub(crate) left: u64,
    /// They go in chunks.
    pub(crate) chunks: bool,
    /// Bytes that went on the way.
    pub(crate) carried: u64,
    /// What is to be written into the stream before those that are left.
    pub(crate) waiting: Vec<u8>,
}

/// A file on its way out.
pub(crate) struct Outflow {
    read: RecvHalf,
    write: SendHalf,
    name: String,
    origin: Origin,
    sum: Sum,
    packer: Option<chunk::Packer>,
    waiting: Waiting,
    /// Bytes of the file that are in the stream, or wait to be.
    at: u64,
    resumed_from: u64,
    carried: u64,
}

/// What waits to be written into the stream.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    /// Of these, those that were written.
    written: usize,
}

impl Waiting {
    fn left(&self) -> &[u8] {
        &self.bytes[self.written..]
    }
}

impl Outflow {
    pub(super) fn new((read, write): (RecvHalf, SendHalf), name: String, begun: Begun) -> Self {
        let Begun { origin, hasher, from, chunks } = begun;
        Self {
            read,
            write,
            name,
            origin,
            sum: Sum::Running(hasher),
            packer: chunks.then(chunk::Packer::default),
            waiting: Waiting::default(),
            at: from,
            resumed_from: from,
            carried: 0,
        }
    }

    /// One that has stopped elsewhere: what is left is in `spool`, and the sum of the whole file is known.
    pub(crate) fn going_on(stream: Stream, stopped: Stopped, (spool, sum): (Spool, [u8; SUM])) -> Self {
        let left = spool.length();
        Self::going_on_in(stream, Stopped { left, ..stopped }, (spool.into_file(), 0), sum)
    }

    /// The same of one whose rest is in a file, behind so many bytes of others.
    pub(super) fn going_on_in(
        stream: Stream,
        stopped: Stopped,
        (file, base): (File, u64),
        sum: [u8; SUM],
    ) -> Self {
        let Stopped { name, before, at, left, chunks, carried, waiting } = stopped;
        let (read, write) = stream.into_split();
        let part = Part::new(file, format!("what is here of {name}"), (at, at.saturating_add(left)));
        Self {
            read,
            write,
            origin: Origin::File(part.behind(base)),
            name,
            sum: Sum::Known(sum),
            packer: chunks.then(chunk::Packer::default),
            waiting: Waiting { bytes: waiting, written: 0 },
            at,
            resumed_from: before,
            carried,
        }
    }

    /// The stream to the receiver.
    pub(crate) fn stream(&self) -> &Stream {
        self.write.stream()
    }

    /// What it is called at the receiver.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Puts the receiver's own words, if it has said why, in the place of a lost stream. Not cancel-safe.
    pub(crate) async fn explain(&mut self, poured: Result<(), Trouble>) -> Result<(), Trouble> {
        with_reason(&mut self.read, &self.write, poured).await
    }

    /// Writes all bytes into the stream. Cancel-safe: can be begun again, or go on elsewhere.
    ///
    /// # Errors
    /// What is to be [explained](Self::explain).
    pub(crate) async fn pour(&mut self, pace: &Pace, board: &Board) -> Result<(), Trouble> {
        let mut progress = board.file(&self.name, self.origin.size().unwrap_or_default(), self.at);
        let mut buffer = vec![0; CHUNK];
        loop {
            self.write_waiting(pace).await?;
            progress.at(self.at);
            let n = self.origin.read(self.at, &mut buffer).await?;
            if n == 0 {
                return Ok(());
            }
            self.pack(&buffer[..n]);
        }
    }

    /// Has these bytes wait, which are the next ones. Nothing else waits.
    fn pack(&mut self, bytes: &[u8]) {
        self.sum.take(bytes);
        self.at += bytes.len() as u64;
        match &mut self.packer {
            Some(packer) => self.waiting.bytes = block_in_place(|| packer.pack(bytes)),
            None => self.waiting.bytes.extend_from_slice(bytes),
        }
    }

    async fn write_waiting(&mut self, pace: &Pace) -> Result<(), Trouble> {
        while !self.waiting.left().is_empty() {
            let n = self.write.write(self.waiting.left()).await.map_err(Trouble::Lost)?;
            if n == 0 {
                return Err(Trouble::Lost(io::ErrorKind::WriteZero.into()));
            }
            self.waiting.written += n;
            // What another device says that it was before is not checked.
            self.carried = self.carried.saturating_add(n as u64);
        }
        let written = std::mem::take(&mut self.waiting.written);
        self.waiting.bytes.clear();
        pace.sent(written).await;
        Ok(())
    }

    /// Says that this is all, and waits until the receiver has it.
    pub(crate) async fn end(mut self) -> Result<Sent, Trouble> {
        let result = self.say_end().await;
        with_reason(&mut self.read, &self.write, result).await
    }

    async fn say_end(&mut self) -> Result<Sent, Trouble> {
        if self.packer.is_some() {
            self.write.write_all(&chunk::END).await.map_err(Trouble::Lost)?;
        }
        let sha256 = self.sum.text();
        let end = Message::End { sha256: sha256.clone() };
        message::write(&mut self.write, &end).await.map_err(Trouble::Lost)?;
        done(&mut self.read).await?;
        let Self { at, resumed_from, carried, .. } = *self;
        Ok(Sent { size: at, resumed_from, carried, sha256 })
    }

    /// Sees to it that what is left can go elsewhere: an input is read to its end. What was read is sent also
    /// if this fails. Cancel-safe.
    ///
    /// # Errors
    /// When it cannot be read, or is too much to be kept.
    pub(crate) async fn read_ahead(&mut self) -> Result<()> {
        self.origin.read_ahead().await
    }

    /// How far it is, and what is left.
    ///
    /// # Errors
    /// When nobody knows what is left.
    pub(crate) fn stopped(&self) -> Result<(Stopped, Left<'_>)> {
        let rest = self.origin.rest(self.at).context("standard input has not ended yet")?;
        let stopped = Stopped {
            name: self.name.clone(),
            before: self.resumed_from,
            at: self.at,
            left: rest.length,
            chunks: self.packer.is_some(),
            carried: self.carried,
            waiting: self.waiting.left().to_vec(),
        };
        Ok((stopped, Left::new(rest, self.sum.clone())))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::future::poll_fn;
    use std::pin::pin;
    use std::task::Poll;
    use std::time::Duration;

    use sha2::Digest as _;
    use whimbrel_transport::{Allow, Endpoint, ListenOptions, Listener, ManualMonitor};

    use super::super::hex;
    use super::*;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Drops it where it waits for the first time.
    async fn until_it_waits<T>(what: impl Future<Output = T>) -> Option<T> {
        let mut what = pin!(what);
        poll_fn(|cx| {
            Poll::Ready(match what.as_mut().poll(cx) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            })
        })
        .await
    }

    async fn endpoint() -> Endpoint {
        let own = ManualMonitor::new(["127.0.0.1".parse().unwrap()]);
        Endpoint::builder().monitor(own).bind().await.unwrap()
    }

    /// Takes a file in chunks. Returns its bytes, how many chunks these were, and what its end says.
    async fn receive(mut listener: Listener) -> (Vec<u8>, u64, Message) {
        let connection = listener.accept().await.unwrap();
        let (mut read, mut write) = connection.accept_stream().await.unwrap().into_split();
        let (mut all, mut chunks) = (Vec::new(), 0);
        while let Some(bytes) = chunk::read(&mut read).await.unwrap() {
            all.extend_from_slice(&bytes);
            chunks += 1;
        }
        let end = message::read(&mut read).await.unwrap();
        message::write(&mut write, &Message::Done).await.unwrap();
        connection.closed().await;
        (all, chunks, end)
    }

    /// At each point at which it waits: for the input, for the stream, and for its rate.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_file_that_is_stopped_wherever_it_waits_goes_out_with_each_byte_once() {
        let mut film = vec![0; 3 << 20];
        getrandom::fill(&mut film).unwrap();
        let (bob, ada) = (endpoint().await, endpoint().await);
        let listener = bob.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
        let connection = ada.connect(bob.addr()).await.unwrap();
        let receiving = tokio::spawn(receive(listener));
        let (mut writer, reader) = tokio::io::duplex(100_000);
        let written = film.clone();
        tokio::spawn(async move { writer.write_all(&written).await.unwrap() });
        let origin = Origin::Input(Input::new(reader));
        let begun = Begun { origin, hasher: Sha256::new(), from: 0, chunks: true };
        let stream = connection.open_stream().await.unwrap();
        let mut outflow = Outflow::new(stream.into_split(), "film".to_owned(), begun);
        let (pace, board) = (Pace::new(Some(16 << 20)), Board::new(true));
        let sending = async move {
            let mut stops = 0;
            loop {
                match until_it_waits(outflow.pour(&pace, &board)).await {
                    Some(poured) => {
                        poured.unwrap();
                        break;
                    }
                    None => stops += 1,
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            (outflow.end().await.unwrap(), stops)
        };
        let (sent, stops) = tokio::time::timeout(LIMIT, sending).await.unwrap();
        assert!(stops > 0);
        ada.close(LIMIT).await;
        let (all, chunks, end) = tokio::time::timeout(LIMIT, receiving).await.unwrap().unwrap();
        assert!(all == film);
        let sha256 = hex(&Sha256::digest(&film));
        assert_eq!(end, Message::End { sha256: sha256.clone() });
        assert_eq!((sent.size, sent.sha256), (film.len() as u64, sha256));
        assert_eq!(sent.carried, film.len() as u64 + 4 * chunks, "each chunk has a length");
        bob.close(LIMIT).await;
    }
}
