//! Tasks that wait for something of one connection.

use std::collections::BTreeMap;
use std::task::{Context, Waker};
use std::time::Instant;

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

/// Tasks that wait or are due, and when the driver's timer fires.
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
    driver: Option<Waker>,
    /// When the driver's timer fires.
    armed: Option<Instant>,
    due: SmallVec<[Waker; 2]>,
}

/// Tasks that wait, and those whose wait is over: these are *due*, and woken when the connection's lock has
/// been given back, because whoever is woken may run at once, elsewhere, and wants the lock first of all.
///
/// One word where there are none, as in a connection that rests and that nobody waits for.
#[derive(Default)]
pub(crate) struct Wakers(Option<Box<Waiting>>);

impl Waiting {
    /// Whether there is no task that waits, none that is due, and no driver.
    fn is_empty(&self) -> bool {
        let Self { streams, accepters, openers, receivers, journal, flows, driver, armed: _, due } = self;
        let lists = [accepters, openers, receivers];
        streams.values().all(StreamWakers::is_empty)
            && flows.is_empty()
            && journal.is_none()
            && driver.is_none()
            && due.is_empty()
            && lists.into_iter().all(Vec::is_empty)
    }
}

impl Wakers {
    #[inline]
    fn waiting(&mut self) -> &mut Waiting {
        self.0.get_or_insert_default()
    }

    /// Notes that the task waits for `wait` on a stream, instead of the one that waited before.
    pub(crate) fn wait(&mut self, id: StreamId, wait: Wait, cx: &Context<'_>) {
        replace(self.waiting().streams.entry(id).or_default().of(wait), cx);
    }

    /// Notes that the task waits for a stream that the peer opens.
    pub(crate) fn wait_to_accept(&mut self, cx: &Context<'_>) {
        note(&mut self.waiting().accepters, cx);
    }

    /// Notes that the task waits for leave to open a stream.
    pub(crate) fn wait_to_open(&mut self, cx: &Context<'_>) {
        note(&mut self.waiting().openers, cx);
    }

    /// Notes that the task waits for a message.
    pub(crate) fn wait_for_message(&mut self, cx: &Context<'_>) {
        note(&mut self.waiting().receivers, cx);
    }

    /// Notes that the task waits for a journal's message, instead of the one that waited before.
    pub(crate) fn wait_for_journal(&mut self, cx: &Context<'_>) {
        replace(&mut self.waiting().journal, cx);
    }

    /// Notes that the task waits for room in the queue of a flow.
    pub(crate) fn wait_for_room(&mut self, flow: FlowId, cx: &Context<'_>) {
        note(self.waiting().flows.entry(flow).or_default(), cx);
    }

    /// Notes that the driver's task wants to run when there is something to do.
    pub(crate) fn wait_to_drive(&mut self, cx: &Context<'_>) {
        replace(&mut self.waiting().driver, cx);
    }

    /// The stream is gone.
    pub(crate) fn forget(&mut self, id: StreamId) {
        if let Some(waiting) = &mut self.0 {
            waiting.streams.remove(&id);
        }
    }

    /// The flow is closed.
    pub(crate) fn forget_flow(&mut self, flow: FlowId) {
        if let Some(waiting) = &mut self.0 {
            waiting.flows.remove(&flow);
        }
    }

    /// What is waited for on a stream has come.
    pub(crate) fn came(&mut self, id: StreamId, wait: Wait) {
        if let Some(Waiting { streams, due, .. }) = self.0.as_deref_mut() {
            due.extend(streams.get_mut(&id).and_then(|wakers| wakers.of(wait).take()));
        }
    }

    /// The peer opened a stream.
    pub(crate) fn can_accept(&mut self) {
        if let Some(Waiting { accepters, due, .. }) = self.0.as_deref_mut() {
            due.extend(accepters.drain(..));
        }
    }

    /// Streams may be opened again.
    pub(crate) fn can_open(&mut self) {
        if let Some(Waiting { openers, due, .. }) = self.0.as_deref_mut() {
            due.extend(openers.drain(..));
        }
    }

    /// Messages arrived.
    pub(crate) fn can_receive(&mut self) {
        if let Some(Waiting { receivers, due, .. }) = self.0.as_deref_mut() {
            due.extend(receivers.drain(..));
        }
    }

    /// Messages of journals arrived.
    pub(crate) fn can_receive_journal(&mut self) {
        if let Some(Waiting { journal, due, .. }) = self.0.as_deref_mut() {
            due.extend(journal.take());
        }
    }

    /// The queue of a flow has room.
    pub(crate) fn can_send(&mut self, flow: FlowId) {
        if let Some(Waiting { flows, due, .. }) = self.0.as_deref_mut() {
            due.extend(flows.remove(&flow).into_iter().flatten());
        }
    }

    /// There is nothing more to wait for on any stream or flow.
    pub(crate) fn all_over(&mut self) {
        let Some(waiting) = self.0.as_deref_mut() else { return };
        let Waiting { streams, accepters, openers, receivers, journal, flows, due, .. } = waiting;
        let of_stream = |wakers: StreamWakers| [wakers.read, wakers.write, wakers.drained];
        due.extend(std::mem::take(streams).into_values().flat_map(of_stream).flatten());
        due.extend([accepters, openers, receivers].into_iter().flat_map(std::mem::take));
        due.extend(journal.take());
        due.extend(std::mem::take(flows).into_values().flatten());
    }

    /// There is no driver for now. Gives memory back that is not used.
    pub(super) fn rest(&mut self) {
        if let Some(waiting) = &mut self.0 {
            (waiting.driver, waiting.armed) = (None, None);
        }
        self.0.take_if(|waiting| waiting.is_empty());
    }

    /// The driver's task was woken, or was never there: it is not woken again before it has run.
    #[inline]
    pub(super) fn is_driver_awake(&self) -> bool {
        self.0.as_ref().is_none_or(|waiting| waiting.driver.is_none())
    }

    /// The driver has something to do.
    #[inline]
    pub(crate) fn drive(&mut self) {
        if let Some(Waiting { driver, due, .. }) = self.0.as_deref_mut() {
            due.extend(driver.take());
        }
    }

    /// When the driver's timer fires.
    pub(crate) fn armed(&self) -> Option<Instant> {
        self.0.as_ref().and_then(|waiting| waiting.armed)
    }

    /// The driver's timer fires then, or not at all.
    pub(crate) fn arm(&mut self, at: Option<Instant>) {
        self.waiting().armed = at;
    }

    /// Somebody is to be woken.
    #[inline]
    pub(super) fn has_due(&self) -> bool {
        self.0.as_ref().is_some_and(|waiting| !waiting.due.is_empty())
    }

    /// Takes those who are to be woken, once the lock is given back.
    pub(super) fn take_due(&mut self) -> SmallVec<[Waker; 2]> {
        self.0.as_mut().map(|waiting| std::mem::take(&mut waiting.due)).unwrap_or_default()
    }

    /// Returns how many tasks wait to accept and to open.
    #[cfg(test)]
    pub(crate) fn waiting_for_streams(&self) -> (usize, usize) {
        self.0.as_ref().map_or((0, 0), |waiting| (waiting.accepters.len(), waiting.openers.len()))
    }
}

/// The task waits instead of the one that waited before.
fn replace(waiting: &mut Option<Waker>, cx: &Context<'_>) {
    if !waiting.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
        *waiting = Some(cx.waker().clone());
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
        assert_eq!(wakers.waiting_for_streams(), (1, 1));
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
