//! A host and a port, as programs name them.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The longest name that DNS has (RFC 1035, §2.3.4).
const LONGEST: usize = 253;

/// A host, which is a name or an address, and a port.
///
/// ```
/// use whimbrel_proxy::Destination;
/// let to: Destination = "[2001:db8::1]:443".parse()?;
/// assert_eq!((to.host(), to.port()), ("2001:db8::1", 443));
/// assert_eq!(to.to_string(), "[2001:db8::1]:443");
/// # Ok::<(), whimbrel_proxy::BadDestination>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    host: String,
    port: u16,
}

/// Why a text is no destination.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no HOST:PORT: {why}")]
pub struct BadDestination {
    text: String,
    why: &'static str,
}

impl Destination {
    /// A destination of its parts. Names are written in lower case, without a final dot; an IPv6 address has
    /// no brackets.
    ///
    /// # Errors
    /// When the host is neither an address nor a name that DNS could have, or the port is 0.
    pub fn new(host: &str, port: u16) -> Result<Self, BadDestination> {
        let bad = |why| BadDestination { text: format!("{host}:{port}"), why };
        if port == 0 {
            return Err(bad("the port is 0"));
        }
        if let Ok(address) = host.parse::<IpAddr>() {
            // An IPv4 address is read in one form only, and has it. An IPv6 address has several.
            let host = if address.is_ipv4() { host.to_owned() } else { address.to_string() };
            return Ok(Self { host, port });
        }
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        if name.is_empty() || name.len() > LONGEST {
            return Err(bad("a host has 1 to 253 characters"));
        }
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        if !name.bytes().all(fits) || name.split('.').any(|label| label.is_empty() || label.len() > 63) {
            return Err(bad("the host is no name"));
        }
        Ok(Self { host: name, port })
    }

    /// The name or address, in lower case and without brackets.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port. Never 0.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The address, where the host is one.
    pub fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Whether this is a server of this host itself, for one that connects from here (RFC 6761, §6.3).
    /// Systems take 0.0.0.0 and :: for it too.
    pub(crate) fn is_this_host(&self) -> bool {
        match self.address().map(|address| address.to_canonical()) {
            Some(address) => address.is_loopback() || address.is_unspecified(),
            None => self.host.rsplit('.').next() == Some("localhost"),
        }
    }
}

impl FromStr for Destination {
    type Err = BadDestination;

    fn from_str(text: &str) -> Result<Self, BadDestination> {
        let bad = |why| BadDestination { text: text.chars().take(300).collect(), why };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| bad("there is no port"))?;
        let host = match host.strip_prefix('[') {
            Some(rest) => rest.strip_suffix(']').ok_or_else(|| bad("there is no closing bracket"))?,
            None if host.contains(':') => return Err(bad("an IPv6 address wants brackets")),
            None => host,
        };
        // `parse` would take a sign.
        if !port.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad("the port is no number from 1 to 65535"));
        }
        let port = port.parse().map_err(|_| bad("the port is no number from 1 to 65535"))?;
        Self::new(host, port)
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Option<String> {
        text.parse::<Destination>().ok().map(|to| to.to_string())
    }

    #[test]
    fn names_and_addresses_are_read_in_one_form() {
        assert_eq!(read("Example.ORG.:80").as_deref(), Some("example.org:80"));
        assert_eq!(read("192.0.2.1:443").as_deref(), Some("192.0.2.1:443"));
        assert_eq!(read("[2001:DB8:0::1]:443").as_deref(), Some("[2001:db8::1]:443"));
    }

    #[test]
    fn this_host_is_known_by_its_names_and_addresses() {
        let is_this_host = |host: &str| Destination::new(host, 80).unwrap().is_this_host();
        for host in ["127.0.0.1", "::1", "0.0.0.0", "::", "::ffff:127.0.0.9", "localhost", "web.localhost"] {
            assert!(is_this_host(host), "{host}");
        }
        for host in ["localhost.example.org", "mylocalhost", "192.0.2.1", "2001:db8::1", "::ffff:192.0.2.1"] {
            assert!(!is_this_host(host), "{host}");
        }
    }

    #[test]
    fn what_is_no_destination_is_refused() {
        for text in [
            "",
            ":",
            ":80",
            "host",
            "host:",
            "host:0",
            "host:65536",
            "host:+80",
            "a b:80",
            "a..b:80",
            "[::1:80",
            "::1:80",
            "host:80\r\n",
            "ho\0st:80",
            "user@host:80",
            "host/path:80",
        ] {
            assert_eq!(read(text), None, "{text:?}");
        }
        assert_eq!(read(&format!("{}:80", "a".repeat(64))), None);
        assert_eq!(read(&format!("{}:80", "a.".repeat(200))), None);
    }
}
