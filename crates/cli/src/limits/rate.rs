//! A rate as people write it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use whimbrel_transport::RateLimit;

/// What may be sent. Written `2Mbit` (a second; 500kbit, 1.5Gbit), in JSON a number of bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate(RateLimit);

impl Rate {
    pub(super) fn limit(self) -> RateLimit {
        self.0
    }

    pub(super) fn bytes(self) -> u64 {
        self.0.bytes_per_second()
    }

    fn of_bytes(bytes: u64) -> Result<Self, String> {
        RateLimit::new(bytes).map(Self).ok_or_else(|| {
            let least = RateLimit::LEAST.bytes_per_second().div_ceil(125);
            format!("a limit is at least {least}kbit, and at most 8796Gbit")
        })
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write it as a number and kbit, Mbit or Gbit, as in 2Mbit".to_owned();
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic() || c == '/').trim_end();
        let unit = text[digits.len()..].trim_start().to_ascii_lowercase();
        let bytes = match unit.trim_end_matches("/s") {
            "kbit" => 125.0,
            "mbit" => 125e3,
            "gbit" => 125e6,
            _ => return Err(wrong()),
        };
        if !digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(wrong());
        }
        let number: f64 = digits.parse().map_err(|_| wrong())?;
        // What is too large for the type is too large for a limit.
        Self::of_bytes((number * bytes) as u64)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bytes() as f64 * 8.0;
        let (number, unit) = match bits {
            ..1e6 => (bits / 1e3, "kbit"),
            ..1e9 => (bits / 1e6, "Mbit"),
            _ => (bits / 1e9, "Gbit"),
        };
        write!(f, "{} {unit}/s", (number * 100.0).round() / 100.0)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.bytes())
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Written {
            Bytes(u64),
            Words(String),
        }
        let rate = match Written::deserialize(deserializer)? {
            Written::Bytes(bytes) => Self::of_bytes(bytes),
            Written::Words(words) => words.parse(),
        };
        rate.map_err(serde::de::Error::custom)
    }
}

/// What a limit is set to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Setting {
    Off,
    To(Rate),
}

impl FromStr for Setting {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "off" => Ok(Self::Off),
            text => text.parse().map(Self::To).map_err(|error| format!("{error}; or off")),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rates_are_read_and_said_in_bits() {
        for (text, bytes, said) in [
            ("2Mbit", 250_000, "2 Mbit/s"),
            ("500kbit", 62_500, "500 kbit/s"),
            ("1.5 Gbit/s", 187_500_000, "1.5 Gbit/s"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.bytes(), rate.to_string().as_str()), (bytes, said));
            assert_eq!(serde_json::from_str::<Rate>(&bytes.to_string()).unwrap(), rate);
        }
        for wrong in
            ["", "2", "Mbit", "2MB", "-2Mbit", "1e3kbit", "nanMbit", "0Mbit", "10kbit", "99999Gbit", "2é"]
        {
            assert!(wrong.parse::<Rate>().is_err(), "{wrong}");
        }
        assert_eq!("off".parse(), Ok(Setting::Off));
    }
}
