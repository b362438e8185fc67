//! The log that comes from a file.

use whimbrel_base::EndpointId;

use super::{Log, Update};
use crate::checkpoint::Checkpoints;
use whimbrel_base::order;

impl Log {
    /// A log from what a file kept. An author whose part is damaged is left out, and
    /// [`lost`](Self::lost) names it: the others must not suffer.
    pub(crate) fn restore(user: EndpointId, kept: Update) -> Self {
        let mut log = Self::new(user);
        let Update { runs, forks, checkpoints } = kept;
        log.take_checkpoints_again(checkpoints);
        let kept = Update { runs, forks, checkpoints: Checkpoints::default() };
        let report = log.take_again(kept);
        let lost = order::set(report.refused.iter().map(|(author, _)| *author));
        // What was taken has its group already.
        if !lost.is_empty() {
            log.chains.retain(|author, _| !lost.contains(author));
            log.lost = lost;
            log.refresh();
        }
        log
    }

    /// Those whose logs were damaged in the file, and did not come back from another device yet.
    pub fn lost(&self) -> impl Iterator<Item = EndpointId> {
        self.lost.iter().copied()
    }
}
