//! The number of a connection.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::random;

/// Identifies a connection at both of its ends, for as long as it lives and over every path it takes.
///
/// 128 random bits: two never meet, and nobody guesses one. It is an identifier all the same and no proof of
/// anything; a path joins by proving the connection's secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ConnectionId([u8; 16]);

impl ConnectionId {
    /// A new id from the operating system's randomness.
    ///
    /// # Panics
    /// When the operating system has no randomness to give (on a booted system it always has).
    pub fn random() -> Self {
        Self(random::array())
    }

    /// The id with these bytes.
    pub const fn from_bytes(bytes: &[u8; 16]) -> Self {
        Self(*bytes)
    }

    /// The id's bytes, as they are on the wire.
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ConnectionId({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_every_digit() {
        let mut bytes = [0; 16];
        bytes[1] = 0xab;
        bytes[15] = 1;
        let id = ConnectionId::from_bytes(&bytes);
        assert_eq!(id.to_string(), "00ab0000000000000000000000000001");
        assert_eq!(id.as_bytes(), &bytes);
    }

    #[test]
    fn random_ids_differ() {
        assert_ne!(ConnectionId::random(), ConnectionId::random());
    }
}
