//! What a gateway tells of sessions, behind an answer that grants what was asked.
//!
//! ```text
//! granted = session (16), moves (4), offset (8), host (1 + n), port (2), ended (1), head (2 + n)
//! list    = count (2), entries
//! entry   = session (16), moves (4), holder (32), host (1 + n), port (2), seconds (4),
//!           up (8), down (8), kept (4), standing (1), may (1)
//! ```

use super::super::SessionId;
use super::reading::{Fields, invalid, put_destination};
use crate::{BadMessage, Destination};
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use whimbrel_base::EndpointId;

/// The longest head that is told.
pub(crate) const LONGEST_HEAD: usize = 8 * 1024;
/// The most sessions in a list.
pub(crate) const MOST_LISTED: usize = 1024;
/// Of the fields of `granted` up to its host's length, and of an entry's likewise.
const GRANTED: usize = 16 + 4 + 8 + 1;
const ENTRY: usize = 16 + 4 + 32 + 1;
/// Of an entry's fields behind its host.
const FIGURES: usize = 2 + 4 + 8 + 8 + 4 + 1 + 1;

/// A session that a device has from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Granted {
    pub(crate) id: SessionId,
    /// How often it has moved.
    pub(crate) moves: u32,
    /// The offset of the first byte that comes.
    pub(crate) offset: u64,
    pub(crate) to: Destination,
    /// The server takes nothing more: a program before has ended that direction.
    pub(crate) has_ended: bool,
    /// The head of HTTP that the server's words began with, or how a text protocol began, or nothing.
    pub(crate) head: Vec<u8>,
}

/// How a session is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// A device has it.
    Live,
    /// No device has it just now. It is kept for a while.
    Held,
    /// It is being taken.
    Moving,
    /// It cannot be taken: TLS ends in its program.
    Fixed,
}

/// By what right a device may take a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum May {
    /// It has it.
    Own,
    /// The device that has it said so.
    Consent,
    /// By the rule that was given with it.
    Rule,
}

/// One session, as its gateway tells of it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Listed {
    /// What it is called.
    pub id: SessionId,
    /// How often it has moved.
    pub moves: u32,
    /// The device that has it, or had it last.
    pub holder: EndpointId,
    /// Where it leads.
    pub to: Destination,
    /// How long it is open.
    pub age: Duration,
    /// Bytes of the programs, to the server.
    pub up: u64,
    /// Bytes of the server.
    pub down: u64,
    /// Bytes of the server that no program has taken yet.
    pub kept: u32,
    /// How it is.
    pub standing: Standing,
    /// By what right the device that asks may take it.
    pub may: May,
}

const STANDINGS: [Standing; 4] = [Standing::Live, Standing::Held, Standing::Moving, Standing::Fixed];
const RIGHTS: [May; 3] = [May::Own, May::Consent, May::Rule];

impl Granted {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend_from_slice(&self.id.to_bytes());
        out.extend_from_slice(&self.moves.to_be_bytes());
        out.extend_from_slice(&self.offset.to_be_bytes());
        put_destination(&mut out, &self.to);
        out.push(u8::from(self.has_ended));
        let head = &self.head[..self.head.len().min(LONGEST_HEAD)];
        out.extend_from_slice(&u16::try_from(head.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.extend_from_slice(head);
        out
    }

    fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut fields = Fields(bytes);
        let (id, moves, offset) = (fields.session()?, fields.u32()?, fields.u64()?);
        // What follows is added to it.
        if i64::try_from(offset).is_err() {
            return Err(BadMessage::Length);
        }
        let to = fields.destination()?;
        let has_ended = match fields.u8()? {
            0 => false,
            1 => true,
            _ => return Err(BadMessage::Length),
        };
        let length = fields.u16()?.into();
        let head = fields.bytes(length)?.to_vec();
        fields.end()?;
        Ok(Self { id, moves, offset, to, has_ended, head })
    }
}

