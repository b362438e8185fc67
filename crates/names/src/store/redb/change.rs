//! What is to be done to an entry.

use whimbrel_base::Name;

use crate::store::{Entry, Version};

pub(super) enum Change {
    Put { expected: Option<Version>, entry: Box<Entry> },
    Remove { name: Name, expected: Version },
}

impl Change {
    /// The entry's key.
    pub(super) fn name(&self) -> &Name {
        match self {
            Self::Put { entry, .. } => entry.name(),
            Self::Remove { name, .. } => name,
        }
    }

    /// What must be there before; nothing if `None`.
    pub(super) fn expected(&self) -> Option<Version> {
        match self {
            Self::Put { expected, .. } => *expected,
            Self::Remove { expected, .. } => Some(*expected),
        }
    }
}
