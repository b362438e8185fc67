//! An object that comes in ranges over several connections, and goes on in order: which bytes are still to be
//! asked for, and those that have come, no further ahead of the reader than a window.

mod running;

pub(super) use running::{On, Rest, Standing};

use bytes::{Buf as _, Bytes, BytesMut};
use running::Running;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;

/// A smaller range costs more in heads and round trips than it brings.
pub(super) const LEAST_RANGE: u64 = 64 << 10;
/// What is smaller is copied together with its neighbours: a server that sends single bytes would have each
/// of them kept with a head of its own, many times its size.
const SMALL: usize = 16 << 10;

/// The bytes `start..end` of an object, on their way.
pub(super) struct Assembly {
    window: u64,
    state: Mutex<State>,
    /// Something was handed on or given back, or all has ended.
    changed: Notify,
    /// A range has come, or was given back.
    over: Notify,
}

struct State {
    /// What has come, by its first byte.
    pieces: BTreeMap<u64, Piece>,
    /// How many bytes are in them.
    held: u64,
    /// The next byte for the reader.
    at: u64,
    end: u64,
    /// The first byte that nobody has been asked for yet.
    next: u64,
    /// Ranges before it that have to be asked for again.
    back: BTreeMap<u64, u64>,
    /// Ranges that are being fetched, by their first bytes.
    under_way: BTreeMap<u64, Running>,
    /// How many of them have had a second worker.
    joined: u32,
    /// How many bytes have come.
    received: u64,
    /// Where the range begins that came last.
    last: u64,
    failed: Option<String>,
    reader: Option<Waker>,
    /// The server has no ranges: one worker fetches all that is left, in order.
    is_in_one: bool,
}

/// Bytes that wait for the reader.
enum Piece {
    Whole(Bytes),
    /// Made of small ones; there is room for more.
    Growing(BytesMut),
}

/// How much a worker asks for at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Want {
    /// All that is left: there is no other worker.
    All,
    /// About so much, as there are so many workers.
    About { bytes: u64, workers: u64 },
}

impl Assembly {
    /// Nothing of `start..end` has come yet.
    pub(super) fn new(start: u64, end: u64, window: u64) -> Self {
        let state = State {
            pieces: BTreeMap::new(),
            held: 0,
            at: start,
            end,
            next: start,
            back: BTreeMap::new(),
            under_way: BTreeMap::new(),
            joined: 0,
            received: 0,
            last: 0,
            failed: None,
            reader: None,
            is_in_one: false,
        };
        let (changed, over) = (Notify::new(), Notify::new());
        Self { window: window.max(LEAST_RANGE), state: Mutex::new(state), changed, over }
    }

    /// The first so many bytes, which come already on this connection. They are nobody else's.
    pub(super) fn first(&self, length: u64, on: Option<On>) {
        let range = {
            let mut state = self.state();
            state.next = length.min(state.end);
            state.begin(0..length)
        };
        on.into_iter().for_each(|on| self.comes_on(range.start, on, true));
    }

