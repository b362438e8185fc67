//! Ranges that are being fetched: how the end of one is given to another worker, and how a second worker
//! fetches one that stands still.

use super::{Assembly, LEAST_RANGE, State};
use bytes::Bytes;
use std::net::IpAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

/// So many ranges of an object that stood still or were slow get a second worker at most.
const MOST_JOINED: u32 = 4;

/// A range on its way.
pub(super) struct Running {
    /// The first byte that has not come, by whichever worker.
    at: u64,
    end: u64,
    /// How many fetch it.
    workers: u32,
    /// Once it is asked for.
    asked: Option<Asked>,
}

/// A request for a range.
#[derive(Clone, Copy)]
struct Asked {
    on: On,
    /// The server sends it as a part, and so would send the end of it alone.
    is_part: bool,
    /// When it went out, or something of the range came after that.
    moved: Instant,
    /// How long all of it was to take.
    foreseen: Option<Duration>,
}

/// A connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct On {
    /// Its number.
    pub(in crate::http) id: u32,
    /// Its address on this side.
    pub(in crate::http) source: IpAddr,
}

/// What is still to come of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Rest {
    /// Its first byte.
    pub(in crate::http) start: u64,
    /// The first byte that has not come.
    pub(in crate::http) at: u64,
    /// How many bytes are still to come.
    pub(in crate::http) left: u64,
    pub(in crate::http) on: On,
}

/// A range of which nothing comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::http) struct Standing {
    pub(in crate::http) rest: Rest,
    /// The server has begun to send it.
    pub(in crate::http) has_begun: bool,
    /// How long ago it did, or something came, or it was asked for.
    pub(in crate::http) still: Duration,
    /// How long all of it was to take from when it was asked for.
    pub(in crate::http) foreseen: Option<Duration>,
}

impl Running {
    fn left(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }

    /// What is still to come of it, if it is asked for, by one worker alone.
    fn rest(&self, start: u64) -> Option<(Rest, Asked)> {
        let asked = self.asked.filter(|_| self.workers == 1)?;
        Some((Rest { start, at: self.at, left: self.left(), on: asked.on }, asked))
    }
}

impl State {
    /// A worker fetches this range from now on.
    pub(super) fn begin(&mut self, range: Range<u64>) -> Range<u64> {
        let running = Running { at: range.start, end: range.end, workers: 1, asked: None };
        self.under_way.insert(range.start, running);
        range
    }

    /// Whether another range may have a second worker.
    fn may_join(&self) -> bool {
        self.joined < MOST_JOINED && !self.is_in_one
    }

    /// A worker leaves this range. What has not come of it is for others, unless one fetches it too.
    pub(super) fn give_back(&mut self, start: u64) {
        let Some(running) = self.under_way.get_mut(&start) else { return };
        running.workers -= 1;
        if running.workers > 0 {
            // Which of the two is left is not known.
            running.asked = None;
            return;
        }
        let left = running.at..running.end;
        self.under_way.remove(&start);
        if !left.is_empty() {
            self.back.insert(left.start, left.end);
        }
    }

    /// What of these bytes belongs to the range that they are of, whose end may be another worker's by now,
    /// and how many of the first ones another worker has brought.
    pub(super) fn clip(&mut self, offset: u64, bytes: Bytes) -> (u64, Bytes) {
        let mut bytes = bytes;
        let running = self.under_way.range_mut(..=offset).next_back().map(|(_, running)| running);
        let Some(running) = running.filter(|running| offset < running.end) else {
            // Another worker has brought all of it.
            return (bytes.len() as u64, bytes);
        };
        bytes.truncate(usize::try_from(running.end - offset).unwrap_or(usize::MAX));
        let end = offset + bytes.len() as u64;
        let had = running.at.clamp(offset, end) - offset;
        running.at = running.at.max(end);
        if let Some(asked) = &mut running.asked {
            asked.moved = Instant::now();
        }
        (had, bytes)
    }
}

