//! Intents: what an application knows about its traffic and prefers for it (Socket Intents, Table I).
//!
//! They are hints, never requirements, but for one: `no-expense` is obeyed by every policy. The enumerations
//! are those of draft-tiesel-taps-socketintents. What each intent changes is in `docs/access.md`.
//!
//! | intent | values | TAPS property (RFC 9622) |
//! |---|---|---|
//! | traffic category | `query` `control` `stream` `bulk` `mixed` | `connCapacityProfile`: `query`/`control` ↔ `low-latency-interactive`, `stream` ↔ `constant-rate-streaming`, `bulk` ↔ `capacity-seeking`, `mixed` ↔ `default` |
//! | size to be sent | bytes | none (the length of the Message) |
//! | size to be received | bytes | none |
//! | duration | milliseconds | none (`msgLifetime` limits a Message, it does not foretell) |
//! | bitrate sent | bytes/s | `minSendRate`, `maxSendRate` (bits/s) are bounds, this is an expectation |
//! | bitrate received | bytes/s | `minRecvRate`, `maxRecvRate` (bits/s), likewise |
//! | burstiness | `no-bursts` `regular-bursts` `random-bursts` `bulk` | none |
//! | timeliness | `stream` `interactive` `transfer` `background` | `connCapacityProfile`: `interactive` ↔ `low-latency-interactive`, `stream` ↔ `low-latency-non-interactive`, `transfer` ↔ `capacity-seeking`, `background` ↔ `scavenger` |
//! | disruption resilience | `sensitive` `recoverable` `resilient` | `multipath` with `multipathPolicy`: `sensitive` ↔ `active` + `handover`; the others leave it `disabled` or `passive` |
//! | cost preference | `no-expense` `optimise` `balance` `ignore` | `interface` on metered paths: `no-expense` ↔ Prohibit, `optimise` ↔ Avoid, `balance` ↔ No Preference, `ignore` ↔ No Preference |
//!
//! In text they are `key=value` pairs parted by spaces or commas; in TOML and JSON a table with the same
//! keys.

mod values;

use crate::Granularity;
use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};
use values::Value;
pub use values::{Burstiness, Category, Cost, Resilience, Timeliness};

