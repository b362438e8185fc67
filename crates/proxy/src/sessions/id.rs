//! What a session is called.

use std::fmt;
use std::str::FromStr;
use whimbrel_base::random_bytes;

/// Names one session at its gateway. Nobody can guess it, and nobody gains a right by knowing it: a gateway
/// asks which key a connection has.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId([u8; SessionId::LENGTH]);

/// Why a text is no session's id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a session's id is 32 digits of 0-9 and a-f")]
pub struct BadSessionId;

impl SessionId {
    /// Of an id, in bytes.
    pub(super) const LENGTH: usize = 16;

    /// A new one, of 128 random bits.
    ///
    /// # Panics
    /// When the system has no randomness.
    pub fn fresh() -> Self {
        Self(random_bytes())
    }

    /// One that came as bytes.
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// As bytes.
    pub const fn to_bytes(self) -> [u8; Self::LENGTH] {
        self.0
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for SessionId {
    type Err = BadSessionId;

    fn from_str(text: &str) -> Result<Self, BadSessionId> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() != 2 * Self::LENGTH || !text.bytes().all(is_digit) {
            return Err(BadSessionId);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| BadSessionId)?;
        Ok(Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_id_is_written_and_read_in_one_form() {
        let id = SessionId::fresh();
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_ne!(id, SessionId::fresh());
        let text = "000102030405060708090a0b0c0d0e0f";
        assert_eq!(text.parse::<SessionId>().unwrap().to_string(), text);
        for other in ["", "00", &text.to_uppercase(), &format!("{text}0"), &text.replace("00", "+0"), "é"] {
            assert_eq!(other.parse::<SessionId>(), Err(BadSessionId), "{other}");
        }
    }
}
