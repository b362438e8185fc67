//! Makes of a run of bytes what it was.

use std::collections::HashMap;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rustix::fs::Mode;

use super::super::destination::Destination;
use super::super::directory::{Directory, on_its_way};
use super::super::partial::{Locked, Partial};
use super::{Kind, MAX_PIECES, OTHER, Piece, Roots, length_of_head};
use crate::output::bytes;

/// What comes of several files. It is removed when this is dropped, unless it is [to stay](Self::stays).
pub(in crate::transfer) struct Unpack {
    roots: Roots,
    /// What was made, directories before what is in them.
    made: Vec<Piece>,
    reading: Reading,
    /// No file may be larger.
    most: u64,
    stays: bool,
}

/// What comes next.
enum Reading {
    /// A head, of which so much is there.
    Head(Vec<u8>),
    Body(Body),
}

/// A file whose bytes come.
struct Body {
    partial: Partial,
    left: u64,
    whole: bool,
}

impl Unpack {
    /// Nothing has come yet.
    pub(in crate::transfer) fn new(destination: Arc<Destination>, most: u64) -> Self {
        let roots = Roots::new(destination, HashMap::new());
        Self { roots, made: Vec::new(), reading: Reading::Head(Vec::new()), most, stays: false }
    }

    /// Takes the next bytes. Blocks.
    ///
    /// # Errors
    /// For people: why they cannot be kept.
    pub(in crate::transfer) fn take(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            bytes = match std::mem::replace(&mut self.reading, Reading::Head(Vec::new())) {
                Reading::Head(head) => self.take_head(head, bytes)?,
                Reading::Body(body) => self.take_body(body, bytes)?,
            };
        }
        Ok(())
    }

    /// All of it is here and goes on. Returns the names of the directories that are being filled.
    ///
    /// # Errors
    /// When it ends in the middle of something.
    pub(in crate::transfer) fn stays(mut self) -> Result<Vec<String>> {
        match &self.reading {
            Reading::Head(head) if head.is_empty() => {}
            _ => bail!(OTHER),
        }
        self.stays = true;
        Ok(self.roots.filled.drain().map(|(name, _)| name).collect())
    }

    fn take_head<'b>(&mut self, mut head: Vec<u8>, bytes: &'b [u8]) -> Result<&'b [u8]> {
        let n = (length_of_head(&head)? - head.len()).min(bytes.len());
        head.extend_from_slice(&bytes[..n]);
        if head.len() == length_of_head(&head)? {
            self.begin(Piece::of_head(&head)?)?;
        } else {
            self.reading = Reading::Head(head);
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
        if self.made.len() >= MAX_PIECES {
            bail!("the other device has more than {MAX_PIECES} files and directories");
        }
        match piece.kind {
            Kind::Directory => {
                self.make_directory(&piece)?;
                self.made.push(piece);
                Ok(())
            }
            // One that has arrived by itself stays where it is.
            Kind::Whole(_) if piece.above.is_empty() => bail!(OTHER),
            Kind::Whole(_) | Kind::Part(_) => {
                let body = self.open(&piece)?;
                self.made.push(piece);
                self.go_on(body)
            }
        }
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
        let mut partial = Partial::open(&directory, name, false, self.roots.destination.modes.file)?;
        partial.clear().with_context(|| format!("cannot clear what was there of {name}"))?;
        Ok(Body { partial, left, whole: matches!(piece.kind, Kind::Whole(_)) })
    }

    fn directory(&self, above: &[String]) -> Result<Directory> {
        let failed = || format!("cannot look into the directory {}", above.join("/"));
        self.roots.directory(above).with_context(failed)
    }

    fn make_directory(&mut self, piece: &Piece) -> Result<()> {
        let name = &piece.name;
        if !piece.above.is_empty() {
            let above = self.directory(&piece.above)?;
            is_free(&above, name)?;
            above.child(name, Mode::from(0o777), name)?;
            return Ok(());
        }
        let all = &self.roots.destination.directory;
        is_free(all, name)?;
        let part = on_its_way(name);
        if all.entry(&part)?.is_some() {
            let shown = all.shown(&part);
            bail!(
                "{} is there, which another transfer has left; move it away, or say another --dir",
                shown.display()
            );
        }
        let directory = all.child(&part, Mode::from(0o700), name)?;
        directory.make_private()?;
        if !directory.try_lock()? {
            return Err(Locked(name.clone()).into());
        }
        self.roots.filled.insert(name.clone(), directory);
        Ok(())
    }
}

impl Drop for Unpack {
    fn drop(&mut self) {
        if !self.stays {
            self.roots.remove(&self.made);
        }
    }
}

fn is_free(directory: &Directory, name: &str) -> Result<()> {
    if directory.entry(name).context("cannot look into the directory")?.is_some() {
        bail!("{} exists; move it away, or say another --dir", directory.shown(name).display());
    }
    Ok(())
}
