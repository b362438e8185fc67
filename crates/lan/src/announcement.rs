//! Telling where an endpoint is, as that changes.

use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use tokio::task::AbortHandle;
use whimbrel_base::{
    EndpointId, Name, NameError, Record, RecordError, SecretKey, SignedRecord, UnixTime, next_sequence,
};
use whimbrel_transport::{Endpoint, Locator};

use crate::telling::Telling;

/// How long what is told holds. It is told anew long before.
const LIFETIME: Duration = Duration::from_secs(60 * 60);

/// The name under which an endpoint is told that is to be found by its key alone. It is no user's.
///
/// # Errors
/// Never in fact: the name is well-formed.
pub fn name_of_key(id: EndpointId) -> Result<Name, NameError> {
    format!("{id}@whimbrel.invalid").parse()
}

/// Has the network told where an endpoint is, until it is dropped.
#[must_use = "it is withdrawn when this is dropped"]
pub struct Announcement {
    telling: Telling,
    id: EndpointId,
    name: Name,
    keeping: AbortHandle,
}

impl Announcement {
    pub(crate) fn start(telling: Telling, endpoint: Endpoint, key: SecretKey, name: Name) -> Self {
        let id = key.id();
        let keeping = FutureExt::boxed(keep(telling.clone(), endpoint, key, name.clone()));
        let keeping = tokio::spawn(keeping).abort_handle();
        Self { telling, id, name, keeping }
    }
}

impl std::fmt::Debug for Announcement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Announcement").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        self.keeping.abort();
        // Nothing is told any more once the daemon has ended.
        let _ = self.telling.withdraw(self.id, &self.name);
    }
}

/// Tells where the endpoint is at each change of its host's addresses, and now and then.
async fn keep(telling: Telling, endpoint: Endpoint, key: SecretKey, name: Name) {
    let mut addresses = endpoint.watch_addresses();
    let mut sequence = None;
    loop {
        let now = UnixTime::from(SystemTime::now());
        let next = next_sequence(sequence, now.as_millis());
        sequence = Some(next);
        match record(&endpoint, &key, name.clone(), next, now) {
            Ok(record) => {
                if let Err(error) = telling.tell(&record) {
                    tracing::warn!(%name, %error, "cannot tell the local network where this endpoint is");
                }
            }
            Err(error) => tracing::warn!(%name, %error, "cannot sign what the local network is to be told"),
        }
        tokio::select! {
            changed = addresses.changed() => if changed.is_none() { return },
            () = tokio::time::sleep(LIFETIME / 3) => {}
        }
    }
}

/// Says where the endpoint itself is. Places behind relays are for those who are shown its name.
fn record(
    endpoint: &Endpoint,
    key: &SecretKey,
    name: Name,
    sequence: u64,
    now: UnixTime,
) -> Result<SignedRecord, RecordError> {
    let places = Locator::list(&endpoint.addr().addrs).into_iter();
    let direct = places.filter_map(|place| match place {
        Locator::Direct(address) => Some(address),
        _ => None,
    });
    let (id, expires) = (key.id(), now.saturating_add(LIFETIME));
    let record =
        Record { name, id, addrs: direct.collect(), sequence, expires, lifetime: LIFETIME, revoked: false };
    SignedRecord::sign(record, key, None)
}
