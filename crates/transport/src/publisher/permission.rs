//! The user's permission to use a name, for as long as it lasts and is renewed.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use whimbrel_base::{Delegation, UnixTime};

use crate::resolver::Resolver;

/// A new delegation is asked for when less than this part of the time of the present one is left.
const DUE: u32 = 2;
/// The shortest time between two looks for a new one.
const SHORTEST: Duration = Duration::from_secs(1);
/// The longest time between two looks while one is due.
const LONGEST: Duration = Duration::from_secs(3600);
/// From then on a delegation that nobody renewed is near its end.
const NEAR: Duration = Duration::from_secs(2 * 24 * 60 * 60);
/// How often that is said.
const WARN_EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// What is called with a delegation that was renewed.
#[derive(Clone)]
pub(crate) struct OnRenewal(Arc<dyn Fn(&Delegation) + Send + Sync>);

impl OnRenewal {
    pub(crate) fn new(keep: impl Fn(&Delegation) + Send + Sync + 'static) -> Self {
        Self(Arc::new(keep))
    }

    pub(crate) fn call(&self, delegation: &Delegation) {
        (self.0)(delegation);
    }
}

impl fmt::Debug for OnRenewal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnRenewal").finish_non_exhaustive()
    }
}

/// A delegation, if one is needed, and how the next one is come by.
pub(crate) struct Permission {
    delegation: Option<Delegation>,
    keep: Option<OnRenewal>,
    looked: Option<Instant>,
    warned: Option<Instant>,
}

impl Permission {
    pub(crate) fn new(delegation: Option<Delegation>, keep: Option<OnRenewal>) -> Self {
        Self { delegation, keep, looked: None, warned: None }
    }

    pub(super) fn delegation(&self) -> Option<&Delegation> {
        self.delegation.as_ref()
    }

    /// How long to wait before [`renew`](Self::renew), if there is nothing else to do for `idle`.
    pub(super) fn next_look(&self, idle: Duration) -> Duration {
        let Some(delegation) = &self.delegation else { return idle };
        let (now, half) = (now(), lifetime(delegation) / DUE);
        let left = delegation.expires().since(now);
        let next = if left > half { left.saturating_sub(half) } else { pause(left) };
        idle.min(next.max(SHORTEST))
    }

    /// Asks for a newer delegation when one is due. True if there is one, which is to be published. Cancel
    /// safe: what was asked is asked again later.
    pub(super) async fn renew(&mut self, resolver: &dyn Resolver) -> bool {
        let Some(present) = &self.delegation else { return false };
        let left = present.expires().since(now());
        if left > lifetime(present) / DUE || self.looked.is_some_and(|then| then.elapsed() < pause(left)) {
            return false;
        }
        self.looked = Some(Instant::now());
        match resolver.renewed(present).await {
            Ok(Some(new)) => {
                tracing::info!(name = %new.name(), until = %new.expires(), "the user renewed the delegation");
                if let Some(keep) = &self.keep {
                    keep.call(&new);
                }
                (self.delegation, self.warned) = (Some(new), None);
                return true;
            }
            Ok(None) => {}
            Err(error) => {
                tracing::info!(name = %present.name(), %error, "cannot ask for a newer delegation yet");
            }
        }
        self.warn(left);
        false
    }

    fn warn(&mut self, left: Duration) {
        let Some(present) = &self.delegation else { return };
        let is_near = left < NEAR.min(lifetime(present) / 4);
        if is_near && self.warned.is_none_or(|then| then.elapsed() >= WARN_EVERY) {
            self.warned = Some(Instant::now());
            tracing::warn!(
                name = %present.name(),
                ends = %present.expires(),
                "the delegation ends soon and nobody renews it; run `whimbrel id renew` where the user's key is"
            );
        }
    }
}

/// The time from one look to the next, when a new delegation is due.
fn pause(left: Duration) -> Duration {
    (left / 8).clamp(SHORTEST, LONGEST)
}

fn lifetime(delegation: &Delegation) -> Duration {
    delegation.expires().since(delegation.issued())
}

