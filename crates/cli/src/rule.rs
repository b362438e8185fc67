//! The devices that may take sessions of this one without a word of it: the user's others, as they are now.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::Context as _;
use whimbrel_base::SecretKey;
use whimbrel_proxy::{SessionError, Takers};

use crate::{failure, own_group};

/// Between two looks at the list of devices, which other commands change.
const LOOK: Duration = Duration::from_secs(5);

/// These devices now.
pub(crate) fn takers(key: &SecretKey) -> Takers {
    let known = own_group::other_devices(key).unwrap_or_else(|error| {
        tracing::warn!(error = failure::line(&error), "this user's devices are not known");
        Vec::new()
    });
    Takers::new(known)
}

/// Tells a gateway whenever they are others than it was told, for as long as this is polled.
pub(crate) async fn follow<F>(key: SecretKey, mut told: Takers, tell: impl Fn(Takers) -> F) -> Infallible
where
    F: Future<Output = Result<(), SessionError>>,
{
    loop {
        tokio::time::sleep(LOOK).await;
        let own = key.clone();
        let looked = tokio::task::spawn_blocking(move || own_group::other_devices(&own)).await;
        // What cannot be read says nothing: it may be another command that has it.
        let known = match looked.context("the process is ending").and_then(|known| known) {
            Ok(known) => Takers::new(known),
            Err(error) => {
                tracing::warn!(error = failure::line(&error), "this user's devices are not known");
                continue;
            }
        };
        if known == told {
            continue;
        }
        match tell(known.clone()).await {
            Ok(()) => told = known,
            Err(error) => tracing::warn!(%error, "the gateway does not know yet who may take connections"),
        }
    }
}
