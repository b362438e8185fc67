//! What a server and a relay say to each other on the control stream, the first stream of the server's
//! connection.
//!
//! ```text
//! message = length (2 bytes, big-endian, of what follows, 1 to 1024) | type (1 byte) | fields (postcard)
//! ```
//!
//! | type | from | message | |
//! | --- | --- | --- | --- |
//! | 1 | server | `Reserve { salt }` | asks for a reservation, by how its token is made |
//! | 2 | server | `Left { origin }` | what comes from there is dead: spares, and what was spliced with them |
//! | 3 | server | `Released` | after `Draining`: it has told its clients |
//! | 4 | server | `Proof { proof }` | after `Prove`: at most 768 bytes |
//! | 5 | server | `WantAliases { count }` | it would like so many tokens for single clients |
//! | 65 | relay | `Reserved { key, spares, addresses }` | the key for spares; how many there may be; where clients dial the relay, if it says so |
//! | 66 | relay | `Wanted { count }` | so many clients wait for spares |
//! | 67 | relay | `Draining` | the relay is about to stop |
//! | 68 | relay | `Refused { reason }` | there is no reservation; for people |
//! | 69 | relay | `Prove` | the server is to show that it may have one, now or still |
//! | 70 | relay | `Aliases { tokens }` | after `WantAliases`: at most 100, each of which leads to the server |
//!
//! Messages of other types are stepped over.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use whimbrel_base::RelayToken;

use crate::token::Salt;

/// The longest message, with its type.
pub const MAX_MESSAGE: usize = 1024;
/// The most addresses of a relay.
pub const MAX_ADDRESSES: usize = 4;
/// The longest proof, in bytes.
pub const MAX_PROOF: usize = 768;
/// The most aliases in one message.
pub const MAX_ALIASES: usize = 100;
/// The longest reason, in bytes. More is cut off.
const MAX_REASON: usize = 512;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Server: asks for a reservation.
    Reserve(Salt),
    /// Server: it has left an address.
    Left(u32),
    /// Server: it needs this relay no more.
    Released,
    /// Server: that it may have the reservation, now or still.
    Proof(Vec<u8>),
    /// Server: it would like so many tokens for single clients.
    WantAliases(u16),
    /// Relay: the reservation.
    Reserved(Reserved),
    /// Relay: so many clients wait.
    Wanted(u16),
    /// Relay: it is about to stop.
    Draining,
    /// Relay: why not.
    Refused(String),
    /// Relay: the server is to prove that it may have the reservation, now or still.
    Prove,
    /// Relay: tokens for single clients.
    Aliases(Vec<RelayToken>),
}

/// A reservation, as its server is told.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reserved {
    /// The key for spares.
    pub key: [u8; 32],
    /// How many spares may wait.
    pub spares: u16,
    /// Where clients dial the relay; empty: where the server does.
    pub addresses: Vec<SocketAddr>,
}

/// Bytes that break the rules above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a message of the relay protocol")]
pub struct Malformed;

impl From<Malformed> for std::io::Error {
    fn from(malformed: Malformed) -> Self {
        Self::new(std::io::ErrorKind::InvalidData, malformed)
    }
}