fn now() -> UnixTime {
    SystemTime::now().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use whimbrel_base::{Name, SecretKey, SignedRecord};

    use super::*;
    use crate::error::ResolveError;
    use crate::resolver::BoxFuture;
    use crate::watch::Watch;

    fn delegation(begun: u64, left: u64) -> Delegation {
        let (user, device) = (SecretKey::from_bytes(&[1; 32]), SecretKey::from_bytes(&[2; 32]).id());
        let now = now().as_secs();
        let (from, to) = (UnixTime::from_secs(now - begun), UnixTime::from_secs(now + left));
        Delegation::sign("laptop.ada@example.org".parse().unwrap(), device, from, to, &user).unwrap()
    }

    /// Knows one renewed delegation, if any, and counts who asks.
    #[derive(Default)]
    struct Service {
        new: Option<Delegation>,
        asked: AtomicUsize,
    }

    impl Resolver for Service {
        fn lookup<'a>(&'a self, _: &'a Name) -> BoxFuture<'a, Result<SignedRecord, ResolveError>> {
            Box::pin(std::future::ready(Err(ResolveError::NotFound)))
        }

        fn watch(&self, _: &Name) -> Watch<Option<SignedRecord>> {
            unimplemented!("nobody watches here")
        }

        fn publish(&self, _: SignedRecord) -> BoxFuture<'_, Result<(), ResolveError>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn renewed<'a>(
            &'a self,
            _: &'a Delegation,
        ) -> BoxFuture<'a, Result<Option<Delegation>, ResolveError>> {
            self.asked.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(Ok(self.new.clone())))
        }
    }

    #[tokio::test]
    async fn nobody_is_asked_while_more_than_half_of_the_time_is_left() {
        let service = Service::default();
        let mut permission = Permission::new(Some(delegation(100, 200)), None);
        assert!(!permission.renew(&service).await);
        assert!(!Permission::new(None, None).renew(&service).await);
        assert_eq!(service.asked.load(Ordering::Relaxed), 0);
        let next = permission.next_look(Duration::from_secs(200));
        assert!((49..=50).contains(&next.as_secs()), "{next:?}");
        let idle = Duration::from_secs(10);
        assert_eq!(permission.next_look(idle), idle);
        assert_eq!(Permission::new(None, None).next_look(idle), idle);
    }

    #[tokio::test]
    async fn a_newer_delegation_is_used_and_kept() {
        let new = delegation(0, 604_800);
        let service = Service { new: Some(new.clone()), ..Service::default() };
        let kept = Arc::new(AtomicUsize::new(0));
        let counted = kept.clone();
        let keep = OnRenewal::new(move |_| {
            counted.fetch_add(1, Ordering::Relaxed);
        });
        let mut permission = Permission::new(Some(delegation(200, 100)), Some(keep));
        assert!(permission.renew(&service).await);
        assert_eq!(permission.delegation(), Some(&new));
        assert_eq!(kept.load(Ordering::Relaxed), 1);
        assert!(!permission.renew(&service).await, "the new one has time");
        assert_eq!(service.asked.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_service_without_a_newer_one_is_asked_now_and_then_and_a_near_end_is_said() {
        let service = Service::default();
        let mut permission = Permission::new(Some(delegation(604_800, 86_400)), None);
        for _ in 0..3 {
            assert!(!permission.renew(&service).await);
        }
        assert_eq!(service.asked.load(Ordering::Relaxed), 1);
        assert!(permission.warned.is_some());
        let mut far = Permission::new(Some(delegation(604_800, 4 * 86_400)), None);
        assert!(!far.renew(&service).await);
        assert!(far.looked.is_some() && far.warned.is_none());
    }

    #[test]
    fn pauses_shrink_towards_the_end() {
        for (left, expected) in [(1_000_000, 3600), (800, 100), (4, 1), (0, 1)] {
            assert_eq!(pause(Duration::from_secs(left)), Duration::from_secs(expected));
        }
    }
}
