//! What is left to send of several files, as it goes to another device: of each that has begun the rest and
//! the sum of the whole, and then those that have not, as pieces of a [bundle](super::super::bundle).

use std::io;

use anyhow::{Context as _, Result, bail};

use super::super::bundle::{HeadOut, Kind, Piece};
use super::super::item::Item;
use super::super::outflow::{Left, Part, Stopped};
use super::super::together::{Going, PartGoing};
use super::Outbox;

/// What is left of several files. Reading it does not move them on.
pub(crate) struct Away<'a> {
    parts: Vec<Left<'a>>,
    /// The part that is read now.
    part: usize,
    items: Vec<(Piece, &'a Item)>,
    /// The one that is read next.
    next: usize,
    /// Of the one that is read now.
    head: HeadOut,
    /// Its bytes, how many were read, and how many there are.
    bytes: Option<Part>,
    at: u64,
    size: u64,
}

impl Outbox {
    /// How far everything is that has [stopped](Self::stop), and what is left.
    ///
    /// # Errors
    /// When something that has not begun cannot be read.
    pub(crate) fn stopped(&self, peer: &str) -> Result<(Going, Away<'_>)> {
        if !self.running.is_empty() {
            bail!("something begins or ends just now");
        }
        let (mut told, mut parts, mut items) = (Vec::new(), Vec::new(), Vec::new());
        for outflow in &self.stopped {
            let (stopped, left) = outflow.stopped()?;
            told.push(part(stopped, outflow.stream().id()));
            parts.push(left);
        }
        for item in &self.left {
            let (above, name) = (item.above.clone(), item.name.clone());
            let kind = item.size()?.map_or(Kind::Directory, Kind::Whole);
            items.push((Piece { above, name, kind }, item));
        }
        let head = HeadOut::default();
        let away = Away { parts, part: 0, items, next: 0, head, bytes: None, at: 0, size: 0 };
        let going = Going {
            peer: peer.to_owned(),
            announced: self.announced.clone(),
            stream: self.write.stream().id(),
            parts: told,
            size: self.sent.size,
            resumed_from: self.sent.resumed_from,
            carried: self.sent.carried,
            refused: self.refused.count(),
            length: away.length().context("cannot send what is left")?,
        };
        Ok((going, away))
    }
}

fn part(stopped: Stopped, stream: u64) -> PartGoing {
    let Stopped { name, before, at, left, chunks, carried, waiting } = stopped;
    PartGoing { stream, name, before, at, left, chunks, carried, waiting }
}

impl Away<'_> {
    fn length(&self) -> io::Result<u64> {
        let too_much = || io::Error::other("it is too much");
        let mut parts = self.parts.iter().map(Left::length);
        let parts = parts.try_fold(0_u64, u64::checked_add).ok_or_else(too_much)?;
        self.items.iter().try_fold(parts, |sum, (piece, _)| {
            let length = piece.length().checked_add(piece.head()?.len() as u64);
            length.and_then(|length| sum.checked_add(length)).ok_or_else(too_much)
        })
    }

    /// Reads the next bytes; 0 at the end, or before it if a file has become shorter. Blocks.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(left) = self.parts.get_mut(self.part) {
                if left.length() > 0 {
                    return left.read(into);
                }
                self.part += 1;
                continue;
            }
            if let Some(n) = self.head.read(into) {
                return Ok(n);
            }
            if let Some(bytes) = self.bytes.as_ref().filter(|_| self.at < self.size) {
                let most = usize::try_from(self.size - self.at).unwrap_or(usize::MAX).min(into.len());
                let n = bytes.read(self.at, &mut into[..most]).map_err(io::Error::other)?;
                self.at += n as u64;
                return Ok(n);
            }
            let Some((piece, item)) = self.items.get(self.next) else { return Ok(0) };
            (self.head, self.at, self.size) = (HeadOut::of(piece)?, 0, piece.length());
            self.bytes = item.open().map_err(io::Error::other)?.map(|(bytes, _)| bytes);
            self.next += 1;
        }
    }
}
