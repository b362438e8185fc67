//! By what right this key uses a name.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use whimbrel_base::{
    Delegation, MAX_LIFETIME, Name, NameKind, Record, SignedRecord, UnixTime, next_sequence,
};
use whimbrel_names::{AskError, ErrorCode, NameResolver, Origin};

use crate::failure::Failure;
use crate::network::Network;
use crate::{identity, output, places};

/// The end waits no longer than this for the name service.
const WITHDRAW_LIMIT: Duration = Duration::from_millis(500);

/// What is needed to publish `name`: a delegation that was accepted here, or nothing if the user is
/// this key's own. A user name that nobody has is registered for this key.
pub(crate) async fn permission(network: &Network, name: &Name, quiet: bool) -> Result<Option<Delegation>> {
    if name.kind() == NameKind::User {
        return Ok(None);
    }
    if let Some(delegation) = identity::delegation_for(&places::config()?, name, &network.key)? {
        return Ok(Some(delegation));
    }
    let user = name.user();
    match register(network, &user, None).await? {
        Registered::New => output::note(quiet, format!("registered {user} for this key")),
        Registered::Already => {}
        Registered::ForAnother => {
            let device = name.device().unwrap_or_else(|| name.clone());
            return Err(Failure::new(
                Failure::REFUSED,
                format!(
                    "{user} belongs to another key; where that key is, run `whimbrel id delegate {device} --to {}`, \
                     and here `whimbrel id accept` with what it prints",
                    network.id()
                ),
            )
            .into());
        }
    }
    Ok(None)
}

/// Whose a user name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Registered {
    /// This key's, since now.
    New,
    /// This key's, since before.
    Already,
    /// Another key's.
    ForAnother,
}

/// Registers a user name for this key, if nobody has it; with the code of an invitation where the service
/// wants one.
pub(crate) async fn register(network: &Network, user: &Name, invite: Option<&str>) -> Result<Registered> {
    let resolver = network.resolver()?;
    let failed = || format!("cannot register {user}");
    match resolver.lookup_record(user).await {
        Ok(record) if record.record().id == network.id() => {
            own(network, user)?;
            return Ok(Registered::Already);
        }
        Ok(_) => return Ok(Registered::ForAnother),
        Err(AskError::Refused {
            code: Some(ErrorCode::NotFound | ErrorCode::Expired | ErrorCode::Revoked),
            ..
        }) => {}
        Err(error) => return Err(error).with_context(failed),
    }
    if let Some(code) = invite {
        resolver.redeem(code).await.with_context(failed)?;
    }
    let record = Record {
        name: user.clone(),
        id: network.id(),
        addrs: Vec::new(),
        sequence: next_sequence(None, UnixTime::from(SystemTime::now()).as_millis()),
        expires: UnixTime::from(SystemTime::now()).saturating_add(MAX_LIFETIME),
        lifetime: MAX_LIFETIME,
        revoked: false,
    };
    let record = SignedRecord::sign(record, &network.key, None).with_context(failed)?;
    match resolver.publish_record(record).await {
        Ok(_) => {
            own(network, user)?;
            Ok(Registered::New)
        }
        // Its record lapsed, but the name is still kept for its owner; or another was quicker.
        Err(error) if error.code() == Some(ErrorCode::NameTaken) => Ok(Registered::ForAnother),
        Err(error) => Err(error).with_context(failed),
    }
}

/// Takes a device's or service's name back from the key that has it, with the user's key, and the names of the
/// services on a device that were met here. The name service refuses what was delegated before.
pub(crate) async fn revoke(network: &Network, name: &Name) -> Result<Vec<Name>> {
    let resolver = network.resolver()?;
    withdraw_as_user(network, resolver, name).await.with_context(|| format!("cannot revoke {name}"))?;
    let mut revoked = vec![name.clone()];
    let pins = network.known.pins()?;
    let services =
        pins.endpoints().map(|(known, _)| known).filter(|known| known.device().as_ref() == Some(name));
    for service in services.filter(|service| *service != name) {
        match withdraw_as_user(network, resolver, service).await {
            Ok(()) => revoked.push(service.clone()),
            // The service no longer gives it out in any case.
            Err(error) => tracing::info!(%service, %error, "not withdrawn by itself"),
        }
    }
    Ok(revoked)
}

async fn withdraw_as_user(network: &Network, resolver: &NameResolver, name: &Name) -> Result<(), AskError> {
    let previous = match resolver.lookup_record(name).await {
        Ok(record) => Some(record.record().sequence),
        Err(error @ (AskError::Unreachable(_) | AskError::Closed)) => return Err(error),
        Err(_) => None,
    };
    let now = UnixTime::from(SystemTime::now());
    let invalid = |error: whimbrel_base::RecordError| AskError::Invalid(error.to_string());
    let sequence = next_sequence(previous, now.as_millis());
    let revocation = Record::revocation(name.clone(), network.id(), sequence.saturating_add(1), now);
    let revocation = SignedRecord::sign(revocation, &network.key, None).map_err(invalid)?;
    match resolver.revoke(revocation.clone()).await {
        Err(error) if error.code() == Some(ErrorCode::NotFound) => {}
        other => return other.map(drop),
    }
    // A name that was never published can be withdrawn once it is there.
    let empty = Record {
        name: name.clone(),
        id: network.id(),
        addrs: Vec::new(),
        sequence,
        expires: now.saturating_add(MAX_LIFETIME),
        lifetime: MAX_LIFETIME,
        revoked: false,
    };
    resolver.publish_record(SignedRecord::sign(empty, &network.key, None).map_err(invalid)?).await?;
    resolver.revoke(revocation).await.map(drop)
}

/// Remembers that a user name is this key's own: whatever a name service says later.
fn own(network: &Network, user: &Name) -> Result<()> {
    Ok(network.known.pin(user, network.id(), Origin::Own, SystemTime::now().into())?)
}

/// Withdraws a name whose endpoint ends, so that nobody waits for it. Another process may have taken
/// the name over with the same key meanwhile: its record is left alone.
pub(crate) async fn withdraw(network: &Network, name: &Name) {
    let Ok(resolver) = network.resolver() else { return };
    // The user's name is more than this endpoint's: devices depend on it.
    if name.kind() == NameKind::User {
        return;
    }
    let Ok(Ok(published)) = tokio::time::timeout(WITHDRAW_LIMIT, resolver.lookup_record(name)).await else {
        return;
    };
    let current = published.record();
    let port = network.endpoint.port();
    if current.id != network.id() || current.addrs.iter().any(|addr| addr.port() != port) {
        return;
    }
    let now = UnixTime::from(SystemTime::now());
    let sequence = next_sequence(Some(current.sequence), now.as_millis());
    let record = Record::revocation(name.clone(), network.id(), sequence, now);
    let Ok(record) = SignedRecord::sign(record, &network.key, published.delegation().cloned()) else {
        return;
    };
    if !matches!(tokio::time::timeout(WITHDRAW_LIMIT, resolver.revoke(record)).await, Ok(Ok(_))) {
        tracing::info!(%name, "cannot withdraw the name; it lapses by itself");
    }
}
