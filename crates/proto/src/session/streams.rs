//! The streams of a connection, their turns, their credit and their memory.

mod application;
mod arrivals;
mod arriving;
mod leaving;
mod marks;
mod snapshot;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::credit::Credit;
use super::send_memory::SendMemory;
use super::stream_numbers::StreamNumbers;
use crate::event::{Event, Events};
use crate::ids::{Side, StreamId};
use crate::params::Params;
use crate::stream::{Pace, Pool, SendQueues, Stream};
use arrivals::Arrivals;
use marks::Marks;

pub use application::Read;
pub(crate) use leaving::Overtakable;

/// A stream is granted no more than this at once; what a page is made of fits in.
const LARGEST_OPENING_WINDOW: u64 = 256 * 1024;
/// What arrives and is read within this time is quick, however short the round trip is.
const LEAST_PATIENCE: Duration = Duration::from_millis(30);
/// A stream that had nothing to send and now has no more than this goes before those that have more.
const BRIEF: u64 = 4 * 1024;
/// A writer may be so far ahead of the peer's credit for the stream: what a stream holds that the peer
/// doesn't read.
const AHEAD_OF_CREDIT: u64 = 64 * 1024;
/// What should wait on all streams together, so that it is still in the processor's caches when its turn comes;
/// and what may wait on each in any case, which is a write of a usual size. (Found with 8 streams on loopback:
/// twice as much, or four times, costs a tenth of the rate.)
const UNSENT_OF_ALL: u64 = 256 * 1024;
const LEAST_UNSENT: u64 = 32 * 1024;

/// What the configuration says about streams.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// What the peer may send on each stream at first.
    pub(crate) first_window: u64,
    /// What that may grow to.
    pub(crate) window: u64,
    /// Bytes of a stream that may wait to be sent for the first time while a path is up.
    pub(crate) unsent: u64,
    pub(crate) pool: Pool,
}

/// Whether streams may be opened and written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Door {
    Open,
    /// What was written is still delivered.
    Closing,
    /// Nothing moves any more.
    Closed,
}

/// Stream bytes, as [`Stats`](crate::Stats) counts them.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) sent: u64,
    pub(crate) resent: u64,
    pub(crate) received: u64,
    pub(crate) duplicate: u64,
}

#[derive(Debug)]
pub(crate) struct Streams {
    side: Side,
    door: Door,
    map: BTreeMap<StreamId, Box<Stream>>,
    /// Streams with something to send, in turn.
    queue: SendQueues,
    /// Streams whose writer found no room.
    blocked_writers: BTreeSet<StreamId>,
    /// Somebody wanted to open a stream, and the peer allowed no more.
    open_blocked: bool,
    numbers: StreamNumbers,
    arrivals: Arrivals,
    credit: Credit,
    memory: SendMemory,
    /// Pieces of stream data that wait for others before them, over all streams.
    pieces: usize,
    /// What the peer allows on a stream at first, once that is known.
    peer_window: Option<u64>,
    marks: Marks,
    counts: Counts,
    limits: Limits,
}

impl Streams {
    pub(crate) fn new(
        side: Side,
        limits: Limits,
        numbers: StreamNumbers,
        credit: Credit,
        memory: SendMemory,
    ) -> Self {
        Self {
            side,
            door: Door::Open,
            map: BTreeMap::new(),
            queue: SendQueues::default(),
            blocked_writers: BTreeSet::new(),
            open_blocked: false,
            numbers,
            arrivals: Arrivals::default(),
            credit,
            memory,
            pieces: 0,
            peer_window: None,
            marks: Marks::default(),
            counts: Counts::default(),
            limits,
        }
    }

