//! What another device had left to send of several files, on the disk until it is sent from here.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use whimbrel_transport::{Connection, Stream};

use super::super::batch::MAX_ENTRIES;
use super::super::bundle::{HeadIn, Kind, Piece};
use super::super::item::{Bytes, Item};
use super::super::name;
use super::super::outflow::{MOST_WAITING, Outflow, SUM, Sent, Stopped};
use super::super::spool::Spool;
use super::super::together::{Going, PartGoing};
use super::{Outbox, PARALLEL};

/// Bytes that are taken.
const MOST: u64 = 64 << 30;

/// What was fetched, one behind the other in one file.
pub(crate) struct Kept {
    spool: Spool,
    parts: Vec<PartKept>,
    /// The part whose bytes come now.
    part: usize,
    items: Vec<(Piece, u64)>,
    /// The head that comes now, or bytes that are left of what it was of.
    head: HeadIn,
    body: u64,
}

/// The rest of a file that has begun.
struct PartKept {
    /// Bytes before it.
    base: u64,
    /// Bytes of it that are still to come.
    left: u64,
    /// The SHA-256 of the whole file, which comes behind these.
    sum: Vec<u8>,
}

impl Kept {
    /// Nothing yet.
    ///
    /// # Errors
    /// When there cannot be such files, or nothing can be kept.
    pub(crate) fn begin(told: &Going) -> Result<Self> {
        check(told)?;
        Ok(Self::of(Spool::new()?, &told.parts))
    }

    fn of(spool: Spool, parts: &[PartGoing]) -> Self {
        let mut base = 0_u64;
        let kept = |part: &PartGoing| {
            let kept = PartKept { base, left: part.left, sum: Vec::new() };
            base = base.saturating_add(part.left);
            kept
        };
        let parts = parts.iter().map(kept).collect();
        Self { spool, parts, part: 0, items: Vec::new(), head: HeadIn::default(), body: 0 }
    }

    /// Keeps what comes. Blocks.
    ///
    /// # Errors
    /// For people: why it cannot be kept.
    pub(crate) fn keep(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let n = self.take(bytes)?;
            bytes = &bytes[n..];
        }
        Ok(())
    }

    /// Takes the first ones. Returns how many.
    fn take(&mut self, bytes: &[u8]) -> Result<usize> {
        if let Some(part) = self.parts.get_mut(self.part) {
            if part.left > 0 {
                let n = at_most(part.left, bytes);
                self.spool.append(&bytes[..n])?;
                part.left -= n as u64;
                return Ok(n);
            }
            let n = (SUM - part.sum.len()).min(bytes.len());
            part.sum.extend_from_slice(&bytes[..n]);
            if part.sum.len() == SUM {
                self.part += 1;
            }
            return Ok(n);
        }
        if self.body > 0 {
            let n = at_most(self.body, bytes);
            self.spool.append(&bytes[..n])?;
            self.body -= n as u64;
            return Ok(n);
        }
        let (n, piece) = self.head.take(bytes)?;
        if let Some(piece) = piece {
            self.body = piece.length();
            if self.items.len() as u64 >= MAX_ENTRIES {
                bail!("more than {MAX_ENTRIES} files are too many to be sent together");
            }
            self.items.push((piece, self.spool.length()));
        }
        Ok(n)
    }

    fn is_whole(&self) -> bool {
        self.part == self.parts.len() && self.head.is_empty() && self.body == 0
    }
}

fn at_most(left: u64, bytes: &[u8]) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len())
}

fn check(told: &Going) -> Result<()> {
    let can_be = |part: &PartGoing| {
        part.before <= part.at
            && part.at.checked_add(part.left).is_some()
            && part.waiting.len() <= MOST_WAITING
    };
    let left = told.parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.left));
    let fits = left.is_some_and(|left| left <= told.length);
    if told.parts.len() > PARALLEL || !told.parts.iter().all(can_be) || !fits {
        bail!("the other device says what no files can be; update the older program");
    }
    if told.length > MOST {
        bail!("more than {} GiB are left of them", MOST >> 30);
    }
    told.parts.iter().try_for_each(|part| name::check(&part.name))
}

