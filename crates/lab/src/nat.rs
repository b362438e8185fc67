//! NAT gateways.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use crate::agent::set_sysctl;
use crate::{Host, Result};

/// A gateway that hides the hosts on its inside behind its outside address, for IPv4 and IPv6.
///
/// Like a home router it gives each flow a port of its own choice and silently drops what belongs to no flow: packets
/// from outside, and TCP segments that neither open a connection nor belong to one.
#[derive(Clone)]
pub struct NatGateway {
    router: Host,
    outside: String,
    /// Conntrack zone in which mappings are kept. Mappings of other zones are never looked at again.
    zone: Arc<AtomicU16>,
}

impl NatGateway {
    pub(crate) fn build(router: &Host, outside: &str) -> Result<Self> {
        let gateway =
            Self { router: router.clone(), outside: outside.into(), zone: Arc::new(AtomicU16::new(1)) };
        gateway.apply()?;
        // Else the kernel would adopt connections from their middle, and forgetting would not hurt anybody.
        router.call(|| set_sysctl("netfilter/nf_conntrack_tcp_loose", "0"))??;
        Ok(gateway)
    }

    /// The router that does the translation.
    pub fn router(&self) -> &Host {
        &self.router
    }

    /// Forgets all mappings, as a restarted router does: flows of TCP are dead, and those of UDP get a new port.
    pub fn forget_mappings(&self) -> Result<()> {
        self.zone.fetch_add(1, Ordering::Relaxed);
        self.apply()
    }

    fn apply(&self) -> Result<()> {
        let zone = self.zone.load(Ordering::Relaxed);
        self.router.nft(ruleset(&self.outside, zone))
    }
}

/// The whole table; applying it replaces the one before at one stroke.
fn ruleset(outside: &str, zone: u16) -> String {
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
  chain translate {{
    type nat hook postrouting priority srcnat; policy accept;
    oifname "{outside}" masquerade fully-random
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    ct state invalid drop
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
