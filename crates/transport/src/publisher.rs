//! Keeps a listener's record with the name service true.

use futures_util::FutureExt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use whimbrel_base::{MAX_LIFETIME, Name, Record, RelayState, SignedRecord, UnixTime, next_sequence};

use crate::endpoint_core::EndpointCore;
use crate::error::{ListenError, ResolveError};
use crate::monitor::AddressSet;
use crate::resolver::Resolver;

mod permission;

pub(crate) use self::permission::{OnRenewal, Permission};

const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// A host that has lost its addresses mostly gets new ones within this.
const CUT_OFF: Duration = Duration::from_secs(5);
/// The first registration must succeed within this.
const FIRST_LIMIT: Duration = Duration::from_secs(15);

/// Publishes one name.
pub(crate) struct Publisher {
    endpoint: Arc<EndpointCore>,
    resolver: Arc<dyn Resolver>,
    name: Name,
    permission: Permission,
    lifetime: Duration,
    sequence: Option<u64>,
    addresses: watch::Receiver<Arc<AddressSet>>,
}

impl Publisher {
    pub(crate) fn new(
        endpoint: Arc<EndpointCore>,
        resolver: Arc<dyn Resolver>,
        name: Name,
        permission: Permission,
        lifetime: Duration,
    ) -> Self {
        let addresses = endpoint.bound_watch();
        Self { endpoint, resolver, name, permission, lifetime, sequence: None, addresses }
    }

    /// Publishes once, and goes on in a task of its own.
    pub(crate) async fn start(mut self) -> Result<JoinHandle<()>, ListenError> {
        let record = self.sign()?;
        let published = tokio::time::timeout(FIRST_LIMIT, self.resolver.publish(record.clone())).await;
        let late = || ResolveError::Unreachable("no answer in time".into());
        published
            .unwrap_or_else(|_| Err(late()))
            .map_err(|source| ListenError::Publish { name: self.name.clone(), source })?;
        Ok(tokio::spawn(FutureExt::boxed(self.keep(record, true))))
    }

    /// Publishes in a task of its own, as soon as that can be done.
    pub(crate) fn go_on(mut self) -> Result<JoinHandle<()>, ListenError> {
        let record = self.sign()?;
        Ok(tokio::spawn(FutureExt::boxed(self.keep(record, false))))
    }

    fn sign(&mut self) -> Result<SignedRecord, ListenError> {
        let now = UnixTime::from(SystemTime::now());
        let sequence = next_sequence(self.sequence, now.as_millis());
        self.sequence = Some(sequence);
        let record = Record {
            name: self.name.clone(),
            id: self.endpoint.id,
            addrs: self.present(),
            sequence,
            expires: now.saturating_add(MAX_LIFETIME),
            lifetime: self.lifetime,
            revoked: false,
        };
        let (key, delegation) = (&self.endpoint.key, self.permission.delegation().cloned());
        Ok(match self.relay_state() {
            Some(state) => SignedRecord::sign_relay(record, state, key, delegation)?,
            None => SignedRecord::sign(record, key, delegation)?,
        })
    }

    /// What the endpoint says of itself as a relay.
    fn relay_state(&self) -> Option<RelayState> {
        self.endpoint.places.relay_state()
    }

    /// Whether the record says what a new one would.
    fn is_true(&self, record: &SignedRecord) -> bool {
        record.record().addrs == self.present() && record.relay() == self.relay_state().as_ref()
    }

    /// Where the endpoint is now, as a record tells it.
    fn present(&self) -> Vec<SocketAddr> {
        self.endpoint.stated_at(whimbrel_base::MAX_ADDRESSES)
    }

    /// Returns once the endpoint is elsewhere. Other news of the host's addresses don't count.
    async fn moved(&self) {
        let (before, mut addresses) = (self.present(), self.addresses.clone());
        while addresses.changed().await.is_ok() && self.present() == before {}
    }

    /// Publishes anew at each change of address, and as a sign of life well before the record expires; soon
    /// if the record was not `told` yet.
    async fn keep(mut self, mut record: SignedRecord, mut told: bool) {
        let mut pause = FIRST_PAUSE;
        loop {
            let mut renewed = false;
            let wait = if told { self.permission.next_look(self.lifetime / 3) } else { pause };
            tokio::select! {
                changed = self.addresses.changed() => {
                    if changed.is_err() {
                        return;
                    }
                    let cut_off = self.endpoint.is_cut_off(&self.addresses.borrow_and_update());
                    // What only this host can use replaces a better record only if it stays so.
                    if cut_off && tokio::time::timeout(CUT_OFF, self.addresses.changed()).await.is_ok() {
                        self.addresses.mark_changed();
                        continue;
                    }
                    if !self.is_true(&record) {
                        pause = FIRST_PAUSE;
                        match self.sign() {
                            Ok(fresh) => record = fresh,
                            Err(error) => tracing::warn!(name = %self.name, %error, "cannot sign a new record"),
                        }
                    } else if told {
                        continue;
                    }
                }
                () = tokio::time::sleep(wait) => {
                    let mut addresses = self.addresses.clone();
                    tokio::select! {
                        new = self.permission.renew(&*self.resolver) => renewed = new,
                        // That cannot wait for an answer.
                        _ = addresses.changed() => continue,
                    }
                }
            }
            if renewed || ends_soon(&record, self.lifetime, SystemTime::now().into()) {
                match self.sign() {
                    Ok(fresh) => record = fresh,
                    Err(error) => tracing::warn!(name = %self.name, %error, "cannot sign a new record"),
                }
            }
            told = false;
            let result = tokio::select! {
                result = self.resolver.publish(record.clone()) => result,
                // A further move makes this record stale: don't wait for its answer.
                () = self.moved() => continue,
            };
            match result {
                Ok(()) => (told, pause) = (true, FIRST_PAUSE),
                Err(error) => {
                    tracing::warn!(name = %self.name, %error, "cannot publish the new record yet");
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
            }
        }
    }
}

/// Whether a new record is due, because the present one's own end comes near: nearer than half of the time
/// that a record may have, or than a lifetime, in which there are three signs of life.
fn ends_soon(record: &SignedRecord, lifetime: Duration, now: UnixTime) -> bool {
    record.record().expires.since(now) < (MAX_LIFETIME / 2).max(lifetime)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;

    use super::*;

    /// At each sign of life for a month, whatever the lifetime.
    #[test]
    fn a_new_record_is_signed_long_before_the_old_one_ends() {
        let key = SecretKey::from_bytes(&[1; 32]);
        let signed = |lifetime, now: UnixTime| {
            let (name, id) = ("user@example.org".parse().unwrap(), key.id());
            let expires = now.saturating_add(MAX_LIFETIME);
            let record = Record { name, id, addrs: vec![], sequence: 1, expires, lifetime, revoked: false };
            SignedRecord::sign(record, &key, None).unwrap()
        };
        for lifetime in [600, 86_400, 4 * 86_400, 7 * 86_400].map(Duration::from_secs) {
            let (mut now, start) = (UnixTime::from_secs(1_700_000_000), UnixTime::from_secs(1_700_000_000));
            let (mut record, mut times) = (signed(lifetime, now), 0);
            while now.since(start) < Duration::from_secs(30 * 86_400) {
                now = now.saturating_add(lifetime / 3);
                if ends_soon(&record, lifetime, now) {
                    record = signed(lifetime, now);
                    times += 1;
                }
                assert!(record.record().expires.since(now) >= lifetime.min(MAX_LIFETIME / 2), "{lifetime:?}");
            }
            assert!((7..=13).contains(&times), "{times} for {lifetime:?}");
        }
    }
}
