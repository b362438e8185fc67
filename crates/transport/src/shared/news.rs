//! What is news to tasks that wait for a connection: its paths, its beginning and end, what its mover should
//! do.

use std::sync::OnceLock;

use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use whimbrel_proto::Side;

/// For any number of tasks. Each begins to wait, then looks whether what it waits for is there already, then
/// waits: what is told before a task began is not told to it.
///
/// What is told while nobody has ever waited is told to nobody, and takes no room: a task begins to wait
/// before it looks, and both looking and what there is to be seen go by the lock on the connection.
#[derive(Debug, Default)]
pub(crate) struct News(OnceLock<Box<Told>>);

#[derive(Debug, Default)]
struct Told {
    paths: Notify,
    settled: Notify,
    notice: Notify,
}

impl News {
    fn told(&self) -> &Told {
        self.0.get_or_init(Box::default)
    }

    fn tell(&self, which: impl FnOnce(&Told) -> &Notify) {
        if let Some(told) = self.0.get() {
            which(told).notify_waiters();
        }
    }

    /// Waits until a path was answered or is gone, or the connection is over.
    pub(crate) fn of_paths(&self) -> Notified<'_> {
        self.told().paths.notified()
    }

    /// Waits until the connection is established or over.
    pub(crate) fn of_connection(&self) -> Notified<'_> {
        self.told().settled.notified()
    }

    /// Server: waits until the newest notice is answered.
    pub(crate) fn of_notice(&self) -> Notified<'_> {
        self.told().notice.notified()
    }

    /// Server: the client answered the newest notice.
    pub(crate) fn notice_answered(&self) {
        self.tell(|told| &told.notice);
    }

    pub(super) fn path_came_or_went(&self) {
        self.tell(|told| &told.paths);
    }

    pub(super) fn established(&self) {
        self.tell(|told| &told.settled);
    }

    pub(super) fn over(&self) {
        self.tell(|told| &told.settled);
        self.tell(|told| &told.paths);
    }
}

/// For the connection's mover, which a side that accepted does not have, and for the task that looks for
/// direct paths. Each finds what was told while it did something else.
#[derive(Debug)]
pub(crate) struct MoverSignals {
    mover: Option<Box<Signals>>,
    /// Of a connection that has looked for direct paths.
    direct: OnceLock<Box<DirectSignals>>,
}

#[derive(Debug, Default)]
struct Signals {
    changed: Notify,
    restart: Notify,
    called: Notify,
}

/// For the task that looks for direct paths, at either side.
#[derive(Debug, Default)]
struct DirectSignals {
    candidates: Notify,
    punched: Notify,
}

impl MoverSignals {
    pub(super) fn of(side: Side) -> Self {
        Self { mover: (side == Side::Client).then(Box::default), direct: OnceLock::new() }
    }

    fn tell(&self, which: impl FnOnce(&Signals) -> &Notify) {
        if let Some(signals) = &self.mover {
            which(signals).notify_one();
        }
    }

    /// Waits until that is told; for ever where there is no mover. Cancel-safe.
    async fn told(&self, which: impl FnOnce(&Signals) -> &Notify) {
        match &self.mover {
            Some(signals) => which(signals).notified().await,
            None => std::future::pending().await,
        }
    }

    /// Something about the paths or the connection is not as before: time to look.
    pub(crate) fn look(&self) {
        self.tell(|signals| &signals.changed);
    }

    /// Where this endpoint is, or what is wanted here, has changed: what is under way may be of no use any
    /// more.
    pub(crate) fn start_anew(&self) {
        self.tell(|signals| &signals.restart);
    }

    /// The peer says that it is elsewhere, or wants other paths. As [`start_anew`](Self::start_anew), if it
    /// does not say so all the time.
    pub(crate) fn peer_called(&self) {
        self.tell(|signals| &signals.called);
    }

    fn direct(&self) -> &DirectSignals {
        self.direct.get_or_init(Box::default)
    }

    /// The peer has stated candidates.
    pub(crate) fn candidates_came(&self) {
        self.direct().candidates.notify_one();
    }

    /// Waits for [`candidates_came`](Self::candidates_came). Cancel-safe.
    pub(crate) fn candidates(&self) -> Notified<'_> {
        self.direct().candidates.notified()
    }

    /// A packet of the peer came through the gateways.
    pub(crate) fn punched(&self) {
        self.direct().punched.notify_one();
    }

    /// Waits for [`punched`](Self::punched). Cancel-safe.
    pub(crate) fn heard_punch(&self) -> Notified<'_> {
        self.direct().punched.notified()
    }

    /// Waits for [`look`](Self::look). Cancel-safe.
    pub(crate) async fn changed(&self) {
        self.told(|signals| &signals.changed).await;
    }

    /// Waits for [`start_anew`](Self::start_anew). Cancel-safe.
    pub(crate) async fn anew(&self) {
        self.told(|signals| &signals.restart).await;
    }

    /// Waits for [`peer_called`](Self::peer_called), to be limited by [`Calls`](crate::calls::Calls).
    /// Cancel-safe.
    pub(crate) async fn called(&self) {
        self.told(|signals| &signals.called).await;
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
        let (signals, mut cx) = (MoverSignals::of(Side::Client), Context::from_waker(Waker::noop()));
        signals.look();
        signals.look();
        assert!(pin!(signals.changed()).poll(&mut cx).is_ready());
        assert!(pin!(signals.changed()).poll(&mut cx).is_pending(), "told once");
        assert!(pin!(signals.anew()).poll(&mut cx).is_pending(), "of something else");
        let nobody = MoverSignals::of(Side::Server);
        nobody.look();
        assert!(pin!(nobody.changed()).poll(&mut cx).is_pending(), "there is no mover");
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
