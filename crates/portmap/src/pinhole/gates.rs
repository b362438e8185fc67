//! The routers that may keep others from this host's IPv6 addresses: where the default routes lead.

use std::fs;
use std::net::{IpAddr, Ipv6Addr, SocketAddrV6};

use whimbrel_base::AddressScope;
use whimbrel_base::order;

/// More pairs of routers and addresses than this are not asked for.
const MOST: usize = 4;
/// The kernel's routes and addresses, in the network namespace of the thread that reads them.
const ROUTES: &str = "/proc/thread-self/net/ipv6_route";
const ADDRESSES: &str = "/proc/thread-self/net/if_inet6";
/// Of a route: it leads through a gateway (linux/ipv6_route.h).
const GATEWAY: u32 = 0x2;
/// Of an address: another host has it, it is going out of use, or it is not usable yet (linux/if_addr.h).
const UNUSABLE: u32 = 0x08 | 0x20 | 0x40;

/// A router, and an address of this host behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gate {
    /// Where the router is asked.
    pub(super) router: SocketAddrV6,
    pub(super) own: Ipv6Addr,
}

/// The gates of those global addresses of this host that are `wanted`, by the preference of their routes.
pub(super) fn gates(wanted: impl Fn(Ipv6Addr) -> bool) -> Vec<Gate> {
    let read = |table| fs::read_to_string(table).unwrap_or_default();
    let mut gates = gates_in(&read(ROUTES), &read(ADDRESSES));
    gates.retain(|gate| wanted(gate.own));
    gates.truncate(MOST);
    gates
}

/// An address of this host, and the interface that has it.
struct Own<'a> {
    ip: Ipv6Addr,
    index: u32,
    interface: &'a str,
}

fn gates_in(routes: &str, addresses: &str) -> Vec<Gate> {
    let mut routes: Vec<(u32, Ipv6Addr, &str)> = routes.lines().filter_map(default_route).collect();
    order::by_key(&mut routes, |(metric, ..)| *metric);
    let addresses: Vec<Own<'_>> = addresses.lines().filter_map(own_address).collect();
    let mut gates = Vec::new();
    for (_, router, interface) in routes {
        for own in addresses.iter().filter(|own| own.interface == interface) {
            let scope = if router.is_unicast_link_local() { own.index } else { 0 };
            let router = SocketAddrV6::new(router, crab_nat::GATEWAY_PORT, 0, scope);
            let gate = Gate { router, own: own.ip };
            if !gates.contains(&gate) {
                gates.push(gate);
            }
        }
    }
    gates
}

/// Metric, gateway and interface of one line, if it is a default route through a gateway.
fn default_route(line: &str) -> Option<(u32, Ipv6Addr, &str)> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [destination, length, source, source_length, gateway, metric, _, _, flags, interface] = fields[..]
    else {
        return None;
    };
    let number = |text| u32::from_str_radix(text, 16).ok();
    let is_any = |ip, length| Some(address(ip)?.is_unspecified() && number(length)? == 0);
    // Routes for some sources only stand beside one for all.
    let is_default = is_any(destination, length)? && is_any(source, source_length)?;
    let gateway = address(gateway)?;
    let leads = number(flags)? & GATEWAY != 0 && !gateway.is_unspecified();
    (is_default && leads).then_some((number(metric)?, gateway, interface))
}

/// What one line says, if it is a global address that is in use.
fn own_address(line: &str) -> Option<Own<'_>> {
    let fields: Vec<&str> = line.split_ascii_whitespace().collect();
    let [ip, index, _, _, flags, interface] = fields[..] else { return None };
    let number = |text| u32::from_str_radix(text, 16).ok();
    let ip = address(ip)?;
    let is_global = AddressScope::of(IpAddr::V6(ip)) == AddressScope::Global;
    (is_global && number(flags)? & UNUSABLE == 0).then_some(Own { ip, index: number(index)?, interface })
}

/// An address of 32 hexadecimal digits.
fn address(text: &str) -> Option<Ipv6Addr> {
    (text.len() == 32).then(|| u128::from_str_radix(text, 16).ok())?.map(Ipv6Addr::from)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const SOME_ROUTES: &str = "\
20010db8000100000000000000000000 40 00000000000000000000000000000000 00 00000000000000000000000000000000 00000100 00000001 00000000 00000001     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000003 00000000 00000003     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 20010db8000200000000000000000001 00000064 00000003 00000000 00000003    wlan0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 00000400 00000001 00000000 00000001     tun0
00000000000000000000000000000000 00 20010db8000100000000000000000000 40 fe800000000000000000000000000009 00000001 00000001 00000000 00000003     eth0
00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo
";
    const SOME_ADDRESSES: &str = "\
00000000000000000000000000000001 01 80 10 80       lo
20010db8000100000000000000000020 02 40 00 80     eth0
20010db8000100000000000000000021 02 40 00 60     eth0
fd000000000000000000000000000002 02 40 00 80     eth0
fe800000000000000000000000000020 02 40 20 80     eth0
20010db8000200000000000000000020 0a 40 00 01    wlan0
20010db8000300000000000000000020 03 40 00 80     tun0
";

    #[test]
    fn each_global_address_is_asked_for_at_the_router_of_its_interface() {
        let gate = |router: &str, scope, own: &str| Gate {
            router: SocketAddrV6::new(router.parse().unwrap(), 5351, 0, scope),
            own: own.parse().unwrap(),
        };
        let expected = [gate("2001:db8:2::1", 0, "2001:db8:2::20"), gate("fe80::1", 2, "2001:db8:1::20")];
        assert_eq!(gates_in(SOME_ROUTES, SOME_ADDRESSES), expected);
    }

    #[test]
    fn what_is_no_table_has_no_gates() {
        for (routes, addresses) in [("", ""), (SOME_ROUTES, ""), ("", SOME_ADDRESSES), ("a b c", "z")] {
            assert_eq!(gates_in(routes, addresses), [] as [Gate; 0]);
        }
        let broken = SOME_ROUTES.replace("fe80", "fe8z").replace("00000064", "-");
        assert_eq!(gates_in(&broken, &SOME_ADDRESSES.replace(" 0a ", " +x ")), [] as [Gate; 0]);
    }
}