    /// The peer has told what it allows.
    pub(crate) fn learn_params(&mut self, params: &Params, events: &mut Events) {
        self.credit.allow(params.max_data);
        self.numbers.allow(params.max_streams);
        self.peer_window = Some(params.max_stream_data);
        let ids: Vec<StreamId> = self.map.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.map.get_mut(&id) {
                stream.send.max_data = stream.send.max_data.max(params.max_stream_data);
            }
            self.grant_at_once(id);
            self.enqueue(id);
        }
        self.wake_openers(events);
    }

    /// What the configuration says about streams.
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// What one stream may hold until it is acknowledged, and what all may.
    pub(crate) fn send_limits(&self) -> [u64; 2] {
        self.memory.limits()
    }

    /// From now on no stream is opened or written to.
    pub(crate) fn begin_closing(&mut self) {
        if self.door == Door::Open {
            self.door = Door::Closing;
        }
    }

    /// Nothing is sent any more. What arrived can still be read.
    pub(crate) fn close(&mut self, events: &mut Events) {
        self.door = Door::Closed;
        self.memory.clear();
        self.queue.clear();
        for id in std::mem::take(&mut self.blocked_writers) {
            events.push(Event::Writable(id));
        }
    }

    /// Drops all streams, and what arrived on them.
    pub(crate) fn let_go(&mut self) {
        self.arrivals = Arrivals::default();
        self.map.clear();
        self.pieces = 0;
    }

    /// Everything written so far has reached the peer, on all streams.
    pub(crate) fn are_drained(&self) -> bool {
        self.map.values().all(|s| s.send.is_drained())
    }

    /// Streams have something to send, perhaps more than credit or the scheduler allow.
    pub(crate) fn want_to_send(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Somebody waits for what was sent to arrive: data, or a writer.
    pub(crate) fn are_pressed(&self) -> bool {
        !self.queue.is_empty() || !self.blocked_writers.is_empty()
    }

    /// Bytes kept in buffers: written and unacknowledged, or received and unread.
    pub(crate) fn buffered(&self) -> u64 {
        self.memory.held() + self.credit.unread()
    }

    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Streams that are not over in both directions.
    pub(crate) fn len(&self) -> usize {
        self.map.len()
    }

    /// Pieces of data that wait for others before them.
    pub(crate) fn pieces(&self) -> usize {
        self.pieces
    }

    /// How fast readers must be for the windows of their streams to grow, and how far they may. `now` is the
    /// time since the connection began, `round_trip` that of the slowest path.
    pub(crate) fn pace(&self, now: Duration, round_trip: Duration) -> Pace {
        Pace {
            now,
            patience: (round_trip * 3 / 2).max(LEAST_PATIENCE),
            most: self.credit.grown_window(self.map.len()).min(self.limits.window),
        }
    }

    fn new_stream(&self) -> Stream {
        let early = || Params::unknown_peer().max_stream_data;
        Stream::new(self.peer_window.unwrap_or_else(early), self.limits.first_window)
    }

    /// Grants a stream on which nothing has arrived more than was stated for all, as long as there is enough
    /// for others: what comes may be large, and should not have to wait for a round trip.
    fn grant_at_once(&mut self, id: StreamId) {
        let size = self.credit.opening_window(self.map.len());
        let size = size.min(LARGEST_OPENING_WINDOW).min(self.limits.window);
        if let Some(stream) = self.map.get_mut(&id)
            && stream.recv.stop.is_none()
            && stream.recv.window.widen(size)
        {
            self.marks.max_stream_data(id);
        }
    }

    /// Gives connection credit back for bytes that were read or dropped.
    fn consume(&mut self, n: u64) {
        let raised = self.credit.consume(n);
        self.marks.max_data_if(raised);
    }

    /// Puts a stream in the send queue if it has something to send and is not in it.
    fn enqueue(&mut self, id: StreamId) {
        let is_brief = |stream: &Stream| stream.send.unsent() + stream.send.to_repeat() <= BRIEF;
        if let Some(level) = self.queue_up(id) {
            match self.map.get(&id).is_some_and(|stream| is_brief(stream)) {
                true => self.queue.push_brief(level, id),
                false => self.queue.push(level, id),
            }
        }
    }

    /// After its turn: puts a stream behind all others if it has more to send. True if it has.
    fn enqueue_again(&mut self, id: StreamId) -> bool {
        let level = self.queue_up(id);
        if let Some(level) = level {
            self.queue.push(level, id);
        }
        level.is_some()
    }

    /// At which level a stream has to be put in the send queue, which is noted, if it has to be.
    fn queue_up(&mut self, id: StreamId) -> Option<u8> {
        if let Some(stream) = self.map.get_mut(&id)
            && self.door != Door::Closed
            && !stream.queued
            && (stream.announce || stream.send.wants_to_send())
        {
            stream.queued = true;
            return Some(stream.level);
        }
        None
    }

    /// How far a writer may be ahead of the peer's credit; any distance before that is known.
    fn ahead(&self) -> Option<u64> {
        self.peer_window.map(|_| AHEAD_OF_CREDIT)
    }

    /// Lets the writer of a stream go on once a good part of what it may hold is free again.
    fn wake_writer(&mut self, id: StreamId, events: &mut Events) {
        if self.blocked_writers.contains(&id) && self.has_room(id) {
            self.blocked_writers.remove(&id);
            events.push(Event::Writable(id));
        }
    }

    /// Lets writers go on that waited because of what other streams held.
    pub(crate) fn wake_writers(&mut self, events: &mut Events) {
        if !self.memory.take_relief() {
            return;
        }
        let blocked: Vec<StreamId> = self.blocked_writers.iter().copied().collect();
        blocked.into_iter().for_each(|id| self.wake_writer(id, events));
    }

    fn wake_openers(&mut self, events: &mut Events) {
        if std::mem::take(&mut self.open_blocked) {
            events.push(Event::StreamsAvailable);
        }
    }

    /// How many bytes of one stream may wait to be sent for the first time.
    fn share_of_unsent(&self) -> u64 {
        let most = self.limits.unsent;
        (UNSENT_OF_ALL / (self.queue.len() as u64).max(1)).max(LEAST_UNSENT).min(most)
    }

    fn has_room(&mut self, id: StreamId) -> bool {
        let (ahead, most) = (self.ahead(), self.share_of_unsent());
        let Some(stream) = self.map.get(&id) else {
            return true;
        };
        let unsent = stream.send.unsent_limit(most, ahead);
        stream.send.unsent() <= unsent / 2 && self.memory.has_room(stream.send.held())
    }

    fn remove_if_over(&mut self, id: StreamId) {
        if !self.map.get(&id).is_some_and(|stream| stream.is_over()) {
            return;
        }
        self.map.remove(&id);
        if id.opener() != self.side {
            self.numbers.note_closed();
            let raised = self.numbers.raise();
            self.marks.max_streams_if(raised);
        }
    }
}
