//! Records: an endpoint's signed statement of its name and addresses.
//!
//! A record holds for its lifetime after a name service took it in, and never beyond the end that its
//! endpoint signed; it is replaced by one with a higher sequence number. It is signed by the endpoint that it
//! is about, so a name service can withhold it but not forge it. Who may speak for which name is told in
//! [`delegation`](crate::delegation).
//!
//! # Bytes
//! Integers are big-endian. There is exactly one encoding of a record: everything else is refused.
//!
//! | bytes | field |
//! | --- | --- |
//! | 1 | version: 2 |
//! | 1 | flags: bit 0 revoked, bit 1 a delegation follows, bit 2 a group, bit 3 a relay; the others are zero |
//! | 1 + n | length of the name, then the name in lower-case ASCII |
//! | 32 | endpoint id |
//! | 8 | sequence number |
//! | 8 | end, unix seconds: from then on nobody uses the record |
//! | 4 | lifetime in seconds, 1 to 604800 |
//! | 1 | number of addresses, 0 to 16; 0 in a revoked record and in that of a group |
//! | 7 or 19 each | an address: 4 or 6; then 4 or 16 bytes of IP address; then 2 bytes of port. No two alike, none of them unspecified, multicast, broadcast or IPv4-mapped, port not 0 |
//! | 0 or more | the delegation, if flag bit 1 says so, laid out as in [`delegation`](crate::delegation); it covers the name and is for the endpoint id |
//! | 2 | of a group only: number of members, 0 to 256 |
//! | 33, or 2 + n each | a member: 1 and its endpoint id; or 2 and its name, as above. Ascending by these bytes, ids before names, none twice |
//! | 1 + n | of a relay only: length of its place, 1 to 32, then the place, of `a-z 0-9 -` |
//! | 4 | of a relay only: its capacity, not 0 |
//! | 4 | of a relay only: its load |
//! | 1 | of a relay only: number of relays that it cannot reach, 0 to 8 |
//! | 32 each | of a relay only: the id of such a one. Ascending, none twice |
//! | 64 | the endpoint's Ed25519 signature over `whimbrel record v2`, a zero byte, and all bytes above |
//!
//! A record of a **group** says who its members are instead of where its signer is. It has version 2, and is
//! not revoked. Programs that know no groups refuse it for its flag. So do they with a record of a **relay**,
//! which says beside its addresses how the relay stands; it has version 2, is no group's and not revoked.
//!
//! Version 1 has no end, and `whimbrel record v1` in its signature. It is still read: it ends seven days
//! after its sequence number, read as unix milliseconds. It is no longer written.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::address::{AddressScope, MAX_ADDRESSES};
use crate::delegation::Delegation;
use crate::key::{EndpointId, SecretKey, Signature};
use crate::order;
use crate::wire::{DecodeError, signed_message};
use crate::{Name, NameKind, UnixTime};

mod codec;
mod members;
mod relay;
#[cfg(test)]
mod tests;

pub use members::{MAX_GROUP_MEMBERS, Member};
pub use relay::{MAX_RELAY_PLACE, MAX_UNREACHABLE, NoRelayPlace, RelayPlace, RelayState};

/// No encoded record of an endpoint is larger.
pub const MAX_RECORD_BYTES: usize = 2048;

/// No encoded record of a group is larger: room for as many members as there may be, by id or by a name of 36
/// bytes on average.
pub const MAX_GROUP_RECORD_BYTES: usize = 10_240;

/// The longest time a record may hold without a sign of life: seven days.
pub const MAX_LIFETIME: Duration = Duration::from_secs(7 * 24 * 60 * 60);

const PURPOSE_1: &str = "whimbrel record v1";
const PURPOSE_2: &str = "whimbrel record v2";

