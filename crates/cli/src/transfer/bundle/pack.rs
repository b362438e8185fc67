//! Reads what there is as one run of bytes.

use std::fs::File;
use std::io::{self, Read as _};

use anyhow::{Context as _, Result, bail};
use rustix::fs::FileType;

use super::super::directory::{Directory, on_its_way};
use super::super::message::MAX_DEPTH;
use super::super::name;
use super::{HeadOut, Kind, MAX_PIECES, Piece, Roots};

/// What is on its way, to be read.
pub(in crate::transfer) struct Pack {
    roots: Roots,
    pieces: Vec<Piece>,
    /// What earlier transfers have left in the directories: it does not go along.
    left_over: Vec<Piece>,
    /// The piece that is read next.
    next: usize,
    /// Of the piece that is read now.
    head: HeadOut,
    /// Its bytes, and how many are left.
    file: Option<File>,
    left: u64,
}

impl Pack {
    /// These parts of files, and all that has arrived in the directories. Blocks.
    ///
    /// # Errors
    /// When that is too much, or cannot be read.
    pub(in crate::transfer) fn new(roots: Roots, parts: Vec<Piece>) -> Result<Self> {
        let (mut pieces, mut left_over) = (Vec::new(), Vec::new());
        for (name, directory) in &roots.filled {
            pieces.push(Piece { above: Vec::new(), name: name.clone(), kind: Kind::Directory });
            let mut above = vec![name.clone()];
            let mut found = Found { pieces: &mut pieces, left_over: &mut left_over };
            found.look(directory, &mut above).with_context(|| format!("cannot look into {name}"))?;
        }
        pieces.extend(parts);
        let head = HeadOut::default();
        Ok(Self { roots, pieces, left_over, next: 0, head, file: None, left: 0 })
    }

    /// Bytes that there are to be read.
    ///
    /// # Errors
    /// When a name is too long.
    pub(in crate::transfer) fn length(&self) -> io::Result<u64> {
        self.pieces.iter().try_fold(0_u64, |sum, piece| {
            let length = (piece.head()?.len() as u64).checked_add(piece.length());
            length
                .and_then(|length| sum.checked_add(length))
                .ok_or_else(|| io::Error::other("it is too much"))
        })
    }

    /// Reads the next bytes; 0 at the end, or before it if a file has become shorter. Blocks.
    ///
    /// # Errors
    /// What the system says.
    pub(in crate::transfer) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(n) = self.head.read(into) {
                return Ok(n);
            }
            if let Some(file) = self.file.as_mut().filter(|_| self.left > 0) {
                let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
                let n = file.read(&mut into[..most])?;
                self.left -= n as u64;
                return Ok(n);
            }
            let Some(piece) = self.pieces.get(self.next) else { return Ok(0) };
            (self.head, self.left) = (HeadOut::of(piece)?, piece.length());
            self.file = self.open(piece)?;
            self.next += 1;
        }
    }

    fn open(&self, piece: &Piece) -> io::Result<Option<File>> {
        let name = match piece.kind {
            Kind::Directory => return Ok(None),
            Kind::Whole(_) => piece.name.clone(),
            Kind::Part(_) => on_its_way(&piece.name),
        };
        self.roots.directory(&piece.above)?.file(&name, false).map(Some)
    }

    /// Removes all of it: it is elsewhere. Blocks.
    pub(in crate::transfer) fn remove(&self) {
        self.roots.remove(&self.left_over);
        // Directories stand before what is in them, and go last.
        self.roots.remove(&self.pieces);
    }
}

/// What is found in a directory.
struct Found<'a> {
    pieces: &'a mut Vec<Piece>,
    left_over: &'a mut Vec<Piece>,
}

impl Found<'_> {
    fn look(&mut self, directory: &Directory, above: &mut Vec<String>) -> Result<()> {
        if above.len() > MAX_DEPTH {
            bail!("there are too many directories in one another");
        }
        let too_many = "there are too many files in it";
        for name in directory.names(MAX_PIECES)?.context(too_many)? {
            if self.pieces.len() + self.left_over.len() >= MAX_PIECES {
                bail!(too_many);
            }
            let Some(stat) = directory.entry(&name)? else { continue };
            let kind = FileType::from_raw_mode(stat.st_mode);
            if let Some(name) = name::of_part(&name) {
                let piece = Piece { above: above.clone(), name: name.to_owned(), kind: Kind::Part(0) };
                self.left_over.push(piece);
            } else if name::check(&name).is_err() {
                // No transfer has made this.
            } else if kind.is_dir() {
                let below = directory.existing(&name)?;
                let piece = Piece { above: above.clone(), name: name.clone(), kind: Kind::Directory };
                self.pieces.push(piece);
                above.push(name);
                self.look(&below, above)?;
                above.pop();
            } else if kind.is_file() {
                let size = u64::try_from(stat.st_size).unwrap_or_default();
                self.pieces.push(Piece { above: above.clone(), name, kind: Kind::Whole(size) });
            }
        }
        Ok(())
    }
}
