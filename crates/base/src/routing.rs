//! Connection ids of QUIC by which a relay knows whom a packet is for.
//!
//! ```text
//! routed id (20 bytes) = marker (1: the first two bits are set, the others random) | token (10) | rest (9)
//! ```
//!
//! A client's first packets have such a destination id, with a random rest, and a server behind a relay gives
//! itself such ids, whose rest tells the relay that they are the server's: so each packet from a client says
//! where it is to go, whatever address it comes from. What an endpoint gives itself at sockets of its own
//! begins with `10` instead ([`own_id`]), so that neither is taken for the other, nor for a notice
//! (`docs/protocol.md` §2a).

use crate::relayed::RelayToken;

/// Bytes of a routed id: as many as QUIC allows (RFC 9000 §17.2).
pub const ROUTED_ID: usize = 20;
/// Bytes of an id that leads through no relay.
pub const OWN_ID: usize = 8;

const MARKER: u8 = 0xc0;
const OWN_MARKER: u8 = 0x80;
const TOKEN: std::ops::Range<usize> = 1..1 + RelayToken::LENGTH;

const LONG_HEADER: u8 = 0x80;
const FIXED_BIT: u8 = 0x40;
const VERSION_1: [u8; 4] = 1u32.to_be_bytes();

/// A connection id that leads to the holder of the token; `random` is what nobody must be able to guess (72
/// bits and the marker's six, RFC 9000 §7.2 asks for 64).
pub fn routed_id(token: RelayToken, random: [u8; ROUTED_ID]) -> [u8; ROUTED_ID] {
    let mut id = random;
    id[0] |= MARKER;
    id[TOKEN].copy_from_slice(token.as_bytes());
    id
}

/// A connection id that leads through no relay.
pub fn own_id(random: [u8; OWN_ID]) -> [u8; OWN_ID] {
    let mut id = random;
    id[0] = id[0] & !MARKER | OWN_MARKER;
    id
}

/// Whom a packet from a client is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routed {
    /// The token in its destination id. Any client that dials without a relay may have chosen such an id by
    /// chance: whether the token is somebody's tells.
    pub token: RelayToken,
    /// The whole destination id.
    pub id: [u8; ROUTED_ID],
}

/// Reads whom a datagram of QUIC is for, by the destination id of its first packet. `None` if that is no
/// routed id, or the datagram is no sound packet of version 1.
pub fn routed(datagram: &[u8]) -> Option<Routed> {
    let first = *datagram.first()?;
    let id = if first & LONG_HEADER != 0 {
        long_ids(datagram)?.0
    } else {
        datagram.get(1..=ROUTED_ID).filter(|_| first & FIXED_BIT != 0)?
    };
    let id: [u8; ROUTED_ID] = id.try_into().ok()?;
    if id[0] & MARKER != MARKER {
        return None;
    }
    let token = RelayToken::from_bytes(id[TOKEN].try_into().ok()?);
    Some(Routed { token, id })
}

/// The id that the sender of a packet with a long header wants to be called by, if it is as long as a routed
/// one.
pub fn source_id(datagram: &[u8]) -> Option<[u8; ROUTED_ID]> {
    long_ids(datagram)?.1.try_into().ok()
}

/// Destination and source id of a packet of version 1 with a long header (RFC 9000 §17.2).
fn long_ids(datagram: &[u8]) -> Option<(&[u8], &[u8])> {
    let (head, rest) = datagram.split_first_chunk::<5>()?;
    if head[0] & (LONG_HEADER | FIXED_BIT) != LONG_HEADER | FIXED_BIT || head[1..] != VERSION_1 {
        return None;
    }
    let (destination, rest) = id(rest)?;
    let (source, _) = id(rest)?;
    Some((destination, source))
}

/// An id behind its length, and what is behind it.
fn id(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first()?;
    rest.split_at_checked(usize::from(*length))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const OF: RelayToken = RelayToken::from_bytes([7; 10]);

    fn long(kind: u8, version: u32, to: &[u8], from: &[u8]) -> Vec<u8> {
        let mut packet = vec![LONG_HEADER | FIXED_BIT | kind << 4];
        packet.extend(version.to_be_bytes());
        for id in [to, from] {
            packet.push(id.len().try_into().unwrap());
            packet.extend(id);
        }
        packet.extend([0; 1200]);
        packet
    }

    fn short(id: &[u8]) -> Vec<u8> {
        let mut packet = vec![FIXED_BIT | 0x1f];
        packet.extend(id);
        packet.extend([0; 30]);
        packet
    }

    #[test]
    fn each_packet_of_a_client_says_whom_it_is_for_and_one_of_a_server_who_it_is() {
        let (id, other) = (routed_id(OF, [0xff; ROUTED_ID]), routed_id(OF, [0; ROUTED_ID]));
        for kind in 0..4 {
            let packet = long(kind, 1, &id, &other);
            assert_eq!(routed(&packet), Some(Routed { token: OF, id }), "{kind}");
            assert_eq!(source_id(&packet), Some(other));
        }
        assert_eq!(routed(&short(&id)), Some(Routed { token: OF, id }));
        assert_eq!(source_id(&short(&id)), None);
        assert_eq!(source_id(&long(0, 1, &id, &[7; 8])), None);
    }

    #[test]
    fn what_leads_through_no_relay_is_not_routed() {
        let id = routed_id(OF, [0; ROUTED_ID]);
        for other in [long(0, 2, &id, &[]), long(0, 1, &id[..19], &[]), long(0, 1, &[0; 20], &[])] {
            assert_eq!(routed(&other), None);
        }
        for byte in 0..=255 {
            let own = own_id([byte; OWN_ID]);
            assert!(own[0] & 0xc0 == 0x80, "as the rules for notices want it");
            assert_eq!(routed(&short(&own)), None);
            assert_eq!(routed(&long(2, 1, &own, &[])), None);
        }
        let whole = long(0, 1, &id, &[]);
        assert!((0..27).all(|length| routed(&whole[..length]).is_none()) && routed(&whole[..27]).is_some());
        for greased in [short(&id), whole] {
            let mut greased = greased;
            greased[0] &= !FIXED_BIT;
            assert_eq!(routed(&greased), None);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (routed(&bytes), source_id(&bytes));
        }
    }
}
