//! Makes of a run of bytes what it was.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rustix::fs::Mode;

use super::super::destination::Destination;
use super::super::directory::{Directory, on_its_way};
use super::super::filling::{self, Mark};
use super::super::partial::{Locked, Partial};
use super::remains::{Remains, settle};
use super::{HeadIn, Kind, MAX_PIECES, OTHER, Piece, Roots};
use crate::output::bytes;

/// What comes of several files. It is removed when this is dropped, unless it is [to stay](Self::stays).
pub(in crate::transfer) struct Unpack {
    roots: Roots,
    /// What was made, directories before what is in them.
    made: Vec<Piece>,
    /// Directories of the same batch that were there before. What is in them stays in any case.
    found: HashSet<String>,
    /// Directories of other transfers, by their names, and what they are called now.
    aside: Vec<(String, String)>,
    /// Pieces that have come.
    pieces: usize,
    reading: Reading,
    /// The batch.
    id: u64,
    /// Bytes that are still to come.
    left: u64,
    /// No file may be larger.
    most: u64,
    stays: bool,
}

/// What comes next.
enum Reading {
    Head(HeadIn),
    Body(Body),
}

/// A file whose bytes come.
struct Body {
    partial: Partial,
    left: u64,
    whole: bool,
}

impl Unpack {
    /// Nothing has come yet of the batch with this id, of which so many bytes are to come.
    pub(in crate::transfer) fn new(destination: Arc<Destination>, most: u64, (id, left): (u64, u64)) -> Self {
        Self {
            roots: Roots::new(destination, HashMap::new()),
            made: Vec::new(),
            found: HashSet::new(),
            aside: Vec::new(),
            pieces: 0,
            reading: Reading::Head(HeadIn::default()),
            id,
            left,
            most,
            stays: false,
        }
    }

    /// Where directories of other transfers are that had to make room.
    pub(in crate::transfer) fn aside(&self) -> impl Iterator<Item = PathBuf> {
        self.aside.iter().map(move |(_, aside)| self.roots.destination.directory.shown(aside))
    }

