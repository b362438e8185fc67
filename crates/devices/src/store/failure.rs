//! What can go wrong with the file, sorted by what somebody can do about it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use super::FORMAT;
use crate::wire::WireError;

/// Why the group can't be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process has it.
    #[error(
        "another command has {file} for longer than five seconds; try again when it is done",
        file = .0.display()
    )]
    InUse(PathBuf),
    /// It is damaged.
    #[error(
        "{file} is damaged ({detail}), and was left as it is; move it aside, and run `whimbrel devices sync` \
         before you change anything: the group comes back from another device, and so does what this one \
         wrote, which it would write another history of",
        file = .0.display(), detail = .1
    )]
    Damaged(PathBuf, String),
    /// It is of a newer program.
    #[error(
        "{file} has the format {found}, and this program reads {FORMAT}; update it",
        file = .0.display(), found = .1
    )]
    Format(PathBuf, u64),
    /// It is another user's group.
    #[error("{file} is the group of another user; move it aside", file = .0.display())]
    OtherUser(PathBuf),
    /// The disk is full.
    #[error("the disk is full: {file} could not be written; make room and do it again", file = .0.display())]
    DiskFull(PathBuf),
    /// The system refuses.
    #[error("cannot read or write {file}: {detail}", file = .0.display(), detail = .1)]
    Io(PathBuf, String),
}

#[derive(Debug)]
pub(super) enum Failure {
    InUse,
    Damaged(String),
    Format(u64),
    OtherUser,
    Full,
    Io(String),
}

impl Failure {
    pub(super) fn named(self, file: &Path) -> StoreError {
        let file = file.to_owned();
        match self {
            Self::InUse => StoreError::InUse(file),
            Self::Damaged(detail) => StoreError::Damaged(file, detail),
            Self::Format(found) => StoreError::Format(file, found),
            Self::OtherUser => StoreError::OtherUser(file),
            Self::Full => StoreError::DiskFull(file),
            Self::Io(detail) => StoreError::Io(file, detail),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind;
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Self::Full,
            // What redb says of a file that does not begin like one of its own, or ends too early.
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => Self::Damaged(error.to_string()),
            _ => Self::Io(error.to_string()),
        }
    }
}

impl From<WireError> for Failure {
    fn from(error: WireError) -> Self {
        Self::Damaged(error.to_string())
    }
}

impl From<redb::Error> for Failure {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::Io(error) => error.into(),
            redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => Self::InUse,
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => Self::Io(error.to_string()),
            other => Self::Damaged(other.to_string()),
        }
    }
}

macro_rules! from_redb {
    ($($error:ident),*) => {$(
        impl From<redb::$error> for Failure {
            fn from(error: redb::$error) -> Self {
                redb::Error::from(error).into()
            }
        }
    )*};
}

from_redb!(DatabaseError, TransactionError, TableError, StorageError, CommitError);

/// Runs something on the database. redb panics on some damages to its file; to us that is one more damaged
/// file.
pub(super) fn guard<T>(run: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|panic| {
        let told = panic.downcast_ref::<String>().map(String::as_str);
        let detail =
            told.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the database panicked");
        Err(Failure::Damaged(detail.to_owned()))
    })
}
