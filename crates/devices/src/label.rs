//! Personal names: what a user calls a friend or a device.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use whimbrel_base::name::MAX_LABEL_BYTES;

/// A personal name: 1 to 63 of `a-z`, `0-9` and `-`, with no `-` first or last. Upper case is folded to lower
/// case.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(Box<str>);

impl Label {
    /// The name's text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The same name with a number behind it, shortened to fit.
    pub(crate) fn numbered(&self, number: usize) -> Self {
        let suffix = format!("-{number}");
        let room = MAX_LABEL_BYTES - suffix.len();
        let stem = self.0.get(..room).unwrap_or(&self.0).trim_end_matches('-');
        Self(format!("{stem}{suffix}").into())
    }
}

/// Why a text is no personal name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a personal name is 1 to 63 of a-z, 0-9 and '-', with no '-' first or last, as in annas-phone")]
pub struct LabelError;

impl FromStr for Label {
    type Err = LabelError;

    fn from_str(text: &str) -> Result<Self, LabelError> {
        let fits = (1..=MAX_LABEL_BYTES).contains(&text.len());
        let plain = text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
        if !fits || !plain || text.starts_with('-') || text.ends_with('-') {
            return Err(LabelError);
        }
        Ok(Self(text.to_ascii_lowercase().into()))
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Label({})", self.0)
    }
}

impl Serialize for Label {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for Label {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_what_fits_everywhere_is_a_personal_name() {
        assert_eq!("Annas-Phone".parse::<Label>().unwrap().as_str(), "annas-phone");
        for bad in ["", "-a", "a-", "a b", "a@b", "a.b", "ä", &"a".repeat(64), "a\u{1b}[2J"] {
            assert_eq!(bad.parse::<Label>(), Err(LabelError), "{bad:?}");
        }
        let long: Label = "a".repeat(63).parse().unwrap();
        assert_eq!(long.numbered(10).as_str(), format!("{}-10", "a".repeat(60)));
        assert!(long.numbered(10).as_str().parse::<Label>().is_ok());
    }
}