/// What an endpoint says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The name under which it is found.
    pub name: Name,
    /// Who it is: the key that signs this record.
    pub id: EndpointId,
    /// Where it is, best first, at most [`MAX_ADDRESSES`]. Places behind relays are among them, written as
    /// [`relayed`](crate::relayed) says. May be empty: alive, but not to be reached.
    pub addrs: Vec<SocketAddr>,
    /// Newer records of a name have higher numbers; make them with [`next_sequence`].
    pub sequence: u64,
    /// From then on nobody uses it, whatever a name service says: whole seconds. Name services and resolvers
    /// refuse an end that is more than [`MAX_LIFETIME`] ahead of their clock.
    pub expires: UnixTime,
    /// How long this holds after the name service took it in or heard a heartbeat: whole seconds, at least
    /// one, at most [`MAX_LIFETIME`].
    pub lifetime: Duration,
    /// The endpoint withdraws: nobody is to connect to this name until a newer record says otherwise.
    pub revoked: bool,
}

impl Record {
    /// The record that withdraws `name` from `now` on, for as long as a record may hold.
    pub fn revocation(name: Name, id: EndpointId, sequence: u64, now: UnixTime) -> Self {
        let expires = now.saturating_add(MAX_LIFETIME);
        Self { name, id, addrs: Vec::new(), sequence, expires, lifetime: MAX_LIFETIME, revoked: true }
    }

    /// Whether its end has come.
    pub fn is_expired(&self, now: UnixTime) -> bool {
        self.expires <= now
    }
}

/// The sequence number for a new record: more than the `previous` one, and no less than the time in
/// milliseconds, so that an endpoint that forgot its last number still makes a higher one.
pub fn next_sequence(previous: Option<u64>, unix_millis: u64) -> u64 {
    previous.map_or(unix_millis, |previous| unix_millis.max(previous.saturating_add(1)))
}

/// A [`Record`] with its endpoint's signature, and the delegation that lets that endpoint use the name.
///
/// One made by [`sign`](Self::sign) is good. One from [`decode`](Self::decode) is well-formed; use it after
/// [`verify`](Self::verify). Cheap to clone. Two are equal when their bytes are.
#[derive(Clone, Debug)]
pub struct SignedRecord {
    record: Arc<Record>,
    delegation: Option<Arc<Delegation>>,
    about: About,
    bytes: Arc<[u8]>,
}

/// What a record says beside where its endpoint is.
#[derive(Clone, Debug)]
enum About {
    Endpoint,
    Group(Arc<[Member]>),
    Relay(Arc<RelayState>),
}

impl SignedRecord {
    /// Signs a record with the key of the endpoint that it is about.
    ///
    /// Addresses are made [portable](crate::address::portable) and repeated ones dropped; the lifetime and
    /// the end are cut to whole seconds. [`record`](Self::record) has them in that form.
    ///
    /// # Errors
    /// [`RecordError`] when the record breaks a rule that [`decode`](Self::decode) would refuse it for.
    pub fn sign(
        record: Record,
        key: &SecretKey,
        delegation: Option<Delegation>,
    ) -> Result<Self, RecordError> {
        Self::sign_any(record, key, delegation, About::Endpoint)
    }

    /// Signs the record of a group: the name stands for these members. The key is that of whoever keeps the
    /// group; the record has no addresses. Members are put in order, and repeated ones dropped.
    ///
    /// # Errors
    /// As [`sign`](Self::sign); [`RecordError::TooManyMembers`], [`RecordError::GroupTooLarge`] and
    /// [`RecordError::GroupWithAddresses`] besides.
    pub fn sign_group(
        record: Record,
        members: impl IntoIterator<Item = Member>,
        key: &SecretKey,
        delegation: Option<Delegation>,
    ) -> Result<Self, RecordError> {
        let members = order::set(members);
        Self::sign_any(record, key, delegation, About::Group(members.into_iter().collect()))
    }

    /// Signs the record of a relay of a group, which says how it stands.
    ///
    /// # Errors
    /// As [`sign`](Self::sign); [`RecordError::RelayState`] besides.
    pub fn sign_relay(
        record: Record,
        state: RelayState,
        key: &SecretKey,
        delegation: Option<Delegation>,
    ) -> Result<Self, RecordError> {
        Self::sign_any(record, key, delegation, About::Relay(state.into()))
    }

