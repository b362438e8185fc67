//! What the kernel's userspace path manager is told about a connection. Each needs CAP_NET_ADMIN, and a
//! connection that was made while `net.mptcp.pm_type` was 1.

use crate::diag::{AF_INET, AF_INET6};
use crate::genl::Generic;
use crate::netlink::{put, put_nested};
use serde::{Deserialize, Serialize};
use std::net::{IpAddr, SocketAddr};

/// Commands (MPTCP_PM_CMD_* of `linux/mptcp_pm.h`).
const SET_FLAGS: u8 = 7;
const ANNOUNCE: u8 = 8;
const REMOVE: u8 = 9;
const SUBFLOW_CREATE: u8 = 10;
const SUBFLOW_DESTROY: u8 = 11;
/// Attributes of all of them (MPTCP_PM_ATTR_*): both addresses are sets.
const ADDRESS: u16 = 1;
const TOKEN: u16 = 4;
const LOCAL_ID: u16 = 5;
const REMOTE: u16 = 6;
/// Attributes of an address (MPTCP_PM_ADDR_ATTR_*).
const ADDRESS_FAMILY: u16 = 1;
const ADDRESS_ID: u16 = 2;
const ADDRESS_V4: u16 = 3;
const ADDRESS_V6: u16 = 4;
const ADDRESS_PORT: u16 = 5;
const ADDRESS_FLAGS: u16 = 6;
const ADDRESS_INTERFACE: u16 = 7;
/// MPTCP_PM_ADDR_FLAG_SIGNAL and _BACKUP.
const SIGNAL: u32 = 1;
const BACKUP: u32 = 1 << 2;

/// An order about the connection with this token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) token: u32,
    pub(crate) what: Action,
}

/// What is to be done. Numbers are those that both sides know an address of this host by; 0 is the one that
/// the connection was made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Action {
    /// Tells the peer that it may open subflows to this address.
    Announce { address: IpAddr, number: u8 },
    /// Tells the peer that this address is no more.
    Remove { number: u8 },
    /// Opens a subflow from this address, through this interface.
    Create {
        source: IpAddr,
        interface: u32,
        number: u8,
        #[serde(rename = "backup", default)]
        is_backup: bool,
        remote: SocketAddr,
    },
    /// Closes a subflow.
    Destroy { local: SocketAddr, remote: SocketAddr },
    /// Says whether data flows over a subflow only while there is no other.
    SetBackup {
        local: SocketAddr,
        remote: SocketAddr,
        #[serde(rename = "backup")]
        is_backup: bool,
    },
}

/// An address as it is written down.
#[derive(Debug, Clone, Copy, Default)]
struct Address {
    number: Option<u8>,
    port: u16,
    flags: Option<u32>,
    interface: Option<u32>,
}

impl Order {
    /// The message to the family with this number.
    pub(crate) fn message(&self, family: u16) -> Generic {
        let mut attributes = Vec::new();
        put(&mut attributes, TOKEN, &self.token.to_ne_bytes());
        let flags = |is_backup: bool| Some(if is_backup { BACKUP } else { 0 });
        let command = match self.what {
            Action::Announce { address, number } => {
                let with = Address { number: Some(number), flags: Some(SIGNAL), ..Address::default() };
                with.put(&mut attributes, ADDRESS, address);
                ANNOUNCE
            }
            Action::Remove { number } => {
                put(&mut attributes, LOCAL_ID, &[number]);
                REMOVE
            }
            Action::Create { source, interface, number, is_backup, remote } => {
                let (number, interface) = (Some(number), Some(interface));
                let with = Address { number, port: 0, flags: flags(is_backup), interface };
                with.put(&mut attributes, ADDRESS, source);
                put_ends(&mut attributes, REMOTE, remote);
                SUBFLOW_CREATE
            }
            Action::Destroy { local, remote } => {
                put_ends(&mut attributes, ADDRESS, local);
                put_ends(&mut attributes, REMOTE, remote);
                SUBFLOW_DESTROY
            }
            Action::SetBackup { local, remote, is_backup } => {
                let with = Address { port: local.port(), flags: flags(is_backup), ..Address::default() };
                with.put(&mut attributes, ADDRESS, local.ip());
                put_ends(&mut attributes, REMOTE, remote);
                SET_FLAGS
            }
        };
        Generic { family, command, attributes }
    }
}

fn put_ends(bytes: &mut Vec<u8>, kind: u16, at: SocketAddr) {
    Address { port: at.port(), ..Address::default() }.put(bytes, kind, at.ip());
}

