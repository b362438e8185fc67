//! What is said on a stream to a gateway before its bytes.
//!
//! ```text
//! request = version (1) length (1) host (length) port (2, big-endian)
//! answer  = version (1) status (1) length (1) text (length, UTF-8)
//! ```
//!
//! A host has exactly one form, that of [`Destination`]; anything else is refused.

use crate::{Destination, UpstreamError};
use std::io::{self, ErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// Of the two messages.
const VERSION: u8 = 1;
/// The longest text in an answer.
const LONGEST: usize = 255;

/// Why what came is no message of this protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadMessage {
    /// Another version, or another program.
    #[error("it speaks version {0} of the gateway's protocol, or another protocol; this is version 1 or 2")]
    Version(u8),
    /// It is cut off, or goes on where it should end.
    #[error("its length is wrong")]
    Length,
    /// What is to be reached is none, or not in its one form.
    #[error("its destination is none")]
    Destination,
    /// It asks for something that this version does not know.
    #[error("it asks for something unknown (kind {0})")]
    Kind(u8),
    /// No answer begins so.
    #[error("its status {0} is unknown")]
    Status(u8),
}

/// Asks for a connection to a destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// What is to be reached.
    pub to: Destination,
}

impl Request {
    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let host = self.to.host().as_bytes();
        // A host has at most 253.
        let mut bytes = vec![VERSION, host.len().try_into().unwrap_or(u8::MAX)];
        bytes.extend_from_slice(host);
        bytes.extend_from_slice(&self.to.port().to_be_bytes());
        bytes
    }

    /// Reads a whole request.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let [version, length, rest @ ..] = bytes else { return Err(BadMessage::Length) };
        if *version != VERSION {
            return Err(BadMessage::Version(*version));
        }
        let (host, port) = rest.split_at_checked(usize::from(*length)).ok_or(BadMessage::Length)?;
        let port = port.try_into().map(u16::from_be_bytes).map_err(|_| BadMessage::Length)?;
        let host = str::from_utf8(host).map_err(|_| BadMessage::Destination)?;
        let to = Destination::new(host, port).map_err(|_| BadMessage::Destination)?;
        if to.host() == host { Ok(Self { to }) } else { Err(BadMessage::Destination) }
    }

    /// Takes the rest of a request from a stream, behind its first two bytes, and not a byte of what follows
    /// it.
    ///
    /// # Errors
    /// When it is none, in an [`ErrorKind::InvalidData`], or the stream breaks.
    pub(crate) async fn read_on(begin: [u8; 2], from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        let mut bytes = begin.to_vec();
        if bytes[0] == VERSION {
            bytes.resize(usize::from(bytes[1]) + 4, 0);
            from.read_exact(&mut bytes[2..]).await?;
        }
        Self::decode(&bytes).map_err(invalid)
    }
}

fn invalid(error: BadMessage) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error)
}

/// What became of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The connection is there; its bytes follow.
    Connected,
    /// The gateway's rules do not let it through.
    NotAllowed,
    /// Its name is not found.
    NoSuchHost,
    /// It does not accept connections there.
    ConnectionRefused,
    /// No packet gets to it.
    HostUnreachable,
    /// No network leads to it.
    NetworkUnreachable,
    /// It does not answer in time.
    TimedOut,
    /// There are too many connections.
    Full,
    /// Something else.
    Failed,
    /// The request was not understood.
    NotUnderstood,
    /// There is no such session for this device.
    NoSession,
}

const STATUSES: [Status; 11] = [
    Status::Connected,
    Status::NotAllowed,
    Status::NoSuchHost,
    Status::ConnectionRefused,
    Status::HostUnreachable,
    Status::NetworkUnreachable,
    Status::TimedOut,
    Status::Full,
    Status::Failed,
    Status::NotUnderstood,
    Status::NoSession,
];

/// What the gateway says to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    /// What became of it.
    pub status: Status,
    /// For people: where the connection leads, or what is wrong.
    pub text: String,
}

