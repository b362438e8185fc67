//! Places behind a relay, and how they travel where only addresses do.
//!
//! A place behind a relay is the relay's address and a [`RelayToken`], which says to whom the relay passes a
//! connection on. Records, tickets and frames hold lists of socket addresses, and peers that know nothing of
//! relays read them. So such a place is written as one or two addresses that nothing can have: of `fe80::/10`
//! (link-local), whose next 54 bits RFC 4291 §2.5.6 has be zero, and here are not. Older peers leave them
//! out: a link-local place counts only for a peer that was met on the link.
//!
//! | relay's address | written as IPv6 address and port |
//! | --- | --- |
//! | IPv4 | `feb1`, the address (4 bytes), the token (10 bytes); the relay's port |
//! | IPv6 | `feb2`, the token (10 bytes), bytes 0 to 3 of the address; the relay's port |
//! | | right behind it: `feb3`, bytes 4 to 15 of the address, `0000`; the relay's port |
//!
//! What a server tells one client alone may have an **alias** for such a place: a token that leads to the
//! same server, and tells onlookers neither that nor whose it is. It is `feb4`, the number of the place among
//! those behind relays in the list (1 byte, from 0), the alias (10 bytes), `000000`; the relay's port.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use crate::address::{AddressScope, portable};
use crate::z32;

const WHOLE: [u8; 2] = [0xfe, 0xb1];
const FIRST: [u8; 2] = [0xfe, 0xb2];
const SECOND: [u8; 2] = [0xfe, 0xb3];
const ALIAS: [u8; 2] = [0xfe, 0xb4];

/// Names an endpoint to a relay, and tells nobody else which one it is: 80 bits, shown in 16 characters of
/// z-base-32, which are a host name as TLS knows them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelayToken([u8; Self::LENGTH]);

impl RelayToken {
    /// Bytes of a token.
    pub const LENGTH: usize = 10;

    /// A token of these bytes.
    pub const fn from_bytes(bytes: [u8; Self::LENGTH]) -> Self {
        Self(bytes)
    }

    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; Self::LENGTH] {
        &self.0
    }
}

impl fmt::Display for RelayToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&z32::encode(&self.0))
    }
}

impl fmt::Debug for RelayToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelayToken({self})")
    }
}

/// A text that is no [`RelayToken`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a relay's token has 16 characters of z-base-32")]
pub struct NoToken;

impl FromStr for RelayToken {
    type Err = NoToken;

    fn from_str(text: &str) -> Result<Self, NoToken> {
        if text.len() != Self::LENGTH * 8 / 5 {
            return Err(NoToken);
        }
        let bytes = z32::decode(text).map_err(|_| NoToken)?;
        bytes.try_into().map(Self).map_err(|_| NoToken)
    }
}

/// A place behind a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RelayedAddr {
    /// Where the relay is.
    pub relay: SocketAddr,
    /// To whom it passes on.
    pub token: RelayToken,
}

/// `relay 192.0.2.1:443 for yyyyyyyyyyyyyyyy`.
impl fmt::Display for RelayedAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "relay {} for {}", self.relay, self.token)
    }
}

/// Where an endpoint may be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// At this address.
    Direct(SocketAddr),
    /// Through a relay.
    Relayed(RelayedAddr),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct(address) => address.fmt(f),
            Self::Relayed(relayed) => relayed.fmt(f),
        }
    }
}

impl RelayedAddr {
    /// As addresses that nothing can have, laid out as the [module](self) says: one, or two that belong
    /// together.
    pub fn pack(&self) -> Vec<SocketAddr> {
        let relay = portable(self.relay);
        let address = |bytes: [u8; 16]| SocketAddr::new(Ipv6Addr::from(bytes).into(), relay.port());
        let mut first = [0; 16];
        match relay.ip() {
            IpAddr::V4(ip) => {
                first[..2].copy_from_slice(&WHOLE);
                first[2..6].copy_from_slice(&ip.octets());
                first[6..].copy_from_slice(&self.token.0);
                vec![address(first)]
            }
            IpAddr::V6(ip) => {
                let octets = ip.octets();
                first[..2].copy_from_slice(&FIRST);
                first[2..12].copy_from_slice(&self.token.0);
                first[12..].copy_from_slice(&octets[..4]);
                let mut second = [0; 16];
                second[..2].copy_from_slice(&SECOND);
                second[2..14].copy_from_slice(&octets[4..]);
                vec![address(first), address(second)]
            }
        }
    }

