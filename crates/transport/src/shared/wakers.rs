//! Tasks that wait for something of one connection.

use std::collections::BTreeMap;
use std::task::{Context, Waker};

use smallvec::SmallVec;
use whimbrel_proto::{FlowId, StreamId};

/// What a task waits for on a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Wait {
    Read,
    Write,
    Drained,
}

/// Tasks that wait for a stream, one for each thing to wait for.
#[derive(Default)]
struct StreamWakers {
    read: Option<Waker>,
    write: Option<Waker>,
    drained: Option<Waker>,
}

impl StreamWakers {
    fn is_empty(&self) -> bool {
        self.read.is_none() && self.write.is_none() && self.drained.is_none()
    }

    fn of(&mut self, wait: Wait) -> &mut Option<Waker> {
        match wait {
            Wait::Read => &mut self.read,
            Wait::Write => &mut self.write,
            Wait::Drained => &mut self.drained,
        }
    }
}

/// Tasks that wait for something of the application's.
#[derive(Default)]
struct Waiting {
    streams: BTreeMap<StreamId, StreamWakers>,
    accepters: Vec<Waker>,
    openers: Vec<Waker>,
    /// Those who wait for a message.
    receivers: Vec<Waker>,
    /// The one who waits for a journal's message.
    journal: Option<Waker>,
    /// Those who wait for room in the queue of a flow.
    flows: BTreeMap<FlowId, Vec<Waker>>,
}

/// Tasks that wait, and those whose wait is over: these are *due*, and woken when the connection's lock has
/// been given back, because whoever is woken may run at once, elsewhere, and wants the lock first of all.
#[derive(Default)]
pub(crate) struct Wakers {
    /// As soon as any task waits.
    waiting: Option<Box<Waiting>>,
    driver: Option<Waker>,
    due: SmallVec<[Waker; 2]>,
}

impl Waiting {
    fn is_empty(&self) -> bool {
        let Self { streams, accepters, openers, receivers, journal, flows } = self;
        let lists = [accepters, openers, receivers];
        streams.values().all(StreamWakers::is_empty)
            && flows.is_empty()
            && journal.is_none()
            && lists.into_iter().all(Vec::is_empty)
    }
}

impl Wakers {
    fn waiting_mut(&mut self) -> &mut Waiting {
        self.waiting.get_or_insert_default()
    }

