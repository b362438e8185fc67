//! Intents: what an application knows about its traffic and prefers for it (Socket Intents, Table I).
//!
//! They are hints, never requirements. The enumerations are those of draft-tiesel-taps-socketintents.
//!
//! | intent | key | values | TAPS property (RFC 9622) |
//! |---|---|---|---|
//! | traffic category | `category` | `query` `control` `stream` `bulk` `mixed` | `connCapacityProfile`: `query`/`control` ↔ `low-latency-interactive`, `stream` ↔ `constant-rate-streaming`, `bulk` ↔ `capacity-seeking`, `mixed` ↔ `default` |
//! | size to be sent | `size-sent` | bytes | none (the length of the Message) |
//! | size to be received | `size-received` | bytes | none |
//! | duration | `duration` | milliseconds | none (`msgLifetime` limits a Message, it does not foretell) |
//! | bitrate sent | `bitrate-sent` | bytes/s | `minSendRate`, `maxSendRate` (bits/s) are bounds, this is an expectation |
//! | bitrate received | `bitrate-received` | bytes/s | `minRecvRate`, `maxRecvRate` (bits/s), likewise |
//! | burstiness | `burstiness` | `no-bursts` `regular-bursts` `random-bursts` `bulk` | none |
//! | timeliness | `timeliness` | `stream` `interactive` `transfer` `background` | `connCapacityProfile`: `interactive` ↔ `low-latency-interactive`, `stream` ↔ `low-latency-non-interactive`, `transfer` ↔ `capacity-seeking`, `background` ↔ `scavenger` |
//! | disruption resilience | `resilience` | `sensitive` `recoverable` `resilient` | `multipath` with `multipathPolicy`: `sensitive` ↔ `active` + `handover`; the others leave it `disabled` or `passive` |
//! | cost preference | `cost` | `no-expense` `optimise` `balance` `ignore` | `interface` on metered paths: `no-expense` ↔ Prohibit, `optimise` ↔ Avoid, `balance` ↔ No Preference, `ignore` ↔ No Preference |
//!
//! In text they are `key=value` pairs parted by spaces or commas; in TOML and JSON a table with the same
//! keys.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr};

/// The names of the intents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// Traffic category.
    Category,
    /// Size to be sent.
    SizeSent,
    /// Size to be received.
    SizeReceived,
    /// Duration.
    Duration,
    /// Bitrate sent.
    BitrateSent,
    /// Bitrate received.
    BitrateReceived,
    /// Burstiness.
    Burstiness,
    /// Timeliness.
    Timeliness,
    /// Disruption resilience.
    Resilience,
    /// Cost preference.
    Cost,
}

impl Key {
    /// All of them, in the order of Table I.
    pub const ALL: [Self; 10] = [
        Self::Category,
        Self::SizeSent,
        Self::SizeReceived,
        Self::Duration,
        Self::BitrateSent,
        Self::BitrateReceived,
        Self::Burstiness,
        Self::Timeliness,
        Self::Resilience,
        Self::Cost,
    ];

    /// The key in text.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Category => "category",
            Self::SizeSent => "size-sent",
            Self::SizeReceived => "size-received",
            Self::Duration => "duration",
            Self::BitrateSent => "bitrate-sent",
            Self::BitrateReceived => "bitrate-received",
            Self::Burstiness => "burstiness",
            Self::Timeliness => "timeliness",
            Self::Resilience => "resilience",
            Self::Cost => "cost",
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An enumeration whose values have one name each, in text and in serde.
macro_rules! named {
    ($(#[$meta:meta])* $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum $name { $($(#[$variant_meta])* #[serde(rename = $text)] $variant,)+ }

        impl $name {
            /// All values.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// The value in text.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }

            fn from_text(key: Key, text: &str) -> Result<Self, IntentError> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text).ok_or_else(|| IntentError::Value {
                    key: key.as_str(),
                    value: text.to_owned(),
                    wanted: concat!("one of", $(" ", $text),+).to_owned(),
                })
            }
        }
    };
}

named! {
    /// What kind of traffic it is.
    Category {
        /// A single request and its reply.
        Query = "query",
        /// Long-lived, low volume, e.g. signalling.
        Control = "control",
        /// A steady flow of data.
        Stream = "stream",
        /// A large amount, to be moved as fast as it goes.
        Bulk = "bulk",
        /// None of these, or several.
        Mixed = "mixed",
    }
}
named! {
    /// How the traffic is spread over time.
    Burstiness {
        /// Evenly.
        NoBursts = "no-bursts",
        /// In bursts at regular intervals.
        RegularBursts = "regular-bursts",
        /// In bursts at random intervals.
        RandomBursts = "random-bursts",
        /// One long burst that fills whatever it gets.
        Bulk = "bulk",
    }
}
named! {
    /// What delay means for it.
    Timeliness {
        /// Low delay and low jitter.
        Stream = "stream",
        /// Low delay, jitter is tolerated.
        Interactive = "interactive",
        /// Soon, that is, as fast as it goes.
        Transfer = "transfer",
        /// At any time; everything else goes first.
        Background = "background",
    }
}
named! {
    /// How the application copes if connectivity breaks.
    Resilience {
        /// It fails.
        Sensitive = "sensitive",
        /// It recovers, at some cost.
        Recoverable = "recoverable",
        /// It hardly notices.
        Resilient = "resilient",
    }
}
named! {
    /// What it may cost to carry the traffic.
    Cost {
        /// Nothing: rather fail than pay.
        NoExpense = "no-expense",
        /// As little as possible.
        Optimise = "optimise",
        /// As is reasonable for the gain.
        Balance = "balance",
        /// Whatever it costs.
        Ignore = "ignore",
    }
}

