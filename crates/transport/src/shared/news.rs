//! What is news to tasks that wait for a connection: its paths, its beginning and end, what its mover should
//! do.

use tokio::sync::Notify;
use tokio::sync::futures::Notified;

/// For any number of tasks. Each begins to wait, then looks whether what it waits for is there already, then
/// waits: what is told before a task began is not told to it.
#[derive(Debug, Default)]
pub(crate) struct News {
    paths: Notify,
    settled: Notify,
    notice: Notify,
}

impl News {
    /// Waits until a path was answered or is gone, or the connection is over.
    pub(crate) fn of_paths(&self) -> Notified<'_> {
        self.paths.notified()
    }

    /// Waits until the connection is established or over.
    pub(crate) fn of_connection(&self) -> Notified<'_> {
        self.settled.notified()
    }

    /// Server: waits until the newest notice is answered.
    pub(crate) fn of_notice(&self) -> Notified<'_> {
        self.notice.notified()
    }

    /// Server: the client answered the newest notice.
    pub(crate) fn notice_answered(&self) {
        self.notice.notify_waiters();
    }

    pub(super) fn path_came_or_went(&self) {
        self.paths.notify_waiters();
    }

    pub(super) fn established(&self) {
        self.settled.notify_waiters();
    }

    pub(super) fn over(&self) {
        self.settled.notify_waiters();
        self.paths.notify_waiters();
    }
}

/// For the connection's mover, and the task that looks for direct paths, which find what was told while they did something else.
#[derive(Debug, Default)]
pub(crate) struct MoverSignals {
    changed: Notify,
    restart: Notify,
    called: Notify,
    candidates: Notify,
    punched: Notify,
}

impl MoverSignals {
    /// Something about the paths or the connection is not as before: time to look.
    pub(crate) fn look(&self) {
        self.changed.notify_one();
    }

    /// Where this endpoint is, or what is wanted here, has changed: what is under way may be of no use any
    /// more.
    pub(crate) fn start_anew(&self) {
        self.restart.notify_one();
    }

    /// The peer says that it is elsewhere, or wants other paths. As [`start_anew`](Self::start_anew), if it
    /// does not say so all the time.
    pub(crate) fn peer_called(&self) {
        self.called.notify_one();
    }

    /// The peer has stated candidates.
    pub(crate) fn candidates_came(&self) {
        self.candidates.notify_one();
    }

    /// Waits for [`candidates_came`](Self::candidates_came). Cancel-safe.
    pub(crate) fn candidates(&self) -> Notified<'_> {
        self.candidates.notified()
    }

    /// A packet of the peer came through the gateways.
    pub(crate) fn punched(&self) {
        self.punched.notify_one();
    }

    /// Waits for [`punched`](Self::punched). Cancel-safe.
    pub(crate) fn heard_punch(&self) -> Notified<'_> {
        self.punched.notified()
    }

    /// Waits for [`look`](Self::look). Cancel-safe.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    /// Waits for [`start_anew`](Self::start_anew). Cancel-safe.
    pub(crate) fn anew(&self) -> Notified<'_> {
        self.restart.notified()
    }

    /// What the peer calls with, to be limited by [`Calls`](crate::calls::Calls).
    pub(crate) fn calls(&self) -> &Notify {
        &self.called
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    #[test]
    fn the_mover_finds_what_was_told_while_it_did_something_else() {
        let (signals, mut cx) = (MoverSignals::default(), Context::from_waker(Waker::noop()));
        signals.look();
        signals.look();
        assert!(pin!(signals.changed()).poll(&mut cx).is_ready());
        assert!(pin!(signals.changed()).poll(&mut cx).is_pending(), "told once");
        assert!(pin!(signals.anew()).poll(&mut cx).is_pending(), "of something else");
    }

    #[test]
    fn the_end_is_news_of_both_kinds() {
        let (news, mut cx) = (News::default(), Context::from_waker(Waker::noop()));
        let (mut paths, mut connection) = (pin!(news.of_paths()), pin!(news.of_connection()));
        paths.as_mut().enable();
        connection.as_mut().enable();
        news.over();
        assert!(paths.poll(&mut cx).is_ready());
        assert!(connection.poll(&mut cx).is_ready());
    }
}