    /// Reads what [`pack`](Self::pack) wrote from the front of `addrs`; also tells how many it took.
    fn unpack(addrs: &[SocketAddr]) -> Option<(Self, usize)> {
        let octets = marked(addrs.first()?)?;
        let port = addrs[0].port();
        let (ip, token, used): (IpAddr, &[u8], usize) = match [octets[0], octets[1]] {
            WHOLE => {
                let ip: [u8; 4] = octets[2..6].try_into().ok()?;
                (Ipv4Addr::from(ip).into(), &octets[6..], 1)
            }
            FIRST => {
                let second = addrs.get(1).filter(|second| second.port() == port)?;
                let rest = marked(second).filter(|rest| rest[..2] == SECOND)?;
                let mut ip = [0; 16];
                ip[..4].copy_from_slice(&octets[12..]);
                ip[4..].copy_from_slice(&rest[2..14]);
                (Ipv6Addr::from(ip).into(), &octets[2..12], 2)
            }
            _ => return None,
        };
        let token = RelayToken(token.try_into().ok()?);
        let usable = port != 0 && AddressScope::of(ip) != AddressScope::Unusable;
        usable.then_some((Self { relay: portable(SocketAddr::new(ip, port)), token }, used))
    }
}

/// The bytes of an address that begins like a part of a packed place, or like an alias.
fn marked(address: &SocketAddr) -> Option<[u8; 16]> {
    let IpAddr::V6(ip) = address.ip() else { return None };
    let octets = ip.octets();
    [WHOLE, FIRST, SECOND, ALIAS].contains(&[octets[0], octets[1]]).then_some(octets)
}

/// The places that a list of addresses means, in order. Parts of packed places that make no whole are left
/// out.
pub fn places(addrs: &[SocketAddr]) -> Vec<Place> {
    let mut places = Vec::with_capacity(addrs.len());
    let mut rest = addrs;
    while let Some(first) = rest.first() {
        let (place, used) = match (RelayedAddr::unpack(rest), marked(first)) {
            (Some((relayed, used)), _) => (Some(Place::Relayed(relayed)), used),
            (None, Some(_)) => (None, 1),
            (None, None) => (Some(Place::Direct(*first)), 1),
        };
        places.extend(place);
        rest = &rest[used..];
    }
    places
}

/// `direct` addresses and places behind relays in one list of at most `max`: the relayed places all, as far
/// as they find room, because they are what works where no other does.
pub fn pack(direct: &[SocketAddr], relayed: &[RelayedAddr], max: usize) -> Vec<SocketAddr> {
    let mut packed: Vec<SocketAddr> = Vec::new();
    for place in relayed {
        let place = place.pack();
        if packed.len() + place.len() <= max && !packed.contains(&place[0]) {
            packed.extend(place);
        }
    }
    let room = max - packed.len();
    direct.iter().take(room).copied().chain(packed).collect()
}

/// A place behind a relay, and a token of one client's own for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aliased {
    /// Where the relay is, with the token that everybody may know.
    pub place: RelayedAddr,
    /// The token to name instead.
    pub alias: RelayToken,
}

/// Adds aliases to a list, as far as it has their places and they find room among `max` addresses.
pub fn add_aliases(list: &mut Vec<SocketAddr>, aliases: &[Aliased], max: usize) {
    let behind = behind_relays(list);
    for Aliased { place, alias } in aliases {
        let place = RelayedAddr { relay: portable(place.relay), ..*place };
        let number = behind.iter().position(|known| *known == place).and_then(|at| u8::try_from(at).ok());
        let Some(number) = number.filter(|_| list.len() < max) else { continue };
        let mut bytes = [0; 16];
        bytes[..2].copy_from_slice(&ALIAS);
        bytes[2] = number;
        bytes[3..13].copy_from_slice(&alias.0);
        list.push(SocketAddr::new(Ipv6Addr::from(bytes).into(), place.relay.port()));
    }
}

/// The aliases in a list. What is of no place in it is left out.
pub fn aliases(addrs: &[SocketAddr]) -> Vec<Aliased> {
    let behind = behind_relays(addrs);
    let read = |address: &SocketAddr| {
        let octets = marked(address).filter(|octets| octets[..2] == ALIAS)?;
        let alias = RelayToken(octets[3..13].try_into().ok()?);
        let place = *behind.get(usize::from(octets[2]))?;
        (place.relay.port() == address.port()).then_some(Aliased { place, alias })
    };
    addrs.iter().filter_map(read).collect()
}

