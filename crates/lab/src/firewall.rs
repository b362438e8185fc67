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
    /// TCP packets from or to that address.
    TcpOf(IpAddr),
    /// Packets from or to that address, of which whoever sends is told: TCP is reset, all else cannot be
    /// reached.
    Refused(IpAddr),
    /// All of TCP and UDP but TCP packets from or to that port.
    AllButTcpPort(u16),
    /// Packets that come in at the interface named so and belong to no flow that was begun from elsewhere:
    /// what a stateful firewall drops.
    UnaskedFrom(&'static str),
    /// ICMP, IPv6's address resolution excepted.
    Icmp,
}

impl Block {
    /// The nftables rules that drop these packets.
    fn rules(self) -> Vec<String> {
        let each =
            |verdict: &str| self.matches().iter().map(|packets| format!("{packets} {verdict}")).collect();
        match self {
            Self::Refused(_) => {
                let tcp = self.matches().into_iter().map(|packets| format!("{packets} meta l4proto tcp"));
                let mut rules: Vec<String> =
                    tcp.map(|packets| format!("{packets} reject with tcp reset")).collect();
                rules.extend::<Vec<String>>(each("reject"));
                rules
            }
            _ => each("drop"),
        }
    }

    /// What matches these packets, in nftables' words.
    fn matches(self) -> Vec<String> {
        let sides = |field: String| ["s", "d"].map(|side| field.replace('?', side)).to_vec();
        match self {
            Self::Udp => vec!["meta l4proto udp".into()],
            Self::UdpPort(port) => sides(format!("udp ?port {port}")),
            Self::TcpPort(port) => sides(format!("tcp ?port {port}")),
            Self::Address(address) | Self::Refused(address) => sides(of(address)),
            Self::TcpOf(address) => sides(format!("meta l4proto tcp {}", of(address))),
            Self::AllButTcpPort(port) => {
                // As sets: of two inequalities one after the other nft makes a single one.
                let others = format!("{{ 0-{}, {}-65535 }}", port.saturating_sub(1), port.saturating_add(1));
                vec!["meta l4proto udp".into(), format!("tcp sport {others} tcp dport {others}")]
            }
            Self::UnaskedFrom(outside) => {
                let flows = "meta l4proto { tcp, udp } ct state { new, invalid }";
                vec![format!("iifname \"{outside}\" {flows}")]
            }
            Self::Icmp => vec![
                "meta l4proto icmp".into(),
                "icmpv6 type != { nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert }".into(),
            ],
        }
    }
}

/// One side of the packets that an address sends and receives.
fn of(address: IpAddr) -> String {
    let family = if address.is_ipv4() { "ip" } else { "ip6" };
    format!("{family} ?addr {address}")
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
        let rules = self.0.iter().flat_map(|block| block.rules());
        let rules: String = rules.map(|rule| format!("    {rule}\n")).collect();
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
