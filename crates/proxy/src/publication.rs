//! What a peer publishes through a gateway: a host, or a port of the gateway's.

use crate::{BadMessage, Destination, is_whimbrel_host};
use std::fmt;
use std::str::FromStr;

/// On the wire.
const TLS: u8 = 1;
const PORT: u8 = 2;
const HTTP: u8 = 3;

/// What of a gateway leads to a peer's server. Hosts are in lower case and without a final dot.
///
/// ```
/// use whimbrel_proxy::Publication;
/// assert_eq!("WWW.example.org.".parse(), Ok(Publication::Tls("www.example.org".to_owned())));
/// assert_eq!("http://example.org".parse(), Ok(Publication::Http("example.org".to_owned())));
/// assert_eq!("2222".parse(), Ok(Publication::Port(2222)));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Publication {
    /// Clients that ask for this host by the server name of their TLS.
    Tls(String),
    /// Clients that ask for this host by plain HTTP.
    Http(String),
    /// Clients that connect to this port.
    Port(u16),
}

/// Why a text says nothing that can be published.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is neither a port nor a host, as 2222, www.example.org or http://www.example.org")]
pub struct BadPublication {
    text: String,
}

impl BadPublication {
    fn new(text: &str) -> Self {
        Self { text: text.chars().take(300).collect() }
    }
}

/// A host in its one form. Addresses are none, since clients do not say them by TLS, and neither is what
/// stands for a name of Whimbrel.
///
/// # Errors
/// When it is none.
pub(crate) fn host(text: &str) -> Result<String, BadPublication> {
    let to = Destination::new(text, 443).map_err(|_| BadPublication::new(text))?;
    // What ends in a number is an address in some form, to some programs.
    let last = to.host().rsplit('.').next().unwrap_or_default();
    let is_number = last.bytes().all(|byte| byte.is_ascii_digit());
    if to.address().is_some() || is_number || is_whimbrel_host(to.host()) {
        return Err(BadPublication::new(text));
    }
    Ok(to.host().to_owned())
}

impl Publication {
    /// The host, if it is one.
    pub fn host(&self) -> Option<&str> {
        match self {
            Self::Tls(host) | Self::Http(host) => Some(host),
            Self::Port(_) => None,
        }
    }

    /// Adds it to a message, at whose end it is.
    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Tls(host) => {
                out.push(TLS);
                out.extend_from_slice(host.as_bytes());
            }
            Self::Http(host) => {
                out.push(HTTP);
                out.extend_from_slice(host.as_bytes());
            }
            Self::Port(port) => {
                out.push(PORT);
                out.extend_from_slice(&port.to_be_bytes());
            }
        }
    }

    /// As bytes.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }

    /// Reads it, and nothing else may be there.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, BadMessage> {
        match bytes {
            [TLS, text @ ..] => said(text).map(Self::Tls),
            [HTTP, text @ ..] => said(text).map(Self::Http),
            [PORT, high, low] => match u16::from_be_bytes([*high, *low]) {
                0 => Err(BadMessage::Destination),
                port => Ok(Self::Port(port)),
            },
            [PORT, ..] | [] => Err(BadMessage::Length),
            [kind, ..] => Err(BadMessage::Kind(*kind)),
        }
    }
}

/// A host, which has one form.
fn said(text: &[u8]) -> Result<String, BadMessage> {
    let text = str::from_utf8(text).map_err(|_| BadMessage::Destination)?;
    host(text).ok().filter(|host| host == text).ok_or(BadMessage::Destination)
}

impl FromStr for Publication {
    type Err = BadPublication;

    fn from_str(text: &str) -> Result<Self, BadPublication> {
        if let Some(rest) = text.strip_prefix("http://") {
            return host(rest).map(Self::Http).map_err(|_| BadPublication::new(text));
        }
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            let rest = text.strip_prefix("https://").unwrap_or(text);
            return host(rest).map(Self::Tls).map_err(|_| BadPublication::new(text));
        }
        let port = text.parse().ok().filter(|port| *port != 0);
        port.map(Self::Port).ok_or_else(|| BadPublication::new(text))
    }
}

impl fmt::Display for Publication {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tls(host) => f.write_str(host),
            Self::Http(host) => write!(f, "http://{host}"),
            Self::Port(port) => write!(f, "port {port}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart_and_nothing_else_is_published() {
        for (text, shown) in [
            ("Www.Example.ORG.", "www.example.org"),
            ("https://www.example.org", "www.example.org"),
            ("http://www.Example.org", "http://www.example.org"),
            ("1", "port 1"),
            ("65535", "port 65535"),
        ] {
            assert_eq!(text.parse::<Publication>().unwrap().to_string(), shown);
        }
        for text in [
            "",
            "0",
            "65536",
            "a b",
            "192.0.2.1",
            "::1",
            "*.example.org",
            "a:80",
            "a.at.b.whimbrel",
            "+80",
            "80.",
            "a.1",
            "http://",
            "http://80",
            "http://a/b",
            "ftp://a",
            "https://http://a",
        ] {
            assert!(text.parse::<Publication>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn what_was_said_is_understood_in_one_form_alone() {
        for text in ["www.example.org", "http://www.example.org", "2222"] {
            let what: Publication = text.parse().unwrap();
            assert_eq!(Publication::decode(&what.encode()), Ok(what));
        }
        for wrong in [
            &b""[..],
            b"\x01",
            b"\x01WWW.example.org",
            b"\x01example.org.",
            b"\x01192.0.2.1",
            b"\x02\x00\x00",
            b"\x02\x01",
            b"\x02\x01\x02\x03",
            b"\x03",
            b"\x03A.example.org",
            b"\x04a",
        ] {
            assert!(Publication::decode(wrong).is_err(), "{wrong:?}");
        }
    }
}
