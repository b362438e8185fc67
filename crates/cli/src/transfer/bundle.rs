//! What there is of several files that come together, as one run of bytes for another device. Each piece is
//! the length of its head (4 bytes, big-endian), the head (postcard), and its bytes; a directory comes before
//! what is in it.

mod head;
mod pack;
mod remains;
mod unpack;

pub(super) use self::head::{HeadIn, HeadOut};
pub(super) use self::pack::Pack;
pub(super) use self::unpack::Unpack;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::batch::MAX_ENTRIES;
use super::destination::Destination;
use super::directory::{Directory, on_its_way};
use super::filling::Mark;
use super::message::MAX_DEPTH;
use super::name;

/// Bytes of the length of a head.
const LENGTH: usize = 4;
const OTHER: &str = "the other device sends what is no file; update the older program";
/// Bytes of a head: the names of the deepest file.
const MAX_HEAD: usize = 16 * 1024;
/// Pieces of one batch: its files, and the directories above them.
const MAX_PIECES: usize = 2 * MAX_ENTRIES as usize;

/// A piece.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Piece {
    /// The directories that lead to it, from the top.
    pub(super) above: Vec<String>,
    pub(super) name: String,
    pub(super) kind: Kind,
}

/// What a piece is, and how many bytes it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    Directory,
    /// A file that has arrived, in a directory that has not.
    Whole(u64),
    /// What has arrived of a file.
    Part(u64),
}

impl Piece {
    /// Bytes behind its head.
    pub(super) fn length(&self) -> u64 {
        match self.kind {
            Kind::Directory => 0,
            Kind::Whole(length) | Kind::Part(length) => length,
        }
    }

    /// What comes before its bytes.
    ///
    /// # Errors
    /// When its names are too long.
    pub(super) fn head(&self) -> io::Result<Vec<u8>> {
        let body = postcard::to_stdvec(self).map_err(io::Error::other)?;
        if body.len() > MAX_HEAD {
            return Err(io::Error::other("its names are too long"));
        }
        Ok([&(body.len() as u32).to_be_bytes()[..], &body].concat())
    }

    /// Reads a whole head.
    ///
    /// # Errors
    /// When it is none, or its names are refused.
    pub(super) fn of_head(head: &[u8]) -> Result<Self> {
        let body = head.get(LENGTH..).context(OTHER)?;
        let (piece, rest) = postcard::take_from_bytes::<Self>(body).ok().context(OTHER)?;
        if !rest.is_empty() {
            bail!(OTHER);
        }
        piece.check()?;
        Ok(piece)
    }

    fn check(&self) -> Result<()> {
        if self.above.len() > MAX_DEPTH {
            bail!("the other device has too many directories in one another");
        }
        self.above.iter().chain([&self.name]).try_for_each(|name| name::check(name))
    }
}

/// Where the pieces are: in the directory that files go to, and in those below it that are being filled.
pub(super) struct Roots {
    destination: Arc<Destination>,
    filled: HashMap<String, Directory>,
}

impl Roots {
    /// The directories that are being filled have these names.
    pub(super) fn new(destination: Arc<Destination>, filled: HashMap<String, Directory>) -> Self {
        Self { destination, filled }
    }

    /// The directory with these names above it.
    fn directory(&self, above: &[String]) -> io::Result<Directory> {
        let Some((top, below)) = above.split_first() else { return Ok(self.destination.directory.clone()) };
        let top = self.filled.get(top).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        below.iter().try_fold(top.clone(), |directory, name| directory.existing(name))
    }

    /// Removes pieces that are elsewhere, or not wanted here. What cannot be removed stays.
    fn remove(&self, pieces: &[Piece]) {
        for piece in pieces.iter().rev() {
            if let Err(error) = self.remove_one(piece) {
                tracing::info!(%error, "what is elsewhere cannot be removed");
            }
        }
    }

