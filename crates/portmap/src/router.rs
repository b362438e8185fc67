//! The routers of this host: where its default routes lead.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

use whimbrel_base::AddressScope;
use whimbrel_base::order;

/// For so long a router is asked to keep what it passes on, if it is not asked again.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);
/// More default routes than this are not asked.
const MOST: usize = 4;

/// The kernel's routes, in the network namespace of the thread that reads them.
const TABLE: &str = "/proc/thread-self/net/route";

/// A router that may translate this host's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Router {
    pub(crate) ip: Ipv4Addr,
    /// This host's own address on its link.
    pub(crate) own: Ipv4Addr,
}

/// The routers that hide this host, the preferred one first. (IPv6 is not translated.)
pub(crate) fn routers() -> Vec<Router> {
    let table = fs::read_to_string(TABLE).unwrap_or_default();
    let hidden = |router: &Router| AddressScope::of(IpAddr::V4(router.own)) == AddressScope::Private;
    let mut found = Vec::new();
    for ip in gateways(&table) {
        let router = own_address(ip).map(|own| Router { ip, own }).filter(hidden);
        found.extend(router.filter(|router| !found.contains(router)));
    }
    found.truncate(MOST);
    found
}

/// Gateways of the default routes in the kernel's table, the smallest metric first.
fn gateways(table: &str) -> Vec<Ipv4Addr> {
    let mut routes: Vec<(u32, Ipv4Addr)> = table.lines().skip(1).filter_map(default_route).collect();
    order::by_key(&mut routes, |(metric, _)| *metric);
    routes.into_iter().map(|(_, gateway)| gateway).collect()
}

/// Metric and gateway of one line, if it is a default route through a gateway. Addresses are in hexadecimal,
/// in the byte order of the machine.
fn default_route(line: &str) -> Option<(u32, Ipv4Addr)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [_, destination, gateway, _, _, _, metric, mask, ..] = fields[..] else { return None };
    let word = |text| u32::from_str_radix(text, 16).ok();
    let gateway = Ipv4Addr::from(word(gateway)?.to_ne_bytes());
    (word(destination)? == 0 && word(mask)? == 0 && !gateway.is_unspecified())
        .then_some((metric.parse().ok()?, gateway))
}

/// The address from which this host speaks to a neighbour. Sends nothing.
fn own_address(neighbour: Ipv4Addr) -> Option<Ipv4Addr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((neighbour, crab_nat::GATEWAY_PORT)).ok()?;
    match socket.local_addr().ok()?.ip() {
        IpAddr::V4(own) => Some(own),
        IpAddr::V6(_) => None,
    }
}

#[cfg(all(test, target_endian = "little"))]
mod tests {
    use super::*;

    const ROUTES: &str = "\
Iface	Destination	Gateway 	Flags	RefCnt	Use	Metric	Mask		MTU	Window	IRTT
eth0	00000000	0102A8C0	0003	0	0	200	00000000	0	0	0
wlan0	00000000	0101A8C0	0003	0	0	100	00000000	0	0	0
ppp0	00000000	00000000	0001	0	0	50	00000000	0	0	0
eth0	0002A8C0	00000000	0001	0	0	100	00FFFFFF	0	0	0
";

    #[test]
    fn default_routes_are_read_by_metric() {
        let read = gateways(ROUTES);
        assert_eq!(read, [Ipv4Addr::new(192, 168, 1, 1), Ipv4Addr::new(192, 168, 2, 1)]);
    }

    #[test]
    fn what_is_no_table_has_no_routes() {
        assert_eq!(gateways(""), [] as [Ipv4Addr; 0]);
        assert_eq!(gateways("head\nx 00000000 zz 0 0 0 1 00000000\nshort"), [] as [Ipv4Addr; 0]);
    }
}
