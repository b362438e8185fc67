//! Who may publish what: what a gateway's operator says.

use crate::publication::{Publication, host};
use std::net::{IpAddr, Ipv6Addr};
use std::ops::RangeInclusive;
use std::str::FromStr;
use whimbrel_base::EndpointId;

/// One peer may publish this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PublishRule {
    what: What,
    by: EndpointId,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum What {
    Host(String),
    /// Every host below this one, at any depth.
    Below(String),
    /// Ports of one address; of all of this host's if it is unspecified.
    Ports(IpAddr, RangeInclusive<u16>),
}

/// Why a text is no rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadRule {
    /// It has another form.
    #[error("{0:?} is no rule: write HOST=ID, *.DOMAIN=ID, PORT=ID or FIRST-LAST=ID, also with ADDR: before")]
    Form(String),
    /// Two keys would have the same.
    #[error("{0} is given to two keys; one of them can have it")]
    Twice(String),
}

/// What peers may publish at a gateway. Without any rule: nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PublishRules {
    rules: Vec<PublishRule>,
}

impl PublishRules {
    /// These rules.
    ///
    /// # Errors
    /// [`BadRule::Twice`] where two keys are given the same host or port: the first one would take it.
    pub fn new(rules: Vec<PublishRule>) -> Result<Self, BadRule> {
        for (at, rule) in rules.iter().enumerate() {
            let mut others = rules[..at].iter().filter(|other| other.by != rule.by);
            if others.any(|other| other.what.meets(&rule.what)) {
                return Err(BadRule::Twice(rule.what.to_string()));
            }
        }
        Ok(Self { rules })
    }

    /// Whether there is a rule about hosts.
    pub fn has_hosts(&self) -> bool {
        self.rules.iter().any(|rule| !matches!(rule.what, What::Ports(..)))
    }

    /// Whether a peer may publish this. If it is a port, on which address.
    ///
    /// # Errors
    /// What it is told if not. Nobody is told who else may.
    pub fn check(&self, what: &Publication, peer: EndpointId) -> Result<IpAddr, String> {
        if self.rules.is_empty() {
            return Err("this gateway publishes nothing: its operator says what, with --publish".to_owned());
        }
        let not_yours = || format!("{what} is not for this key to publish here; the operator says what is");
        let all = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
        match what {
            Publication::Tls(host) | Publication::Http(host) => {
                let rule = self.of_host(host).filter(|rule| rule.by == peer);
                rule.map(|_| all).ok_or_else(not_yours)
            }
            Publication::Port(port) => {
                let of_port = |rule: &PublishRule| match &rule.what {
                    What::Ports(at, ports) if ports.contains(port) && rule.by == peer => Some(*at),
                    _ => None,
                };
                self.rules.iter().find_map(of_port).ok_or_else(not_yours)
            }
        }
    }

    /// The rule that says whose a host is: its own, or that of the longest domain.
    fn of_host(&self, host: &str) -> Option<&PublishRule> {
        let own = self.rules.iter().find(|rule| matches!(&rule.what, What::Host(own) if own == host));
        let below = || {
            let domains = self.rules.iter().filter_map(|rule| match &rule.what {
                What::Below(domain) if is_below(host, domain) => Some((domain.len(), rule)),
                _ => None,
            });
            domains.max_by_key(|(length, _)| *length).map(|(_, rule)| rule)
        };
        own.or_else(below)
    }
}

fn is_below(host: &str, domain: &str) -> bool {
    host.strip_suffix(domain).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

impl What {
    /// Whether both say the same host, or have a port in common.
    fn meets(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Ports(at, ports), Self::Ports(other_at, others)) => {
                let same = at == other_at || at.is_unspecified() || other_at.is_unspecified();
                same && ports.start() <= others.end() && others.start() <= ports.end()
            }
            _ => self == other,
        }
    }
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(host) => f.write_str(host),
            Self::Below(domain) => write!(f, "*.{domain}"),
            Self::Ports(_, ports) if ports.start() == ports.end() => write!(f, "port {}", ports.start()),
            Self::Ports(_, ports) => write!(f, "ports {}-{}", ports.start(), ports.end()),
        }
    }
}

impl FromStr for PublishRule {
    type Err = BadRule;

    fn from_str(text: &str) -> Result<Self, BadRule> {
        let bad = || BadRule::Form(text.chars().take(300).collect());
        let (what, by) = text.rsplit_once('=').ok_or_else(bad)?;
        let by = by.parse().map_err(|_| bad())?;
        Ok(Self { what: read_what(what).ok_or_else(bad)?, by })
    }
}

