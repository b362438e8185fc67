//! NAT gateways.

mod pmp;

pub use pmp::NatPmp;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::agent::set_sysctl;
use crate::{Host, Result};

/// How a gateway maps flows of UDP, and what it lets in (RFC 4787). TCP is mapped as by `Symmetric` always.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NatKind {
    /// Each flow gets a random port, and only its own peer may answer.
    #[default]
    Symmetric,
    /// A socket has one port for all peers; only a peer that it has sent to may answer, from that port.
    PortRestricted,
    /// As above, from any port of an address that the socket has sent to. IPv4 only.
    AddressRestricted,
    /// As above, and anybody may send to the port. IPv4 only.
    FullCone,
}

/// A gateway that hides the hosts on its inside behind its outside address, for IPv4 and IPv6.
///
/// Like a home router it gives each flow a port of its own choice and silently drops what belongs to no flow:
/// packets from outside, and TCP segments that neither open a connection nor belong to one.
#[derive(Clone)]
pub struct NatGateway {
    router: Host,
    outside: String,
    /// Conntrack zone in which mappings are kept. Mappings of other zones are never looked at again.
    zone: Arc<AtomicU16>,
    forwarded: Arc<Mutex<Vec<Forward>>>,
    kind: Arc<Mutex<NatKind>>,
    /// Its outside address, at which hosts inside reach each other too.
    hairpin: Arc<Mutex<Option<Ipv4Addr>>>,
}

/// Marks packets of hosts inside that go back in.
const TURNED_BACK: u32 = 7;

/// A port of the gateway that leads to a host inside.
#[derive(Clone, Copy)]
struct Forward {
    port: u16,
    to: IpAddr,
}

impl NatGateway {
    pub(crate) fn build(router: &Host, outside: &str) -> Result<Self> {
        let gateway = Self {
            router: router.clone(),
            outside: outside.into(),
            zone: Arc::new(AtomicU16::new(1)),
            forwarded: Arc::default(),
            kind: Arc::default(),
            hairpin: Arc::default(),
        };
        gateway.apply()?;
        // Else the kernel would adopt connections from their middle, and forgetting would not hurt anybody.
        router.call(|| set_sysctl("netfilter/nf_conntrack_tcp_loose", "0"))??;
        Ok(gateway)
    }

    /// The router that does the translation.
    pub fn router(&self) -> &Host {
        &self.router
    }

    /// Forgets all mappings, as a restarted router does: flows of TCP are dead, and those of UDP get a new
    /// port.
    pub fn forget_mappings(&self) -> Result<()> {
        self.zone.fetch_add(1, Ordering::Relaxed);
        self.apply()
    }

    /// Passes what comes to that port of its outside address, over TCP or UDP, on to the same port of a host
    /// inside.
    pub fn forward_port(&self, port: u16, to: IpAddr) -> Result<()> {
        self.forwards().push(Forward { port, to });
        self.apply()
    }

    /// Changes the kind; all mappings are forgotten.
    pub fn set_kind(&self, kind: NatKind) -> Result<()> {
        *self.kind.lock().unwrap_or_else(PoisonError::into_inner) = kind;
        self.forget_mappings()
    }

    /// Has hosts inside reach each other over UDP at the gateway's address `outside` and the ports that it
    /// shows of them (RFC 4787 REQ-9). For the kinds that anybody may send to, `FullCone`; all mappings are
    /// forgotten.
    pub fn hairpin(&self, outside: Ipv4Addr) -> Result<()> {
        *self.hairpin.lock().unwrap_or_else(PoisonError::into_inner) = Some(outside);
        self.forget_mappings()
    }

    /// Forgets flows of UDP that were idle for so long (whole seconds).
    pub fn forget_idle_udp_after(&self, time: Duration) -> Result<()> {
        let seconds = time.as_secs().to_string();
        self.router.call(move || {
            set_sysctl("netfilter/nf_conntrack_udp_timeout", &seconds)?;
            set_sysctl("netfilter/nf_conntrack_udp_timeout_stream", &seconds)
        })?
    }

