//! Which destinations are let through.

use super::address::{Net, special};
use crate::Destination;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// Where an address is, seen from the gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// It is the gateway's.
    Own,
    /// In a network that the gateway is in: behind its firewall.
    Beside(Net),
    /// Behind routers.
    Beyond,
}

/// Mail between servers: what an open proxy is abused for first.
const MAIL: u16 = 25;

/// Destinations that somebody named: `HOST`, `*.DOMAIN` or `NET`, and perhaps a port or a range of them.
///
/// ```
/// use whimbrel_proxy::Pattern;
/// for text in ["printer.example.org:631", "*.example.org", "10.0.0.0/8:80", "[fd00::/8]:8000-8100"] {
///     assert!(text.parse::<Pattern>().is_ok());
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    host: Host,
    ports: Option<RangeInclusive<u16>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Host {
    Name(String),
    /// All names that end in this, which begins with a dot.
    Below(String),
    Net(Net),
}

/// Why a text is no [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "write it as HOST, *.DOMAIN or NET, and perhaps a port, as in printer.example.org:631, 10.0.0.0/8:22 or \
     [fd00::/8]:80"
)]
pub struct BadPattern;

impl FromStr for Pattern {
    type Err = BadPattern;

    fn from_str(text: &str) -> Result<Self, BadPattern> {
        if let Some(rest) = text.strip_prefix('[') {
            let (net, port) = rest.split_once(']').ok_or(BadPattern)?;
            let ports = match port {
                "" => None,
                port => Some(ports(port.strip_prefix(':').ok_or(BadPattern)?)?),
            };
            return Ok(Self { host: Host::Net(net.parse().map_err(|()| BadPattern)?), ports });
        }
        if let Ok(net) = text.parse() {
            return Ok(Self { host: Host::Net(net), ports: None });
        }
        let (host, ports) = match text.split_once(':') {
            Some((host, port)) => (host, Some(ports(port)?)),
            None => (text, None),
        };
        if let Ok(net) = host.parse() {
            return Ok(Self { host: Host::Net(net), ports });
        }
        let (is_below, name) = match host.strip_prefix("*.") {
            Some(domain) => (true, domain),
            None => (false, host),
        };
        let name = Destination::new(name, 1).map_err(|_| BadPattern)?;
        let host = match is_below {
            true => Host::Below(format!(".{}", name.host())),
            false => Host::Name(name.host().to_owned()),
        };
        Ok(Self { host, ports })
    }
}

fn ports(text: &str) -> Result<RangeInclusive<u16>, BadPattern> {
    let port = |text: &str| {
        // `parse` would take a sign.
        let digits = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|port: &u16| digits && *port > 0).ok_or(BadPattern)
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ports = port(first)?..=port(last)?;
    if ports.is_empty() { Err(BadPattern) } else { Ok(ports) }
}

impl Pattern {
    /// Whether a destination is among them, as it is written: nothing is looked up.
    pub fn matches(&self, to: &Destination) -> bool {
        let is_in_net = to.address().is_some_and(|address| self.net(address).is_some());
        self.has_port(to.port()) && (self.has_name(to) || is_in_net)
    }

    /// Whether it names addresses, and no hosts.
    pub(crate) fn is_of_addresses(&self) -> bool {
        matches!(self.host, Host::Net(_))
    }

    /// The one host that it names, if it does.
    pub(crate) fn host(&self) -> Option<&str> {
        match &self.host {
            Host::Name(name) => Some(name),
            Host::Below(_) | Host::Net(_) => None,
        }
    }

    /// Whether it names ports. Else it is for all of them.
    pub(crate) fn names_ports(&self) -> bool {
        self.ports.is_some()
    }

    fn has_port(&self, port: u16) -> bool {
        self.ports.as_ref().is_none_or(|ports| ports.contains(&port))
    }

    fn has_name(&self, to: &Destination) -> bool {
        match &self.host {
            Host::Name(name) => to.host() == name,
            Host::Below(domain) => to.address().is_none() && to.host().ends_with(domain),
            Host::Net(_) => false,
        }
    }

    fn net(&self, address: IpAddr) -> Option<&Net> {
        match &self.host {
            Host::Net(net) if net.has(address) => Some(net),
            _ => None,
        }
    }
}

/// What may be reached. By default every host of the internet, on every port but that of mail.
///
/// A pattern lets more through, as far as it says: a network that is no wider than the rule that it lifts (so
/// that `0.0.0.0/0` lifts none), a port that it names. A name lifts the rule against private networks alone:
/// who owns it says where it leads, and that must not be the gateway or its cloud.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    listed: Vec<Pattern>,
    only: bool,
}

