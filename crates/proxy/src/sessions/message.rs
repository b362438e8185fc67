//! What is said on a stream to a gateway that keeps sessions, before its frames.
//!
//! ```text
//! request = version (1) = 2, kind (1), length (2, big-endian), body
//! open    = host (1 + n), port (2), rule
//! take    = session (16), moves (4), rule
//! enter   = the same
//! ahead   = the same
//! handoff = session (16), moves (4), device (32), seconds (2)
//! list    = nothing
//! control = session (16), moves (4)
//! rule    = rule
//! words   = nothing
//! publish = 1, host of TLS | 2, port (2) | 3, host of HTTP
//! rule    = count (1), devices (32 each)
//! ```
//!
//! The answer is that of version 1. Behind one that grants what was asked there is [`Granted`] (to `open` and
//! `take`), the same and an [`Entry`](super::entry::Entry) (to `enter`), or a list of [`Listed`] (to `list`).
//! The answer to `ahead` is that to `take`, and bytes may come before it: see [`ahead`](super::ahead).

mod reading;
mod told;

pub use told::{Listed, May, Standing};

pub(super) use told::{Granted, LONGEST_HEAD, MOST_LISTED, read_granted, read_list, write_list};

use super::SessionId;
use crate::{BadMessage, Destination, Publication, Request};
use reading::{Fields, put_destination};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use whimbrel_base::EndpointId;

/// What a gateway says, for people, to a device that takes a session, if there is nothing else to say.
pub(super) const GOES_ON: &str = "the session goes on";
/// Of requests about sessions.
pub(super) const VERSION: u8 = 2;
/// Kind 8 is what a gateway says of an arrival.
const WORDS: u8 = 9;
const TAKE: u8 = 2;
const ENTER: u8 = 10;
const AHEAD: u8 = 11;
/// The longest body: a destination, and as many devices as a rule has.
const LONGEST: usize = 4096;

/// The devices that may take a session without being asked to: those of the same user.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Takers(Vec<EndpointId>);

impl Takers {
    /// The most devices in one.
    pub const MOST: usize = 64;

    /// These devices, as many as there is room for.
    pub fn new(devices: impl IntoIterator<Item = EndpointId>) -> Self {
        Self(devices.into_iter().take(Self::MOST).collect())
    }

    /// Whether it has a device.
    pub fn has(&self, device: EndpointId) -> bool {
        self.0.contains(&device)
    }

    /// Those that it has.
    pub(super) fn devices(&self) -> &[EndpointId] {
        &self.0
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::try_from(self.0.len()).unwrap_or(u8::MAX));
        self.0.iter().for_each(|device| out.extend_from_slice(device.as_bytes()));
    }
}

/// How a device takes a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// Where the program before is.
    Plain,
    /// For a player that enters a film: it is told where it can.
    Enters,
    /// As plain, and bytes that the device before will not have may come before the answer.
    Ahead,
}

impl How {
    const ALL: [Self; 3] = [Self::Plain, Self::Enters, Self::Ahead];

    fn kind(self) -> u8 {
        match self {
            Self::Plain => TAKE,
            Self::Enters => ENTER,
            Self::Ahead => AHEAD,
        }
    }

    fn of(kind: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|how| how.kind() == kind)
    }
}

/// What a device asks a gateway for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Asked {
    /// A connection as in version 1: no session.
    Plain(Request),
    /// A session of its own.
    Open { to: Destination, rule: Takers },
    /// A session that was moved so often until now.
    Take { id: SessionId, moves: u32, rule: Takers, how: How },
    /// That another device may take a session of its own, which was moved so often until now, for some time.
    HandOff { id: SessionId, moves: u32, to: EndpointId, limit: Duration },
    /// What it has, and may take.
    List,
    /// A second stream for a session of its own, on which nothing waits behind bytes.
    Control { id: SessionId, moves: u32 },
    /// That these devices may take all sessions of its own without being asked to, and no others.
    Rule { rule: Takers },
    /// That clients who know nothing of Whimbrel reach it by this.
    Publish { what: Publication },
    /// To be told of each session that is handed over to it.
    Words,
}