    fn remove_one(&self, piece: &Piece) -> io::Result<()> {
        let directory = self.directory(&piece.above)?;
        let part = on_its_way(&piece.name);
        match piece.kind {
            Kind::Directory if piece.above.is_empty() => {
                if let Some(filled) = self.filled.get(&piece.name) {
                    Mark::remove(filled)?;
                }
                directory.remove_directory(&part)
            }
            Kind::Directory => directory.remove_directory(&piece.name),
            Kind::Part(_) => if_there(directory.remove_file(&part)),
            Kind::Whole(_) => {
                if_there(directory.remove_file(&part))?;
                if_there(directory.remove_file(&piece.name))
            }
        }
    }
}

fn if_there(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    fn piece(above: &[&str], name: &str, kind: Kind) -> Piece {
        let above = above.iter().map(|name| (*name).to_owned()).collect();
        Piece { above, name: name.to_owned(), kind }
    }

    /// A directory that is being filled, with a file, a part of one that is to replace another, an empty one,
    /// and a directory in it; and a part of a file beside it.
    fn filled(at: &Path) -> (Roots, Vec<Piece>) {
        let top = at.join(".top.whimbrel-part");
        fs::create_dir_all(top.join("sub/none")).unwrap();
        for (file, bytes) in
            [("a", "abc"), ("sub/b", ""), ("sub/.c.whimbrel-part", "cd"), (".mine", "x"), ("sub/c", "old")]
        {
            fs::write(top.join(file), bytes).unwrap();
        }
        fs::write(at.join(".film.whimbrel-part"), "film").unwrap();
        let parts = vec![piece(&["top", "sub"], "c", Kind::Part(2)), piece(&[], "film", Kind::Part(4))];
        let destination = Arc::new(Destination::open(at, false).unwrap());
        let directory = destination.directory.existing(".top.whimbrel-part").unwrap();
        (Roots::new(destination, [("top".to_owned(), directory)].into()), parts)
    }

    fn read_all(pack: &mut Pack) -> Vec<u8> {
        let (mut all, mut buffer) = (Vec::new(), [0; 7]);
        loop {
            let n = pack.read(&mut buffer).unwrap();
            if n == 0 {
                return all;
            }
            all.extend_from_slice(&buffer[..n]);
        }
    }

    /// Of the batch 1, so many bytes of which come.
    fn unpack(at: &Path, length: u64) -> Unpack {
        Unpack::new(Arc::new(Destination::open(at, false).unwrap()), 100, (1, length))
    }

    fn empty(at: &Path) -> Unpack {
        unpack(at, u64::MAX)
    }

    #[test]
    fn all_that_is_there_comes_out_however_it_is_cut_and_is_removed_where_it_was() {
        let from = tempfile::tempdir().unwrap();
        let (roots, parts) = filled(from.path());
        let mut pack = Pack::new(roots, parts).unwrap();
        let length = pack.length().unwrap();
        let all = read_all(&mut pack);
        assert_eq!(all.len() as u64, length);
        for size in [1, 3, 1000] {
            let to = tempfile::tempdir().unwrap();
            let mut unpack = empty(to.path());
            all.chunks(size).for_each(|bytes| unpack.take(bytes).unwrap());
            let roots = unpack.stays().unwrap();
            assert_eq!(roots.keys().collect::<Vec<_>>(), ["top"]);
            let read = |file: &str| fs::read(to.path().join(file)).unwrap();
            assert_eq!(read(".film.whimbrel-part"), b"film");
            assert_eq!(read(".top.whimbrel-part/a"), b"abc");
            assert_eq!(read(".top.whimbrel-part/sub/b"), b"");
            assert_eq!(read(".top.whimbrel-part/sub/.c.whimbrel-part"), b"cd");
            assert_eq!(read(".top.whimbrel-part/sub/c"), b"old");
            assert!(to.path().join(".top.whimbrel-part/sub/none").is_dir());
            assert!(!to.path().join(".top.whimbrel-part/.mine").exists());
        }
        pack.remove();
        // What is not of the transfer is left, and so is what it is in.
        let left = from.path().join(".top.whimbrel-part");
        assert_eq!(fs::read_dir(from.path()).unwrap().count(), 1);
        assert_eq!(fs::read_dir(&left).unwrap().count(), 1);
        assert_eq!(fs::read(left.join(".mine")).unwrap(), b"x");
    }

    #[test]
    fn what_does_not_stay_leaves_nothing_behind() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (roots, parts) = filled(from.path());
        let all = read_all(&mut Pack::new(roots, parts).unwrap());
        for cut in 0..all.len() {
            let mut unpack = empty(to.path());
            unpack.take(&all[..cut]).unwrap();
            drop(unpack);
            assert_eq!(fs::read_dir(to.path()).unwrap().count(), 0, "{cut}");
        }
    }

    #[test]
    fn what_is_taken_unsafe_or_too_large_is_refused_and_nothing_is_replaced() {
        let to = tempfile::tempdir().unwrap();
        fs::write(to.path().join("taken"), "mine").unwrap();
        fs::create_dir(to.path().join("dir")).unwrap();
        fs::write(to.path().join(".begun.whimbrel-part"), "a file").unwrap();
        let deep = vec!["d"; MAX_DEPTH + 1];
        for (piece, says) in [
            (piece(&[], "taken", Kind::Part(1)), "taken exists"),
            (piece(&[], "dir", Kind::Directory), "dir exists"),
            (piece(&[], "begun", Kind::Directory), "another transfer"),
            (piece(&[], "../f", Kind::Part(1)), "is a path"),
            (piece(&[".."], "f", Kind::Part(1)), "is a path"),
            (piece(&["dir"], "f", Kind::Part(1)), "cannot look"),
            (piece(&[], "loose", Kind::Whole(1)), "update the older"),
            (piece(&[], "large", Kind::Part(101)), "--max-size"),
            (piece(&deep, "f", Kind::Part(1)), "too many directories"),
        ] {
            let error = empty(to.path()).take(&piece.head().unwrap()).unwrap_err();
            let error = crate::failure::line(&error);
            assert!(error.contains(says), "{error}");
        }
        empty(to.path()).take(&[0xff; 8]).unwrap_err();
        empty(to.path()).take(&[0, 0, 0, 1, 0xff]).unwrap_err();
        assert_eq!(fs::read(to.path().join("taken")).unwrap(), b"mine");
        assert_eq!(fs::read_dir(to.path()).unwrap().count(), 3);
    }

    /// A directory that a transfer has left which was killed.
    fn remains(at: &Path, mark: Option<Mark>) -> PathBuf {
        let top = at.join(".top.whimbrel-part");
        fs::create_dir_all(top.join("sub")).unwrap();
        for (file, bytes) in [("a", "old"), ("early", "early"), ("sub/.c.whimbrel-part", "longer")] {
            fs::write(top.join(file), bytes).unwrap();
        }
        if let Some(mark) = mark {
            mark.set(&Directory::open(&top).unwrap()).unwrap();
        }
        top
    }

    fn names(at: &Path) -> Vec<String> {
        let entries = fs::read_dir(at).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn remains_of_the_same_batch_go_on_and_what_is_brought_takes_the_place_of_what_was_there() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (roots, parts) = filled(from.path());
        let all = read_all(&mut Pack::new(roots, parts).unwrap());
        let top = remains(to.path(), Some(Mark::Arrived(1)));
        // One that does not stay leaves what it has found.
        let mut unpack = empty(to.path());
        unpack.take(&all).unwrap();
        drop(unpack);
        assert_eq!(names(to.path()), [".top.whimbrel-part"]);
        let mut unpack = empty(to.path());
        unpack.take(&all).unwrap();
        let roots = unpack.stays().unwrap();
        let read = |file: &str| fs::read(top.join(file)).unwrap();
        assert_eq!((read("a"), read("early")), (b"abc".to_vec(), b"early".to_vec()));
        assert_eq!(read("sub/.c.whimbrel-part"), b"cd");
        assert_eq!(Mark::of(&roots["top"]), Some(Mark::Arrived(1)));
    }

    #[test]
    fn remains_that_are_a_copy_are_removed_and_others_are_set_aside_until_this_one_fails() {
        let head = piece(&[], "top", Kind::Directory).head().unwrap();
        for mark in [None, Some(Mark::Arrived(2)), Some(Mark::Copy(1)), Some(Mark::Copy(2))] {
            let to = tempfile::tempdir().unwrap();
            remains(to.path(), mark);
            let is_copy = matches!(mark, Some(Mark::Copy(_)));
            let mut unpack = empty(to.path());
            unpack.take(&head).unwrap();
            let aside = to.path().join(".top.whimbrel-old1");
            assert_eq!(
                unpack.aside().collect::<Vec<_>>(),
                if is_copy { vec![] } else { vec![aside.clone()] }
            );
            assert_eq!(aside.exists(), !is_copy);
            assert_eq!(names(&to.path().join(".top.whimbrel-part")), [".whimbrel-transfer"]);
            drop(unpack);
            // It was there, and is again.
            assert_eq!(to.path().join(".top.whimbrel-part/early").exists(), !is_copy);
            assert!(!aside.exists());
        }
        // What no transfer has made is kept, whatever the directory says.
        let to = tempfile::tempdir().unwrap();
        fs::write(remains(to.path(), Some(Mark::Copy(1))).join(".mine"), "x").unwrap();
        let mut unpack = empty(to.path());
        unpack.take(&head).unwrap();
        unpack.stays().unwrap();
        assert_eq!(fs::read(to.path().join(".top.whimbrel-old1/.mine")).unwrap(), b"x");
    }

    #[test]
    fn no_more_remains_are_set_aside_than_may_be() {
        let (to, head) = (tempfile::tempdir().unwrap(), piece(&[], "top", Kind::Directory).head().unwrap());
        for _ in 0..9 {
            remains(to.path(), None);
            let mut unpack = empty(to.path());
            unpack.take(&head).unwrap();
            unpack.stays().unwrap();
            // It is a program of before that had this one.
            Mark::remove(&Directory::open(&to.path().join(".top.whimbrel-part")).unwrap()).unwrap();
        }
        let error = empty(to.path()).take(&head).unwrap_err().to_string();
        assert!(error.contains(".top.whimbrel-old1") && error.contains("remove them"), "{error}");
        assert!(to.path().join(".top.whimbrel-part").exists());
    }

    #[test]
    fn what_is_fetched_says_that_it_is_a_copy_until_all_of_it_is_there_and_is_locked_meanwhile() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (roots, parts) = filled(from.path());
        let all = read_all(&mut Pack::new(roots, parts).unwrap());
        let (last, before) = all.split_last().unwrap();
        let mut first = unpack(to.path(), all.len() as u64);
        first.take(before).unwrap();
        let top = Directory::open(&to.path().join(".top.whimbrel-part")).unwrap();
        assert_eq!(Mark::of(&top), Some(Mark::Copy(1)));
        let error = empty(to.path()).take(&piece(&[], "top", Kind::Directory).head().unwrap()).unwrap_err();
        assert!(error.to_string().contains("received already"), "{error}");
        first.take(&[*last]).unwrap();
        assert_eq!(Mark::of(&top), Some(Mark::Arrived(1)));
        let roots = first.stays().unwrap();
        empty(to.path()).take(&piece(&[], "top", Kind::Directory).head().unwrap()).unwrap_err();
        drop(roots);
        drop(empty(to.path()));
        assert_eq!(names(to.path()), [".film.whimbrel-part", ".top.whimbrel-part"]);
    }
}