impl Outbox {
    /// Goes on with files that have stopped elsewhere, of which all that is left is here.
    ///
    /// # Errors
    /// When that is not so, or a stream of theirs is gone.
    pub(crate) fn going_on(told: Going, kept: Kept, connection: &Connection) -> Result<Self> {
        if !kept.is_whole() {
            bail!("the other device has sent less than it said");
        }
        let Kept { spool, parts, items, .. } = kept;
        let file = Arc::new(spool.into_file());
        let streams = connection.streams().into_iter();
        // Those that are not asked for have ended, but for their last acknowledgement.
        let mut streams: HashMap<u64, Stream> = streams.map(|stream| (stream.id(), stream)).collect();
        let whole = streams.remove(&told.stream).context("the connection came without the files' stream")?;
        let left: Result<VecDeque<Item>> = items.into_iter().map(|kept| item(kept, &file)).collect();
        let mut outbox = Self::new(whole.into_split(), told.announced, left?);
        for (part, kept) in told.parts.into_iter().zip(parts) {
            let stream = streams.remove(&part.stream);
            let stream = stream.with_context(|| format!("the connection came without {}", part.name))?;
            let sum: [u8; SUM] =
                kept.sum.try_into().ok().context("the other device said no sum of a file")?;
            let file = file.try_clone().context("cannot read what is here")?;
            let stopped = stopped(part);
            outbox.stopped.push(Outflow::going_on_in(stream, stopped, (file, kept.base), sum));
        }
        let (size, resumed_from, carried) = (told.size, told.resumed_from, told.carried);
        outbox.sent = Sent { size, resumed_from, carried, ..Sent::default() };
        outbox.refused.more = told.refused;
        Ok(outbox)
    }
}

fn item((piece, base): (Piece, u64), file: &Arc<File>) -> Result<Item> {
    let Piece { above, name, kind } = piece;
    let bytes = match kind {
        Kind::Directory => Bytes::None,
        Kind::Whole(size) => Bytes::Kept { file: file.clone(), base, size },
        Kind::Part(_) => bail!("the other device sends what is no file; update the older program"),
    };
    Ok(Item { above, name, bytes })
}

fn stopped(part: PartGoing) -> Stopped {
    let PartGoing { name, before, at, left, chunks, carried, waiting, .. } = part;
    Stopped { name, before, at, left, chunks, carried, waiting }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::FileExt as _;

    use super::*;

    fn part(at: u64, left: u64) -> PartGoing {
        let name = "f".to_owned();
        PartGoing { stream: 1, name, before: 0, at, left, chunks: false, carried: 0, waiting: Vec::new() }
    }

    fn piece(name: &str, kind: Kind) -> Piece {
        Piece { above: vec!["d".to_owned()], name: name.to_owned(), kind }
    }

    #[test]
    fn the_rest_of_each_file_and_those_to_come_are_found_however_they_were_cut() {
        let heads = [piece("e", Kind::Directory), piece("g", Kind::Whole(3)), piece("h", Kind::Whole(0))];
        let [e, g, h] = heads.each_ref().map(|piece| piece.head().unwrap());
        let all = [&b"ab"[..], &[7; SUM], &[8; SUM], b"cde", &[9; SUM], &e, &g, b"xyz", &h].concat();
        for size in 1..all.len() {
            let spool = Spool::of(tempfile::tempfile().unwrap());
            let mut kept = Kept::of(spool, &[part(5, 2), part(5, 0), part(5, 3)]);
            all.chunks(size).for_each(|bytes| kept.keep(bytes).unwrap());
            assert!(kept.is_whole());
            let parts: Vec<_> = kept.parts.iter().map(|part| (part.base, part.sum[0], part.left)).collect();
            assert_eq!(parts, [(0, 7, 0), (2, 8, 0), (2, 9, 0)]);
            let items: Vec<_> = kept.items.iter().map(|(piece, base)| (piece.clone(), *base)).collect();
            let [e, g, h] = heads.clone();
            assert_eq!(items, [(e, 5), (g, 5), (h, 8)]);
            let mut found = [0; 9];
            assert_eq!(kept.spool.into_file().read_at(&mut found, 0).unwrap(), 8);
            assert_eq!(&found[..8], b"abcdexyz");
        }
    }

    #[test]
    fn what_no_files_can_be_or_is_too_much_is_refused_before_a_byte_of_it_is_here() {
        let told = |parts: Vec<PartGoing>, length| Going { parts, length, ..Going::example() };
        check(&told(vec![part(5, 2)], MOST)).unwrap();
        for (wrong, says) in [
            (told(vec![part(5, 2)], 1), "no files can be"),
            (told(vec![part(u64::MAX, 1)], 100), "no files can be"),
            (told(vec![PartGoing { before: 6, ..part(5, 2) }], 100), "no files can be"),
            (
                told(vec![PartGoing { waiting: vec![0; MOST_WAITING + 1], ..part(5, 2) }], 100),
                "no files can be",
            ),
            (told(vec![part(5, 2); PARALLEL + 1], 100), "no files can be"),
            (told(Vec::new(), MOST + 1), "64 GiB"),
            (told(vec![PartGoing { name: "\x1b[2J".to_owned(), ..part(5, 2) }], 100), "control characters"),
        ] {
            let error = check(&wrong).unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
    }
}
