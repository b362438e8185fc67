//! Kinds of gateways, and homes behind them.

use std::fmt;

use whimbrel_lab::{Block, Carriers, NatKind};

use super::{Homes, Plan};

/// Where relays listen that are to be reached from everywhere.
pub(crate) const HTTPS: u16 = 443;

/// What stands between a home and the Internet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gateway {
    Nat(NatKind),
    /// Two in a row, the home's and its carrier's.
    CarrierGrade,
    /// Lets no UDP through.
    WithoutUdp,
    /// Lets nothing out but TCP to port 443, where the relay listens.
    HttpsOnly,
}

impl Gateway {
    pub(crate) const ALL: [Self; 7] = [
        Self::Nat(NatKind::FullCone),
        Self::Nat(NatKind::AddressRestricted),
        Self::Nat(NatKind::PortRestricted),
        Self::CarrierGrade,
        Self::Nat(NatKind::Symmetric),
        Self::WithoutUdp,
        Self::HttpsOnly,
    ];

    pub(crate) fn passes_udp(self) -> bool {
        !matches!(self, Self::WithoutUdp | Self::HttpsOnly)
    }

    /// Whether two of these can be opened for each other. A gateway that maps each flow anew is found by what
    /// it lets out, if the other one lets that in, and by a search, if the other one shows a socket at one
    /// port.
    pub(crate) fn open_with(self, other: Self) -> bool {
        let both_vary = [self, other].iter().all(|gateway| *gateway == Self::Nat(NatKind::Symmetric));
        self.passes_udp() && other.passes_udp() && !both_vary
    }

    /// Whether a port must be searched for.
    pub(crate) fn is_searched_with(self, other: Self) -> bool {
        let varies = |gateway| gateway == Self::Nat(NatKind::Symmetric);
        let restricts = |gateway| matches!(gateway, Self::Nat(NatKind::PortRestricted) | Self::CarrierGrade);
        varies(self) && restricts(other) || varies(other) && restricts(self)
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Nat(NatKind::FullCone) => "full cone",
            Self::Nat(NatKind::AddressRestricted) => "address-restr.",
            Self::Nat(NatKind::PortRestricted) => "port-restricted",
            Self::Nat(_) => "symmetric",
            Self::CarrierGrade => "carrier-grade",
            Self::WithoutUdp => "no UDP",
            Self::HttpsOnly => "443/tcp only",
        };
        f.pad(name)
    }
}

/// Homes behind these gateways: the client's, then the server's.
pub(crate) fn homes_behind(gateways: [Gateway; 2]) -> Homes {
    homes_as(Plan::default(), gateways)
}

/// The same, connected as the plan has it but for carriers.
pub(crate) fn homes_as(plan: Plan, gateways: [Gateway; 2]) -> Homes {
    let carriers = Carriers::Own(gateways.map(|gateway| gateway == Gateway::CarrierGrade));
    let homes = Homes::build(Plan { carriers, ..plan });
    for (nat, gateway) in homes.gateways.iter().zip(gateways) {
        match gateway {
            Gateway::Nat(kind) => nat.set_kind(kind).unwrap(),
            Gateway::CarrierGrade => nat.set_kind(NatKind::PortRestricted).unwrap(),
            Gateway::WithoutUdp => nat.router().block(Block::Udp).unwrap(),
            Gateway::HttpsOnly => nat.router().block(Block::AllButTcpPort(HTTPS)).unwrap(),
        }
    }
    homes.carriers.iter().for_each(|nat| nat.set_kind(NatKind::PortRestricted).unwrap());
    homes
}
