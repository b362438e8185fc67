//! Ranges that are being fetched, and how the end of one is given to another worker.

use super::{Assembly, State};
use bytes::Bytes;
use std::net::IpAddr;
use std::ops::Range;

/// A range on its way.
pub(super) struct Running {
    /// The first byte that has not come.
    at: u64,
    end: u64,
    /// Once a server sends it as a part, and so would send the end of it alone.
    on: Option<On>,
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
}

impl State {
    /// A worker fetches this range from now on.
    pub(super) fn begin(&mut self, range: Range<u64>) -> Range<u64> {
        self.under_way.insert(range.start, Running { at: range.start, end: range.end, on: None });
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
        }
        bytes
    }
}

impl Assembly {
    /// The first byte behind the range that begins at `start`, as far as it is still its worker's.
    pub(in crate::http) fn end_of(&self, start: u64) -> u64 {
        self.state().under_way.get(&start).map_or(start, Running::end)
    }

    /// The range that begins at `start` comes on this connection, as a part of the object.
    pub(in crate::http) fn comes_on(&self, start: u64, on: On) {
        if let Some(running) = self.state().under_way.get_mut(&start) {
            running.on = Some(on);
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
        let is_all_taken = state.next == state.end && state.back.is_empty();
        if !is_all_taken || state.is_in_one || state.failed.is_some() || state.reader.is_none() {
            return None;
        }
        let (start, running) =
            state.under_way.iter().max_by_key(|(_, running)| running.end.saturating_sub(running.at))?;
        let left = running.end.saturating_sub(running.at);
        Some(Longest { start: *start, at: running.at, left, on: running.on? })
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
