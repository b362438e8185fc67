//! The bytes of one file on their way to its receiver. They can stop behind any of them, and go on there or at
//! another device.

mod input;
mod left;
mod origin;
mod sum;

pub(super) use self::input::Input;
pub(super) use self::origin::{Origin, Part};

use std::io;

use anyhow::{Context as _, Result};
use sha2::Sha256;
use tokio::io::AsyncWriteExt as _;
use tokio::task::block_in_place;
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

use self::left::Left;
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
        let Stopped { name, before, at, chunks, carried, waiting, .. } = stopped;
        let (read, write) = stream.into_split();
        let bounds = (at, at.saturating_add(spool.length()));
        Self {
            read,
            write,
            origin: Origin::File(Part::new(spool.into_file(), format!("what is here of {name}"), bounds)),
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

    /// Sends the rest, and waits until the receiver has it.
    pub(super) async fn send(mut self, pace: &Pace, board: &Board) -> Result<Sent, Trouble> {
        self.pour(pace, board).await?;
        self.end().await
    }

    /// Writes all bytes into the stream. Cancel-safe: can be begun again, or go on elsewhere.
    pub(crate) async fn pour(&mut self, pace: &Pace, board: &Board) -> Result<(), Trouble> {
        let result = self.pour_all(pace, board).await;
        with_reason(&mut self.read, &self.write, result).await
    }

    async fn pour_all(&mut self, pace: &Pace, board: &Board) -> Result<(), Trouble> {
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
            self.carried += n as u64;
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

    /// Sees to it that what is left can go elsewhere: an input is read to its end. What was read is sent also if
    /// this fails. Cancel-safe.
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
