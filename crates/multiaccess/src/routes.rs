//! Where the routes of an interface lead.

use std::net::IpAddr;

/// More routes than this of one interface are not told apart: it then counts as leading everywhere, as the
/// interface of a router that knows the whole Internet does.
const MOST: usize = 1024;

/// A block of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    address: IpAddr,
    length: u8,
}

impl Prefix {
    /// The block of this address and length. A length beyond the family's counts as the whole address.
    pub fn new(address: IpAddr, length: u8) -> Self {
        let most = if address.is_ipv4() { 32 } else { 128 };
        Self { address, length: length.min(most) }
    }

    /// An address of the block, as it was given.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// How many bits of an address say whether it is in the block.
    pub fn length(&self) -> u8 {
        self.length
    }

    /// Whether the address is in the block. Families are told apart.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differs = own.to_bits() ^ other.to_bits();
                differs.leading_zeros() >= u32::from(self.length)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differs = own.to_bits() ^ other.to_bits();
                differs.leading_zeros() >= u32::from(self.length)
            }
            _ => false,
        }
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.length)
    }
}

/// The destinations of an interface's routes.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Routes {
    prefixes: Vec<Prefix>,
    everywhere: bool,
}

impl Routes {
    /// Adds a route.
    pub fn add(&mut self, prefix: Prefix) {
        if self.prefixes.len() >= MOST {
            self.everywhere = true;
        } else if !self.prefixes.contains(&prefix) {
            self.prefixes.push(prefix);
        }
    }

    /// Whether one of them leads to this address.
    pub fn lead_to(&self, address: IpAddr) -> bool {
        self.everywhere || self.prefixes.iter().any(|prefix| prefix.contains(address))
    }

    /// Whether one of them is a default route.
    pub fn have_default(&self) -> bool {
        self.everywhere || self.prefixes.iter().any(|prefix| prefix.length == 0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn prefix(address: &str, length: u8) -> Prefix {
        Prefix::new(address.parse().unwrap(), length)
    }

    #[test]
    fn a_route_leads_where_its_prefix_is_and_families_are_told_apart() {
        let mut routes = Routes::default();
        routes.add(prefix("192.168.1.0", 24));
        assert!(routes.lead_to("192.168.1.77".parse().unwrap()));
        assert!(!routes.lead_to("192.168.2.77".parse().unwrap()));
        assert!(!routes.have_default());
        routes.add(prefix("::", 0));
        assert!(routes.have_default());
        assert!(routes.lead_to("2001:db8::1".parse().unwrap()));
        assert!(!routes.lead_to("192.168.2.77".parse().unwrap()));
        assert!(prefix("10.0.0.1", 200).contains("10.0.0.1".parse().unwrap()));
    }

    #[test]
    fn whoever_has_more_routes_than_are_counted_leads_everywhere() {
        let mut routes = Routes::default();
        for number in 0..=MOST as u32 {
            routes.add(Prefix::new(IpAddr::from((0x0a00_0000 + number).to_be_bytes()), 32));
        }
        assert!(routes.lead_to("203.0.113.1".parse().unwrap()));
    }
}
