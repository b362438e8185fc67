//! Dropping chosen packets at a host.

use std::net::IpAddr;

/// Packets that a host drops, whether it sends, receives or forwards them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Block {
    /// All UDP packets.
    Udp,
    /// UDP packets from or to that port.
    UdpPort(u16),
    /// TCP packets from or to that port.
    TcpPort(u16),
    /// Packets from or to that address.
    Address(IpAddr),
    /// ICMP, IPv6's address resolution excepted.
    Icmp,
}

impl Block {
    /// What nftables rules match these packets.
    fn matches(self) -> Vec<String> {
        let sides = |field: String| ["s", "d"].map(|side| field.replace('?', side)).to_vec();
        match self {
            Self::Udp => vec!["meta l4proto udp".into()],
            Self::UdpPort(port) => sides(format!("udp ?port {port}")),
            Self::TcpPort(port) => sides(format!("tcp ?port {port}")),
            Self::Address(IpAddr::V4(address)) => sides(format!("ip ?addr {address}")),
            Self::Address(IpAddr::V6(address)) => sides(format!("ip6 ?addr {address}")),
            Self::Icmp => vec![
                "meta l4proto icmp".into(),
                "icmpv6 type != { nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert }".into(),
            ],
        }
    }
}

/// All blocks of a host.
#[derive(Default)]
pub(crate) struct Firewall(Vec<Block>);

impl Firewall {
    pub(crate) fn add(&mut self, block: Block) {
        if !self.0.contains(&block) {
            self.0.push(block);
        }
    }

    pub(crate) fn remove(&mut self, block: Block) {
        self.0.retain(|&kept| kept != block);
    }

    /// The whole table; applying it replaces the one before at one stroke.
    pub(crate) fn ruleset(&self) -> String {
        let matches = self.0.iter().flat_map(|block| block.matches());
        let rules: String = matches.map(|packets| format!("    {packets} drop\n")).collect();
        let chain = |hook: &str| {
            format!(
                "  chain {hook} {{\n    type filter hook {hook} priority -250; policy accept;\n{rules}  }}\n"
            )
        };
        let chains: String = ["input", "output", "forward"].map(chain).concat();
        format!(
            "table inet lab_block {{}}\ndelete table inet lab_block\ntable inet lab_block {{\n{chains}}}\n"
        )
    }
}
