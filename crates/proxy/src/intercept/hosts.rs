//! Which hosts are intercepted: those that the user named, and no others.

use crate::{Destination, Pattern, is_whimbrel_host};
use std::str::FromStr;

/// The port of a host that is named without one.
const HTTPS: u16 = 443;

/// A host, or several, as the user names them: `HOST`, `*.DOMAIN` or `*`, and perhaps a port. Without one
/// that of HTTPS is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InterceptHost(Named);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Named {
    All,
    Listed(Pattern),
}

/// Why a text is no [`InterceptHost`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "write it as HOST or *.DOMAIN, and perhaps a port, as in example.org, *.example.org or example.org:8443; \
     addresses are never intercepted, and '*' is every host"
)]
pub struct BadInterceptHost;

impl FromStr for InterceptHost {
    type Err = BadInterceptHost;

    fn from_str(text: &str) -> Result<Self, BadInterceptHost> {
        if text == "*" {
            return Ok(Self(Named::All));
        }
        let pattern: Pattern = text.parse().map_err(|_| BadInterceptHost)?;
        if pattern.is_of_addresses() {
            return Err(BadInterceptHost);
        }
        Ok(Self(Named::Listed(pattern)))
    }
}

impl InterceptHost {
    fn has(&self, to: &Destination) -> bool {
        match &self.0 {
            Named::All => to.port() == HTTPS,
            Named::Listed(pattern) => pattern.matches(to) && (to.port() == HTTPS || pattern.names_ports()),
        }
    }
}

/// All hosts that are intercepted.
pub(crate) struct InterceptHosts(Vec<InterceptHost>);

impl InterceptHosts {
    pub(super) fn new(hosts: Vec<InterceptHost>) -> Self {
        Self(hosts)
    }

    /// Those that are named one by one.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|host| match &host.0 {
            Named::All => None,
            Named::Listed(pattern) => pattern.host(),
        })
    }

    /// Whether a destination is one of them. Addresses never are: TLS has no names for them. Nor are names as
    /// hosts, which are reached with the user's key: rules against pages of other sites hold for them.
    pub(crate) fn has(&self, to: &Destination) -> bool {
        to.address().is_none() && !is_whimbrel_host(to.host()) && self.0.iter().any(|host| host.has(to))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn hosts(listed: &[&str]) -> InterceptHosts {
        InterceptHosts::new(listed.iter().map(|text| text.parse().unwrap()).collect())
    }

    fn has(hosts: &InterceptHosts, to: &str) -> bool {
        hosts.has(&to.parse().unwrap())
    }

    #[test]
    fn only_named_hosts_are_intercepted_and_only_on_the_port_of_https_unless_another_is_named() {
        let none = hosts(&[]);
        assert!(!has(&none, "example.org:443"));
        let some = hosts(&["example.org", "*.example.net", "example.com:8443"]);
        for to in ["example.org:443", "EXAMPLE.org.:443", "a.example.net:443", "example.com:8443"] {
            assert!(has(&some, to), "{to}");
        }
        for to in [
            "www.example.org:443",
            "example.org:80",
            "example.org:8443",
            "example.net:443",
            "notexample.org:443",
            "example.com:443",
        ] {
            assert!(!has(&some, to), "{to}");
        }
    }

    #[test]
    fn hosts_that_are_named_one_by_one_are_known() {
        let some = hosts(&["*", "*.example.net", "example.org", "example.com:8443"]);
        assert_eq!(some.names().collect::<Vec<_>>(), ["example.org", "example.com"]);
    }

    #[test]
    fn addresses_and_names_as_hosts_are_never_intercepted() {
        let all = hosts(&["*", "*.whimbrel", "web.home.ada.at.example.org.whimbrel"]);
        assert!(has(&all, "example.org:443") && !has(&all, "example.org:8443"));
        for to in
            ["192.0.2.1:443", "[2001:db8::1]:443", "web.home.ada.at.example.org.whimbrel:443", "whimbrel:443"]
        {
            assert!(!has(&all, to), "{to}");
        }
        for wrong in
            ["192.0.2.1", "10.0.0.0/8", "[2001:db8::1]:443", "", "*:443", "a b", "https://example.org"]
        {
            assert!(wrong.parse::<InterceptHost>().is_err(), "{wrong}");
        }
    }
}