    fn sign_any(
        mut record: Record,
        key: &SecretKey,
        delegation: Option<Delegation>,
        about: About,
    ) -> Result<Self, RecordError> {
        if record.id != key.id() {
            return Err(RecordError::OtherKey { record: record.id, key: key.id() });
        }
        let portable: Vec<_> = record.addrs.iter().copied().map(crate::address::portable).collect();
        record.addrs.clear();
        for addr in portable {
            if !record.addrs.contains(&addr) {
                record.addrs.push(addr);
            }
        }
        record.lifetime = Duration::from_secs(record.lifetime.as_secs());
        record.expires = UnixTime::from_secs(record.expires.as_secs());
        check(&record, delegation.as_ref(), &about)?;
        let mut bytes = codec::content(&record, delegation.as_ref(), &about);
        let signature = key.sign(&signed_message(PURPOSE_2, &bytes));
        bytes.extend_from_slice(&signature.to_bytes());
        if bytes.len() > MAX_GROUP_RECORD_BYTES {
            return Err(RecordError::GroupTooLarge(bytes.len()));
        }
        Ok(Self { record: record.into(), delegation: delegation.map(Arc::new), about, bytes: bytes.into() })
    }

    /// Checks every signature: the endpoint's over the whole, and the issuer's over the delegation if there
    /// is one.
    ///
    /// It needs no clock and knows no owners. What remains to be asked: whether
    /// [`authority`](Self::authority) is the owner of the user name, whether the delegation [has
    /// expired](Delegation::is_expired) or the record [itself](Record::is_expired), and whether the sequence
    /// number is new.
    ///
    /// # Errors
    /// [`RecordError::Forged`] or [`RecordError::ForgedDelegation`].
    pub fn verify(&self) -> Result<&Record, RecordError> {
        let (content, signature) =
            self.bytes.split_last_chunk::<{ Signature::LENGTH }>().ok_or(DecodeError::Truncated)?;
        let purpose = if content.first() == Some(&1) { PURPOSE_1 } else { PURPOSE_2 };
        self.record
            .id
            .verify(&signed_message(purpose, content), &Signature::from_bytes(signature))
            .map_err(|_| RecordError::Forged)?;
        if let Some(delegation) = &self.delegation {
            delegation.verify().map_err(|_| RecordError::ForgedDelegation)?;
        }
        Ok(&self.record)
    }

    /// The record, verified or not.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The members, verified or not, in ascending order, if this is the record of a group: whoever asked for
    /// one peer asked for the wrong name then. `None` for a record of an endpoint.
    pub fn members(&self) -> Option<&[Member]> {
        match &self.about {
            About::Group(members) => Some(members),
            About::Endpoint | About::Relay(_) => None,
        }
    }

    /// How the relay stands, verified or not, if this is the record of one that says so.
    pub fn relay(&self) -> Option<&RelayState> {
        match &self.about {
            About::Relay(state) => Some(state),
            About::Endpoint | About::Group(_) => None,
        }
    }

    /// The user's word that this endpoint may use the name, verified or not.
    pub fn delegation(&self) -> Option<&Delegation> {
        self.delegation.as_deref()
    }

    /// The key in whose name this record speaks: the delegation's issuer, or without one the endpoint itself.
    /// The record counts only if this key owns the user name.
    pub fn authority(&self) -> EndpointId {
        self.delegation.as_ref().map_or(self.record.id, |delegation| delegation.issuer())
    }

    /// The bytes described in the [module's documentation](self), at most [`MAX_RECORD_BYTES`]; those of
    /// a group at most [`MAX_GROUP_RECORD_BYTES`].
    pub fn encode(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads what [`encode`](Self::encode) gives, and nothing else. Does not verify.
    ///
    /// # Errors
    /// [`DecodeError`] says which field is wrong.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let codec::Content { record, delegation, about } = codec::read(bytes)?;
        Ok(Self { record: record.into(), delegation: delegation.map(Arc::new), about, bytes: bytes.into() })
    }
}