impl Asked {
    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        let kind = match self {
            Self::Plain(request) => return request.encode(),
            Self::Open { to, rule } => {
                put_destination(&mut body, to);
                rule.put(&mut body);
                1
            }
            Self::Take { id, moves, rule, how } => {
                body.extend_from_slice(&id.to_bytes());
                body.extend_from_slice(&moves.to_be_bytes());
                rule.put(&mut body);
                how.kind()
            }
            Self::HandOff { id, moves, to, limit } => {
                body.extend_from_slice(&id.to_bytes());
                body.extend_from_slice(&moves.to_be_bytes());
                body.extend_from_slice(to.as_bytes());
                let seconds = u16::try_from(limit.as_secs()).unwrap_or(u16::MAX);
                body.extend_from_slice(&seconds.to_be_bytes());
                3
            }
            Self::List => 4,
            Self::Control { id, moves } => {
                body.extend_from_slice(&id.to_bytes());
                body.extend_from_slice(&moves.to_be_bytes());
                5
            }
            Self::Rule { rule } => {
                rule.put(&mut body);
                6
            }
            Self::Publish { what } => {
                body = what.encode();
                7
            }
            Self::Words => WORDS,
        };
        let [high, low] = u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes();
        [&[VERSION, kind, high, low], &body[..]].concat()
    }

    /// Reads a whole request.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let [VERSION, kind, high, low, body @ ..] = bytes else {
            return Request::decode(bytes).map(Self::Plain);
        };
        if body.len() != usize::from(u16::from_be_bytes([*high, *low])) {
            return Err(BadMessage::Length);
        }
        let mut fields = Fields(body);
        let asked = match *kind {
            1 => Self::Open { to: fields.destination()?, rule: rule(&mut fields)? },
            3 => Self::HandOff {
                id: fields.session()?,
                moves: fields.u32()?,
                to: fields.device()?,
                limit: Duration::from_secs(fields.u16()?.into()),
            },
            4 => Self::List,
            5 => Self::Control { id: fields.session()?, moves: fields.u32()? },
            6 => Self::Rule { rule: rule(&mut fields)? },
            7 => return Publication::decode(body).map(|what| Self::Publish { what }),
            WORDS => Self::Words,
            kind => Self::Take {
                how: How::of(kind).ok_or(BadMessage::Kind(kind))?,
                id: fields.session()?,
                moves: fields.u32()?,
                rule: rule(&mut fields)?,
            },
        };
        fields.end()?;
        Ok(asked)
    }

    /// Takes a request from a stream, and not a byte of what follows it.
    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut begin = [0; 2];
        from.read_exact(&mut begin).await?;
        if begin[0] != VERSION {
            return Request::read_on(begin, from).await.map(Self::Plain);
        }
        let length = from.read_u16().await?;
        if usize::from(length) > LONGEST {
            return Err(reading::invalid(BadMessage::Length));
        }
        let mut bytes = [&begin[..], &length.to_be_bytes()].concat();
        bytes.resize(4 + usize::from(length), 0);
        from.read_exact(&mut bytes[4..]).await?;
        Self::decode(&bytes).map_err(reading::invalid)
    }
}

fn rule(fields: &mut Fields<'_>) -> Result<Takers, BadMessage> {
    let count = usize::from(fields.u8()?);
    if count > Takers::MOST {
        return Err(BadMessage::Length);
    }
    (0..count).map(|_| fields.device()).collect::<Result<_, _>>().map(Takers)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn device(number: u8) -> EndpointId {
        EndpointId::from_bytes(&[number; 32])
    }

    fn all() -> Vec<Asked> {
        let (id, to): (_, Destination) = (SessionId::from_bytes([7; 16]), "example.org:80".parse().unwrap());
        let rule = Takers::new((0..200).map(device));
        vec![
            Asked::Plain(Request { to: to.clone() }),
            Asked::Open { to: to.clone(), rule: Takers::default() },
            Asked::Open { to, rule: rule.clone() },
            Asked::Rule { rule: rule.clone() },
            Asked::Take { id, moves: 3, rule: rule.clone(), how: How::Plain },
            Asked::Take { id, moves: 3, rule: rule.clone(), how: How::Enters },
            Asked::Take { id, moves: 3, rule, how: How::Ahead },
            Asked::HandOff { id, moves: 7, to: device(9), limit: Duration::from_secs(300) },
            Asked::List,
            Asked::Control { id, moves: 1 },
            Asked::Publish { what: "www.example.org".parse().unwrap() },
            Asked::Publish { what: "2222".parse().unwrap() },
            Asked::Words,
        ]
    }

    #[tokio::test]
    async fn what_was_said_is_understood_and_what_follows_is_left() {
        for asked in all() {
            let bytes = asked.encode();
            assert_eq!(Asked::decode(&bytes).as_ref(), Ok(&asked));
            for cut in 0..bytes.len() {
                assert!(Asked::decode(&bytes[..cut]).is_err(), "{asked:?} cut at {cut}");
            }
            assert!(Asked::decode(&[&bytes[..], b"x"].concat()).is_err());
            let more = [&bytes[..], b"more"].concat();
            let mut stream = &more[..];
            assert_eq!(Asked::read(&mut stream).await.unwrap(), asked);
            assert_eq!(stream, b"more");
        }
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let open = Asked::Open { to: "a.org:80".parse().unwrap(), rule: Takers::default() };
        assert_eq!(open.encode(), b"\x02\x01\0\x09\x05a.org\0\x50\0");
        assert_eq!(Asked::List.encode(), b"\x02\x04\0\0");
        assert_eq!(Asked::Words.encode(), b"\x02\x09\0\0");
        let id = SessionId::from_bytes([7; 16]);
        for (how, kind) in [(How::Plain, 2), (How::Enters, 10), (How::Ahead, 11)] {
            let take = Asked::Take { id, moves: 1, rule: Takers::default(), how };
            assert_eq!(take.encode(), [&[2_u8, kind, 0, 21][..], &[7; 16], &[0, 0, 0, 1, 0]].concat());
        }
    }

    #[test]
    fn an_older_gateway_refuses_a_newer_request_by_its_version() {
        for asked in all().iter().skip(1) {
            assert_eq!(Request::decode(&asked.encode()), Err(BadMessage::Version(2)));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_in_its_one_form_or_none(
            kind in 0_u8..14, body in proptest::collection::vec(any::<u8>(), 0..120),
        ) {
            let bytes = [&[VERSION, kind, 0, body.len() as u8], &body[..]].concat();
            if let Ok(asked) = Asked::decode(&bytes) {
                prop_assert_eq!(asked.encode(), bytes);
            }
        }
    }
}