fn read_what(text: &str) -> Option<What> {
    if let Some(domain) = text.strip_prefix("*.") {
        return host(domain).ok().map(What::Below);
    }
    let (at, ports) = match text.rsplit_once(':') {
        Some((at, ports)) => {
            let bare = at.strip_prefix('[').and_then(|at| at.strip_suffix(']'));
            (bare.unwrap_or(at).parse().ok()?, ports)
        }
        None => (IpAddr::V6(Ipv6Addr::UNSPECIFIED), text),
    };
    if !ports.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') {
        return host(text).ok().filter(|_| ports == text).map(What::Host);
    }
    let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
    let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
    (first > 0 && first <= last).then_some(What::Ports(at, first..=last))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn id(number: u8) -> EndpointId {
        whimbrel_base::SecretKey::from_bytes(&[number; 32]).id()
    }

    fn rules(texts: &[(&str, u8)]) -> Result<PublishRules, BadRule> {
        let rules = texts.iter().map(|(what, by)| format!("{what}={}", id(*by)).parse().unwrap());
        PublishRules::new(rules.collect())
    }

    fn may(rules: &PublishRules, what: &str, by: u8) -> bool {
        rules.check(&what.parse().unwrap(), id(by)).is_ok()
    }

    #[test]
    fn a_host_belongs_to_the_key_that_the_operator_named_and_to_no_other() {
        let rules = rules(&[("www.example.org", 1), ("*.example.org", 2), ("*.dev.example.org", 3)]).unwrap();
        for what in ["www.example.org", "http://www.example.org"] {
            assert!(may(&rules, what, 1) && !may(&rules, what, 2), "{what}");
        }
        assert!(may(&rules, "a.b.example.org", 2) && !may(&rules, "a.b.example.org", 1));
        assert!(may(&rules, "x.dev.example.org", 3) && !may(&rules, "x.dev.example.org", 2));
        for nobodys in ["example.org", "example.com", "badexample.org", "www.example.org.evil.net", "80"] {
            assert!((1..5).all(|by| !may(&rules, nobodys, by)), "{nobodys}");
        }
    }

    #[test]
    fn without_rules_nothing_is_published_and_it_is_said_so() {
        let none = PublishRules::default();
        for what in ["www.example.org", "2222"] {
            let why = none.check(&what.parse().unwrap(), id(1)).unwrap_err();
            assert!(why.contains("publishes nothing"), "{why}");
        }
        assert!(!none.has_hosts());
    }

    #[test]
    fn ports_are_given_one_by_one_or_in_ranges_and_on_one_address_or_all() {
        let rules =
            rules(&[("2222", 1), ("20000-20010", 2), ("127.0.0.9:3000", 3), ("[::1]:4000", 3)]).unwrap();
        let at = |port: u16, by| rules.check(&Publication::Port(port), id(by)).ok().map(|at| at.to_string());
        assert_eq!(at(2222, 1).as_deref(), Some("::"));
        assert_eq!((at(2222, 2), at(2223, 1)), (None, None));
        assert!(at(20000, 2).is_some() && at(20010, 2).is_some() && at(20011, 2).is_none());
        assert_eq!((at(3000, 3).as_deref(), at(4000, 3).as_deref()), (Some("127.0.0.9"), Some("::1")));
        assert!(!rules.has_hosts());
    }

    #[test]
    fn what_two_keys_would_have_is_refused_when_it_is_said() {
        for (one, other) in [
            ("www.example.org", "WWW.example.org."),
            ("*.example.org", "*.example.org"),
            ("2222", "2000-3000"),
            ("2222", "127.0.0.1:2222"),
        ] {
            let error = rules(&[(one, 1), (other, 2)]).unwrap_err();
            assert!(matches!(&error, BadRule::Twice(_)), "{error}");
            assert!(rules(&[(one, 1), (other, 1)]).is_ok());
        }
        assert!(rules(&[("127.0.0.1:80", 1), ("127.0.0.2:80", 2)]).is_ok());
    }

    #[test]
    fn what_is_no_rule_is_refused() {
        let key = id(1);
        for text in ["", "=", "www.example.org", "www.example.org=x", "a:80=", "80"] {
            assert!(text.parse::<PublishRule>().is_err(), "{text}");
        }
        for what in
            ["", "0", "9-8", "0-9", "1-65536", "a b", "*", "*.", "x:80", "www.example.org:80", "-", "1-2-3"]
        {
            assert!(format!("{what}={key}").parse::<PublishRule>().is_err(), "{what}");
        }
    }
}