impl PartialEq for SignedRecord {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for SignedRecord {}

/// The rules that a signed record keeps, checked both when it is made and when it is read.
fn check(record: &Record, delegation: Option<&Delegation>, about: &About) -> Result<(), RecordError> {
    match about {
        About::Group(members) if members.len() > MAX_GROUP_MEMBERS => {
            return Err(RecordError::TooManyMembers(members.len()));
        }
        About::Group(_) if !record.addrs.is_empty() || record.revoked => {
            return Err(RecordError::GroupWithAddresses);
        }
        About::Relay(state) if !state.is_sound() || record.revoked => return Err(RecordError::RelayState),
        About::Endpoint | About::Group(_) | About::Relay(_) => {}
    }
    if record.addrs.len() > MAX_ADDRESSES {
        return Err(RecordError::TooManyAddresses(record.addrs.len()));
    }
    for addr in &record.addrs {
        if addr.port() == 0 || AddressScope::of(addr.ip()) == AddressScope::Unusable {
            return Err(RecordError::UnusableAddress(*addr));
        }
    }
    if record.revoked && !record.addrs.is_empty() {
        return Err(RecordError::RevokedWithAddresses);
    }
    if record.lifetime.is_zero() || record.lifetime > MAX_LIFETIME {
        return Err(RecordError::Lifetime(record.lifetime));
    }
    if let Some(delegation) = delegation {
        if record.name.kind() == NameKind::User || !delegation.covers(&record.name) {
            return Err(RecordError::DelegationForOther {
                delegated: delegation.name().clone(),
                name: record.name.clone(),
            });
        }
        if delegation.id() != record.id {
            return Err(RecordError::DelegationForOtherKey(delegation.id()));
        }
    }
    Ok(())
}

/// Why a record can't be signed or used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// The record is about another endpoint than the key is of.
    #[error(
        "the record is about the endpoint {record}, but would be signed by {key}; an endpoint signs its own records only"
    )]
    OtherKey {
        /// The endpoint that the record is about.
        record: EndpointId,
        /// The endpoint whose key was given.
        key: EndpointId,
    },
    /// Too many addresses.
    #[error("a record has at most {MAX_ADDRESSES} addresses, this has {0}; keep the best ones")]
    TooManyAddresses(usize),
    /// An address that nobody can connect to.
    #[error("nobody can connect to {0}; publish an address and port at which the endpoint listens")]
    UnusableAddress(SocketAddr),
    /// A revoked record has addresses.
    #[error("a record that withdraws its name has no addresses; leave them out")]
    RevokedWithAddresses,
    /// Too many members.
    #[error("a group has at most {MAX_GROUP_MEMBERS} members, this has {0}; make two groups")]
    TooManyMembers(usize),
    /// The members' names are too long together.
    #[error(
        "the record of a group has at most {MAX_GROUP_RECORD_BYTES} bytes, this has {0}; name members by id"
    )]
    GroupTooLarge(usize),
    /// A group is in no place, and is withdrawn by a record that is no group's.
    #[error("the record of a group has no addresses, and withdraws nothing; leave them out")]
    GroupWithAddresses,
    /// What a relay says of itself is out of bounds.
    #[error(
        "a relay has a capacity, names up to {MAX_UNREACHABLE} others in ascending order that it cannot reach, and \
         its record withdraws nothing"
    )]
    RelayState,
    /// The lifetime is out of bounds.
    #[error("a record lives from one second to seven days, not {0:?}")]
    Lifetime(Duration),
    /// The delegation is for another name.
    #[error("the delegation is for {delegated} and does not cover {name}; have the user make one for {name}")]
    DelegationForOther {
        /// The name that is delegated.
        delegated: Name,
        /// The name of the record.
        name: Name,
    },
    /// The delegation is for another key.
    #[error(
        "the delegation is for the endpoint {0}, not for the one that signs; have the user make one for this endpoint"
    )]
    DelegationForOtherKey(EndpointId),
    /// The endpoint's signature is wrong.
    #[error(
        "the record is not signed by the endpoint that it is about: it was changed or forged; don't use it"
    )]
    Forged,
    /// The delegation's signature is wrong.
    #[error("the record's delegation is not signed by its issuer: it was changed or forged; don't use it")]
    ForgedDelegation,
    /// The bytes are not a record.
    #[error("this is not a record: {0}")]
    Decode(#[from] DecodeError),
}
