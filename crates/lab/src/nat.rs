//! NAT gateways.

mod pmp;

pub use pmp::NatPmp;

use std::net::IpAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::agent::set_sysctl;
use crate::{Host, Result};

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
}

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

    /// Forgets flows of TCP that were quiet for so long (whole seconds).
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
        self.router.nft(ruleset(&self.outside, zone, &forwards))
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

/// The whole table; applying it replaces the one before at one stroke.
fn ruleset(outside: &str, zone: u16, forwards: &str) -> String {
    format!(
        r#"table inet lab_nat {{}}
delete table inet lab_nat
table inet lab_nat {{
  chain zone_in {{
    type filter hook prerouting priority raw; policy accept;
    ct zone set {zone}
  }}
  chain zone_out {{
    type filter hook output priority raw; policy accept;
    ct zone set {zone}
  }}
  chain inward {{
    type nat hook prerouting priority dstnat; policy accept;
{forwards}  }}
  chain translate {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "{outside}" masquerade fully-random
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