    /// Notes that the task waits for `wait` on a stream, instead of the one that waited before.
    pub(crate) fn wait(&mut self, id: StreamId, wait: Wait, cx: &Context<'_>) {
        let place = self.waiting_mut().streams.entry(id).or_default().of(wait);
        if !place.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *place = Some(cx.waker().clone());
        }
    }

    /// Notes that the task waits for a stream that the peer opens.
    pub(crate) fn wait_to_accept(&mut self, cx: &Context<'_>) {
        note(&mut self.waiting_mut().accepters, cx);
    }

    /// Notes that the task waits for leave to open a stream.
    pub(crate) fn wait_to_open(&mut self, cx: &Context<'_>) {
        note(&mut self.waiting_mut().openers, cx);
    }

    /// Notes that the task waits for a message.
    pub(crate) fn wait_for_message(&mut self, cx: &Context<'_>) {
        note(&mut self.waiting_mut().receivers, cx);
    }

    /// Notes that the task waits for a journal's message, instead of the one that waited before.
    pub(crate) fn wait_for_journal(&mut self, cx: &Context<'_>) {
        let journal = &mut self.waiting_mut().journal;
        if !journal.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            *journal = Some(cx.waker().clone());
        }
    }

    /// Notes that the task waits for room in the queue of a flow.
    pub(crate) fn wait_for_room(&mut self, flow: FlowId, cx: &Context<'_>) {
        note(self.waiting_mut().flows.entry(flow).or_default(), cx);
    }

    /// Notes that the driver's task wants to run when there is something to do.
    pub(crate) fn wait_to_drive(&mut self, cx: &Context<'_>) {
        if !self.driver.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            self.driver = Some(cx.waker().clone());
        }
    }

    /// The stream is gone.
    pub(crate) fn forget(&mut self, id: StreamId) {
        if let Some(waiting) = &mut self.waiting {
            waiting.streams.remove(&id);
        }
    }

    /// The flow is closed.
    pub(crate) fn forget_flow(&mut self, flow: FlowId) {
        if let Some(waiting) = &mut self.waiting {
            waiting.flows.remove(&flow);
        }
    }

    /// What is waited for on a stream has come.
    pub(crate) fn came(&mut self, id: StreamId, wait: Wait) {
        if let Some(waiting) = &mut self.waiting {
            self.due.extend(waiting.streams.get_mut(&id).and_then(|wakers| wakers.of(wait).take()));
        }
    }

    /// The peer opened a stream.
    pub(crate) fn can_accept(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            self.due.extend(waiting.accepters.drain(..));
        }
    }

    /// Streams may be opened again.
    pub(crate) fn can_open(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            self.due.extend(waiting.openers.drain(..));
        }
    }

    /// Messages arrived.
    pub(crate) fn can_receive(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            self.due.extend(waiting.receivers.drain(..));
        }
    }

    /// Messages of journals arrived.
    pub(crate) fn can_receive_journal(&mut self) {
        if let Some(waiting) = &mut self.waiting {
            self.due.extend(waiting.journal.take());
        }
    }

    /// The queue of a flow has room.
    pub(crate) fn can_send(&mut self, flow: FlowId) {
        if let Some(waiting) = &mut self.waiting {
            self.due.extend(waiting.flows.remove(&flow).into_iter().flatten());
        }
    }

    /// There is nothing more to wait for on any stream or flow.
    pub(crate) fn all_over(&mut self) {
        let Some(waiting) = self.waiting.take() else { return };
        let Waiting { streams, accepters, openers, receivers, journal, flows } = *waiting;
        let of_stream = |wakers: StreamWakers| [wakers.read, wakers.write, wakers.drained];
        self.due.extend(streams.into_values().flat_map(of_stream).flatten());
        self.due.extend([accepters, openers, receivers].into_iter().flatten());
        self.due.extend(journal);
        self.due.extend(flows.into_values().flatten());
    }

    /// There is no driver for now. Gives memory back that is not used.
    pub(super) fn rest(&mut self) {
        self.driver = None;
        self.waiting = self.waiting.take().filter(|waiting| !waiting.is_empty());
    }

    /// The driver's task was woken, or was never there: it is not woken again before it has run.
    #[inline]
    pub(super) fn is_driver_awake(&self) -> bool {
        self.driver.is_none()
    }

    /// The driver has something to do.
    pub(crate) fn drive(&mut self) {
        let driver = self.driver.take();
        self.due.extend(driver);
    }

    /// Somebody is to be woken.
    #[inline]
    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Takes those who are to be woken, once the lock is given back.
    pub(super) fn take_due(&mut self) -> SmallVec<[Waker; 2]> {
        std::mem::take(&mut self.due)
    }

    /// Returns how many tasks wait to accept and to open.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> (usize, usize) {
        self.waiting.as_ref().map_or((0, 0), |waiting| (waiting.accepters.len(), waiting.openers.len()))
    }
}

/// A task that waits anew in each turn of a loop is noted once.
fn note(waiting: &mut Vec<Waker>, cx: &Context<'_>) {
    if !waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
        waiting.push(cx.waker().clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: StreamId = StreamId(4);

    #[test]
    fn only_those_are_due_whose_wait_is_over() {
        let (mut wakers, cx) = (Wakers::default(), Context::from_waker(Waker::noop()));
        wakers.wait(ID, Wait::Read, &cx);
        wakers.wait(ID, Wait::Write, &cx);
        wakers.came(ID, Wait::Drained);
        wakers.came(StreamId(8), Wait::Read);
        assert!(wakers.take_due().is_empty());
        wakers.came(ID, Wait::Read);
        wakers.came(ID, Wait::Read);
        assert_eq!(wakers.take_due().len(), 1, "woken once");
        wakers.all_over();
        assert_eq!(wakers.take_due().len(), 1, "the writer");
    }

    #[test]
    fn whoever_waits_again_and_again_is_noted_once() {
        let (mut wakers, cx) = (Wakers::default(), Context::from_waker(Waker::noop()));
        for _ in 0..10 {
            wakers.wait_to_accept(&cx);
            wakers.wait_to_open(&cx);
            wakers.wait_to_drive(&cx);
        }
        assert_eq!(wakers.waiting(), (1, 1));
        wakers.drive();
        wakers.all_over();
        assert_eq!(wakers.take_due().len(), 3);
    }

    #[test]
    fn a_stream_that_is_gone_wakes_nobody() {
        let (mut wakers, cx) = (Wakers::default(), Context::from_waker(Waker::noop()));
        wakers.wait(ID, Wait::Read, &cx);
        wakers.forget(ID);
        wakers.all_over();
        assert!(wakers.take_due().is_empty());
    }
}
