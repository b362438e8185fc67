//! Generic netlink: the messages of families that have a name, and a number that the kernel gives them.

use crate::kernel::Kernel;
use crate::netlink::{attribute, attributes, number_u32, put};
use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};
use std::io;

/// The family that tells of families (GENL_ID_CTRL of `linux/genetlink.h`), its question for one
/// (CTRL_CMD_GETFAMILY) and its attributes.
const CONTROL: u16 = 16;
const GET_FAMILY: u8 = 3;
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GROUPS: u16 = 7;
/// The attributes of a multicast group.
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;
/// The length of `genlmsghdr`, which attributes follow.
const MESSAGE: usize = 4;
/// All families that are asked here have this version of their messages.
const VERSION: u8 = 1;

/// A message of a family, in either direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Generic {
    /// The family's number.
    pub(crate) family: u16,
    pub(crate) command: u8,
    pub(crate) attributes: Vec<u8>,
}

impl NetlinkSerializable for Generic {
    fn message_type(&self) -> u16 {
        self.family
    }

    fn buffer_len(&self) -> usize {
        MESSAGE + self.attributes.len()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        buffer[..MESSAGE].copy_from_slice(&[self.command, VERSION, 0, 0]);
        buffer[MESSAGE..].copy_from_slice(&self.attributes);
    }
}

impl NetlinkDeserializable for Generic {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        let message = payload
            .split_at_checked(MESSAGE)
            .ok_or_else(|| DecodeError::from("a message of generic netlink is cut short".to_owned()))?;
        Ok(Self { family: header.message_type, command: message.0[0], attributes: message.1.to_vec() })
    }
}

/// A family as the kernel knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Family {
    pub(crate) number: u16,
    groups: Vec<(Vec<u8>, u32)>,
}

impl Family {
    /// Asks for a family by its name, on a socket of NETLINK_GENERIC.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] if the kernel has no such family.
    pub(crate) async fn named(kernel: &mut Kernel, name: &str) -> io::Result<Self> {
        let mut found = None;
        kernel
            .order(question(name), |answer: Generic| found = family(&answer.attributes).or(found.take()))
            .await?;
        found.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The number of a multicast group.
    pub(crate) fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(known, _)| known == name.as_bytes()).map(|(_, number)| *number)
    }
}

fn question(name: &str) -> Generic {
    let mut asked = Vec::new();
    let terminated: Vec<u8> = name.bytes().chain([0]).collect();
    put(&mut asked, FAMILY_NAME, &terminated);
    Generic { family: CONTROL, command: GET_FAMILY, attributes: asked }
}

/// Reads what is told of a family. `None` if it has no number.
fn family(told: &[u8]) -> Option<Family> {
    let number = attribute(told, FAMILY_ID)?.try_into().ok().map(u16::from_ne_bytes)?;
    let listed = attribute(told, GROUPS).unwrap_or_default();
    let groups = attributes(listed).filter_map(|(_, group)| {
        let name = attribute(group, GROUP_NAME)?.split(|byte| *byte == 0).next()?;
        Some((name.to_vec(), number_u32(group, GROUP_ID)?))
    });
    Some(Family { number, groups: groups.collect() })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_asked_for_by_its_name() {
        let asked = question("mptcp_pm");
        let mut bytes = vec![0xff; asked.buffer_len()];
        asked.serialize(&mut bytes);
        let mut expected = vec![3, 1, 0, 0];
        expected.extend_from_slice(&13u16.to_ne_bytes());
        expected.extend_from_slice(&2u16.to_ne_bytes());
        expected.extend_from_slice(b"mptcp_pm\0\0\0\0");
        assert_eq!((bytes, asked.message_type()), (expected, 16));
    }

    /// As the kernel tells of a family with the number 28, and two groups.
    fn told() -> Vec<u8> {
        let mut groups = Vec::new();
        for (n, (name, number)) in
            (1..).zip([(&b"mptcp_pm_cmds\0"[..], 8u32), (&b"mptcp_pm_events\0"[..], 9)])
        {
            let mut group = Vec::new();
            put(&mut group, GROUP_ID, &number.to_ne_bytes());
            put(&mut group, GROUP_NAME, name);
            put(&mut groups, n, &group);
        }
        let mut bytes = Vec::new();
        put(&mut bytes, FAMILY_NAME, b"mptcp_pm\0");
        put(&mut bytes, FAMILY_ID, &28u16.to_ne_bytes());
        put(&mut bytes, GROUPS, &groups);
        bytes
    }

    #[test]
    fn its_number_and_its_groups_are_read_and_what_is_cut_harms_nobody() {
        let whole = told();
        let found = family(&whole).unwrap();
        assert_eq!((found.number, found.group("mptcp_pm_events")), (28, Some(9)));
        assert_eq!(found.group("mptcp_pm"), None);
        for length in 0..whole.len() {
            let found = family(&whole[..length]);
            assert!(found.is_none_or(|found| found.number == 28), "{length} bytes");
        }
        assert_eq!(family(&[0xff; 64]), None);
        assert!(Generic::deserialize(&NetlinkHeader::default(), &[1, 1, 0]).is_err());
    }
}
