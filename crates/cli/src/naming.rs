//! By what right this key uses a name.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
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
        return Ok(Some(delegation));
    }
    let user = name.user();
    match network.endpoint.register_user(&user).await {
        Ok(Registered::New) => output::note(quiet, format!("registered {user} for this key")),
        Ok(Registered::Already) => {}
        Err(UserError::Taken(_)) => {
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
        Err(error) => return Err(error).with_context(|| format!("cannot register {user}")),
    }
    Ok(None)
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
