//! Who may look a record up.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize};
use whimbrel_base::{EndpointId, Name};

/// The most readers that a record names.
pub const MAX_READERS: usize = 32;

/// Who may look a record up and watch it, beside its owner and the user whose device it is. To everybody else
/// the name service answers as if there were no such name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Readers {
    /// Everybody.
    #[default]
    Public,
    /// These: at most [`MAX_READERS`]. May be empty.
    Only(#[serde(deserialize_with = "bounded")] Vec<Reader>),
}

/// Somebody who may look a record up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Reader {
    /// The holder of this key.
    Key(EndpointId),
    /// The owner of this user name, and the keys that have a living record for one of that user's devices or
    /// services. A key that publishes nothing is not known as a device: name it by its id.
    User(Name),
}

impl Readers {
    /// Whether it has no more entries than a request may have.
    pub(crate) fn is_bounded(&self) -> bool {
        match self {
            Self::Public => true,
            Self::Only(readers) => readers.len() <= MAX_READERS,
        }
    }
}

fn bounded<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Reader>, D::Error> {
    struct Bounded;

    impl<'de> serde::de::Visitor<'de> for Bounded {
        type Value = Vec<Reader>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "at most {MAX_READERS} readers")
        }

        fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Reader>, A::Error> {
            let mut readers = Vec::new();
            while let Some(reader) = seq.next_element()? {
                if readers.len() == MAX_READERS {
                    return Err(serde::de::Error::invalid_length(readers.len() + 1, &self));
                }
                readers.push(reader);
            }
            Ok(readers)
        }
    }

    deserializer.deserialize_seq(Bounded)
}
