//! Ranges that are being fetched, and how the end of one is given to another worker.

use super::{Assembly, State};
use bytes::Bytes;
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A range on its way.
pub(super) struct Running {
    /// The first byte that has not come.
    at: u64,
    end: u64,
    /// When something of it came last, or when it was begun.
    since: Instant,
    /// Its worker is to give the rest back.
    is_unwanted: bool,
    /// Once it has been asked for.
    on: Option<On>,
    /// The server sends it as a part, and so would send the end of it alone.
    is_part: bool,
}

/// A connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct On {
    /// Its number.
    pub(in crate::http) id: u32,
    /// Its address on this side.
    pub(in crate::http) source: IpAddr,
}

/// The range of which most is still to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Longest {
    /// Its first byte.
    pub(in crate::http) start: u64,
    /// The first byte that has not come.
    pub(in crate::http) at: u64,
    /// How many bytes are still to come.
    pub(in crate::http) left: u64,
    pub(in crate::http) on: On,
}

impl Running {
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    fn left(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }

    /// `None`: it has not been asked for yet.
    fn described(&self, start: u64) -> Option<Longest> {
        Some(Longest { start, at: self.at, left: self.left(), on: self.on? })
    }
}

impl State {
    /// The ranges that are being fetched, if there are no others and the reader waits for them.
    fn awaited(&self) -> Option<impl Iterator<Item = (&u64, &Running)>> {
        let is_all_taken = self.next == self.end && self.back.is_empty();
        let is_awaited = is_all_taken && !self.is_in_one && self.failed.is_none() && self.reader.is_some();
        is_awaited.then(|| self.under_way.iter())
    }

    /// A worker fetches this range from now on.
    pub(super) fn begin(&mut self, range: Range<u64>) -> Range<u64> {
        let (at, end, since) = (range.start, range.end, Instant::now());
        self.under_way.insert(at, Running { at, end, since, is_unwanted: false, on: None, is_part: false });
        range
    }

    /// What of these bytes belongs to the range that they are of: its end may be another worker's by now.
    pub(super) fn clip(&mut self, offset: u64, bytes: Bytes) -> Bytes {
        let mut bytes = bytes;
        if let Some((_, running)) = self.under_way.range_mut(..=offset).next_back()
            && offset < running.end
        {
            bytes.truncate(usize::try_from(running.end - offset).unwrap_or(usize::MAX));
            running.at = offset + bytes.len() as u64;
            running.since = Instant::now();
        }
        bytes
    }
}

impl Assembly {
    /// The first byte behind the range that begins at `start`, as far as it is still its worker's.
    pub(in crate::http) fn end_of(&self, start: u64) -> u64 {
        self.state().under_way.get(&start).map_or(start, Running::end)
    }

    /// The range that begins at `start` has been asked for on this connection.
    pub(in crate::http) fn asked_on(&self, start: u64, on: On) {
        if let Some(running) = self.state().under_way.get_mut(&start) {
            running.on = Some(on);
        }
    }

    /// The range that begins at `start` comes as a part of the object.
    pub(in crate::http) fn comes_alone(&self, start: u64) {
        if let Some(running) = self.state().under_way.get_mut(&start) {
            running.is_part = true;
        }
    }

    /// How many ranges are being fetched.
    pub(in crate::http) fn under_way(&self) -> usize {
        self.state().under_way.len()
    }

    /// The range of which most is still to come, if all bytes have their workers and the reader waits for
    /// them: a reader that others wait for is helped by nothing.
    pub(in crate::http) fn longest(&self) -> Option<Longest> {
        let state = self.state();
        let (start, running) = state.awaited()?.max_by_key(|(_, running)| running.left())?;
        running.described(*start).filter(|_| running.is_part)
    }

    /// The range of which nothing has come for longest, and for how long, if that is so.
    pub(in crate::http) fn stillest(&self) -> Option<(Longest, Duration)> {
        let state = self.state();
        let (start, running) = state.awaited()?.min_by_key(|(_, running)| running.since)?;
        let may_move = running.is_part || running.at == *start;
        Some((running.described(*start).filter(|_| may_move)?, running.since.elapsed()))
    }

    /// The worker of the range that begins at `start` is to give the rest of it back, for another one.
    pub(in crate::http) fn call_back(&self, start: u64) {
        if let Some(running) = self.state().under_way.get_mut(&start) {
            running.is_unwanted = true;
        }
        self.changed.notify_waiters();
    }

    /// Waits until the rest of the range that begins at `start` is another worker's. Cancel-safe.
    pub(in crate::http) async fn called_back(&self, start: u64) {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if self.state().under_way.get(&start).is_some_and(|running| running.is_unwanted) {
                return;
            }
            changed.await;
        }
    }

    /// Leaves so many bytes of what is still to come of a range to its worker. The rest of it is a range of
    /// its own from now on, which has to be fetched or given back. `None`: less than that is left of it.
    pub(in crate::http) fn shorten(&self, start: u64, stays: u64) -> Option<Range<u64>> {
        let mut state = self.state();
        let running = state.under_way.get_mut(&start)?;
        let end = running.at.checked_add(stays).filter(|end| stays > 0 && *end < running.end)?;
        let rest = end..std::mem::replace(&mut running.end, end);
        Some(state.begin(rest))
    }
}
