//! What is said before the bytes. Each reader takes a buffer, and returns what stands at its beginning and
//! how long that is; `None` if more is to come.

use crate::{Destination, UpstreamError};
use std::io::ErrorKind;
use std::net::{Ipv4Addr, Ipv6Addr};

/// No message is longer, so that more is never waited for: a user name and a host of SOCKS4a.
pub(super) const LONGEST: usize = 8 + 256 + 256;

const V5: u8 = 5;
const V4: u8 = 4;
const CONNECT: u8 = 1;
/// Of an RFC 1929 message.
const LOGIN: u8 = 1;
/// Of SOCKS4 answers.
const GRANTED: u8 = 90;
const REJECTED: u8 = 91;

/// What a program begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Greeting {
    /// SOCKS5, and whether it would go without a password, and with one.
    V5 { open: bool, password: bool },
    /// SOCKS4 with its whole request.
    V4(Result<Destination, Wrong>),
}

/// What is wrong with what a program said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Wrong {
    #[error("this is no SOCKS5 and no SOCKS4a")]
    NoSocks,
    #[error("only CONNECT is served, and neither BIND nor UDP")]
    Command,
    #[error("its kind of address is unknown")]
    AddressType,
    #[error("its destination is none")]
    Destination,
}

/// The answers of SOCKS5 (RFC 1928, §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reply {
    Succeeded = 0,
    Failed = 1,
    NotAllowed = 2,
    NetworkUnreachable = 3,
    HostUnreachable = 4,
    Refused = 5,
    CommandNotSupported = 7,
    AddressTypeNotSupported = 8,
}

impl Reply {
    pub(super) fn of_wrong(wrong: Wrong) -> Self {
        match wrong {
            Wrong::Command => Self::CommandNotSupported,
            Wrong::AddressType => Self::AddressTypeNotSupported,
            Wrong::NoSocks | Wrong::Destination => Self::Failed,
        }
    }

    pub(super) fn of_error(error: &UpstreamError) -> Self {
        match error {
            UpstreamError::Refused { .. } => Self::NotAllowed,
            UpstreamError::NoWay { .. } => Self::HostUnreachable,
            UpstreamError::Unreachable { source, .. } => match source.kind() {
                ErrorKind::ConnectionRefused => Self::Refused,
                ErrorKind::NetworkUnreachable => Self::NetworkUnreachable,
                ErrorKind::HostUnreachable | ErrorKind::TimedOut => Self::HostUnreachable,
                // A name that the system does not find.
                _ if source.raw_os_error().is_none() => Self::HostUnreachable,
                _ => Self::Failed,
            },
        }
    }

    /// With an address that says nothing: programs have no use for it after CONNECT.
    pub(super) fn v5(self) -> [u8; 10] {
        [V5, self as u8, 0, 1, 0, 0, 0, 0, 0, 0]
    }

    pub(super) fn v4(self) -> [u8; 8] {
        let code = if self == Self::Succeeded { GRANTED } else { REJECTED };
        [0, code, 0, 0, 0, 0, 0, 0]
    }
}

/// The ways to go on after a greeting of SOCKS5.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Open = 0,
    Password = 2,
    None = 0xff,
}

impl Method {
    pub(super) fn answer(self) -> [u8; 2] {
        [V5, self as u8]
    }
}

/// The answer to a user name and a password.
pub(super) fn login_answer(is_right: bool) -> [u8; 2] {
    [LOGIN, u8::from(!is_right)]
}

/// What a reader returns: what was read, and how long it is.
pub(super) type Read<T> = Result<Option<(T, usize)>, Wrong>;

/// A user name and a password.
pub(super) type Login<'a> = (&'a [u8], &'a [u8]);

/// The beginning.
pub(super) fn greeting(bytes: &[u8]) -> Read<Greeting> {
    match bytes {
        [] => Ok(None),
        [V5, rest @ ..] => Ok(field(rest).map(|methods| {
            let has = |method: Method| methods.contains(&(method as u8));
            let greeting = Greeting::V5 { open: has(Method::Open), password: has(Method::Password) };
            (greeting, 2 + methods.len())
        })),
        [V4, rest @ ..] => {
            request_v4(rest).map(|found| found.map(|(to, length)| (Greeting::V4(to), 1 + length)))
        }
        _ => Err(Wrong::NoSocks),
    }
}

/// A byte that says how many follow, and these.
fn field(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first()?;
    rest.get(..usize::from(*length))
}

/// User name and password.
pub(super) fn login(bytes: &[u8]) -> Read<Login<'_>> {
    let rest = match bytes {
        [] => return Ok(None),
        [LOGIN, rest @ ..] => rest,
        _ => return Err(Wrong::NoSocks),
    };
    let Some(user) = field(rest) else { return Ok(None) };
    let Some(password) = field(&rest[1 + user.len()..]) else { return Ok(None) };
    Ok(Some(((user, password), 3 + user.len() + password.len())))
}

