//! What the links on the way carry.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt;

use super::Finding;
use crate::network::Peer;

/// What Ethernet carries; probing for more shows nothing that matters.
const LARGEST_PROBE: u32 = 1500;
/// How long a router may take to say that a packet is too large, beyond two round trips.
const PROBE_SLACK: Duration = Duration::from_millis(50);
const LONGEST_PROBE: Duration = Duration::from_millis(800);
/// What every link of IPv6 carries (RFC 8200, section 5).
const LEAST_MTU: u32 = 1280;

/// What the kernel knows of the way to a peer, after a packet as large as the first link carries that routers
/// may not break up. Routers that drop it without a word are not found out. Takes less than a second.
pub(super) async fn path_mtu(peer: SocketAddr, srtt: Duration) -> io::Result<u32> {
    let any: IpAddr =
        if peer.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = tokio::net::UdpSocket::bind((any, 0)).await?;
    socket.connect(peer).await?;
    let known = || if peer.is_ipv4() { sockopt::ip_mtu(&socket) } else { sockopt::ipv6_mtu(&socket) };
    if peer.is_ipv4() {
        sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?;
    } else {
        sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?;
    }
    let headers = if peer.is_ipv4() { 28 } else { 48 };
    // The link may carry more than any datagram.
    let size = known()?.min(LARGEST_PROBE).saturating_sub(headers);
    // A refusal by the peer, which expects none of it, is no news.
    let _ = socket.send(&vec![0; size as usize]).await;
    tokio::time::sleep((2 * srtt + PROBE_SLACK).min(LONGEST_PROBE)).await;
    Ok(known()?)
}

/// Whether packets get through to a peer that are large enough.
pub(super) fn judged_path(peer: &Peer, mtu: u32) -> Finding {
    let check = format!("MTU to {peer}");
    if mtu < LEAST_MTU {
        let remedy = format!(
            "have the tunnel or link on the way carry {LEAST_MTU} bytes; until then --carrier tcp saves the trying"
        );
        return Finding::bad(check, format!("packets of {mtu} bytes get through, too few for QUIC"), remedy);
    }
    Finding::good(check, format!("{mtu} bytes, as far as routers say"))
}

/// The MTU of the path's first link. What lies behind it only the carriers' own probes know.
pub(super) fn mtu(interface: &str) -> Option<Finding> {
    // The name comes from the kernel, and must not lead elsewhere all the same.
    let name = Path::new(interface).file_name()?;
    let text = std::fs::read_to_string(Path::new("/sys/class/net").join(name).join("mtu")).ok()?;
    let mtu: u32 = text.trim().parse().ok()?;
    let check = format!("MTU of {interface}");
    Some(if mtu < LEAST_MTU {
        let remedy = format!("raise it: ip link set {interface} mtu {LEAST_MTU}");
        Finding::bad(check, format!("{mtu} bytes, too few for QUIC"), remedy)
    } else {
        Finding::good(check, format!("{mtu} bytes on the first link"))
    })
}