    /// Takes the next bytes. Blocks.
    ///
    /// # Errors
    /// For people: why they cannot be kept.
    pub(in crate::transfer) fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        self.left = self.left.checked_sub(bytes.len() as u64).context(OTHER)?;
        while !bytes.is_empty() {
            bytes = match std::mem::replace(&mut self.reading, Reading::Head(HeadIn::default())) {
                Reading::Head(head) => self.take_head(head, bytes)?,
                Reading::Body(body) => self.take_body(body, bytes)?,
            };
        }
        if self.left == 0 { self.all_is_here() } else { Ok(()) }
    }

    /// From now on the other device may forget it.
    fn all_is_here(&self) -> Result<()> {
        let mark = |directory| Mark::Arrived(self.id).set(directory);
        self.roots.filled.values().try_for_each(mark).context("cannot write into the directory")
    }

    /// All of it is here and goes on. Returns the directories that are being filled, by their names; each is
    /// locked until it is dropped.
    ///
    /// # Errors
    /// When it ends in the middle of something.
    pub(in crate::transfer) fn stays(mut self) -> Result<HashMap<String, Directory>> {
        match &self.reading {
            Reading::Head(head) if head.is_empty() => {}
            _ => bail!(OTHER),
        }
        self.stays = true;
        Ok(std::mem::take(&mut self.roots.filled))
    }

    fn take_head<'b>(&mut self, mut head: HeadIn, bytes: &'b [u8]) -> Result<&'b [u8]> {
        let (n, piece) = head.take(bytes)?;
        match piece {
            Some(piece) => self.begin(piece)?,
            None => self.reading = Reading::Head(head),
        }
        Ok(&bytes[n..])
    }

    fn take_body<'b>(&mut self, mut body: Body, bytes: &'b [u8]) -> Result<&'b [u8]> {
        let n = usize::try_from(body.left).unwrap_or(usize::MAX).min(bytes.len());
        body.partial.write(&bytes[..n])?;
        body.left -= n as u64;
        self.go_on(body)?;
        Ok(&bytes[n..])
    }

    fn go_on(&mut self, body: Body) -> Result<()> {
        if body.left > 0 {
            self.reading = Reading::Body(body);
        } else if body.whole {
            body.partial.finish()?;
        }
        Ok(())
    }

    fn begin(&mut self, piece: Piece) -> Result<()> {
        if self.pieces >= MAX_PIECES {
            bail!("the other device has more than {MAX_PIECES} files and directories");
        }
        self.pieces += 1;
        match piece.kind {
            Kind::Directory if piece.above.is_empty() => self.make_root(piece),
            Kind::Directory => {
                self.make_directory(&piece)?;
                self.note(piece);
                Ok(())
            }
            // One that has arrived by itself stays where it is.
            Kind::Whole(_) if piece.above.is_empty() => bail!(OTHER),
            Kind::Whole(_) | Kind::Part(_) => {
                let body = self.open(&piece)?;
                self.note(piece);
                self.go_on(body)
            }
        }
    }

    /// Notes what is to be removed if it does not stay.
    fn note(&mut self, piece: Piece) {
        if !self.was_found(&piece) {
            self.made.push(piece);
        }
    }

    /// Whether it is in a directory that was there before.
    fn was_found(&self, piece: &Piece) -> bool {
        piece.above.first().is_some_and(|top| self.found.contains(top))
    }

    fn open(&self, piece: &Piece) -> Result<Body> {
        let (name, left) = (&piece.name, piece.length());
        if left > self.most {
            bail!("{name} has more than the {} that are taken of a file (--max-size)", bytes(self.most));
        }
        let directory = self.directory(&piece.above)?;
        // In a directory that is being filled all is of this transfer: a part may replace what is whole.
        if piece.above.is_empty() {
            is_free(&directory, name)?;
        }
        let replace = !piece.above.is_empty();
        let mut partial = Partial::open(&directory, name, replace, self.roots.destination.modes.file)?;
        partial.clear().with_context(|| format!("cannot clear what was there of {name}"))?;
        Ok(Body { partial, left, whole: matches!(piece.kind, Kind::Whole(_)) })
    }

    fn directory(&self, above: &[String]) -> Result<Directory> {
        let failed = || format!("cannot look into the directory {}", above.join("/"));
        self.roots.directory(above).with_context(failed)
    }

    fn make_directory(&self, piece: &Piece) -> Result<()> {
        let (above, name) = (self.directory(&piece.above)?, &piece.name);
        if !self.was_found(piece) {
            is_free(&above, name)?;
        }
        above.child(name, Mode::from(0o777), name)?;
        Ok(())
    }

    /// Makes a directory of the one that files go to, and makes room for it.
    fn make_root(&mut self, piece: Piece) -> Result<()> {
        let (destination, name) = (self.roots.destination.clone(), piece.name.clone());
        let all = &destination.directory;
        is_free(all, &name)?;
        if self.roots.filled.contains_key(&name) {
            bail!(OTHER);
        }
        if all.entry(&on_its_way(&name)).context("cannot look into the directory")?.is_some() {
            match settle(&destination, &name, self.id)? {
                Remains::Same(directory) => {
                    self.roots.filled.insert(name.clone(), directory);
                    self.found.insert(name);
                    return Ok(());
                }
                Remains::Removed => {}
                Remains::Aside(aside) => self.aside.push((name.clone(), aside)),
            }
        }
        let directory = filling::open(all, &name)?;
        // Another program may have made it just now, and have let go of it: what is in it is no copy.
        if directory.names(0).context("cannot look into the directory")?.is_none() {
            return Err(Locked(name).into());
        }
        self.roots.filled.insert(name, directory.clone());
        self.made.push(piece);
        Mark::Copy(self.id).set(&directory).context("cannot write into the directory")
    }

    /// Gives a directory that had to make room its name again.
    fn put_back(&self) {
        let all = &self.roots.destination.directory;
        for (name, aside) in &self.aside {
            if let Err(error) = all.rename_new(aside, &on_its_way(name)) {
                tracing::info!(%error, "what had to make room stays aside");
            }
        }
    }
}

impl Drop for Unpack {
    fn drop(&mut self) {
        if !self.stays {
            self.roots.remove(&self.made);
            self.put_back();
        }
    }
}

fn is_free(directory: &Directory, name: &str) -> Result<()> {
    if directory.entry(name).context("cannot look into the directory")?.is_some() {
        bail!("{} exists; move it away, or say another --dir", directory.shown(name).display());
    }
    Ok(())
}
