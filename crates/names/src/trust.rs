//! Who owns a name, as this machine has learned it.
//!
//! A name service says which key owns a user name. It might be reset, bought or broken into, and then say
//! another one. So the first owner that is seen is remembered, as ssh remembers a host's key, and a record in
//! the name of another one is refused until somebody who knows better says otherwise.
//!
//! | what comes | what happens |
//! | --- | --- |
//! | a user name that was never seen | its owner is remembered; that grants nobody access |
//! | a record that the known owner signed, directly or by a delegation | it is used; a new endpoint is told once |
//! | a record that another key signed | it is refused: [`TrustError::OwnerChanged`] |
//! | a name that was pinned to one endpoint, and now stands for another | it is refused: [`TrustError::EndpointChanged`] |
//! | a ticket that gives a known name to another key | it is refused: nobody signed it |
//! | a ticket with a name of a known owner, whose endpoint is not known | nothing is remembered: [`Standing::Unproved`] |
//! | a ticket with a name of an owner that is not known | its key is remembered; that grants nobody access |
//! | a record with a lower sequence number than was seen | it is refused: [`TrustError::OldRecord`] |
//!
//! [`Pins`] decides, [`KnownPeers`] keeps the table in a file that several processes share.

use std::fmt;
use std::str::FromStr;

use whimbrel_base::{EndpointId, Name, UnixTime};

mod file;
mod format;
mod known_peers;
mod pins;

pub use self::file::KnownPeersError;
#[cfg(feature = "fuzzing")]
pub(crate) use self::format::read_anything;
pub use self::known_peers::KnownPeers;
pub use self::pins::{KnownEndpoint, KnownOwner, MAX_KNOWN, Pins, Standing, TrustNews};

/// How a key was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Origin {
    /// The name service said so when the name was first met. Nobody confirmed it.
    FirstUse,
    /// Somebody wrote it down here.
    Hand,
    /// It came with a ticket, which nobody signed: it holds against a name service, and grants no access.
    Ticket,
    /// It came over a meeting by code.
    Code,
    /// It is this machine's own key.
    Own,
}

impl Origin {
    const ALL: [(Self, &str); 5] = [
        (Self::FirstUse, "first-use"),
        (Self::Hand, "hand"),
        (Self::Ticket, "ticket"),
        (Self::Code, "code"),
        (Self::Own, "own"),
    ];

    /// Whether more than the name service speaks for it: the service alone cannot change it.
    pub fn is_pinned(self) -> bool {
        self != Self::FirstUse
    }

    /// Whether it may grant access: a key that this machine's user, a meeting by code or this machine itself
    /// confirmed. What a name service or a ticket says is nobody's signed word, and grants none.
    pub fn grants_access(self) -> bool {
        match self {
            Self::Hand | Self::Code | Self::Own => true,
            Self::FirstUse | Self::Ticket => false,
        }
    }

    /// Whether it tells no more than `other` does.
    pub(crate) fn adds_nothing_to(self, other: Self) -> bool {
        let weight = |of: Self| u8::from(of.is_pinned()) + u8::from(of.grants_access());
        weight(self) <= weight(other)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = Self::ALL.iter().find(|(origin, _)| origin == self).map_or("unknown", |(_, text)| *text);
        f.write_str(text)
    }
}

impl FromStr for Origin {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.iter().find(|(_, known)| *known == text).map(|(origin, _)| *origin).ok_or(())
    }
}

/// A name and the key that it stands for, written `NAME=ID`: for a user name its owner's key, for a device or
/// a service the key of its endpoint.
///
/// ```
/// # let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
/// let pin: whimbrel_names::Pin = format!("ada@example.org={id}").parse()?;
/// assert_eq!(pin.key, id);
/// # Ok::<(), whimbrel_names::PinError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pin {
    /// The name.
    pub name: Name,
    /// Its key.
    pub key: EndpointId,
}

impl FromStr for Pin {
    type Err = PinError;

    fn from_str(text: &str) -> Result<Self, PinError> {
        let (name, key) = text.split_once('=').ok_or_else(|| PinError::Form(text.to_owned()))?;
        Ok(Self { name: name.parse()?, key: key.parse()? })
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.key)
    }
}

/// Why a text is not `NAME=ID`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PinError {
    /// There is no `=`.
    #[error("{0:?} is not NAME=ID; write the name, '=' and the endpoint id that `whimbrel id` prints there")]
    Form(String),
    /// What stands before the `=` is no name.
    #[error(transparent)]
    Name(#[from] whimbrel_base::NameError),
    /// What stands behind the `=` is no endpoint id.
    #[error(transparent)]
    Key(#[from] whimbrel_base::key::EndpointIdError),
}

/// Why a record that is well signed must not be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TrustError {
    /// Another key than the known owner speaks for the user.
    #[error(
        "{user} BELONGS TO ANOTHER KEY NOW, says the name service: {offered}; known here since {}, {}: {}. \
         Somebody may be impersonating {user}. If its owner tells you that the key changed, run \
         `whimbrel trust accept {user}={offered}`",
        Day(known.since), origin_in_words(known.origin), known.key
    )]
    OwnerChanged {
        /// The user.
        user: Name,
        /// What is known.
        known: KnownOwner,
        /// The key that the record speaks for, or that a ticket is of.
        offered: EndpointId,
    },
    /// A name that is known to stand for one endpoint is to stand for another, and nobody who may say so
    /// does.
    #[error(
        "{name} STANDS FOR ANOTHER KEY NOW: {offered}; known here since {}, {}: {}. If that is right, run \
         `whimbrel trust accept {name}={offered}`",
        Day(known.since), origin_in_words(known.origin), known.id
    )]
    EndpointChanged {
        /// The name.
        name: Name,
        /// What is known.
        known: KnownEndpoint,
        /// The endpoint that the record or the ticket is about.
        offered: EndpointId,
    },
    /// A newer record was seen before.
    #[error(
        "the name service gives an old record of {name} (sequence {offered}, and {seen} was seen before); it may \
         have been restored from a backup, or withholds what is newer. If it stays so, run \
         `whimbrel trust forget {name}`"
    )]
    OldRecord {
        /// The name.
        name: Name,
        /// The highest sequence number that was seen.
        seen: u64,
        /// The record's.
        offered: u64,
    },
    /// The table is full.
    #[error("{MAX_KNOWN} names are known already; run `whimbrel trust forget NAME` for some of them")]
    Full,
    /// The table can't be read or written, so that nothing can be judged.
    #[error(transparent)]
    Unusable(#[from] KnownPeersError),
}

fn origin_in_words(origin: Origin) -> &'static str {
    match origin {
        Origin::FirstUse => "when it was first used",
        Origin::Hand => "by your own word",
        Origin::Ticket => "from a ticket",
        Origin::Code => "from a meeting by code",
        Origin::Own => "as this machine's own",
    }
}

/// A day as 2026-01-31, for people.
pub(crate) struct Day(pub(crate) UnixTime);

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format::timestamp(self.0);
        f.write_str(text.split('T').next().unwrap_or_default())
    }
}