impl Rules {
    /// With what is listed; nothing else at all if `only`.
    pub fn new(listed: Vec<Pattern>, only: bool) -> Self {
        Self { listed, only }
    }

    /// Whether a port may be reached at all, before anything is looked up. What it says if not.
    pub(super) fn port(&self, to: &Destination) -> Result<(), String> {
        let is_named = |pattern: &Pattern| pattern.ports.is_some() && pattern.has_port(to.port());
        if to.port() == MAIL && !self.listed.iter().any(is_named) {
            return Err(format!("port {MAIL} is for mail between servers"));
        }
        Ok(())
    }

    /// Whether this address may be connected to for that destination. What it says if not.
    pub(super) fn address(&self, to: &Destination, address: IpAddr, at: Standing) -> Result<(), String> {
        let by_name = self.fitting(to).any(|pattern| pattern.has_name(to));
        if to.port() == MAIL {
            let named = |pattern: &Pattern| pattern.has_name(to) || pattern.net(address).is_some();
            if !self.fitting(to).any(|pattern| pattern.ports.is_some() && named(pattern)) {
                return Err(format!("port {MAIL} is for mail between servers"));
            }
        }
        self.place(to, address, at)?;
        if self.only && !by_name && self.nets(to, address).next().is_none() {
            return Err("nothing is reached but what is listed".to_owned());
        }
        Ok(())
    }

    /// Whether connections for that destination may lead to this address, which may be hidden in the one that
    /// is connected to. What it says if not.
    pub(super) fn place(&self, to: &Destination, address: IpAddr, at: Standing) -> Result<(), String> {
        let special = special(address).map(|special| (special.net, special.what, special.is_private));
        let near = match at {
            Standing::Own => Some((Net::of(address), "the gateway itself", false)),
            // What is special is so in every network.
            Standing::Beside(net) if special.is_none() => {
                Some((net, "in a network of the gateway's own", true))
            }
            Standing::Beside(_) | Standing::Beyond => None,
        };
        let by_name = self.fitting(to).any(|pattern| pattern.has_name(to));
        // The gateway's own may be private as well.
        for (rule, what, is_private) in near.into_iter().chain(special) {
            let lifted = self.nets(to, address).any(|net| net.is_within(&rule)) || (is_private && by_name);
            if !lifted {
                return Err(format!("{address} is {what}"));
            }
        }
        Ok(())
    }

    /// What is listed for the destination's port.
    fn fitting(&self, to: &Destination) -> impl Iterator<Item = &Pattern> {
        let port = to.port();
        self.listed.iter().filter(move |pattern| pattern.has_port(port))
    }

