//! Which connections an entry of `apps.toml` is for, by where they lead.

use std::ops::RangeInclusive;

use serde::Deserialize;
use whimbrel_base::Name;
use whimbrel_proxy::{Destination, Pattern};

/// What `http` stands for.
const HTTP: [u16; 2] = [80, 8080];

/// Destinations, as people write them.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub(super) enum Which {
    /// All.
    Any,
    /// Plain HTTP, where it usually is.
    Http,
    /// These ports of any host.
    Ports(RangeInclusive<u16>),
    /// Hosts, and perhaps ports.
    Hosts(Pattern),
    /// What `whimbrel forward` leads to, by its name.
    Peer(Name),
}

impl Which {
    /// Whether a destination is one of them. Nothing is looked up.
    pub(super) fn matches(&self, to: &Destination) -> bool {
        match self {
            Self::Any => true,
            Self::Http => HTTP.contains(&to.port()),
            Self::Ports(ports) => ports.contains(&to.port()),
            Self::Hosts(pattern) => pattern.matches(to),
            Self::Peer(_) => false,
        }
    }

    /// Whether the peer of a forward is one of them.
    pub(super) fn is_of(&self, peer: &str) -> bool {
        match self {
            Self::Any => true,
            // It may have its key behind it.
            Self::Peer(name) => peer.split('=').next() == Some(name.as_str()),
            Self::Http | Self::Ports(_) | Self::Hosts(_) => false,
        }
    }
}

impl TryFrom<String> for Which {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.as_str() {
            "any" => return Ok(Self::Any),
            "http" => return Ok(Self::Http),
            _ => {}
        }
        if text.contains('@')
            && let Ok(name) = text.parse()
        {
            return Ok(Self::Peer(name));
        }
        let found = match text.strip_prefix("*:") {
            Some(ports) => read_ports(ports).map(Self::Ports),
            None => text.parse().ok().map(Self::Hosts),
        };
        found.ok_or_else(|| {
            format!(
                "`match` is {text:?}; write any, http, *:PORT, a peer's name, or HOST, *.DOMAIN or NET, perhaps \
                 with :PORT"
            )
        })
    }
}

fn read_ports(text: &str) -> Option<RangeInclusive<u16>> {
    // `parse` would take a sign.
    let digits = |text: &&str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let port = |text: &str| Some(text).filter(digits)?.parse().ok().filter(|port: &u16| *port > 0);
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(port(first)?..=port(last)?).filter(|ports| !ports.is_empty())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn is(which: &str, to: &str) -> bool {
        Which::try_from(which.to_owned()).unwrap().matches(&to.parse().unwrap())
    }

    #[test]
    fn connections_are_known_by_where_they_lead() {
        for (which, those, others) in [
            ("any", &["a.org:1", "192.0.2.1:443"][..], &[][..]),
            ("http", &["a.org:80", "192.0.2.1:8080"], &["a.org:443", "a.org:8000"]),
            ("*:8000-8100", &["a.org:8000", "[::1]:8100"], &["a.org:80", "a.org:8101"]),
            ("*.example.org", &["a.example.org:1"], &["example.org:1", "a.example.org.evil.net:1"]),
            ("example.org:80", &["example.org:80"], &["example.org:81", "a.example.org:80"]),
            ("127.0.0.0/8:80", &["127.1.2.3:80"], &["128.0.0.1:80", "127.0.0.1:81", "localhost:80"]),
            ("[2001:db8::]", &[], &["a.org:80"]),
        ] {
            those.iter().for_each(|to| assert!(is(which, to), "{which}: {to}"));
            others.iter().for_each(|to| assert!(!is(which, to), "{which}: {to}"));
        }
    }

    #[test]
    fn forwards_are_known_by_their_peer() {
        let is = |which: &str, peer: &str| Which::try_from(which.to_owned()).unwrap().is_of(peer);
        assert!(is("any", "web.home.ada@example.org") && is("any", "someone"));
        assert!(is("web.home.ada@example.org", "web.home.ada@example.org"));
        for which in ["http", "*:80", "example.org", "home.ada@example.org"] {
            assert!(!is(which, "web.home.ada@example.org"), "{which}");
        }
        let by_name = Which::try_from("web.home.ada@example.org".to_owned()).unwrap();
        assert!(!by_name.matches(&"example.org:80".parse().unwrap()));
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for wrong in ["", "*", "*:", "*:0", "*:+1", "*:9-8", "*:70000", "a b", "http://a.org", "a.org:http"] {
            let error = Which::try_from(wrong.to_owned()).unwrap_err();
            assert!(error.starts_with("`match` is "), "{error}");
        }
    }
}
