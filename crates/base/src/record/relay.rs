//! What a relay says of itself, as its record tells it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::key::EndpointId;
use crate::wire::{DecodeError, Reader};

/// The longest place of a relay, in bytes.
pub const MAX_RELAY_PLACE: usize = 32;

/// A relay names no more others that it cannot reach.
pub const MAX_UNREACHABLE: usize = 8;

/// Where a relay stands, in its operator's words: relays of one place fail together. Up to [`MAX_RELAY_PLACE`] of
/// `a-z 0-9 -`, as in `fra1`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RelayPlace(Arc<str>);

impl RelayPlace {
    /// As text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RelayPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for RelayPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RelayPlace({self})")
    }
}

/// A text that is no [`RelayPlace`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a relay's place is 1 to {MAX_RELAY_PLACE} characters of a-z, 0-9 and -, as in fra1")]
pub struct NoRelayPlace;

impl FromStr for RelayPlace {
    type Err = NoRelayPlace;

    fn from_str(text: &str) -> Result<Self, NoRelayPlace> {
        let fits = (1..=MAX_RELAY_PLACE).contains(&text.len());
        let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if fits && text.bytes().all(is_plain) { Ok(Self(text.into())) } else { Err(NoRelayPlace) }
    }
}

/// What a relay of a group says of itself. Nobody vouches for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RelayState {
    /// Where it stands.
    pub place: RelayPlace,
    /// Connections that it may pass on at once, at least one.
    pub capacity: u32,
    /// How many of these are taken.
    pub load: u32,
    /// Relays of its group that it watches and cannot reach, ascending, at most [`MAX_UNREACHABLE`].
    pub unreachable: Vec<EndpointId>,
}

impl RelayState {
    /// The load as a share of the capacity, from 0 to 1 whatever the record says.
    pub fn share(&self) -> f64 {
        (f64::from(self.load) / f64::from(self.capacity.max(1))).min(1.0)
    }

    /// Whether it is as records have it.
    pub(super) fn is_sound(&self) -> bool {
        let is_ascending = self.unreachable.is_sorted_by(|one, next| one.as_bytes() < next.as_bytes());
        self.capacity > 0 && self.unreachable.len() <= MAX_UNREACHABLE && is_ascending
    }
}

/// Writes what [is sound](RelayState::is_sound).
pub(super) fn put(bytes: &mut Vec<u8>, state: &RelayState) {
    bytes.push(state.place.as_str().len() as u8);
    bytes.extend_from_slice(state.place.as_str().as_bytes());
    bytes.extend_from_slice(&state.capacity.to_be_bytes());
    bytes.extend_from_slice(&state.load.to_be_bytes());
    bytes.push(state.unreachable.len() as u8);
    for id in &state.unreachable {
        bytes.extend_from_slice(id.as_bytes());
    }
}

/// Reads what [`put`] writes; whether it is sound is left to be asked.
pub(super) fn read(reader: &mut Reader<'_>) -> Result<RelayState, DecodeError> {
    let length = reader.u8()?;
    let place = std::str::from_utf8(reader.take(length.into())?).ok().and_then(|text| text.parse().ok());
    let place = place.ok_or(DecodeError::Malformed("place"))?;
    let (capacity, load, count) = (reader.u32()?, reader.u32()?, usize::from(reader.u8()?));
    if count > MAX_UNREACHABLE {
        return Err(DecodeError::Malformed("number of unreachable relays"));
    }
    let unreachable = (0..count).map(|_| reader.id()).collect::<Result<_, _>>()?;
    Ok(RelayState { place, capacity, load, unreachable })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::{Record, RecordError, SecretKey, SignedRecord, UnixTime, bit_flips};

    fn key() -> SecretKey {
        SecretKey::from_bytes(&[1; 32])
    }

    fn record() -> Record {
        Record {
            name: "fra.ops@example.org".parse().unwrap(),
            id: key().id(),
            addrs: vec!["192.0.2.1:443".parse().unwrap()],
            sequence: 1_700_000_000_000,
            expires: UnixTime::from_secs(1_700_604_800),
            lifetime: Duration::from_secs(300),
            revoked: false,
        }
    }

    fn ids(count: u8) -> Vec<EndpointId> {
        let mut ids: Vec<_> = (0..count).map(|n| SecretKey::from_bytes(&[n; 32]).id()).collect();
        ids.sort_by_key(|id| *id.as_bytes());
        ids
    }

    fn state() -> RelayState {
        RelayState { place: "fra1".parse().unwrap(), capacity: 1000, load: 70, unreachable: ids(2) }
    }

    #[test]
    fn what_a_relay_says_comes_back_and_every_bit_flip_is_noticed() {
        let signed = SignedRecord::sign_relay(record(), state(), &key(), None).unwrap();
        let back = SignedRecord::decode(signed.encode()).unwrap();
        assert_eq!((back.verify(), back.relay(), back.members()), (Ok(&record()), Some(&state()), None));
        bit_flips::are_noticed(signed.encode(), |bytes| {
            SignedRecord::decode(bytes).is_ok_and(|record| record.verify().is_ok())
        });
        let plain = SignedRecord::sign(record(), &key(), None).unwrap();
        assert_eq!(plain.relay(), None);
    }

    /// If this fails, older programs can no longer read what this one writes.
    #[test]
    fn the_bytes_of_what_a_relay_says() {
        let plain = SignedRecord::sign(record(), &key(), None).unwrap();
        let signed = SignedRecord::sign_relay(record(), state(), &key(), None).unwrap();
        let fields = plain.encode().len() - 64;
        assert_eq!((plain.encode()[1], signed.encode()[1]), (0, 8));
        assert_eq!(signed.encode()[2..fields], plain.encode()[2..fields]);
        let said = &signed.encode()[fields..signed.encode().len() - 64];
        let mut expected = b"\x04fra1\x00\x00\x03\xe8\x00\x00\x00\x46\x02".to_vec();
        state().unreachable.iter().for_each(|id| expected.extend(id.as_bytes()));
        assert_eq!(said, expected);
    }

    #[test]
    fn what_a_relay_says_is_bounded() {
        let refused = |state: RelayState, record: Record| {
            SignedRecord::sign_relay(record, state, &key(), None).unwrap_err() == RecordError::RelayState
        };
        assert!(refused(RelayState { capacity: 0, ..state() }, record()));
        assert!(refused(RelayState { unreachable: ids(9), ..state() }, record()));
        let (mut twice, mut swapped) = (ids(2), ids(2));
        twice[1] = twice[0];
        swapped.swap(0, 1);
        assert!(refused(RelayState { unreachable: twice, ..state() }, record()));
        assert!(refused(RelayState { unreachable: swapped, ..state() }, record()));
        let withdrawn = Record { revoked: true, addrs: Vec::new(), ..record() };
        assert!(refused(state(), withdrawn));
        let full = RelayState { unreachable: ids(8), load: u32::MAX, ..state() };
        assert!(full.share() <= 1.0, "{}", full.share());
        assert!(SignedRecord::sign_relay(record(), full, &key(), None).is_ok());
        for wrong in ["", "Fra", "fra 1", "fra_1", &"x".repeat(33)] {
            assert!(wrong.parse::<RelayPlace>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_record_is_not_a_groups_and_a_relays_at_once() {
        let signed = SignedRecord::sign_relay(record(), state(), &key(), None).unwrap();
        let mut both = signed.encode().to_vec();
        both[1] |= 4;
        assert!(SignedRecord::decode(&both).is_err());
    }
}
