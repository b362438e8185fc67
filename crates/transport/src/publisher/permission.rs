//! The user's permission to use a name, for as long as it lasts and is renewed.

use std::time::{Duration, Instant, SystemTime};

use whimbrel_base::{Delegation, UnixTime};

use crate::endpoint::OnRenewal;
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

    /// Asks for a newer delegation when one is due. True if there is one, which is to be published. Cancel safe:
    /// what was asked is asked again later.
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