impl Assembly {
    /// The first byte behind the range that begins at `start`, as far as it is still its worker's.
    pub(in crate::http) fn end_of(&self, start: u64) -> u64 {
        self.state().under_way.get(&start).map_or(start, |running| running.end)
    }

    /// The range that begins at `start` is asked for on this connection. So long all of it was to take.
    pub(in crate::http) fn asked_on(&self, start: u64, on: On, foreseen: Option<Duration>) {
        if let Some(running) = self.state().under_way.get_mut(&start) {
            running.asked = Some(Asked { on, is_part: false, moved: Instant::now(), foreseen });
        }
    }

    /// The server sends the range that begins at `start` on this connection; as a part of the object, or all
    /// of that.
    pub(in crate::http) fn comes_on(&self, start: u64, on: On, is_part: bool) {
        if let Some(running) = self.state().under_way.get_mut(&start) {
            running.asked = is_part.then(|| Asked { on, is_part, moved: Instant::now(), foreseen: None });
        }
    }

    /// A second worker fetches what is to come of a range: what either brings first is kept, and both have to
    /// end it. One that was no more than `slow` may have gone on meanwhile. `None`: one that stood still has,
    /// or enough were helped.
    pub(in crate::http) fn join(&self, rest: &Rest, slow: bool) -> Option<Range<u64>> {
        let mut state = self.state();
        let may_join = state.may_join();
        let running = state.under_way.get_mut(&rest.start).filter(|_| may_join)?;
        running.rest(rest.start).filter(|(now, _)| (slow || now == rest) && now.left > 0)?;
        running.workers += 1;
        let range = running.at..running.end;
        state.joined += 1;
        Some(range)
    }

    /// Waits until the range that begins at `start` is over for all its workers: one of them has brought the
    /// rest of it. Cancel-safe.
    pub(in crate::http) async fn is_over(&self, start: u64) {
        loop {
            let over = self.over.notified();
            tokio::pin!(over);
            over.as_mut().enable();
            if !self.state().under_way.contains_key(&start) {
                return;
            }
            over.await;
        }
    }

    /// The range of one worker of which nothing has come for longest, if the reader waits. Not one that waits
    /// for the reader.
    pub(in crate::http) fn standing(&self) -> Option<Standing> {
        let state = self.state();
        if !state.may_join() || state.failed.is_some() || state.reader.is_none() {
            return None;
        }
        let window = state.at.saturating_add(self.window).saturating_sub(LEAST_RANGE);
        let within = state.under_way.iter().filter(|(_, running)| running.at <= window);
        let alone = within.filter_map(|(start, running)| running.rest(*start));
        let (rest, asked) = alone.min_by_key(|(_, asked)| asked.moved)?;
        let Asked { is_part, moved, foreseen, .. } = asked;
        Some(Standing { rest, has_begun: is_part, still: moved.elapsed(), foreseen })
    }

    /// What is still to come of each range of one worker that the server has begun to send as a part, if the
    /// reader waits.
    pub(in crate::http) fn coming(&self) -> Vec<Rest> {
        let state = self.state();
        if !state.may_join() || state.failed.is_some() || state.reader.is_none() {
            return Vec::new();
        }
        let alone = state.under_way.iter().filter_map(|(start, running)| running.rest(*start));
        alone.filter(|(_, asked)| asked.is_part).map(|(rest, _)| rest).collect()
    }

    /// How many workers fetch a range.
    pub(in crate::http) fn at_work(&self) -> usize {
        self.state().under_way.values().map(|running| running.workers as usize).sum()
    }

    /// The range of which most is still to come, if all bytes have their workers and the reader waits for
    /// them: a reader that others wait for is helped by nothing. Not if two fetch it.
    pub(in crate::http) fn longest(&self) -> Option<Rest> {
        let state = self.state();
        let is_all_taken = state.next == state.end && state.back.is_empty();
        if !is_all_taken || state.is_in_one || state.failed.is_some() || state.reader.is_none() {
            return None;
        }
        let (start, running) = state.under_way.iter().max_by_key(|(_, running)| running.left())?;
        running.rest(*start).filter(|(_, asked)| asked.is_part).map(|(rest, _)| rest)
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