/// What a program wants, by SOCKS5.
pub(super) fn request(bytes: &[u8]) -> Read<Destination> {
    match bytes {
        [] => return Ok(None),
        [V5, ..] => {}
        _ => return Err(Wrong::NoSocks),
    }
    // All of the request is read before it is refused, so that the answer is not lost in a reset.
    let [_, command, _, kind, rest @ ..] = bytes else { return Ok(None) };
    let (host, length) = match kind {
        1 => (rest.first_chunk().map(|octets: &[u8; 4]| Ipv4Addr::from(*octets).to_string()), 4),
        4 => (rest.first_chunk().map(|octets: &[u8; 16]| Ipv6Addr::from(*octets).to_string()), 16),
        3 => match field(rest) {
            // What is no text is no host either.
            Some(name) => (Some(String::from_utf8_lossy(name).into_owned()), 1 + name.len()),
            None => return Ok(None),
        },
        _ => return Err(Wrong::AddressType),
    };
    let port = rest.get(length..).and_then(|rest| rest.first_chunk());
    let (Some(host), Some(port)) = (host, port) else { return Ok(None) };
    if *command != CONNECT {
        return Err(Wrong::Command);
    }
    let to = Destination::new(&host, u16::from_be_bytes(*port)).map_err(|_| Wrong::Destination)?;
    Ok(Some((to, 4 + length + 2)))
}

type Asked = Result<Destination, Wrong>;

/// What a program wants, by SOCKS4 or SOCKS4a, behind the version.
fn request_v4(bytes: &[u8]) -> Read<Asked> {
    let Some(([command, p1, p2, a, b, c, d], rest)) = bytes.split_first_chunk() else { return Ok(None) };
    let Some(user) = text(rest)? else { return Ok(None) };
    let mut length = 7 + user.len() + 1;
    // An address that leads nowhere: a name follows (SOCKS4a).
    let is_named = [*a, *b, *c] == [0, 0, 0] && *d != 0;
    let host = if is_named {
        let Some(name) = text(&rest[user.len() + 1..])? else { return Ok(None) };
        length += name.len() + 1;
        String::from_utf8_lossy(name).into_owned()
    } else {
        Ipv4Addr::new(*a, *b, *c, *d).to_string()
    };
    let asked = match *command {
        CONNECT => Destination::new(&host, u16::from_be_bytes([*p1, *p2])).map_err(|_| Wrong::Destination),
        _ => Err(Wrong::Command),
    };
    Ok(Some((asked, length)))
}

/// What stands before a zero.
fn text(bytes: &[u8]) -> Result<Option<&[u8]>, Wrong> {
    let end = bytes.iter().take(256).position(|byte| *byte == 0);
    match end {
        Some(end) => Ok(Some(&bytes[..end])),
        None if bytes.len() < 256 => Ok(None),
        None => Err(Wrong::NoSocks),
    }
}