impl Answer {
    /// With as much of the text as there is room for.
    pub fn new(status: Status, text: &str) -> Self {
        Self { status, text: text[..text.floor_char_boundary(LONGEST)].to_owned() }
    }

    /// As bytes.
    pub fn encode(&self) -> Vec<u8> {
        let text = &self.text.as_bytes()[..self.text.floor_char_boundary(LONGEST)];
        let status = STATUSES.iter().position(|status| *status == self.status).unwrap_or_default();
        let small = |number: usize| number.try_into().unwrap_or(u8::MAX);
        let mut bytes = vec![VERSION, small(status), small(text.len())];
        bytes.extend_from_slice(text);
        bytes
    }

    /// Reads a whole answer.
    ///
    /// # Errors
    /// When it is none.
    pub fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        let [version, status, length, text @ ..] = bytes else { return Err(BadMessage::Length) };
        if *version != VERSION {
            return Err(BadMessage::Version(*version));
        }
        if text.len() != usize::from(*length) {
            return Err(BadMessage::Length);
        }
        let status = *STATUSES.get(usize::from(*status)).ok_or(BadMessage::Status(*status))?;
        Ok(Self { status, text: String::from_utf8_lossy(text).into_owned() })
    }

    /// Takes an answer from a stream, and not a byte of what follows it.
    ///
    /// # Errors
    /// As [`Request::read_on`].
    pub(crate) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        // Another protocol may be done after one byte.
        let first = from.read_u8().await?;
        Self::read_on(first, from).await
    }

    /// Takes the rest of an answer from a stream, behind its first byte.
    pub(crate) async fn read_on(first: u8, from: &mut (impl AsyncRead + Unpin)) -> io::Result<Self> {
        if first != VERSION {
            return Err(invalid(BadMessage::Version(first)));
        }
        let mut bytes = vec![first, 0, 0];
        from.read_exact(&mut bytes[1..]).await?;
        bytes.resize(usize::from(bytes[2]) + 3, 0);
        from.read_exact(&mut bytes[3..]).await?;
        Self::decode(&bytes).map_err(invalid)
    }

    /// The answer to who asked for what was not reached.
    pub(crate) fn of_error(error: &UpstreamError) -> Self {
        match error {
            UpstreamError::Refused { why, .. } => Self::new(Status::NotAllowed, why),
            UpstreamError::NoWay { why, .. } => Self::new(Status::NoSuchHost, why),
            UpstreamError::Unreachable { source, .. } => Self::of_io(source),
        }
    }

    /// The answer where connecting failed, by what the system says.
    pub fn of_io(error: &io::Error) -> Self {
        let status = match error.kind() {
            ErrorKind::ConnectionRefused => Status::ConnectionRefused,
            ErrorKind::HostUnreachable => Status::HostUnreachable,
            ErrorKind::NetworkUnreachable => Status::NetworkUnreachable,
            ErrorKind::TimedOut => Status::TimedOut,
            _ => Status::Failed,
        };
        Self::new(status, &error.to_string())
    }

    /// The text, without characters that could control a terminal: it may come from anywhere.
    pub(crate) fn plain(&self) -> String {
        self.text.chars().map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c }).collect()
    }

    /// What this says to who asked for it; nothing if it was reached.
    pub(crate) fn error(self, to: &Destination) -> Option<UpstreamError> {
        let (to, why) = (to.to_string(), self.plain());
        let unreachable =
            |kind| Some(UpstreamError::Unreachable { to: to.clone(), source: io::Error::from(kind) });
        match self.status {
            Status::Connected => None,
            Status::NotAllowed => Some(UpstreamError::Refused { to, why }),
            Status::NoSuchHost => Some(UpstreamError::NoWay { to, why }),
            Status::ConnectionRefused => unreachable(ErrorKind::ConnectionRefused),
            Status::HostUnreachable => unreachable(ErrorKind::HostUnreachable),
            Status::NetworkUnreachable => unreachable(ErrorKind::NetworkUnreachable),
            Status::TimedOut => unreachable(ErrorKind::TimedOut),
            Status::Full | Status::Failed | Status::NotUnderstood | Status::NoSession => {
                Some(UpstreamError::Unreachable { to, source: io::Error::other(why) })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sessions::Asked;

    fn request(text: &str) -> Request {
        Request { to: text.parse().unwrap() }
    }

    #[test]
    fn the_bytes_are_those_of_the_document() {
        let bytes = request("example.org:443").encode();
        assert_eq!(bytes, b"\x01\x0bexample.org\x01\xbb");
        assert_eq!(request("[2001:db8::1]:80").encode(), b"\x01\x0b2001:db8::1\x00\x50");
        assert_eq!(Answer::new(Status::Connected, "192.0.2.1:80").encode(), b"\x01\x00\x0c192.0.2.1:80");
        assert_eq!(Answer::new(Status::NotUnderstood, "").encode(), b"\x01\x09\x00");
    }

    #[test]
    fn what_was_said_is_understood() {
        let longest =
            format!("{}.org:1", ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(57)].join("."));
        for text in ["example.org:443", "192.0.2.1:65535", "[2001:db8::1]:1", &longest] {
            let bytes = request(text).encode();
            assert_eq!(Request::decode(&bytes), Ok(request(text)));
            for cut in 0..bytes.len() {
                assert!(Request::decode(&bytes[..cut]).is_err(), "{text} cut at {cut}");
            }
            assert_eq!(Request::decode(&[&bytes[..], b"x"].concat()), Err(BadMessage::Length));
        }
        for status in STATUSES {
            let answer = Answer::new(status, "why\n…");
            assert_eq!(Answer::decode(&answer.encode()), Ok(answer));
        }
        assert_eq!(Answer::new(Status::Failed, &"ü".repeat(200)).encode().len(), 3 + 254);
    }

    #[test]
    fn a_host_in_another_form_or_none_is_refused() {
        for host in ["Example.org", "example.org.", "", "a b", "a..b", "2001:DB8::1", "[::1]", "ex\u{e4}mple"]
        {
            let mut bytes = vec![1, u8::try_from(host.len()).unwrap()];
            bytes.extend_from_slice(host.as_bytes());
            bytes.extend_from_slice(&[0, 80]);
            assert_eq!(Request::decode(&bytes), Err(BadMessage::Destination), "{host}");
        }
        assert_eq!(Request::decode(b"\x01\x01a\0\0"), Err(BadMessage::Destination), "port 0");
        assert_eq!(Request::decode(b"SSH-2.0"), Err(BadMessage::Version(b'S')));
        assert_eq!(Answer::decode(b"\x01\x0b\x00"), Err(BadMessage::Status(11)));
    }

    #[test]
    fn a_gateways_words_control_no_terminal() {
        let to: Destination = "example.org:80".parse().unwrap();
        let error = Answer::new(Status::NotAllowed, "\x1b[2Jno\r\n\u{9b}").error(&to).unwrap().to_string();
        assert!(!error.chars().any(char::is_control) && error.contains("[2Jno"), "{error}");
    }

    #[tokio::test]
    async fn what_follows_a_message_is_left_in_the_stream() {
        let bytes = [request("a.org:1").encode(), b"GET /".to_vec()].concat();
        let mut stream = &bytes[..];
        assert_eq!(Asked::read(&mut stream).await.unwrap(), Asked::Plain(request("a.org:1")));
        assert_eq!(stream, b"GET /");
        let bytes = [Answer::new(Status::Connected, "x").encode(), b"220 hi".to_vec()].concat();
        let mut stream = &bytes[..];
        Answer::read(&mut stream).await.unwrap();
        assert_eq!(stream, b"220 hi");
        assert_eq!(Asked::read(&mut &b"GET / HTTP"[..]).await.unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
