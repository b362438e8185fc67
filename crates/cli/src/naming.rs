//! By what right this key uses a name.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use whimbrel::{Registered, UserError};
use whimbrel_base::{Delegation, Name, NameKind, Record, SignedRecord, UnixTime, next_sequence};

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
        return living(network, delegation).await.map(Some);
    }
    let user = name.user();
    if !network.has_names() {
        // There is nowhere to register it: peers that know its owner take nobody else's word.
        return match network.known.pins()?.owner(&user) {
            Some(owner) if owner.key != network.id() => Err(taken(network, name)),
            _ => Ok(None),
        };
    }
    match network.endpoint.register_user(&user).await {
        Ok(Registered::New) => output::note(quiet, format!("registered {user} for this key")),
        Ok(_) => {}
        Err(UserError::Taken(_)) => return Err(taken(network, name)),
        Err(error) => return Err(error).with_context(|| format!("cannot register {user}")),
    }
    Ok(None)
}

/// Why this key may not use the name.
fn taken(network: &Network, name: &Name) -> anyhow::Error {
    let (user, device) = (name.user(), name.device().unwrap_or_else(|| name.clone()));
    let message = format!(
        "{user} belongs to another key; where that key is, run `whimbrel id delegate {device} --to {}`, and here \
         `whimbrel id accept` with what it prints",
        network.id()
    );
    Failure::new(Failure::REFUSED, message).into()
}

/// What was needed to publish `name` when that was done last: as [`permission`], without asking anybody.
pub(crate) fn known_permission(network: &Network, name: &Name) -> Result<Option<Delegation>> {
    match name.kind() {
        NameKind::User => Ok(None),
        _ => identity::delegation_for(&places::config()?, name, &network.key),
    }
}

/// The delegation, or the one by which the user renewed it since it expired.
async fn living(network: &Network, delegation: Delegation) -> Result<Delegation> {
    if !delegation.is_expired(SystemTime::now().into()) {
        return Ok(delegation);
    }
    let expired = || {
        let (name, id) = (delegation.name(), network.id());
        format!(
            "the delegation of {name} has expired, and was not renewed; have its user run `whimbrel id delegate \
             {name} --to {id}`"
        )
    };
    if !network.has_names() {
        bail!(expired());
    }
    match network.resolver()?.renewed(&delegation).await {
        Ok(Some(new)) if !new.is_expired(SystemTime::now().into()) => {
            identity::store_delegation(&places::config()?, &new)?;
            Ok(new)
        }
        Ok(_) => bail!(expired()),
        Err(error) if error.code().is_some() => bail!("{} ({error})", expired()),
        Err(error) => Err(error).with_context(expired),
    }
}

/// Keeps a delegation that the user renewed, for the next start.
pub(crate) fn keep(delegation: &Delegation) {
    let kept = places::config().and_then(|config| identity::store_delegation(&config, delegation));
    if let Err(error) = kept {
        tracing::warn!(name = %delegation.name(), %error, "cannot keep the renewed delegation");
    }
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
