//! An Ethernet frame on its way through a link.

use crate::shaper::Packet;

const ETHERNET_HEADER: usize = 14;
const ARP: [u8; 2] = [0x08, 0x06];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;
/// Router and neighbour discovery messages (RFC 4861, section 4).
const DISCOVERY: std::ops::RangeInclusive<u8> = 133..=137;
/// A packet whose destination has this bit in its first byte is for a group, not for one machine.
const GROUP_BIT: u8 = 1;

pub(crate) struct Frame(pub(crate) Vec<u8>);

impl Frame {
    /// Whether this asks or tells which machine has an address, rather than carrying somebody's data.
    pub(crate) fn is_address_resolution(&self) -> bool {
        let field = |range: std::ops::Range<usize>| self.0.get(range).unwrap_or_default();
        match field(12..14) {
            ethertype if ethertype == ARP => true,
            ethertype if ethertype == IPV6 => {
                field(20..21) == [ICMPV6]
                    && field(54..55).first().is_some_and(|kind| DISCOVERY.contains(kind))
            }
            _ => false,
        }
    }

    /// Whether this is addressed to a group of machines without asking for one of them. Kernels send such
    /// frames of their own accord (multicast listener reports, RFC 3810 and RFC 3376) when an address or an
    /// interface appears.
    pub(crate) fn is_group_chatter(&self) -> bool {
        self.0.first().is_some_and(|byte| byte & GROUP_BIT != 0) && !self.is_address_resolution()
    }
}

impl Packet for Frame {
    fn size(&self) -> usize {
        self.0.len().saturating_sub(ETHERNET_HEADER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(ethertype: [u8; 2], next_header: u8, kind: u8) -> Frame {
        let mut bytes = vec![0; 60];
        bytes[12..14].copy_from_slice(&ethertype);
        bytes[20] = next_header;
        bytes[54] = kind;
        Frame(bytes)
    }

    #[test]
    fn tells_address_resolution_from_data() {
        assert!(frame(ARP, 0, 0).is_address_resolution());
        assert!(frame(IPV6, ICMPV6, 135).is_address_resolution());
        assert!(!frame(IPV6, ICMPV6, 128).is_address_resolution());
        assert!(!frame(IPV6, 6, 135).is_address_resolution());
        assert!(!frame([0x08, 0x00], ICMPV6, 135).is_address_resolution());
        assert!(!Frame(Vec::new()).is_address_resolution());
    }

    #[test]
    fn tells_what_is_said_to_a_group_from_what_is_said_to_one_machine() {
        let to = |destination: u8, mut frame: Frame| {
            frame.0[0] = destination;
            frame.is_group_chatter()
        };
        // Listener reports follow a hop-by-hop header; ARP asks everybody.
        assert!(to(0x33, frame(IPV6, 0, 0)));
        assert!(to(0x01, frame([0x08, 0x00], 0, 0)));
        assert!(!to(0x33, frame(IPV6, ICMPV6, 135)));
        assert!(!to(0xff, frame(ARP, 0, 0)));
        assert!(!to(0x02, frame(IPV6, 6, 0)));
        assert!(!Frame(Vec::new()).is_group_chatter());
    }

    #[test]
    fn sizes_leave_out_the_ethernet_header() {
        assert_eq!(Frame(vec![0; 1514]).size(), 1500);
    }
}
