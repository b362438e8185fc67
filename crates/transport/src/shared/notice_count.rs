//! Numbers of notices: the newest counts, older ones are played back or late.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// Server: the newest notice that was sent, and whether it was answered. Client: the newest that was heard.
#[derive(Debug, Default)]
pub(crate) struct NoticeCount {
    newest: Mutex<u64>,
    answered: Notify,
}

impl NoticeCount {
    fn lock(&self) -> MutexGuard<'_, u64> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of the next notice, before which all others are out of date.
    pub(crate) fn next(&self) -> u64 {
        let mut newest = self.lock();
        *newest += 1;
        *newest
    }

    /// Notes a notice that was heard. False if it is not newer than all before.
    pub(crate) fn hear(&self, sequence: u64) -> bool {
        let mut newest = self.lock();
        let is_news = sequence > *newest;
        *newest = sequence.max(*newest);
        is_news
    }

    /// The number of the newest notice.
    pub(crate) fn newest(&self) -> u64 {
        *self.lock()
    }

    /// Whether no later notice was sent.
    pub(crate) fn is_newest(&self, sequence: u64) -> bool {
        *self.lock() == sequence
    }

    /// The peer answered a notice: whoever sends the newest one is told.
    pub(crate) fn answer(&self, sequence: u64) {
        if self.is_newest(sequence) {
            self.answered.notify_waiters();
        }
    }

    /// Waits until the newest notice is answered.
    pub(crate) fn answered(&self) -> Notified<'_> {
        self.answered.notified()
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn only_a_newer_notice_is_news() {
        let count = NoticeCount::default();
        assert!(count.hear(5) && !count.hear(5) && !count.hear(4) && count.hear(6));
    }

    #[test]
    fn an_answer_to_an_older_notice_answers_nothing() {
        let (count, mut cx) = (NoticeCount::default(), Context::from_waker(Waker::noop()));
        let (first, second) = (count.next(), count.next());
        let mut answered = pin!(count.answered());
        answered.as_mut().enable();
        count.answer(first);
        assert!(answered.as_mut().poll(&mut cx).is_pending());
        count.answer(second);
        assert!(answered.poll(&mut cx).is_ready());
    }
}
