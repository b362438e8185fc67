//! A directory that is being filled: hidden, private and locked until it is whole and gets its name. It says
//! of itself what is in it, for a program that finds it after this one was killed.

use std::io::{self, Read as _, Write as _};

use anyhow::Result;
use rustix::fs::Mode;

use super::directory::{Directory, on_its_way};
use super::partial::Locked;

/// The file in which it says that. No name that is taken begins with a dot.
const MARK: &str = ".whimbrel-transfer";
/// Bytes that are read of it: it has fewer.
const LONGEST: u64 = 64;

/// Opens the directory that gets this name once it is whole, makes it if it is not there, and locks it.
///
/// # Errors
/// [`Locked`] when another transfer has it.
pub(super) fn open(all: &Directory, name: &str) -> Result<Directory> {
    let part = on_its_way(name);
    let directory = all.child(&part, Mode::from(0o700), name)?;
    directory.make_private()?;
    // The process that had it may have given it its name, or moved it aside, before the lock was free.
    if !directory.try_lock()? || !all.is(&part, &directory.stat()?)? {
        return Err(Locked(name.to_owned()).into());
    }
    Ok(directory)
}

/// What is in a directory that is being filled. One that says nothing was filled by a program of before, or
/// from its sender alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mark {
    /// Something of the batch with this id, all of which the device that it is fetched from has kept.
    Copy(u64),
    /// What has arrived of the batch with this id.
    Arrived(u64),
}

impl Mark {
    /// What a directory says.
    pub(super) fn of(directory: &Directory) -> Option<Self> {
        let (file, mut text) = (directory.file(MARK, false).ok()?, String::new());
        file.take(LONGEST).read_to_string(&mut text).ok()?;
        let (kind, id) = text.strip_suffix('\n')?.split_once(' ')?;
        let id = u64::from_str_radix(id, 16).ok()?;
        match kind {
            "copy" => Some(Self::Copy(id)),
            "arrived" => Some(Self::Arrived(id)),
            _ => None,
        }
    }

    /// Has a directory say this from now on, also after a crash.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn set(self, directory: &Directory) -> io::Result<()> {
        let text = match self {
            Self::Copy(id) => format!("copy {id:x}\n"),
            Self::Arrived(id) => format!("arrived {id:x}\n"),
        };
        let mut file = directory.file(MARK, true)?;
        // Cut short it says nothing, which is always safe.
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    }

    /// Has a directory say nothing any more.
    ///
    /// # Errors
    /// What the system says.
    pub(super) fn remove(directory: &Directory) -> io::Result<()> {
        match directory.remove_file(MARK) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn one_at_a_time_fills_a_directory_and_who_has_one_that_got_its_name_has_nothing() {
        let at = tempfile::tempdir().unwrap();
        let all = Directory::open(at.path()).unwrap();
        let first = open(&all, "d").unwrap();
        assert!(open(&all, "d").unwrap_err().is::<Locked>());
        all.rename_new(".d.whimbrel-part", "d").unwrap();
        let second = open(&all, "d").unwrap();
        drop(first);
        assert!(open(&all, "d").unwrap_err().is::<Locked>(), "the second one has a directory of its own");
        drop(second);
        open(&all, "d").unwrap();
    }

    #[test]
    fn what_a_directory_says_is_heard_and_what_makes_no_sense_is_not() {
        let at = tempfile::tempdir().unwrap();
        let directory = Directory::open(at.path()).unwrap();
        assert_eq!(Mark::of(&directory), None);
        for mark in [Mark::Copy(0), Mark::Arrived(u64::MAX), Mark::Copy(0x1234)] {
            mark.set(&directory).unwrap();
            assert_eq!(Mark::of(&directory), Some(mark));
        }
        for wrong in ["", "copy", "copy 12", "copy x\n", "copy 11111111111111111\n", "other 1\n"] {
            fs::write(at.path().join(MARK), wrong).unwrap();
            assert_eq!(Mark::of(&directory), None, "{wrong:?}");
        }
        Mark::remove(&directory).unwrap();
        Mark::remove(&directory).unwrap();
        assert_eq!(fs::read_dir(at.path()).unwrap().count(), 0);
    }
}
