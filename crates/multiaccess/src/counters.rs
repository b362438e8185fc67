//! The messages of rtnetlink that ask for the counters of all interfaces, and nothing else of them: a
//! sixth of what RTM_GETLINK answers.

use netlink_packet_core::{DecodeError, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable};

/// RTM_GETSTATS and RTM_NEWSTATS of `linux/rtnetlink.h`, since Linux 4.7.
const GET: u16 = 94;
const NEW: u16 = 92;
/// IFLA_STATS_LINK_64 of `linux/if_link.h`: the attribute that is the structure `rtnl_link_stats64`.
const LINK_64: u16 = 1;
/// The length of `if_stats_msg`, which attributes follow.
const MESSAGE: usize = 12;

/// What has passed an interface since it exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counters {
    pub(crate) index: u32,
    pub(crate) received: Counter,
    pub(crate) sent: Counter,
}

/// In one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Counter {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
}

/// A request for the counters of all interfaces, or what the answer says of one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CountersMessage {
    Request,
    Interface(Counters),
}

impl NetlinkSerializable for CountersMessage {
    fn message_type(&self) -> u16 {
        GET
    }

    fn buffer_len(&self) -> usize {
        MESSAGE
    }

    /// Only requests are ever sent.
    fn serialize(&self, buffer: &mut [u8]) {
        buffer.fill(0);
        buffer[8..MESSAGE].copy_from_slice(&(1u32 << (LINK_64 - 1)).to_ne_bytes());
    }
}

impl NetlinkDeserializable for CountersMessage {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        if header.message_type != NEW {
            return Err(DecodeError::from(format!("{} is not RTM_NEWSTATS", header.message_type)));
        }
        counters(payload)
            .map(Self::Interface)
            .ok_or_else(|| DecodeError::from("the counters of an interface are cut short".to_owned()))
    }
}

/// Reads `if_stats_msg` with its attributes. `None` if something is missing.
fn counters(payload: &[u8]) -> Option<Counters> {
    let index = u32::from_ne_bytes(*payload.get(4..)?.first_chunk()?);
    let stats = crate::netlink::attribute(payload.get(MESSAGE..)?, LINK_64)?;
    // The structure begins with packets received and sent, then bytes received and sent.
    let number = |at: usize| stats.get(at * 8..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    let received = Counter { packets: number(0)?, bytes: number(2)? };
    let sent = Counter { packets: number(1)?, bytes: number(3)? };
    Some(Counters { index, received, sent })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// An answer as the kernel makes it: interface 7, another attribute before.
    fn answer() -> Vec<u8> {
        let mut bytes = vec![0; MESSAGE];
        bytes[4..8].copy_from_slice(&7u32.to_ne_bytes());
        for number in [5u16, 3, 1, 0] {
            bytes.extend_from_slice(&number.to_ne_bytes());
        }
        let stats: Vec<u8> = [10u64, 20, 10_000, 20_000].iter().flat_map(|n| n.to_ne_bytes()).collect();
        bytes.extend_from_slice(&(stats.len() as u16 + 4).to_ne_bytes());
        bytes.extend_from_slice(&LINK_64.to_ne_bytes());
        bytes.extend_from_slice(&stats);
        bytes
    }

    fn read(payload: &[u8]) -> Result<CountersMessage, DecodeError> {
        let mut header = NetlinkHeader::default();
        header.message_type = NEW;
        CountersMessage::deserialize(&header, payload)
    }

    #[test]
    fn an_answer_is_read_and_refused_wherever_it_is_cut() {
        let whole = answer();
        let expected = Counters {
            index: 7,
            received: Counter { bytes: 10_000, packets: 10 },
            sent: Counter { bytes: 20_000, packets: 20 },
        };
        assert_eq!(read(&whole).unwrap(), CountersMessage::Interface(expected));
        for length in 0..whole.len() {
            assert!(read(&whole[..length]).is_err(), "{length} bytes");
        }
    }

    #[test]
    fn a_request_asks_for_counters_alone() {
        let mut bytes = [0xff; MESSAGE];
        CountersMessage::Request.serialize(&mut bytes);
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0]);
    }
}
