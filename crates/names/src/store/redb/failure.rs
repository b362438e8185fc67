//! What can go wrong in the file, sorted by what somebody can do about it.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use crate::store::StoreError;

/// A failure, before it is known which file it is about.
#[derive(Debug)]
pub(super) enum Failure {
    Conflict,
    Locked,
    Corrupt(String),
    Format { found: u64, expected: u64 },
    Full,
    Io(String),
}

impl Failure {
    pub(super) fn io(error: &io::Error) -> Self {
        use io::ErrorKind;
        match error.kind() {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => Self::Full,
            // What redb says of a file that does not begin like one of its own, or ends too early.
            ErrorKind::InvalidData | ErrorKind::UnexpectedEof => Self::Corrupt(error.to_string()),
            _ => Self::Io(error.to_string()),
        }
    }

    /// Whether the open file is of no more use.
    pub(super) fn closes(&self) -> bool {
        matches!(self, Self::Full | Self::Io(_) | Self::Corrupt(_))
    }

    pub(super) fn named(self, file: &Path) -> StoreError {
        let file = file.to_owned();
        match self {
            Self::Conflict => StoreError::Conflict,
            Self::Locked => StoreError::Locked { file },
            Self::Corrupt(detail) => StoreError::Corrupt { file, detail },
            Self::Format { found, expected } => StoreError::Format { file, found, expected },
            Self::Full => StoreError::Full { file },
            Self::Io(detail) => StoreError::Io { file, detail },
        }
    }
}

impl From<redb::Error> for Failure {
    fn from(error: redb::Error) -> Self {
        match error {
            redb::Error::Io(error) => Self::io(&error),
            redb::Error::DatabaseAlreadyOpen | redb::Error::LockProtocolMismatch => Self::Locked,
            redb::Error::PreviousIo | redb::Error::DatabaseClosed => Self::Io(error.to_string()),
            other => Self::Corrupt(other.to_string()),
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
        let detail = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("the database panicked");
        Err(Failure::Corrupt(detail.to_owned()))
    })
}