impl Listed {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.id.to_bytes());
        out.extend_from_slice(&self.moves.to_be_bytes());
        out.extend_from_slice(self.holder.as_bytes());
        put_destination(out, &self.to);
        out.extend_from_slice(&u32::try_from(self.age.as_secs()).unwrap_or(u32::MAX).to_be_bytes());
        out.extend_from_slice(&self.up.to_be_bytes());
        out.extend_from_slice(&self.down.to_be_bytes());
        out.extend_from_slice(&self.kept.to_be_bytes());
        let place = |at: Option<usize>| at.and_then(|at| u8::try_from(at).ok()).unwrap_or_default();
        out.push(place(STANDINGS.iter().position(|it| *it == self.standing)));
        out.push(place(RIGHTS.iter().position(|it| *it == self.may)));
    }

    fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let mut fields = Fields(bytes);
        let (id, moves, holder) = (fields.session()?, fields.u32()?, fields.device()?);
        let to = fields.destination()?;
        let age = Duration::from_secs(fields.u32()?.into());
        let (up, down, kept) = (fields.u64()?, fields.u64()?, fields.u32()?);
        let standing = *STANDINGS.get(usize::from(fields.u8()?)).ok_or(BadMessage::Length)?;
        let may = *RIGHTS.get(usize::from(fields.u8()?)).ok_or(BadMessage::Length)?;
        fields.end()?;
        Ok(Self { id, moves, holder, to, age, up, down, kept, standing, may })
    }
}

pub(crate) async fn read_granted(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Granted> {
    let mut bytes = vec![0; GRANTED];
    from.read_exact(&mut bytes).await?;
    let host = usize::from(bytes[GRANTED - 1]);
    let at = bytes.len();
    bytes.resize(at + host + 2 + 1 + 2, 0);
    from.read_exact(&mut bytes[at..]).await?;
    let at = bytes.len();
    let head = usize::from(u16::from_be_bytes([bytes[at - 2], bytes[at - 1]]));
    if head > LONGEST_HEAD {
        return Err(invalid(BadMessage::Length));
    }
    bytes.resize(at + head, 0);
    from.read_exact(&mut bytes[at..]).await?;
    Granted::decode(&bytes).map_err(invalid)
}

pub(crate) fn write_list(sessions: &[Listed]) -> Vec<u8> {
    let sessions = &sessions[..sessions.len().min(MOST_LISTED)];
    let mut out = u16::try_from(sessions.len()).unwrap_or(u16::MAX).to_be_bytes().to_vec();
    sessions.iter().for_each(|session| session.put(&mut out));
    out
}

pub(crate) async fn read_list(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<Listed>> {
    let count = usize::from(from.read_u16().await?);
    if count > MOST_LISTED {
        return Err(invalid(BadMessage::Length));
    }
    let mut found = Vec::new();
    for _ in 0..count {
        let mut bytes = vec![0; ENTRY];
        from.read_exact(&mut bytes).await?;
        let host = usize::from(bytes[ENTRY - 1]);
        bytes.resize(ENTRY + host + FIGURES, 0);
        from.read_exact(&mut bytes[ENTRY..]).await?;
        found.push(Listed::decode(&bytes).map_err(invalid)?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn what_was_granted_is_understood_and_what_follows_is_left() {
        for head in [&b""[..], b"HTTP/1.0 200 OK\r\n\r\n", &[b'x'; LONGEST_HEAD]] {
            let granted = Granted {
                id: SessionId::from_bytes([9; 16]),
                moves: 2,
                offset: 1 << 33,
                to: "[2001:db8::1]:443".parse().unwrap(),
                has_ended: !head.is_empty(),
                head: head.to_vec(),
            };
            let bytes = granted.encode();
            for cut in 0..bytes.len() {
                assert!(read_granted(&mut &bytes[..cut]).await.is_err(), "cut at {cut}");
            }
            let more = [&bytes[..], b"\0\0\x01x"].concat();
            let mut stream = &more[..];
            assert_eq!(read_granted(&mut stream).await.unwrap(), granted);
            assert_eq!(stream, b"\0\0\x01x");
            let far = Granted { offset: u64::MAX - 5, ..granted }.encode();
            assert!(read_granted(&mut &far[..]).await.is_err(), "nothing can be added to that");
        }
    }

    #[tokio::test]
    async fn a_list_is_understood_wherever_it_is_cut() {
        let listed = |standing, may| Listed {
            id: SessionId::from_bytes([3; 16]),
            moves: 1,
            holder: EndpointId::from_bytes(&[4; 32]),
            to: "example.org:80".parse().unwrap(),
            age: Duration::from_secs(77),
            up: 10,
            down: 1 << 40,
            kept: 4096,
            standing,
            may,
        };
        let all = [
            listed(Standing::Live, May::Own),
            listed(Standing::Held, May::Consent),
            listed(Standing::Moving, May::Rule),
        ];
        let bytes = write_list(&all);
        assert_eq!(read_list(&mut &bytes[..]).await.unwrap(), all);
        for cut in 0..bytes.len() {
            assert!(read_list(&mut &bytes[..cut]).await.is_err(), "cut at {cut}");
        }
        assert!(read_list(&mut &b"\xff\xff"[..]).await.is_err(), "too many");
    }
}
