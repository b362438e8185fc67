//! Why a batch is not kept for the devices of a user, or none are handed out.

/// Why the name service neither keeps a batch nor hands any out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BatchRefusal {
    /// It is empty or too large.
    #[error("a batch for the user's devices has 1 to 12288 bytes, and this one has {0}; leave several")]
    Size(usize),
    /// The key has no user name here.
    #[error("batches are kept for users who are registered here; register a user name with this key first")]
    NoUser,
    /// The service keeps as many as it can.
    #[error("this name service has no room for batches now; try again tomorrow, and tell its operator")]
    Full,
}
