//! What people are to be told.

use std::fmt;

use whimbrel_base::ConnectionId;

/// What people may want to know of who chooses the networks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum News {
    /// No manager answers: connections go on by their own policy, until one does. Told once.
    Alone {
        /// Why, in words.
        why: String,
    },
    /// The manager refuses the question: connections use their own policy. Told once.
    Refused {
        /// Why, in words.
        why: String,
    },
    /// Somebody set this connection's policy otherwise, and it stays so.
    SetOtherwise {
        /// Which.
        connection: ConnectionId,
    },
}

impl fmt::Display for News {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Alone { why } => write!(f, "connections choose their networks themselves: {why}"),
            Self::Refused { why } => {
                write!(f, "connections choose their networks themselves, since the manager refuses: {why}")
            }
            Self::SetOtherwise { connection } => {
                write!(
                    f,
                    "the policy of connection {connection} was set, and the manager is asked for it no more"
                )
            }
        }
    }
}