/// Makes the keys, the structure of intents, and what goes through all of them from one table. A line is the
/// key, the field with its type, the name in text, and the columns of Table I.
macro_rules! table {
    ($($(#[$meta:meta])* $key:ident, $field:ident: $value:ty = $text:literal, $($column:ident)+;)+) => {
        /// The names of the intents.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Key { $($(#[$meta])* $key,)+ }

        impl Key {
            /// All of them, in the order of Table I.
            pub const ALL: &'static [Self] = &[$(Self::$key,)+];

            /// The key in text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$key => $text,)+ }
            }

            /// The columns of Table I in which it is marked.
            const fn columns(self) -> &'static [Granularity] {
                match self { $(Self::$key => &[$(Granularity::$column),+],)+ }
            }
        }

        /// The intents of one unit of communication. `None`: the application does not say.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct Intents {
            $($(#[$meta])* #[serde(rename = $text, skip_serializing_if = "Option::is_none")] pub $field: Option<$value>,)+
        }

        impl Intents {
            /// Only those that apply at this granularity; the others count as not stated.
            pub fn at(mut self, granularity: Granularity) -> Self {
                $(if !Key::$key.applies_to(granularity) { self.$field = None; })+
                self
            }

            fn text_of(&self, key: Key) -> Option<String> {
                match key { $(Key::$key => self.$field.map(Value::to_text),)+ }
            }

            fn set(&mut self, key: Key, text: &str) -> Result<(), IntentError> {
                match key { $(Key::$key => self.$field = Some(Value::from_text(key, text)?),)+ }
                Ok(())
            }
        }
    };
}

table! {
    /// Traffic category: what kind of traffic it is.
    Category, category: Category = "category", Stream;
    /// Size to be sent, in bytes.
    SizeSent, size_sent: u64 = "size-sent", Message Stream;
    /// Size to be received, in bytes.
    SizeReceived, size_received: u64 = "size-received", Message Stream;
    /// Duration, in milliseconds.
    Duration, duration: u64 = "duration", Stream;
    /// Bitrate sent, in bytes per second.
    BitrateSent, bitrate_sent: u64 = "bitrate-sent", Stream;
    /// Bitrate received, in bytes per second.
    BitrateReceived, bitrate_received: u64 = "bitrate-received", Stream;
    /// Burstiness: how it is spread over time.
    Burstiness, burstiness: Burstiness = "burstiness", Stream;
    /// Timeliness: what delay means.
    Timeliness, timeliness: Timeliness = "timeliness", Message Stream;
    /// Disruption resilience: what a break means.
    Resilience, resilience: Resilience = "resilience", Message Stream;
    /// Cost preference: what it may cost.
    Cost, cost: Cost = "cost", Message Stream;
}

impl Key {
    /// Whether Table I has it for units of this kind. A whole connection counts as a stream.
    pub fn applies_to(self, granularity: Granularity) -> bool {
        let column = match granularity {
            Granularity::Message => Granularity::Message,
            Granularity::Stream | Granularity::Connection => Granularity::Stream,
        };
        self.columns().contains(&column)
    }

    fn named(text: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|key| key.as_str() == text)
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn names_of_keys() -> String {
    Key::ALL.iter().map(|key| key.as_str()).collect::<Vec<_>>().join(" ")
}

/// Why intents can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IntentError {
    /// Not of the form `key=value`.
    #[error("`{0}` is not of the form key=value")]
    Form(String),
    /// No such key.
    #[error("`{0}` is no intent; they are: {list}", list = names_of_keys())]
    Key(String),
    /// A key is given twice.
    #[error("intent `{0}` is given twice")]
    Twice(&'static str),
    /// The value does not fit the key.
    #[error("intent {key}: `{value}` is not {wanted}")]
    Value {
        /// The key.
        key: &'static str,
        /// The value as given.
        value: String,
        /// What it should be.
        wanted: String,
    },
    /// Two intents exclude each other.
    #[error("{0}")]
    Contradiction(&'static str),
}

impl Intents {
    /// Only the number of bytes that will be received: what a browser knows of an object.
    pub fn receive(bytes: u64) -> Self {
        Self { size_received: Some(bytes), ..Self::default() }
    }

    /// The category, `mixed` unless stated.
    pub fn category(&self) -> Category {
        self.category.unwrap_or(Category::Mixed)
    }

    /// The timeliness; what the category suggests unless stated.
    pub fn timeliness(&self) -> Timeliness {
        self.timeliness.unwrap_or(match self.category() {
            Category::Query | Category::Control => Timeliness::Interactive,
            Category::Stream => Timeliness::Stream,
            Category::Bulk | Category::Mixed => Timeliness::Transfer,
        })
    }

    /// The burstiness; what the category suggests unless stated.
    pub fn burstiness(&self) -> Burstiness {
        self.burstiness.unwrap_or(match self.category() {
            Category::Bulk => Burstiness::Bulk,
            Category::Stream => Burstiness::NoBursts,
            Category::Query | Category::Control | Category::Mixed => Burstiness::RandomBursts,
        })
    }

    /// The resilience, `recoverable` unless stated.
    pub fn resilience(&self) -> Resilience {
        self.resilience.unwrap_or(Resilience::Recoverable)
    }

    /// The cost preference, `balance` unless stated.
    pub fn cost(&self) -> Cost {
        self.cost.unwrap_or(Cost::Balance)
    }

    /// The bytes that will be sent, if that is stated or follows from bitrate × duration.
    pub fn sent(&self) -> Option<u64> {
        self.size_sent.or_else(|| self.lasting(self.bitrate_sent))
    }

    /// The bytes that will be received, if that is stated or follows from bitrate × duration.
    pub fn received(&self) -> Option<u64> {
        self.size_received.or_else(|| self.lasting(self.bitrate_received))
    }

    /// The bytes that will pass in both directions, as far as they are known.
    pub fn size(&self) -> Option<u64> {
        match (self.sent(), self.received()) {
            (None, None) => None,
            (sent, received) => Some(sent.unwrap_or(0).saturating_add(received.unwrap_or(0))),
        }
    }

    fn lasting(&self, rate: Option<u64>) -> Option<u64> {
        Some(rate?.saturating_mul(self.duration?) / 1000)
    }

    /// Checks that the intents can be true together.
    ///
    /// # Errors
    /// [`IntentError::Contradiction`] if two intents exclude each other.
    pub fn validate(&self) -> Result<(), IntentError> {
        let contradiction = |is: bool, text| if is { Err(IntentError::Contradiction(text)) } else { Ok(()) };
        contradiction(
            self.timeliness == Some(Timeliness::Background) && self.category == Some(Category::Control),
            "category=control and timeliness=background exclude each other: leave one out",
        )?;
        contradiction(self.duration == Some(0), "duration=0: leave it out if it is unknown")?;
        contradiction(
            self.bitrate_sent == Some(0) && self.size_sent.is_some_and(|size| size > 0),
            "bitrate-sent=0 and size-sent exclude each other: leave one out",
        )?;
        contradiction(
            self.bitrate_received == Some(0) && self.size_received.is_some_and(|size| size > 0),
            "bitrate-received=0 and size-received exclude each other: leave one out",
        )
    }
}

impl FromStr for Intents {
    type Err = IntentError;

    fn from_str(text: &str) -> Result<Self, IntentError> {
        let mut intents = Self::default();
        for pair in text.split([' ', ',', '\t', '\n']).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| IntentError::Form(pair.to_owned()))?;
            let key = Key::named(name).ok_or_else(|| IntentError::Key(name.to_owned()))?;
            if intents.text_of(key).is_some() {
                return Err(IntentError::Twice(key.as_str()));
            }
            intents.set(key, value)?;
        }
        intents.validate()?;
        Ok(intents)
    }
}

impl fmt::Display for Intents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut gap = "";
        for &key in Key::ALL {
            if let Some(text) = self.text_of(key) {
                write!(f, "{gap}{key}={text}")?;
                gap = " ";
            }
        }
        Ok(())
    }
}
