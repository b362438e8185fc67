//! Where a question leads to.

use crate::decide::Candidate;
use crate::protocol::Ask;
use std::net::SocketAddr;
use whimbrel_base::{Name, is_whimbrel_host, name_of_host};

/// The longest name of a host (RFC 1035).
const LONGEST_NAME: usize = 253;

/// The destination of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Its addresses are known; none where the question has no destination.
    Addresses(Vec<Candidate>),
    /// A name, which each interface has to look up for itself.
    Name { host: String, port: u16 },
    /// An endpoint of Whimbrel: no interface looks that up.
    Endpoint(Name),
}

/// Why a destination is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TargetError {
    #[error("to: `{0}` is no destination; write HOST:PORT, as in example.org:443 or [2001:db8::1]:443")]
    Form(String),
    #[error(
        "to: `{0}` is no name of Whimbrel; write ssh.laptop.user@example.org, or \
         ssh.laptop.user.at.example.org.whimbrel:22 where a host is wanted"
    )]
    Name(String),
}

impl Target {
    /// Where this question leads to. Addresses that the client knows already count, and not the name.
    pub(crate) fn of(ask: &Ask) -> Result<Self, TargetError> {
        let anywhere = |address: SocketAddr| Candidate { address, interface: None };
        // Those who watch are told of it, whether it counts or not.
        if let Some(to) = ask.to.as_deref().filter(|to| to.len() > LONGEST_NAME + ":65535".len()) {
            return Err(TargetError::Form(shown(to)));
        }
        if !ask.addresses.is_empty() {
            return Ok(Self::Addresses(ask.addresses.iter().copied().map(anywhere).collect()));
        }
        let Some(to) = &ask.to else { return Ok(Self::Addresses(Vec::new())) };
        if let Ok(address) = to.parse() {
            return Ok(Self::Addresses(vec![anywhere(address)]));
        }
        if to.contains('@') {
            let name = without_port(to).parse().map_err(|_| TargetError::Name(shown(to)))?;
            return Ok(Self::Endpoint(name));
        }
        let wrong = || TargetError::Form(shown(to));
        let (host, port) = to.rsplit_once(':').ok_or_else(wrong)?;
        let fits = (1..=LONGEST_NAME).contains(&host.len())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        let port = port.parse::<u16>().ok().filter(|port| fits && *port != 0).ok_or_else(wrong)?;
        let plain = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        match is_whimbrel_host(&plain) {
            true => name_of_host(&plain).map(Self::Endpoint).ok_or_else(|| TargetError::Name(shown(to))),
            false => Ok(Self::Name { host: host.to_owned(), port }),
        }
    }
}

/// A name of Whimbrel needs no port, and may have one.
fn without_port(to: &str) -> &str {
    match to.rsplit_once(':') {
        Some((name, port)) if port.parse::<u16>().is_ok_and(|port| port != 0) => name,
        _ => to,
    }
}

/// As much of it as an error says.
fn shown(to: &str) -> String {
    to.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn of(to: &str) -> Result<Target, TargetError> {
        Target::of(&Ask { to: Some(to.to_owned()), ..Ask::default() })
    }

    #[test]
    fn a_destination_that_is_too_long_is_refused_beside_addresses_too() {
        let addresses = vec!["192.0.2.1:443".parse().unwrap()];
        let ask = |to: String| Ask { to: Some(to), addresses: addresses.clone(), ..Ask::default() };
        assert!(Target::of(&ask("a".repeat(200))).is_ok());
        assert!(Target::of(&ask("a".repeat(10_000))).is_err());
    }

    #[test]
    fn a_destination_is_a_name_or_an_address_with_a_port() {
        let name = Target::Name { host: "example.org".to_owned(), port: 443 };
        assert_eq!(of("example.org:443"), Ok(name));
        for address in ["192.0.2.1:443", "[2001:db8::1]:443"] {
            let expected = Candidate { address: address.parse().unwrap(), interface: None };
            assert_eq!(of(address), Ok(Target::Addresses(vec![expected])));
        }
        for wrong in ["", "example.org", ":443", "a:0", "a:65536", "a b:1", "2001:db8::1:443", "a/b:1", "ä:1"]
        {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_whimbrel_are_endpoints_as_they_are_and_as_hosts_and_never_names_to_look_up() {
        let expected = Ok(Target::Endpoint("ssh.laptop.ada@example.org".parse().unwrap()));
        for to in [
            "ssh.laptop.ada@example.org",
            "ssh.laptop.ada@example.org:22",
            "ssh.Laptop.ada@example.org",
            "ssh.laptop.ada.at.example.org.whimbrel:22",
            "SSH.laptop.ada.at.example.org.Whimbrel.:22",
        ] {
            assert_eq!(of(to), expected, "{to}");
        }
        for wrong in ["ada@", "a b@example.org", "ada@example.org:0", "nobody.whimbrel:80", "whimbrel:80"] {
            let error = of(wrong).unwrap_err();
            assert_eq!(error, TargetError::Name(wrong.to_owned()));
            assert!(error.to_string().contains("write ssh.laptop.user@example.org"), "{error}");
        }
        assert!(matches!(of("whimbrel.example.org:80"), Ok(Target::Name { .. })));
    }

    #[test]
    fn addresses_that_the_client_knows_are_not_looked_up() {
        let address = "192.0.2.1:443".parse().unwrap();
        let ask = Ask { to: Some("example.org:443".to_owned()), addresses: vec![address], ..Ask::default() };
        let expected = Candidate { address, interface: None };
        assert_eq!(Target::of(&ask), Ok(Target::Addresses(vec![expected])));
    }
}