/// The places behind relays in a list.
fn behind_relays(addrs: &[SocketAddr]) -> Vec<RelayedAddr> {
    let relayed = |place| match place {
        Place::Relayed(relayed) => Some(relayed),
        Place::Direct(_) => None,
    };
    places(addrs).into_iter().filter_map(relayed).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{EndpointAddr, MAX_LIFETIME, Record, SecretKey, SignedRecord, Ticket, UnixTime};

    fn relayed(relay: &str, token: u8) -> RelayedAddr {
        RelayedAddr { relay: relay.parse().unwrap(), token: RelayToken([token; 10]) }
    }

    fn direct(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    #[test]
    fn places_are_read_as_they_were_written() {
        let (four, six) = (relayed("192.0.2.1:443", 1), relayed("[2001:db8::1]:4480", 2));
        let here = direct("10.0.0.2:7");
        let list = pack(&[here], &[six, four], 16);
        assert_eq!(list.len(), 4);
        assert_eq!(places(&list), [Place::Direct(here), Place::Relayed(six), Place::Relayed(four)]);
        let mapped = relayed("[::ffff:192.0.2.1]:443", 1);
        assert_eq!(places(&mapped.pack()), [Place::Relayed(four)]);
    }

    #[test]
    fn a_record_and_a_ticket_carry_them_unchanged() {
        let (key, now) = (SecretKey::from_bytes(&[1; 32]), UnixTime::from_secs(1_700_000_000));
        let list = pack(&[direct("10.0.0.2:7")], &[relayed("[2001:db8::1]:443", 9)], 16);
        let record = Record {
            name: "user@example.org".parse().unwrap(),
            id: key.id(),
            addrs: list.clone(),
            sequence: 1,
            expires: now.saturating_add(MAX_LIFETIME),
            lifetime: MAX_LIFETIME,
            revoked: false,
        };
        let signed = SignedRecord::sign(record, &key, None).unwrap();
        let read = SignedRecord::decode(signed.encode()).unwrap();
        assert_eq!(read.verify().unwrap().addrs, list);
        let ticket = Ticket::from(EndpointAddr::new(key.id(), list.clone()));
        assert_eq!(ticket.to_string().parse::<Ticket>().unwrap().addrs(), list);
    }

    #[test]
    fn older_peers_take_them_for_places_on_a_link() {
        for place in [relayed("192.0.2.1:443", 1), relayed("[2001:db8::1]:443", 255)] {
            for address in place.pack() {
                assert_eq!(AddressScope::of(address.ip()), AddressScope::LinkLocal, "{address}");
            }
        }
    }

    #[test]
    fn halves_and_nonsense_are_left_out() {
        let six = relayed("[2001:db8::1]:443", 2).pack();
        let here = direct("192.0.2.9:1");
        assert_eq!(places(&[six[0], here]), [Place::Direct(here)]);
        assert_eq!(places(&[six[1], six[0]]), []);
        let other_port = SocketAddr::new(six[1].ip(), 7);
        assert_eq!(places(&[six[0], other_port]), []);
        assert_eq!(places(&relayed("0.0.0.0:443", 1).pack()), []);
        assert_eq!(places(&[direct("[fe80::1]:9")]), [Place::Direct(direct("[fe80::1]:9"))]);
    }

    #[test]
    fn aliases_are_read_with_their_places_and_no_place_is_made_of_them() {
        let (four, six) = (relayed("192.0.2.1:443", 1), relayed("[2001:db8::1]:4480", 2));
        let alias = |place, byte| Aliased { place, alias: RelayToken([byte; 10]) };
        let all = [alias(four, 7), alias(six, 0), alias(four, 255)];
        let mut list = pack(&[direct("10.0.0.2:7")], &[six, four], 16);
        let (plain, meant) = (list.len(), places(&list));
        add_aliases(&mut list, &all, 16);
        assert_eq!(list.len(), plain + all.len());
        assert_eq!((places(&list), aliases(&list)), (meant, all.to_vec()));
        for address in &list[plain..] {
            assert_eq!(AddressScope::of(address.ip()), AddressScope::LinkLocal, "to older peers: {address}");
        }
        // Without room, or a place.
        let mut full = list.clone();
        add_aliases(&mut full, &all, list.len());
        assert_eq!(full, list);
        let mut without = pack(&[], &[six], 16);
        add_aliases(&mut without, &[alias(four, 7)], 16);
        assert_eq!((without.len(), aliases(&without)), (2, vec![]));
        assert_eq!(aliases(&list[plain..]), [], "of places that are not in the list");
        let other_port: Vec<_> = list.iter().map(|at| SocketAddr::new(at.ip(), 9)).collect();
        let read = aliases(&[&list[..plain], &other_port[plain..]].concat());
        assert_eq!(read, [], "at another port");
    }

    #[test]
    fn relayed_places_find_room_before_others() {
        let many: Vec<_> = (1..=20).map(|port| SocketAddr::from(([192, 0, 2, 1], port))).collect();
        let list = pack(&many, &[relayed("[2001:db8::1]:443", 2), relayed("192.0.2.1:443", 2)], 16);
        assert_eq!(list.len(), 16);
        let places = places(&list);
        assert_eq!(places.iter().filter(|place| matches!(place, Place::Relayed(_))).count(), 2);
        assert_eq!(pack(&[], &[relayed("[2001:db8::1]:443", 2)], 1), []);
    }

    #[test]
    fn tokens_have_one_text() {
        let token = RelayToken([0xa5; 10]);
        assert_eq!(token.to_string().len(), 16);
        assert_eq!(token.to_string().parse(), Ok(token));
        for text in ["", "short", "UPPERCASEUPPERCA", "yyyyyyyyyyyyyyyyy", "0000000000000000"] {
            assert_eq!(text.parse::<RelayToken>(), Err(NoToken), "{text}");
        }
    }
}
