//! Who may put which record in which place: pure decisions.

use std::time::Duration;

use whimbrel_base::{EndpointId, MAX_LIFETIME, Name, NameKind, SignedRecord, UnixTime};

use crate::error::NamesError;
use crate::readers::Readers;
use crate::store::{Entry, Stored};

/// How far a delegation may begin in the future: clocks differ.
pub(super) const CLOCK_SKEW: Duration = Duration::from_secs(5 * 60);

/// How far a sequence number may be ahead of the clock.
const MAX_SEQUENCE_AHEAD: Duration = Duration::from_secs(24 * 60 * 60);

/// By what right a record speaks for its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Right {
    /// A user name: its key's own right.
    Own,
    /// A device or service, by the user's own key.
    User,
    /// A device or service, by a delegation that the user's key made then and that ends then.
    Delegated { issued: UnixTime, expires: UnixTime },
}

/// By what right a verified record speaks for its name, given who owns the user name.
pub(super) fn right(
    record: &SignedRecord,
    user: Option<&Stored>,
    now: UnixTime,
) -> Result<Right, NamesError> {
    let name = &record.record().name;
    if name.kind() == NameKind::User {
        return Ok(Right::Own);
    }
    let user_name = name.user();
    let owner = user
        .filter(|user| user.entry.held_until > now)
        .ok_or_else(|| NamesError::UserUnknown(user_name.clone()))?
        .entry
        .owner();
    if record.authority() != owner {
        return Err(NamesError::NotTheUsers { name: name.clone(), user: user_name });
    }
    let Some(delegation) = record.delegation() else {
        return Ok(Right::User);
    };
    if delegation.is_expired(now) {
        return Err(NamesError::DelegationExpired { name: name.clone(), ended: delegation.expires() });
    }
    if delegation.issued() > now.saturating_add(CLOCK_SKEW) {
        return Err(NamesError::DelegationTooEarly(name.clone()));
    }
    Ok(Right::Delegated { issued: delegation.granted(), expires: delegation.expires() })
}

/// Whether a record may take the place of `old`.
pub(super) fn may_replace(
    record: &SignedRecord,
    right: Right,
    old: &Entry,
    now: UnixTime,
) -> Result<(), NamesError> {
    let (name, sequence) = (&record.record().name, record.record().sequence);
    if record.record().id != old.owner() && old.held_until > now {
        match right {
            Right::Own => return Err(NamesError::NameTaken(name.clone())),
            Right::User => {}
            Right::Delegated { issued, .. } if issued > old.granted => {}
            Right::Delegated { .. } => return Err(NamesError::DelegationSuperseded(name.clone())),
        }
    }
    // Its members would be lost to those who call them. What withdraws it may.
    let is_group = old.record.members().is_some() && !old.record.record().revoked;
    if is_group && old.expires > now && record.members().is_none() && !record.record().revoked {
        return Err(NamesError::StandsForGroup(name.clone()));
    }
    let current = old.record.record().sequence;
    if sequence <= current {
        let name = name.clone();
        return Err(NamesError::Stale { name, current });
    }
    Ok(())
}

/// On what terms a record is kept.
pub(super) struct Terms {
    /// How long the name stays its owner's after the record expired.
    pub(super) grace: Duration,
    pub(super) readers: Readers,
    /// When the last delegation was made that the service handed out itself.
    pub(super) renewed: UnixTime,
}

/// The entry of a record that was accepted at `now`.
pub(super) fn entry(
    record: SignedRecord,
    right: Right,
    old: Option<&Entry>,
    terms: Terms,
    now: UnixTime,
) -> Entry {
    let before = old.map_or(UnixTime::default(), |old| old.granted);
    let granted = match right {
        Right::Own => UnixTime::default(),
        Right::User => before.max(now).max(terms.renewed),
        Right::Delegated { issued, .. } => before.max(issued),
    };
    let expires = expiry(&record, right, now);
    let held_until = expires.saturating_add(terms.grace);
    Entry { record, granted, expires, held_until, readers: terms.readers }
}

/// Until when a record counts that was accepted, or whose endpoint gave a sign of life, at `now`: for its
/// lifetime, and no longer than its own end and its delegation.
pub(super) fn expiry(record: &SignedRecord, right: Right, now: UnixTime) -> UnixTime {
    let expires = now.saturating_add(record.record().lifetime).min(record.record().expires);
    match right {
        Right::Delegated { expires: end, .. } => expires.min(end),
        Right::Own | Right::User => expires,
    }
}

/// Refuses sequence numbers that would lock the name for ever.
pub(super) fn check_sequence(record: &SignedRecord, now: UnixTime) -> Result<(), NamesError> {
    let limit = now.saturating_add(MAX_SEQUENCE_AHEAD).as_millis();
    if record.record().sequence > limit {
        return Err(NamesError::SequenceTooHigh(record.record().name.clone()));
    }
    Ok(())
}

/// Refuses a record whose own end has passed, or is further ahead than an honest endpoint signs.
pub(super) fn check_end(record: &SignedRecord, now: UnixTime) -> Result<(), NamesError> {
    let (name, end) = (&record.record().name, record.record().expires);
    if record.record().is_expired(now) || end > now.saturating_add(MAX_LIFETIME + MAX_SEQUENCE_AHEAD) {
        return Err(NamesError::BadEnd { name: name.clone(), end });
    }
    Ok(())
}

/// Refuses what is not the peer's own.
pub(super) fn check_owner(name: &Name, entry: &Entry, peer: EndpointId) -> Result<(), NamesError> {
    if entry.owner() != peer {
        return Err(NamesError::NameTaken(name.clone()));
    }
    Ok(())
}
