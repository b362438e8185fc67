//! Who may read which entry.

use whimbrel_base::{EndpointId, UnixTime};

use super::devices;
use crate::error::NamesError;
use crate::readers::{Reader, Readers};
use crate::store::{Entry, Store};

/// Whether `peer` may read an entry.
pub(super) async fn may_read(
    store: &dyn Store,
    peer: &EndpointId,
    entry: &Entry,
    now: UnixTime,
) -> Result<bool, NamesError> {
    let Readers::Only(readers) = &entry.readers else {
        return Ok(true);
    };
    if entry.owner() == *peer || entry.record.authority() == *peer {
        return Ok(true);
    }
    if readers.contains(&Reader::Key(*peer)) {
        return Ok(true);
    }
    let users: Vec<_> = readers
        .iter()
        .filter_map(|reader| if let Reader::User(name) = reader { Some(name.user()) } else { None })
        .collect();
    if users.is_empty() {
        return Ok(false);
    }
    // What the peer has is less than what all readers have.
    for name in store.names_of(peer).await? {
        if !users.contains(&name.user()) {
            continue;
        }
        let Some(own) = store.get(&name).await? else { continue };
        let own = own.entry;
        let counts = own.expires > now && !own.record.record().revoked;
        if devices::is_superseded(store, &own.record).await? {
            continue;
        }
        let is_users_key = name == name.user() && own.held_until > now;
        if own.owner() == *peer && (counts || is_users_key) {
            return Ok(true);
        }
    }
    Ok(false)
}
