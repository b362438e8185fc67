//! Batches that a user's devices leave for each other, to keep their lists in step although they are never up
//! at once.
//!
//! The service keeps what it cannot read, and hands it to who speaks for the user: the user's key, or a
//! device with a living delegation. Whether what is in a batch counts, the devices know.

use std::time::Duration;

use whimbrel_base::{EndpointId, NameKind, UnixTime};

use super::Registry;
use crate::error::{BatchRefusal, NamesError};
use crate::store::batches::{Batch, MAX_BATCH, NewBatch};

/// How long a batch is kept.
pub(super) const BATCH_LIFETIME: Duration = Duration::from_secs(90 * 24 * 60 * 60);

impl Registry {
    /// Keeps a batch for the devices of the user of `peer`. The same again changes nothing. `word` is the
    /// delegation by which `peer` is one of the user's devices; the user's own key needs none. Says until
    /// when it is kept, unless newer ones take its place.
    ///
    /// # Errors
    /// [`NamesError::BadBatch`]; [`NamesError::NotTheUsers`] and those of delegations;
    /// [`NamesError::Unavailable`].
    pub async fn leave_batch(
        &self,
        peer: EndpointId,
        word: Option<&[u8]>,
        bytes: Vec<u8>,
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        if bytes.is_empty() || bytes.len() > MAX_BATCH {
            return Err(BatchRefusal::Size(bytes.len()).into());
        }
        let user = self.registered_user(peer, word, now).await?;
        let new = NewBatch { user, by: peer, expires: now.saturating_add(BATCH_LIFETIME), bytes };
        Ok(self.store.leave_batch(new, now).await?.ok_or(BatchRefusal::Full)?)
    }

    /// The batches behind this number that were left for the devices of the user of `peer`, in order: those
    /// that one answer carries, and one more if there are more. `word` as in
    /// [`leave_batch`](Self::leave_batch).
    ///
    /// # Errors
    /// As [`leave_batch`](Self::leave_batch).
    pub async fn batches(
        &self,
        peer: EndpointId,
        word: Option<&[u8]>,
        after: u64,
        now: UnixTime,
    ) -> Result<Vec<Batch>, NamesError> {
        let user = self.registered_user(peer, word, now).await?;
        Ok(self.store.batches(&user, after, now).await?)
    }

    /// The user of `peer`, who has a name here: whoever has none could make keys without end.
    async fn registered_user(
        &self,
        peer: EndpointId,
        word: Option<&[u8]>,
        now: UnixTime,
    ) -> Result<EndpointId, NamesError> {
        let user = self.user_of_peer(peer, word, now).await?;
        for name in self.store.names_of(&user).await? {
            let known = match name.kind() {
                NameKind::User => self.store.get(&name).await?,
                _ => None,
            };
            if known.is_some_and(|known| known.entry.held_until > now && known.entry.owner() == user) {
                return Ok(user);
            }
        }
        Err(BatchRefusal::NoUser.into())
    }
}
