//! The values of intents, and their text.

use super::{IntentError, Key};
use serde::{Deserialize, Serialize};

/// A value of an intent, as text.
pub(super) trait Value: Sized {
    fn from_text(key: Key, text: &str) -> Result<Self, IntentError>;
    fn to_text(self) -> String;
}

impl Value for u64 {
    fn from_text(key: Key, text: &str) -> Result<Self, IntentError> {
        text.parse().map_err(|_| IntentError::Value {
            key: key.as_str(),
            value: text.to_owned(),
            wanted: "a whole number from 0 on".to_owned(),
        })
    }

    fn to_text(self) -> String {
        self.to_string()
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
        }

        impl Value for $name {
            fn from_text(key: Key, text: &str) -> Result<Self, IntentError> {
                Self::ALL.iter().copied().find(|value| value.as_str() == text).ok_or_else(|| IntentError::Value {
                    key: key.as_str(),
                    value: text.to_owned(),
                    wanted: concat!("one of", $(" ", $text),+).to_owned(),
                })
            }

            fn to_text(self) -> String {
                self.as_str().to_owned()
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