/// The intents of one unit of communication. A `None` is "the application does not say".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Intents {
    /// What kind of traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<Category>,
    /// Bytes that will be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_sent: Option<u64>,
    /// Bytes that will be received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size_received: Option<u64>,
    /// How long it will last, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<u64>,
    /// Bytes per second that will be sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bitrate_sent: Option<u64>,
    /// Bytes per second that will be received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bitrate_received: Option<u64>,
    /// How it is spread over time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burstiness: Option<Burstiness>,
    /// What delay means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeliness: Option<Timeliness>,
    /// What a break means.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resilience: Option<Resilience>,
    /// What it may cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Cost>,
}

/// Why intents can't be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IntentError {
    /// Not of the form `key=value`.
    #[error("`{0}` is not of the form key=value")]
    Form(String),
    /// No such key.
    #[error(
        "`{0}` is no intent; they are: category size-sent size-received duration bitrate-sent bitrate-received burstiness timeliness resilience cost"
    )]
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

    /// The bytes that will pass in both directions, as far as they are stated or follow from bitrate ×
    /// duration.
    pub fn size(&self) -> Option<u64> {
        let passes = |size: Option<u64>, rate: Option<u64>| {
            size.or_else(|| Some(rate?.saturating_mul(self.duration?) / 1000))
        };
        let sent = passes(self.size_sent, self.bitrate_sent);
        let received = passes(self.size_received, self.bitrate_received);
        match (sent, received) {
            (None, None) => None,
            (sent, received) => Some(sent.unwrap_or(0).saturating_add(received.unwrap_or(0))),
        }
    }

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

    fn is_set(&self, key: Key) -> bool {
        self.text_of(key).is_some()
    }

    fn text_of(&self, key: Key) -> Option<String> {
        let number = |value: Option<u64>| value.map(|value| value.to_string());
        match key {
            Key::Category => self.category.map(|value| value.as_str().to_owned()),
            Key::SizeSent => number(self.size_sent),
            Key::SizeReceived => number(self.size_received),
            Key::Duration => number(self.duration),
            Key::BitrateSent => number(self.bitrate_sent),
            Key::BitrateReceived => number(self.bitrate_received),
            Key::Burstiness => self.burstiness.map(|value| value.as_str().to_owned()),
            Key::Timeliness => self.timeliness.map(|value| value.as_str().to_owned()),
            Key::Resilience => self.resilience.map(|value| value.as_str().to_owned()),
            Key::Cost => self.cost.map(|value| value.as_str().to_owned()),
        }
    }

    fn set(&mut self, key: Key, text: &str) -> Result<(), IntentError> {
        let number = || {
            text.parse::<u64>().map(Some).map_err(|_| IntentError::Value {
                key: key.as_str(),
                value: text.to_owned(),
                wanted: "a whole number from 0 on".to_owned(),
            })
        };
        match key {
            Key::Category => self.category = Some(Category::from_text(key, text)?),
            Key::SizeSent => self.size_sent = number()?,
            Key::SizeReceived => self.size_received = number()?,
            Key::Duration => self.duration = number()?,
            Key::BitrateSent => self.bitrate_sent = number()?,
            Key::BitrateReceived => self.bitrate_received = number()?,
            Key::Burstiness => self.burstiness = Some(Burstiness::from_text(key, text)?),
            Key::Timeliness => self.timeliness = Some(Timeliness::from_text(key, text)?),
            Key::Resilience => self.resilience = Some(Resilience::from_text(key, text)?),
            Key::Cost => self.cost = Some(Cost::from_text(key, text)?),
        }
        Ok(())
    }
}

impl FromStr for Intents {
    type Err = IntentError;

    fn from_str(text: &str) -> Result<Self, IntentError> {
        let mut intents = Self::default();
        for pair in text.split([' ', ',', '\t', '\n']).filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').ok_or_else(|| IntentError::Form(pair.to_owned()))?;
            let key = Key::ALL
                .into_iter()
                .find(|key| key.as_str() == name)
                .ok_or_else(|| IntentError::Key(name.to_owned()))?;
            if intents.is_set(key) {
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
        for key in Key::ALL {
            if let Some(text) = self.text_of(key) {
                write!(f, "{gap}{key}={text}")?;
                gap = " ";
            }
        }
        Ok(())
    }
}