impl Message {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let (kind, fields) = match self {
            Self::Reserve(salt) => (1, fields(salt)),
            Self::Left(origin) => (2, fields(origin)),
            Self::Released => (3, Vec::new()),
            Self::Proof(proof) => (4, fields(&proof[..proof.len().min(MAX_PROOF)])),
            Self::WantAliases(count) => (5, fields(count)),
            Self::Reserved(reserved) => (65, fields(reserved)),
            Self::Wanted(count) => (66, fields(count)),
            Self::Draining => (67, Vec::new()),
            Self::Refused(reason) => (68, fields(&reason[..reason.floor_char_boundary(MAX_REASON)])),
            Self::Prove => (69, Vec::new()),
            Self::Aliases(tokens) => {
                let tokens: Vec<_> = tokens.iter().take(MAX_ALIASES).map(RelayToken::as_bytes).collect();
                (70, fields(&tokens))
            }
        };
        let mut bytes = ((fields.len() + 1) as u16).to_be_bytes().to_vec();
        bytes.push(kind);
        bytes.extend(fields);
        bytes
    }

    /// Reads what is behind the length; `None` for a type that is not known.
    pub fn decode(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        let (kind, fields) = bytes.split_first().ok_or(Malformed)?;
        Ok(Some(match kind {
            1 => Self::Reserve(read_fields(fields)?),
            2 => Self::Left(read_fields(fields)?),
            3 => Self::Released,
            4 => {
                let proof: Vec<u8> = read_fields(fields)?;
                if proof.len() > MAX_PROOF {
                    return Err(Malformed);
                }
                Self::Proof(proof)
            }
            5 => Self::WantAliases(read_fields(fields)?),
            65 => {
                let reserved: Reserved = read_fields(fields)?;
                if reserved.addresses.len() > MAX_ADDRESSES {
                    return Err(Malformed);
                }
                Self::Reserved(reserved)
            }
            66 => Self::Wanted(read_fields(fields)?),
            67 => Self::Draining,
            68 => Self::Refused(read_fields(fields)?),
            69 => Self::Prove,
            70 => {
                let tokens: Vec<[u8; RelayToken::LENGTH]> = read_fields(fields)?;
                if tokens.len() > MAX_ALIASES {
                    return Err(Malformed);
                }
                Self::Aliases(tokens.into_iter().map(RelayToken::from_bytes).collect())
            }
            _ => return Ok(None),
        }))
    }

    /// Reads the next message that is known. Not cancel-safe.
    ///
    /// # Errors
    /// When the stream ends, or holds something else.
    pub async fn read(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Self> {
        loop {
            let length = usize::from(stream.read_u16().await?);
            if length == 0 || length > MAX_MESSAGE {
                return Err(Malformed.into());
            }
            let mut bytes = vec![0; length];
            stream.read_exact(&mut bytes).await?;
            if let Some(message) = Self::decode(&bytes)? {
                return Ok(message);
            }
        }
    }
}

/// Bounded by what the types above hold, so it cannot fail.
fn fields(value: &(impl Serialize + ?Sized)) -> Vec<u8> {
    postcard::to_stdvec(value).unwrap_or_default()
}

fn read_fields<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Malformed> {
    postcard::from_bytes(bytes).map_err(|_| Malformed)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn all() -> Vec<Message> {
        let addresses = vec!["192.0.2.1:443".parse().unwrap(), "[2001:db8::1]:443".parse().unwrap()];
        vec![
            Message::Reserve(Salt([3; 32])),
            Message::Left(70_000),
            Message::Released,
            Message::Proof(vec![7; MAX_PROOF]),
            Message::Prove,
            Message::WantAliases(100),
            Message::Aliases((0..MAX_ALIASES).map(|n| RelayToken::from_bytes([n as u8; 10])).collect()),
            Message::Aliases(Vec::new()),
            Message::Reserved(Reserved { key: [5; 32], spares: 8, addresses }),
            Message::Wanted(300),
            Message::Draining,
            Message::Refused("no".into()),
        ]
    }

    #[tokio::test]
    async fn messages_round_trip_and_unknown_ones_are_stepped_over() {
        let mut wire = Vec::new();
        for message in all() {
            wire.extend(message.encode());
            wire.extend([0, 3, 200, 1, 2]);
        }
        let mut stream = &wire[..];
        for message in all() {
            assert_eq!(Message::read(&mut stream).await.unwrap(), message);
        }
        assert!(Message::read(&mut stream).await.is_err(), "the end");
    }

    #[tokio::test]
    async fn what_is_too_long_or_no_message_is_refused() {
        for wire in [&[0, 0][..], &[255, 255, 1], &[0, 2, 1, 9], &[0, 1, 66]] {
            let error = Message::read(&mut &wire[..]).await.unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::InvalidData, "{wire:?}");
        }
        let many = Message::Aliases(vec![RelayToken::from_bytes([7; 10]); MAX_ALIASES + 1]).encode();
        assert_eq!(many.len(), MAX_ALIASES * 10 + 4, "the rest is left out");
        let mut too_many = vec![70, (MAX_ALIASES + 1) as u8];
        too_many.extend([7; (MAX_ALIASES + 1) * 10]);
        assert_eq!(Message::decode(&too_many), Err(Malformed));
        let long = Message::Refused("é".repeat(4000)).encode();
        assert!(long.len() < MAX_MESSAGE);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Message::decode(&bytes);
        }
    }
}