/// Reads bytes as everything that a program may say.
pub(super) fn read_anything(bytes: &[u8]) {
    if let Ok(Some((_, length))) = greeting(bytes) {
        assert!(length <= bytes.len().min(LONGEST), "no more is taken than there is");
    }
    if let Ok(Some((_, length))) = login(bytes) {
        assert!(length <= bytes.len().min(LONGEST), "no more is taken than there is");
    }
    if let Ok(Some((to, length))) = request(bytes) {
        assert!(length <= bytes.len().min(LONGEST), "no more is taken than there is");
        assert!(to.to_string().parse() == Ok(to), "what is understood can be said");
    }
    if bytes.len() >= LONGEST {
        let waits = [greeting(bytes) == Ok(None), login(bytes) == Ok(None), request(bytes) == Ok(None)];
        assert!(!waits.contains(&true), "no more is waited for than there can be");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn to(text: &str) -> Destination {
        text.parse().unwrap()
    }

    #[test]
    fn what_programs_say_is_understood() {
        let open = Greeting::V5 { open: true, password: false };
        assert_eq!(greeting(b"\x05\x01\x00\x05"), Ok(Some((open, 3))));
        let both = Greeting::V5 { open: true, password: true };
        assert_eq!(greeting(b"\x05\x03\x00\x01\x02"), Ok(Some((both, 5))));
        assert_eq!(login(b"\x01\x03ada\x02pw!"), Ok(Some(((&b"ada"[..], &b"pw"[..]), 8))));
        assert_eq!(request(b"\x05\x01\x00\x01\xc0\x00\x02\x01\x00\x50!"), Ok(Some((to("192.0.2.1:80"), 10))));
        assert_eq!(
            request(b"\x05\x01\x00\x03\x0bExample.org\x01\xbb"),
            Ok(Some((to("example.org:443"), 18)))
        );
        let v6 = [&b"\x05\x01\x00\x04"[..], &[0x20, 1, 0xd, 0xb8], &[0; 11], &[1, 0, 22]].concat();
        assert_eq!(request(&v6), Ok(Some((to("[2001:db8::1]:22"), 22))));
        let named = Greeting::V4(Ok(to("example.org:80")));
        assert_eq!(greeting(b"\x04\x01\x00\x50\0\0\0\x01ada\0example.org\0!"), Ok(Some((named, 24))));
        let plain = Greeting::V4(Ok(to("192.0.2.1:80")));
        assert_eq!(greeting(b"\x04\x01\x00\x50\xc0\0\x02\x01\0"), Ok(Some((plain, 9))));
    }

    #[test]
    fn what_is_not_served_is_told_by_its_code() {
        for command in [2, 3, 0, 9] {
            let wrong = request(&[5, command, 0, 1, 192, 0, 2, 1, 0, 80]).unwrap_err();
            assert_eq!(Reply::of_wrong(wrong).v5()[1], 7, "{command}");
        }
        assert_eq!(Reply::of_wrong(request(&[5, 1, 0, 2]).unwrap_err()).v5()[1], 8);
        assert_eq!(Reply::of_wrong(request(&[5, 1, 0, 1, 192, 0, 2, 1, 0, 0]).unwrap_err()).v5()[1], 1);
        assert_eq!(
            greeting(b"\x04\x02\x00\x50\xc0\0\x02\x01\0").unwrap().unwrap().0,
            Greeting::V4(Err(Wrong::Command))
        );
        for host in [&b"a\0b"[..], b"a b", b"a\r\nb", b"\xff\xfe", b"", b"user@host", b"a/b"] {
            let length = u8::try_from(host.len()).unwrap();
            let asked = [&[5, 1, 0, 3, length], host, &[0, 80]].concat();
            assert_eq!(request(&asked), Err(Wrong::Destination), "{host:?}");
        }
        for first in [
            b"GET / HTTP/1.1\r\n",
            b"POST / HTTP/1.0\r",
            b"SSH-2.0-OpenSSH_",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\0\0\0\0\0",
        ] {
            assert_eq!(greeting(first), Err(Wrong::NoSocks));
        }
    }

    #[test]
    fn errors_have_the_replies_of_the_rfc() {
        let unreachable =
            |kind: ErrorKind| UpstreamError::Unreachable { to: String::new(), source: kind.into() };
        let (to, why) = (String::new(), String::new());
        for (error, code) in [
            (UpstreamError::Refused { to: to.clone(), why: why.clone() }, 2),
            (UpstreamError::NoWay { to, why }, 4),
            (unreachable(ErrorKind::ConnectionRefused), 5),
            (unreachable(ErrorKind::NetworkUnreachable), 3),
            (unreachable(ErrorKind::HostUnreachable), 4),
            (unreachable(ErrorKind::TimedOut), 4),
        ] {
            assert_eq!(Reply::of_error(&error).v5()[1], code, "{error}");
        }
        let odd = std::io::Error::from_raw_os_error(24);
        assert_eq!(
            Reply::of_error(&UpstreamError::Unreachable { to: String::new(), source: odd }),
            Reply::Failed
        );
    }

    #[test]
    fn a_message_that_is_not_whole_is_waited_for_and_none_for_ever() {
        for whole in [
            &b"\x05\x02\x00\x02"[..],
            b"\x04\x01\x00\x50\0\0\0\x01ada\0example.org\0",
            b"\x04\x01\x00\x50\xc0\0\x02\x01\0",
        ] {
            for cut in 0..whole.len() {
                assert_eq!(greeting(&whole[..cut]), Ok(None), "{whole:?} cut at {cut}");
            }
        }
        for cut in 0..18 {
            assert_eq!(request(&b"\x05\x01\x00\x03\x0bexample.org\x01\xbb"[..cut]), Ok(None));
        }
        for cut in 0..8 {
            assert_eq!(login(&b"\x01\x03ada\x02pw"[..cut]), Ok(None));
        }
        assert_eq!(
            greeting(&[&b"\x04\x01\x00\x50\0\0\0\x01"[..], &[b'a'; 300]].concat()),
            Err(Wrong::NoSocks)
        );
    }

    proptest! {
        #[test]
        fn nothing_that_is_said_panics(
            bytes in prop::collection::vec(any::<u8>(), 0..600),
            first in 0_u8..7,
        ) {
            read_anything(&bytes);
            read_anything(&[&[first], &bytes[..]].concat());
        }
    }
}