    /// Cuts all that is left into these parts, if nothing has been asked for yet and the parts are all of it,
    /// and fit into the window. Each has to be fetched or given back.
    pub(super) fn cut(&self, parts: &[u64]) -> Option<Vec<Range<u64>>> {
        let mut state = self.state();
        let left = state.end - state.next;
        let is_all = parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(*part)) == Some(left);
        let is_fresh = state.back.is_empty() && state.under_way.len() <= 1;
        if !is_all || !is_fresh || state.end - state.at > self.window || parts.contains(&0) {
            return None;
        }
        let ranges = parts.iter().map(|part| {
            let start = state.next;
            state.next += part;
            state.begin(start..start + part)
        });
        Some(ranges.collect())
    }

    /// Waits for a range to fetch, which has to be told [`Assembly::done`] or be given back. Its end may be
    /// given to another worker meanwhile. `None`: there is nothing left to do. Cancel-safe.
    pub(super) async fn take(&self, want: Want) -> Option<Range<u64>> {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let mut state = self.state();
                if let Some(range) = state.take(want, self.window) {
                    return Some(range);
                }
                // One that is under way may come back, and the reader may make room.
                if state.is_over() || (state.is_in_one && want != Want::All) {
                    return None;
                }
            }
            changed.await;
        }
    }

    /// The range that begins at this byte has come, as far as it was left to its worker.
    pub(super) fn done(&self, start: u64) {
        {
            let mut state = self.state();
            state.under_way.remove(&start);
            state.last = start;
        }
        self.changed.notify_waiters();
        self.over.notify_waiters();
    }

    /// A worker leaves the range that begins at `start`. Unless another one fetches it too, what has not come
    /// of it has to be fetched by somebody else.
    pub(super) fn give_back(&self, start: u64) {
        self.state().give_back(start);
        self.changed.notify_waiters();
        self.over.notify_waiters();
    }

    /// The next bytes of a range that is under way have come. Returns how many of them were its worker's to
    /// fetch. Those that another worker has brought are dropped.
    pub(super) fn put(&self, offset: u64, bytes: Bytes) -> u64 {
        let mut state = self.state();
        let (had, mut bytes) = state.clip(offset, bytes);
        let length = bytes.len() as u64;
        if had == length {
            return length;
        }
        let (offset, new) = (offset + had, length - had);
        bytes.advance(had as usize);
        state.received += new;
        state.held += new;
        state.keep(offset, bytes);
        if offset == state.at
            && let Some(reader) = state.reader.take()
        {
            drop(state);
            reader.wake();
        }
        length
    }

    /// Waits until the byte at `offset` is within the window. Ends too when all has failed. False: something
    /// before it has to come first that nobody fetches. Cancel-safe.
    pub(super) async fn room_at(&self, offset: u64) -> bool {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            {
                let state = self.state();
                if offset < state.at.saturating_add(self.window) || state.failed.is_some() {
                    return true;
                }
                let is_behind = state.back.first_key_value().is_some_and(|(start, _)| *start < offset);
                if is_behind && state.under_way.len() <= 1 {
                    return false;
                }
            }
            changed.await;
        }
    }

    /// The server has no ranges after all. Workers that fetch parts end, and what is left is for one that
    /// fetches all.
    pub(super) fn goes_on_in_one(&self) {
        self.state().is_in_one = true;
        self.changed.notify_waiters();
    }

    /// Whether only one may fetch what is left.
    pub(super) fn is_in_one(&self) -> bool {
        self.state().is_in_one
    }

    /// It cannot be completed.
    pub(super) fn fail(&self, why: impl Into<String>) {
        let mut state = self.state();
        state.failed.get_or_insert_with(|| why.into());
        let reader = state.reader.take();
        drop(state);
        self.changed.notify_waiters();
        if let Some(reader) = reader {
            reader.wake();
        }
    }

    /// How many bytes are still to come.
    pub(super) fn left(&self) -> u64 {
        let state = self.state();
        (state.end - state.at).saturating_sub(state.held)
    }

    /// How many bytes have come so far.
    pub(super) fn received(&self) -> u64 {
        self.state().received
    }

    /// Whether the range that came last begins at this byte.
    pub(super) fn ended_with(&self, start: u64) -> bool {
        self.state().last == start
    }

    /// Whether it can't be completed.
    pub(super) fn has_failed(&self) -> bool {
        self.state().failed.is_some()
    }

    /// The window, in bytes.
    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// The next bytes for the reader; `None` at the end.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, String>>> {
        let mut state = self.state();
        let at = state.at;
        if let Some(piece) = state.pieces.remove(&at) {
            let piece = piece.into_bytes();
            state.at += piece.len() as u64;
            state.held -= piece.len() as u64;
            drop(state);
            self.changed.notify_waiters();
            return Poll::Ready(Some(Ok(piece)));
        }
        if state.at == state.end {
            return Poll::Ready(None);
        }
        if let Some(why) = &state.failed {
            return Poll::Ready(Some(Err(why.clone())));
        }
        if !state.reader.as_ref().is_some_and(|known| known.will_wake(cx.waker())) {
            state.reader = Some(cx.waker().clone());
        }
        Poll::Pending
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Piece {
    fn len(&self) -> usize {
        match self {
            Self::Whole(bytes) => bytes.len(),
            Self::Growing(bytes) => bytes.len(),
        }
    }

    fn into_bytes(self) -> Bytes {
        match self {
            Self::Whole(bytes) => bytes,
            Self::Growing(bytes) => bytes.freeze(),
        }
    }
}

