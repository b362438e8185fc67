//! How data is shared out among paths, and what was spent on sending it twice.

use crate::scheduler::SchedulerKind;

/// On steady paths, one byte of so many may go twice, beyond the first few.
const SHARE: u64 = 25;
const FREE: u64 = 16 * 1024;

#[derive(Debug, Clone, Copy)]
pub(super) struct Sharing {
    kind: SchedulerKind,
    /// Segments with new stream data.
    chunks: u64,
    /// Bytes that went again although their path was not lost.
    reinjected: u64,
    /// Of these, bytes for which nothing was wrong.
    sent_twice: u64,
}

impl Sharing {
    pub(super) fn new(kind: SchedulerKind) -> Self {
        Self::knowing(kind, [0; 3])
    }

    /// What it has counted.
    pub(super) fn counts(&self) -> [u64; 3] {
        [self.chunks, self.reinjected, self.sent_twice]
    }

    /// The one that has counted this.
    pub(super) fn knowing(kind: SchedulerKind, [chunks, reinjected, sent_twice]: [u64; 3]) -> Self {
        Self { kind, chunks, reinjected, sent_twice }
    }

    pub(super) fn kind(&self) -> SchedulerKind {
        self.kind
    }

    pub(super) fn set_kind(&mut self, kind: SchedulerKind) {
        self.kind = kind;
    }

    /// Everything goes everywhere.
    pub(super) fn is_redundant(&self) -> bool {
        self.kind.scheduler().is_redundant()
    }

    /// Counts a segment with new data; returns its number.
    pub(super) fn count_chunk(&mut self) -> u64 {
        self.chunks += 1;
        self.chunks
    }

    /// Counts bytes that go again; `late` if their path shows signs of trouble.
    pub(super) fn note_reinjected(&mut self, bytes: u64, late: bool) {
        self.reinjected += bytes;
        if !late {
            self.sent_twice += bytes;
        }
    }

    pub(super) fn reinjected(&self) -> u64 {
        self.reinjected
    }

    /// Nothing more should go twice without need, of `sent` bytes in all.
    pub(super) fn is_thrifty(&self, sent: u64) -> bool {
        self.sent_twice >= FREE + sent / SHARE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_went_twice_without_need_makes_thrifty() {
        let mut sharing = Sharing::new(SchedulerKind::default());
        sharing.note_reinjected(FREE * 2, true);
        assert!(!sharing.is_thrifty(0));
        sharing.note_reinjected(FREE, false);
        assert!(sharing.is_thrifty(0) && !sharing.is_thrifty(SHARE));
        assert_eq!(sharing.reinjected(), FREE * 3);
    }
}
