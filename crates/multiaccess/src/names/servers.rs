//! Which DNS servers an interface has: as its operator says, as the system's network services know, or as the
//! whole host has.

use crate::paths::KnownPath;
use crate::settings::InterfaceSettings;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// After so long it is looked again whether the servers are other ones.
const OLD: Duration = Duration::from_secs(10);
/// The longest file that is read.
const LONGEST: u64 = 64 << 10;
const PORT: u16 = 53;
/// As many as resolv.conf(5) has, and those of the other family.
const MOST: usize = 8;

/// The servers and search domains of an interface.
#[derive(Debug, Clone)]
pub(super) struct Known {
    pub(super) servers: Vec<SocketAddr>,
    pub(super) search: Vec<String>,
    read: Instant,
}

impl Known {
    /// Of this interface, with what its operator says.
    pub(super) fn of(path: &KnownPath, settings: Option<&InterfaceSettings>) -> Self {
        let mut known = Self { servers: Vec::new(), search: Vec::new(), read: Instant::now() };
        // What systemd-resolved and systemd-networkd write down of each link, then what all links share.
        for file in [
            PathBuf::from(format!("/run/systemd/resolve/netif/{}", path.index)),
            PathBuf::from(format!("/run/systemd/netif/links/{}", path.index)),
            PathBuf::from("/run/systemd/resolve/resolv.conf"),
            PathBuf::from("/etc/resolv.conf"),
        ] {
            let Some(text) = read(&file) else { continue };
            let (servers, search) = parse(&text);
            // One on this host answers for all interfaces at once; and not every server is reached by each.
            let reached = |server: &SocketAddr| !server.ip().is_loopback() && path.leads_to(server.ip());
            let servers: Vec<SocketAddr> = servers.into_iter().filter(reached).take(MOST).collect();
            if !servers.is_empty() {
                (known.servers, known.search) = (servers, search);
                break;
            }
        }
        if let Some(settings) = settings {
            if !settings.servers.is_empty() {
                known.servers = settings.servers.iter().map(|server| server.0).collect();
                known.search.clear();
            }
            if let Some(search) = &settings.search {
                known.search.clone_from(search);
            }
        }
        known
    }

    pub(super) fn is_old(&self) -> bool {
        self.read.elapsed() > OLD
    }

    pub(super) fn is_same_as(&self, other: &Self) -> bool {
        (&self.servers, &self.search) == (&other.servers, &other.search)
    }

    /// The servers in words.
    pub(super) fn shown(&self) -> String {
        let shown = |server: &SocketAddr| match server.port() {
            PORT => server.ip().to_string(),
            _ => server.to_string(),
        };
        self.servers.iter().map(shown).collect::<Vec<_>>().join(", ")
    }
}

fn read(file: &Path) -> Option<String> {
    let metadata = std::fs::metadata(file).ok().filter(|metadata| metadata.is_file())?;
    if metadata.len() > LONGEST { None } else { std::fs::read_to_string(file).ok() }
}

/// Servers and search domains out of resolv.conf(5), or the `KEY=value` files of systemd.
fn parse(text: &str) -> (Vec<SocketAddr>, Vec<String>) {
    let (mut servers, mut search) = (Vec::new(), Vec::new());
    for line in text.lines() {
        let line = line.split(['#', ';']).next().unwrap_or_default().trim();
        let Some((key, values)) = line.split_once(|c: char| c == '=' || c.is_whitespace()) else { continue };
        let values = values.split_whitespace();
        match key {
            "nameserver" | "SERVERS" | "DNS" => servers.extend(values.filter_map(server)),
            // The last one counts, in either.
            "search" | "domain" | "DOMAINS" => {
                let domains = values.filter(|domain| !domain.starts_with('~') && *domain != ".");
                search = domains.map(str::to_owned).take(MOST).collect();
            }
            _ => {}
        }
    }
    (servers, search)
}

/// `192.0.2.1`, `192.0.2.1:53`, `[2001:db8::1]:53`, and systemd's `192.0.2.1#name`.
fn server(text: &str) -> Option<SocketAddr> {
    let text = text.split('#').next().unwrap_or_default();
    let plain = || text.parse::<IpAddr>().ok().map(|ip| SocketAddr::new(ip, PORT));
    text.parse().ok().or_else(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_from_what_systems_write_down() {
        let resolv = "# made by hand\nnameserver 192.0.2.1\nnameserver\t2001:db8::1 ; old\nsearch a.example b.example\n\
                      options ndots:1";
        let (servers, search) = parse(resolv);
        let shown: Vec<String> = servers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.1:53", "[2001:db8::1]:53"]);
        assert_eq!(search, ["a.example", "b.example"]);
        let networkd = "ADMIN_STATE=configured\nDNS=192.0.2.2 192.0.2.3:5353\nDOMAINS=c.example ~d.example\n";
        let (servers, search) = parse(networkd);
        let shown: Vec<String> = servers.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["192.0.2.2:53", "192.0.2.3:5353"]);
        assert_eq!(search, ["c.example"]);
        assert_eq!(parse("nameserver dns.example\n"), (Vec::new(), Vec::new()));
    }
}