impl State {
    /// Whether there is nothing to fetch, now and later.
    fn is_over(&self) -> bool {
        let is_all_taken = self.next == self.end && self.back.is_empty();
        self.failed.is_some() || (is_all_taken && self.under_way.is_empty())
    }

    /// Keeps a piece: a small one together with the one before it, where that has room.
    fn keep(&mut self, offset: u64, bytes: Bytes) {
        if bytes.len() >= SMALL {
            self.pieces.insert(offset, Piece::Whole(bytes));
            return;
        }
        if let Some((start, Piece::Growing(before))) = self.pieces.range_mut(..offset).next_back()
            && start + before.len() as u64 == offset
            && before.len() + bytes.len() <= SMALL
        {
            return before.extend_from_slice(&bytes);
        }
        // A copy, so that it does not keep the buffer that it was read into.
        self.pieces.insert(offset, Piece::Growing(BytesMut::from(&bytes[..])));
    }

    /// Lets all that is left be fetched by one worker, if nobody else is at work: what has come out of order
    /// is dropped, for it comes again.
    fn begin_in_one(&mut self) {
        let mut end = self.at;
        while let Some(piece) = self.pieces.get(&end) {
            end += piece.len() as u64;
        }
        drop(self.pieces.split_off(&end));
        self.held = end - self.at;
        self.next = end;
        self.back.clear();
    }

    fn take(&mut self, want: Want, window: u64) -> Option<Range<u64>> {
        if self.failed.is_some() || (self.is_in_one && (want != Want::All || !self.under_way.is_empty())) {
            return None;
        }
        if self.is_in_one {
            self.begin_in_one();
        }
        let limit = self.at.saturating_add(window);
        let untaken: u64 =
            self.back.iter().map(|(start, end)| end - start).sum::<u64>() + self.end - self.next;
        // Towards the end ranges get smaller, so that all workers end at about the same time.
        let most = match want {
            Want::All => u64::MAX,
            Want::About { bytes, workers } => bytes.min(untaken / (2 * workers.max(1))).max(LEAST_RANGE),
        };
        let clip = |start: u64, end: u64| match want {
            Want::All => end,
            Want::About { .. } => {
                let whole = start.saturating_add(most).min(end);
                // A remainder that is no range of its own comes with it.
                let whole = if end - whole < LEAST_RANGE / 2 { end } else { whole };
                // At the edge of the window there is soon room for more than a crumb.
                match whole > limit && limit < start.saturating_add(LEAST_RANGE) {
                    true => start,
                    false => whole.min(limit),
                }
            }
        };
        if let Some((start, end)) = self.back.first_key_value().map(|(start, end)| (*start, *end)) {
            let stop = clip(start, end);
            if stop <= start {
                return None;
            }
            self.back.remove(&start);
            if stop < end {
                self.back.insert(stop, end);
            }
            return Some(self.begin(start..stop));
        }
        let (start, stop) = (self.next, clip(self.next, self.end));
        if stop <= start {
            return None;
        }
        self.next = stop;
        Some(self.begin(start..stop))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
