//! Batches that a user's devices leave for each other at the service, which cannot read them.

use std::time::Duration;

use whimbrel_base::{Delegation, EndpointId};

use super::{AskError, NameResolver, accepted};
use crate::protocol::{LeftBehind, Request, Response};

/// A service of a user with 257 devices has no more than 252 answers to one question. What is behind these is
/// asked for next time.
const PAGES: usize = 512;

/// What a device left for the others of its user. Who it was is what the service says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftBatch {
    /// Its place among those of its user.
    pub number: u64,
    /// Which key left it.
    pub by: EndpointId,
    /// For how long it is kept from now.
    pub left: Duration,
    /// What was left.
    pub bytes: Vec<u8>,
}

impl NameResolver {
    /// Leaves a batch of at most [`MAX_BATCH`](crate::MAX_BATCH) bytes for the devices of this endpoint's
    /// user. `word` is the delegation by which the endpoint is one of the user's devices; the user's own key
    /// needs none. Says for how long it is kept.
    ///
    /// # Errors
    /// [`AskError::Refused`] says why it is not kept; [`AskError::Unsupported`] by an older service.
    pub async fn leave_batch(&self, word: Option<&Delegation>, batch: Vec<u8>) -> Result<Duration, AskError> {
        let word = word.map(Delegation::encode);
        accepted(self.core.ask(Request::Leave { word, batch }).await?)
    }

    /// What was left for the devices of this endpoint's user behind the batch with this number. `word` as in
    /// [`leave_batch`](Self::leave_batch).
    ///
    /// # Errors
    /// [`AskError::Refused`] when the delegation does not count; [`AskError::Unsupported`] by an older
    /// service.
    pub async fn batches(
        &self,
        word: Option<&Delegation>,
        mut after: u64,
    ) -> Result<Vec<LeftBatch>, AskError> {
        let word = word.map(Delegation::encode);
        let mut known = Vec::new();
        for _ in 0..PAGES {
            let request = Request::Fetch { word: word.clone(), after };
            let Response::Batches { batches, more } = self.core.ask(request).await? else {
                return Err(AskError::unexpected());
            };
            for LeftBehind { number, by, seconds, batch } in batches {
                // A service that goes back would be asked for ever.
                if number <= after {
                    return Err(AskError::unexpected());
                }
                after = number;
                known.push(LeftBatch { number, by, left: Duration::from_secs(seconds.into()), bytes: batch });
            }
            if !more {
                break;
            }
        }
        Ok(known)
    }
}
