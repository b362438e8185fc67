//! What can go wrong in the file, sorted by what somebody can do about it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::durable::error::StateError;

/// The format of the file, raised when older programs can no longer read it.
pub(super) const FORMAT: u64 = 1;

/// A failure, before it is known which file it is about.
#[derive(Debug)]
pub(in crate::durable) enum Failure {
    InUse,
    Damaged(String),
    Format(u64),
    Full,
    Io(String),
}

impl Failure {
    pub(super) fn named(self, file: &Path) -> StateError {
        let file = file.to_owned();
        match self {
            Self::InUse => StateError::InUse { file },
            Self::Damaged(detail) => StateError::Damaged { file, detail },
            Self::Format(found) => StateError::Format { file, found, expected: FORMAT },
            Self::Full => StateError::DiskFull { file },
            Self::Io(detail) => StateError::Io { file, detail },
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
