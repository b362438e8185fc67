//! Handover modes and priorities [mptcp-handover §2]: what both sides agree on about the use of paths.

use std::fmt;
use std::str::FromStr;

use crate::error::DecodeError;
use crate::ids::Side;
use crate::varint;

/// How a connection uses its paths.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HandoverMode {
    /// All paths carry data.
    Full,
    /// One path carries data; the others are open, and take over when it fails.
    Backup,
    /// One path at any moment; a new one replaces it.
    #[default]
    Single,
}

impl HandoverMode {
    /// Its name, as in settings and on command lines.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Backup => "backup",
            Self::Single => "single",
        }
    }

    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Full => 0,
            Self::Backup => 1,
            Self::Single => 2,
        }
    }

    pub(crate) fn from_code(code: u64) -> Result<Self, DecodeError> {
        [Self::Full, Self::Backup, Self::Single]
            .into_iter()
            .find(|mode| mode.code() == code)
            .ok_or(DecodeError::Invalid("handover mode"))
    }
}

impl fmt::Display for HandoverMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that no handover mode has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no handover mode {0:?}: try full, backup or single")]
pub struct UnknownMode(String);

impl FromStr for HandoverMode {
    type Err = UnknownMode;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = [Self::Full, Self::Backup, Self::Single].into_iter().find(|mode| mode.name() == name);
        found.ok_or_else(|| UnknownMode(name.to_owned()))
    }
}

/// Whether a path, or the paths to an address, should carry data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Priority {
    /// They do.
    #[default]
    Normal,
    /// Only when no normal path works.
    Backup,
}

impl Priority {
    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Normal => 0,
            Self::Backup => 1,
        }
    }

    pub(crate) fn from_code(code: u64) -> Result<Self, DecodeError> {
        match code {
            0 => Ok(Self::Normal),
            1 => Ok(Self::Backup),
            _ => Err(DecodeError::Invalid("priority")),
        }
    }
}

/// Something that either side may state, and on which both agree in the end: the highest sequence number
/// counts, the client's word if both are equal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Agreed<T> {
    pub(crate) value: T,
    pub(crate) sequence: u64,
    by: Side,
}

impl<T: Copy + PartialEq> Agreed<T> {
    /// What holds while nobody has said anything.
    pub(crate) fn unsaid(value: T) -> Self {
        Self { value, sequence: 0, by: Side::Server }
    }

    /// What `by` stated with this sequence number.
    pub(crate) fn stated(value: T, sequence: u64, by: Side) -> Self {
        Self { value, sequence, by }
    }

    /// `side` states a value anew.
    pub(crate) fn state(&mut self, value: T, side: Side) {
        *self = Self { value, sequence: (self.sequence + 1).min(varint::MAX), by: side };
    }

    /// `peer` stated a value. True if it is the one that counts, and differs from what counted before.
    pub(crate) fn hear(&mut self, value: T, sequence: u64, peer: Side) -> bool {
        let newer = sequence > self.sequence
            || (sequence == self.sequence && peer == Side::Client && self.by == Side::Server && sequence > 0);
        if !newer {
            return false;
        }
        let differs = value != self.value;
        *self = Self { value, sequence, by: peer };
        differs
    }

    /// The word that counts is `side`'s own.
    pub(crate) fn is_by(&self, side: Side) -> bool {
        self.sequence > 0 && self.by == side
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_read_by_its_name_and_by_no_other() {
        for mode in [HandoverMode::Full, HandoverMode::Backup, HandoverMode::Single] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for name in ["", "Full", "singl", "backup "] {
            assert_eq!(name.parse::<HandoverMode>(), Err(UnknownMode(name.to_owned())));
        }
    }

    #[test]
    fn both_sides_agree_in_whatever_order_they_hear() {
        let (mut client, mut server) = (Agreed::unsaid(0), Agreed::unsaid(0));
        client.state(1, Side::Client);
        server.state(2, Side::Server);
        let (said_by_client, said_by_server) = (client, server);
        client.hear(said_by_server.value, said_by_server.sequence, Side::Server);
        server.hear(said_by_client.value, said_by_client.sequence, Side::Client);
        assert_eq!((client.value, server.value), (1, 1));
        server.state(3, Side::Server);
        assert!(client.hear(3, server.sequence, Side::Server));
        // An older word that comes late changes nothing.
        assert!(!server.hear(1, 1, Side::Client));
        assert_eq!((client.value, server.value), (3, 3));
    }
}