    /// The listed networks that an address is in.
    fn nets(&self, to: &Destination, address: IpAddr) -> impl Iterator<Item = &Net> {
        self.fitting(to).filter_map(move |pattern| pattern.net(address))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn rules(listed: &[&str], only: bool) -> Rules {
        Rules::new(listed.iter().map(|text| text.parse().unwrap()).collect(), only)
    }

    fn lets(rules: &Rules, to: &str, address: &str) -> bool {
        let (to, address) = (to.parse().unwrap(), address.parse().unwrap());
        rules.port(&to).is_ok() && rules.address(&to, address, Standing::Beyond).is_ok()
    }

    #[test]
    fn by_default_the_internet_is_reached_and_nothing_inside() {
        let rules = Rules::default();
        assert!(lets(&rules, "example.org:443", "203.0.113.5"));
        assert!(lets(&rules, "[2001:db8::1]:22", "2001:db8::1"));
        for inside in ["10.0.0.1", "127.0.0.1", "169.254.169.254", "::1", "::ffff:203.0.113.5"] {
            assert!(!lets(&rules, "example.org:443", inside), "{inside}");
        }
        assert!(!lets(&rules, "example.org:25", "203.0.113.5"));
        let own =
            rules.address(&"example.org:80".parse().unwrap(), "203.0.113.5".parse().unwrap(), Standing::Own);
        assert!(own.is_err());
    }

    #[test]
    fn a_pattern_lifts_the_rules_that_it_speaks_of() {
        let rules =
            rules(&["10.0.0.0/8:22", "printer.example.org", "[fd00::/8]:80-90", "127.0.0.1:631"], false);
        assert!(lets(&rules, "10.1.2.3:22", "10.1.2.3"));
        assert!(!lets(&rules, "10.1.2.3:80", "10.1.2.3"));
        assert!(lets(&rules, "anything.example.org:22", "10.1.2.3"));
        assert!(lets(&rules, "printer.example.org:631", "192.168.1.9"));
        assert!(!lets(&rules, "other.example.org:631", "192.168.1.9"));
        assert!(lets(&rules, "[fd00::1]:85", "fd00::1"));
        assert!(!lets(&rules, "[fd00::1]:91", "fd00::1"));
        assert!(lets(&rules, "127.0.0.1:631", "127.0.0.1"));
        assert!(!lets(&rules, "127.0.0.1:80", "127.0.0.1"));
    }

    #[test]
    fn a_name_never_leads_to_the_gateway_or_its_cloud() {
        let rules = rules(&["*.example.org"], false);
        assert!(lets(&rules, "a.example.org:80", "10.0.0.1"));
        for address in ["127.0.0.1", "169.254.169.254", "::1", "fe80::1", "0.0.0.0", "64:ff9b::a00:1"] {
            assert!(!lets(&rules, "a.example.org:80", address), "{address}");
        }
        let own =
            rules.address(&"a.example.org:80".parse().unwrap(), "10.0.0.1".parse().unwrap(), Standing::Own);
        assert_eq!(own, Err("10.0.0.1 is the gateway itself".to_owned()));
    }

    #[test]
    fn a_network_wider_than_a_rule_does_not_lift_it() {
        let all = rules(&["0.0.0.0/0", "::/0"], false);
        for address in ["10.0.0.1", "127.0.0.1", "169.254.169.254"] {
            assert!(!lets(&all, &format!("{address}:80"), address), "{address}");
        }
        let link = rules(&["169.254.0.0/16"], false);
        assert!(lets(&link, "169.254.1.1:80", "169.254.1.1"));
        assert!(!lets(&link, "169.254.169.254:80", "169.254.169.254"));
        let private = rules(&["10.0.0.0/8"], false);
        let own = |rules: &Rules| {
            let (to, address) = ("10.0.0.1:80".parse().unwrap(), "10.0.0.1".parse().unwrap());
            rules.address(&to, address, Standing::Own).is_ok()
        };
        assert!(!own(&private));
        assert!(own(&self::rules(&["10.0.0.1"], false)));
    }

    #[test]
    fn hosts_in_a_network_of_the_gateways_own_are_behind_its_firewall_also_where_they_are_public() {
        let says = |listed: &[&str], to: &str, address: &str, net: &str| {
            let (to, net) = (to.parse().unwrap(), net.parse().unwrap());
            rules(listed, false).address(&to, address.parse().unwrap(), Standing::Beside(net))
        };
        for (host, net) in [("203.0.113.5", "203.0.113.1/24"), ("2001:db8::5", "2001:db8::1/64")] {
            let said = says(&[], "db.example.org:80", host, net);
            assert_eq!(said, Err(format!("{host} is in a network of the gateway's own")));
            for listed in [host, net, "db.example.org:80"] {
                assert_eq!(says(&[listed], "db.example.org:80", host, net), Ok(()), "{listed}");
            }
            for listed in ["0.0.0.0/0", "::/0", "203.0.0.0/8", "2001::/16", "example.org"] {
                assert!(says(&[listed], "db.example.org:80", host, net).is_err(), "{listed}");
            }
        }
        // What the list says of private networks is enough.
        assert_eq!(says(&["10.0.0.0/8"], "10.0.0.5:80", "10.0.0.5", "10.0.0.1/24"), Ok(()));
    }

    #[test]
    fn only_what_is_listed_is_reached_if_that_is_asked_for() {
        let rules = rules(&["example.org:443", "203.0.113.0/24"], true);
        assert!(lets(&rules, "example.org:443", "198.51.100.1"));
        assert!(!lets(&rules, "example.org:80", "198.51.100.1"));
        assert!(lets(&rules, "203.0.113.9:22", "203.0.113.9"));
        assert!(!lets(&rules, "www.example.org:443", "198.51.100.1"));
    }

    #[test]
    fn mail_goes_where_its_port_is_named() {
        let rules = rules(&["mail.example.org:25", "example.org"], false);
        assert!(lets(&rules, "mail.example.org:25", "203.0.113.5"));
        assert!(!lets(&rules, "example.org:25", "203.0.113.5"));
        assert!(!lets(&rules, "example.net:25", "203.0.113.5"));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        for wrong in [
            "", ":80", "a b", "*.", "*", "host:0", "host:x", "host:9-1", "host:+1", "[::1", "[::1]80",
            "a:1:2",
        ] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }
}