impl Address {
    /// Adds it, with all that is known of it. Ports are in the order of this machine.
    fn put(self, bytes: &mut Vec<u8>, kind: u16, ip: IpAddr) {
        let mut inner = Vec::new();
        let (family, ip_kind, octets) = match ip {
            IpAddr::V4(ip) => (AF_INET, ADDRESS_V4, ip.octets().to_vec()),
            IpAddr::V6(ip) => (AF_INET6, ADDRESS_V6, ip.octets().to_vec()),
        };
        put(&mut inner, ADDRESS_FAMILY, &u16::from(family).to_ne_bytes());
        if let Some(number) = self.number {
            put(&mut inner, ADDRESS_ID, &[number]);
        }
        put(&mut inner, ip_kind, &octets);
        if self.port != 0 {
            put(&mut inner, ADDRESS_PORT, &self.port.to_ne_bytes());
        }
        if let Some(flags) = self.flags {
            put(&mut inner, ADDRESS_FLAGS, &flags.to_ne_bytes());
        }
        if let Some(interface) = self.interface {
            put(&mut inner, ADDRESS_INTERFACE, &interface.to_ne_bytes());
        }
        put_nested(bytes, kind, &inner);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::netlink::{attribute, attributes};

    const HERE: [u8; 4] = [10, 0, 1, 1];

    fn kinds(bytes: &[u8]) -> Vec<u16> {
        attributes(bytes).map(|(kind, _)| kind).collect()
    }

    fn message(what: Action) -> Generic {
        Order { token: 0x0102_0304, what }.message(28)
    }

    fn local() -> SocketAddr {
        SocketAddr::from((HERE, 4000))
    }

    fn remote() -> SocketAddr {
        "[2001:db8::2]:443".parse().unwrap()
    }

    #[test]
    fn a_subflow_is_created_from_an_address_through_its_interface() {
        let source = IpAddr::from(HERE);
        let made =
            message(Action::Create { source, interface: 7, number: 3, is_backup: true, remote: local() });
        assert_eq!((made.family, made.command), (28, SUBFLOW_CREATE));
        let mut inner = Vec::new();
        put(&mut inner, 1, &2u16.to_ne_bytes());
        put(&mut inner, 2, &[3]);
        put(&mut inner, 3, &HERE);
        put(&mut inner, 6, &4u32.to_ne_bytes());
        put(&mut inner, 7, &7u32.to_ne_bytes());
        let mut peer = Vec::new();
        put(&mut peer, 1, &2u16.to_ne_bytes());
        put(&mut peer, 3, &HERE);
        put(&mut peer, 5, &4000u16.to_ne_bytes());
        let mut expected = Vec::new();
        put(&mut expected, 4, &0x0102_0304u32.to_ne_bytes());
        put_nested(&mut expected, 1, &inner);
        put_nested(&mut expected, 6, &peer);
        assert_eq!(made.attributes, expected);
    }

    #[test]
    fn each_order_has_the_command_and_the_attributes_that_the_kernel_wants() {
        let address = IpAddr::from(HERE);
        let (local, remote) = (local(), remote());
        for (what, command, outer, inner) in [
            (Action::Announce { address, number: 9 }, 8, &[4, 1][..], &[1, 2, 3, 6][..]),
            (Action::Remove { number: 9 }, 9, &[4, 5][..], &[][..]),
            (Action::Destroy { local, remote }, 11, &[4, 1, 6][..], &[1, 3, 5][..]),
            (Action::SetBackup { local, remote, is_backup: false }, 7, &[4, 1, 6][..], &[1, 3, 5, 6][..]),
        ] {
            let made = message(what);
            assert_eq!((made.command, &kinds(&made.attributes)[..]), (command, outer), "{what:?}");
            let of_address = attribute(&made.attributes, ADDRESS).map(kinds).unwrap_or_default();
            assert_eq!(of_address, inner, "{what:?}");
        }
        let made = message(Action::Destroy { local, remote });
        let of_remote = attribute(&made.attributes, REMOTE).unwrap();
        assert_eq!(kinds(of_remote), [1, 4, 5]);
        assert_eq!(attribute(of_remote, ADDRESS_FAMILY), Some(&10u16.to_ne_bytes()[..]));
        assert_eq!(attribute(of_remote, ADDRESS_PORT), Some(&443u16.to_ne_bytes()[..]));
        let signal = attribute(&message(Action::Announce { address, number: 9 }).attributes, ADDRESS)
            .and_then(|address| attribute(address, ADDRESS_FLAGS))
            .map(<[u8]>::to_vec);
        assert_eq!(signal, Some(1u32.to_ne_bytes().to_vec()));
    }
}
