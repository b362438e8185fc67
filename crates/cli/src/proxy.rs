//! The HTTP proxy that the environment names: `HTTPS_PROXY`, and `NO_PROXY` for what is reached without it,
//! as other programs read them.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use whimbrel_transport::HttpProxy;

use crate::output;

/// How long the system may take to find the proxy.
const FIND: Duration = Duration::from_secs(2);
/// Where a proxy is that has no port in its address.
const USUAL_PORT: u16 = 80;

/// The proxy, if there is one and it can be found. Why it is not used is told.
pub(crate) async fn of_environment(quiet: bool) -> Option<Arc<HttpProxy>> {
    let text = variable(["HTTPS_PROXY", "https_proxy"])?;
    let without = Without::of(&variable(["NO_PROXY", "no_proxy"]).unwrap_or_default());
    let Without::Networks(networks) = without else { return None };
    let found = async {
        let address = Address::of(&text)?;
        let found = tokio::time::timeout(FIND, address.find()).await;
        let at = found.unwrap_or_else(|_| Err(format!("{} is not found in time", address.host)))?;
        Ok::<_, String>((at, address.user))
    };
    match found.await {
        Ok((at, user)) => {
            let proxy = HttpProxy::new(at).without(networks);
            Some(Arc::new(match user {
                Some(user) => proxy.authorized_by(&format!("Basic {}", BASE64_STANDARD.encode(user))),
                None => proxy,
            }))
        }
        Err(why) => {
            output::note(quiet, format!("the proxy of HTTPS_PROXY is not used: {why}"));
            None
        }
    }
}

fn variable(names: [&str; 2]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok()).filter(|value| !value.is_empty())
}

/// A proxy as it is written: `http://USER:PASSWORD@HOST:PORT`, of which only the host is needed.
#[derive(Debug, PartialEq, Eq)]
struct Address {
    host: String,
    port: u16,
    /// User and password, with a colon between them.
    user: Option<Vec<u8>>,
}

impl Address {
    fn of(text: &str) -> Result<Self, String> {
        let bare = match text.split_once("://") {
            None => text,
            Some((scheme, rest)) if scheme.eq_ignore_ascii_case("http") => rest,
            Some((scheme, _)) => {
                return Err(format!("{scheme}:// is not understood; write it as http://HOST:PORT"));
            }
        };
        let bare = bare.split('/').next().unwrap_or_default();
        let (user, place) = match bare.rsplit_once('@') {
            Some((user, place)) => (Some(decoded(user)), place),
            None => (None, bare),
        };
        let wrong = || "it is no http://HOST:PORT".to_owned();
        let (host, port) =
            match place.rsplit_once(':').filter(|(host, _)| !host.contains(':') || host.ends_with(']')) {
                Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
                None => (place, USUAL_PORT),
            };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || port == 0 {
            return Err(wrong());
        }
        Ok(Self { host: host.to_owned(), port, user })
    }

    async fn find(&self) -> Result<SocketAddr, String> {
        let found = tokio::net::lookup_host((self.host.as_str(), self.port)).await;
        let first = found.map_err(|error| format!("{} is not found: {error}", self.host))?.next();
        first.ok_or_else(|| format!("{} has no address", self.host))
    }
}

/// What `%41` and the like stand for.
fn decoded(text: &str) -> Vec<u8> {
    let (bytes, mut decoded, mut at) = (text.as_bytes(), Vec::new(), 0);
    while let Some(byte) = bytes.get(at) {
        let hex = text.get(at + 1..at + 3).filter(|_| *byte == b'%');
        match hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(value) => {
                decoded.push(value);
                at += 3;
            }
            None => {
                decoded.push(*byte);
                at += 1;
            }
        }
    }
    decoded
}

/// What is reached without the proxy.
#[derive(Debug, PartialEq, Eq)]
enum Without {
    All,
    Networks(Vec<(IpAddr, u8)>),
}

impl Without {
    /// Names of hosts are left out: what is dialled are addresses.
    fn of(text: &str) -> Self {
        let entries = || text.split([',', ' ']).filter(|entry| !entry.is_empty());
        if entries().any(|entry| entry == "*") {
            return Self::All;
        }
        let network = |entry: &str| {
            let (address, bits) = match entry.split_once('/') {
                Some((address, bits)) => (address, Some(bits.parse().ok()?)),
                None => (entry, None),
            };
            let address: IpAddr = address.parse().ok()?;
            Some((address, bits.unwrap_or(if address.is_ipv4() { 32 } else { 128 })))
        };
        Self::Networks(entries().filter_map(network).collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_proxy_is_read_as_people_write_it() {
        let read = |text: &str| Address::of(text).map(|address| (address.host, address.port, address.user));
        let plain = |host: &str, port| Ok((host.to_owned(), port, None));
        assert_eq!(read("http://proxy.example.org:3128"), plain("proxy.example.org", 3128));
        assert_eq!(read("HTTP://proxy.example.org/"), plain("proxy.example.org", 80));
        assert_eq!(read("192.0.2.1:8080"), plain("192.0.2.1", 8080));
        assert_eq!(read("http://[2001:db8::1]:3128/"), plain("2001:db8::1", 3128));
        assert_eq!(read("[2001:db8::1]"), plain("2001:db8::1", 80));
        let user = Some(b"ada:p@ss%".to_vec());
        assert_eq!(read("http://ada:p%40ss%@proxy:3128"), Ok(("proxy".to_owned(), 3128, user)));
        for wrong in ["socks5://proxy:1080", "https://proxy:443", "http://", "http://proxy:x", "proxy:0"] {
            read(wrong).unwrap_err();
        }
    }

    #[test]
    fn what_is_reached_without_it_is_addresses_and_networks() {
        let networks =
            Without::of("localhost, .example.org,192.0.2.7,10.0.0.0/8 2001:db8::/32,300.1.1.1,10.0.0.0/x");
        let expected = [("192.0.2.7", 32), ("10.0.0.0", 8), ("2001:db8::", 32)];
        let expected = expected.map(|(address, bits)| (address.parse().unwrap(), bits));
        assert_eq!(networks, Without::Networks(expected.to_vec()));
        assert_eq!(Without::of("a,*"), Without::All);
        assert_eq!(Without::of(""), Without::Networks(Vec::new()));
    }
}
