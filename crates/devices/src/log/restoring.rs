//! What a file keeps of a log, and the log that comes from it.

use whimbrel_base::EndpointId;

use super::{Log, Update};
use crate::snapshot::Snapshot;
use crate::store::FILE_TIME;

impl Log {
    /// What is to be kept: with the entries of the last snapshot, while it may be given up.
    pub(crate) fn kept(&self) -> &Self {
        self.before.as_deref().unwrap_or(self)
    }

    /// A log from what was kept: a snapshot, what is above it, and a later snapshot.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn restore(
        user: EndpointId,
        kept: Option<Snapshot>,
        update: Update,
        top: Option<Snapshot>,
    ) -> Result<Self, String> {
        let mut log = Self::new(user);
        if let Some(kept) = kept {
            if kept.content.group.user != user {
                return Err("its snapshot is another user's".to_owned());
            }
            log.adopt(kept);
            log.before = None;
        }
        let report = log.take(update, FILE_TIME);
        if let Some((author, refusal)) = report.refused.first() {
            return Err(format!("the log of {author}: {refusal}"));
        }
        if let Some(top) = top {
            log.adopt(top);
        }
        Ok(log)
    }
}
