//! The devices that may take sessions of this one without a word of it: the user's others, as they are now.

use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context as _, Result};
use whimbrel_base::{EndpointId, SecretKey};
use whimbrel_proxy::{SessionError, Takers};

use crate::{aside, failure, own_group};

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
pub(crate) async fn follow<F>(key: SecretKey, told: Takers, tell: impl Fn(Takers) -> F) -> Infallible
where
    F: Future<Output = Result<(), SessionError>>,
{
    follow_list(LOOK, move || own_group::other_devices(&key), told, tell).await
}

/// The same for a list that this reads, so often.
async fn follow_list<L, F>(
    often: Duration,
    list: L,
    mut told: Takers,
    tell: impl Fn(Takers) -> F,
) -> Infallible
where
    L: Fn() -> Result<Vec<EndpointId>> + Clone + Send + 'static,
    F: Future<Output = Result<(), SessionError>>,
{
    loop {
        tokio::time::sleep(often).await;
        let looked = aside::run(list.clone()).await;
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    /// What a gateway is told whose device reads its list so, one time after the other.
    async fn told(looks: Vec<Option<Vec<EndpointId>>>, first: Takers) -> Vec<Takers> {
        let (looks, told) = (Arc::new(Mutex::new(looks.into_iter())), Arc::new(Mutex::new(Vec::new())));
        let (over, mut is_over) = tokio::sync::mpsc::unbounded_channel();
        let list = move || {
            let next = looks.lock().ok().and_then(|mut looks| looks.next());
            match next {
                Some(read) => read.ok_or_else(|| anyhow::anyhow!("it cannot be read")),
                None => {
                    let _ = over.send(());
                    Err(anyhow::anyhow!("there is no more"))
                }
            }
        };
        let tell = |takers| {
            let told = told.clone();
            async move { told.lock().map(|mut told| told.push(takers)).map_err(|_| SessionError::Older) }
        };
        tokio::select! {
            never = follow_list(Duration::from_millis(1), list, first, tell) => match never {},
            _ = is_over.recv() => {}
        }
        told.lock().map(|told| told.clone()).unwrap_or_default()
    }

    #[tokio::test]
    async fn a_list_of_devices_that_cannot_be_read_says_nothing() {
        let [one, other] = [1, 2].map(|number| SecretKey::from_bytes(&[number; 32]).id());
        let both = Takers::new([one, other]);
        let unread = vec![None, Some(vec![one, other]), None, None];
        assert!(told(unread, both.clone()).await.is_empty());
        let changed = vec![None, Some(vec![one]), None, Some(vec![one]), Some(vec![])];
        assert_eq!(told(changed, both).await, [Takers::new([one]), Takers::default()]);
    }
}