    /// Forgets flows of TCP that were idle for so long (whole seconds).
    pub fn forget_idle_tcp_after(&self, time: Duration) -> Result<()> {
        let seconds = time.as_secs().to_string();
        self.router.call(move || set_sysctl("netfilter/nf_conntrack_tcp_timeout_established", &seconds))?
    }

    fn forwards(&self) -> MutexGuard<'_, Vec<Forward>> {
        self.forwarded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self) -> Result<()> {
        let zone = self.zone.load(Ordering::Relaxed);
        let forwards: String = self.forwards().iter().map(|forward| forward.rule(&self.outside)).collect();
        let kind = *self.kind.lock().unwrap_or_else(PoisonError::into_inner);
        let hairpin = *self.hairpin.lock().unwrap_or_else(PoisonError::into_inner);
        let [back_in, as_from_outside] = hairpin
            .filter(|_| kind == NatKind::FullCone)
            .map(|at| turned_back(&self.outside, at))
            .unwrap_or_default();
        self.router.nft(ruleset(&self.outside, zone, &(forwards + &back_in), &as_from_outside, kind))
    }
}

impl Forward {
    fn rule(self, outside: &str) -> String {
        let Self { port, to } = self;
        let family = if to.is_ipv4() { "ip" } else { "ip6" };
        format!(
            "    iifname \"{outside}\" meta l4proto {{ tcp, udp }} th dport {port} dnat {family} to {to}\n"
        )
    }
}

impl NatKind {
    /// What the gateway keeps in mind, what it does with packets from outside, and with those to the outside.
    fn rules(self, outside: &str) -> [String; 3] {
        let keep_port = format!("    oifname \"{outside}\" meta l4proto udp masquerade\n");
        // By whom a packet from outside is taken: `who` of those to the outside, `from` of those that come
        // back.
        let open = |kinds: &str, who: &str, from: &str| {
            let map = format!(
                "  map opened {{\n    type {kinds} : ipv4_addr; flags dynamic,timeout; timeout 5m; size 4096;\n  }}\n"
            );
            let inward = format!("    iifname \"{outside}\" ip protocol udp dnat ip to {from} map @opened\n");
            let note =
                format!("    oifname \"{outside}\" ip protocol udp update @opened {{ {who} : ip saddr }}\n");
            [map, inward, note + &keep_port]
        };
        match self {
            Self::Symmetric => Default::default(),
            Self::PortRestricted => [String::new(), String::new(), keep_port],
            Self::AddressRestricted => {
                open("inet_service . ipv4_addr", "udp sport . ip daddr", "udp dport . ip saddr")
            }
            Self::FullCone => open("inet_service", "udp sport", "udp dport"),
        }
    }
}

/// What comes from inside for a port that the gateway shows goes back in, as if it came from outside.
fn turned_back(outside: &str, at: Ipv4Addr) -> [String; 2] {
    [
        format!(
            "    iifname != \"{outside}\" ip daddr {at} ip protocol udp meta mark set {TURNED_BACK} dnat ip to udp dport map @opened\n"
        ),
        format!("    oifname != \"{outside}\" meta mark {TURNED_BACK} ip protocol udp snat ip to {at}\n"),
    ]
}

/// The whole table; applying it replaces the one before at one stroke.
fn ruleset(outside: &str, zone: u16, forwards: &str, turned: &str, kind: NatKind) -> String {
    let [opened, inward, outward] = kind.rules(outside);
    format!(
        r#"table inet lab_nat {{}}
delete table inet lab_nat
table inet lab_nat {{
{opened}  chain zone_in {{
    type filter hook prerouting priority raw; policy accept;
    ct zone set {zone}
  }}
  chain zone_out {{
    type filter hook output priority raw; policy accept;
    ct zone set {zone}
  }}
  chain inward {{
    type nat hook prerouting priority dstnat; policy accept;
{forwards}{inward}  }}
  chain translate {{
    type nat hook postrouting priority srcnat; policy accept;
{turned}{outward}    oifname "{outside}" masquerade fully-random
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    ct state invalid drop
    ct status dnat accept
    iifname "{outside}" ct state new drop
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    icmpv6 type {{ nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert }} accept
    iifname "{outside}" meta l4proto {{ icmp, icmpv6 }} accept
    iifname "{outside}" ct state {{ new, invalid }} drop
  }}
}}
"#
    )
}
