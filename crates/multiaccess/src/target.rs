//! Where a question leads to.

use crate::decide::Candidate;
use crate::protocol::Ask;
use std::net::SocketAddr;

/// The longest name of a host (RFC 1035).
const LONGEST_NAME: usize = 253;

/// The destination of a question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Target {
    /// Its addresses are known; none where the question has no destination.
    Addresses(Vec<Candidate>),
    /// A name, which each interface has to look up for itself.
    Name { host: String, port: u16 },
}

/// Why a destination is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("to: `{0}` is no destination; write HOST:PORT, as in example.org:443 or [2001:db8::1]:443")]
pub(crate) struct TargetError(String);

impl Target {
    /// Where this question leads to. Addresses that the client knows already count, and not the name.
    pub(crate) fn of(ask: &Ask) -> Result<Self, TargetError> {
        let anywhere = |address: SocketAddr| Candidate { address, interface: None };
        // Those who watch are told of it, whether it counts or not.
        if let Some(to) = ask.to.as_deref().filter(|to| to.len() > LONGEST_NAME + ":65535".len()) {
            return Err(TargetError(to.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect()));
        }
        if !ask.addresses.is_empty() {
            return Ok(Self::Addresses(ask.addresses.iter().copied().map(anywhere).collect()));
        }
        let Some(to) = &ask.to else { return Ok(Self::Addresses(Vec::new())) };
        if let Ok(address) = to.parse() {
            return Ok(Self::Addresses(vec![anywhere(address)]));
        }
        let shown = || TargetError(to.chars().filter(|c| !c.is_control()).take(LONGEST_NAME).collect());
        let (host, port) = to.rsplit_once(':').ok_or_else(shown)?;
        let fits = (1..=LONGEST_NAME).contains(&host.len())
            && host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte));
        match port.parse() {
            Ok(port) if fits && port != 0 => Ok(Self::Name { host: host.to_owned(), port }),
            _ => Err(shown()),
        }
    }
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
    fn addresses_that_the_client_knows_are_not_looked_up() {
        let address = "192.0.2.1:443".parse().unwrap();
        let ask = Ask { to: Some("example.org:443".to_owned()), addresses: vec![address], ..Ask::default() };
        let expected = Candidate { address, interface: None };
        assert_eq!(Target::of(&ask), Ok(Target::Addresses(vec![expected])));
    }
}
