//! Sending again what is on its way elsewhere: bytes that sit on slow or suspect paths hold up what arrived
//! behind them [msocket §III-C]. Bounded by what helps, and on steady paths by a small share of all that was
//! sent.

use std::time::{Duration, Instant};

use super::Connection;
use crate::content::Content;
use crate::draft::{Draft, MIN_PIECE};
use crate::ids::PathId;
use crate::path::{Path, Sent};
use crate::scheduler::{self, PathSnapshot, Snapshots, time_for};
use crate::session::streams::{Overtakable, Streams};

/// It must arrive sooner by this much, or by a quarter, to be worth it.
const GAIN: Duration = Duration::from_millis(5);
/// Mode `redundant`: chunks that a slow path may be behind the fastest.
const MAX_COPIES: usize = 1024;

/// A piece of stream data under way on another path.
struct Piece {
    path: PathId,
    /// Which segment, and what in it.
    at: (usize, usize),
    data: Overtakable,
    /// Its path shows signs of trouble.
    late: bool,
}

impl Connection {
    /// What is under way on paths that are suspect, or that were not answered, goes again on others.
    pub(super) fn reinject_suspects(&mut self) {
        let mut contents = Vec::new();
        for path in self.paths.values_mut() {
            // What retires is about to arrive.
            if path.is_suspect() || path.is_opening() {
                contents.append(&mut path.repeat_elsewhere());
            }
        }
        self.put_back_reinjected(contents);
    }

    /// As [`put_back`](Self::put_back), for paths that may still deliver it themselves.
    pub(super) fn put_back_reinjected(&mut self, contents: Vec<Content>) {
        if !contents.is_empty() {
            let bytes = self.put_back(contents);
            self.sharing.note_reinjected(bytes, true);
        }
    }

    /// A path that is opening has something to send that another one carries too.
    pub fn has_opening_copies(&self) -> bool {
        self.paths.values().any(|path| path.is_opening() && !path.copies.is_empty())
    }

    /// No path is opening without an answer any more.
    pub(super) fn drop_opening_copies(&mut self) {
        if !self.sharing.is_redundant() {
            self.paths.values_mut().for_each(|path| path.copies.clear());
        }
    }

    /// Whether `id` might send again what is under way on other paths.
    pub(super) fn may_send_again(&self, id: PathId) -> bool {
        if let Some(path) = self.paths.get(id).filter(|path| path.is_opening()) {
            return !path.copies.is_empty();
        }
        if !self.shares_paths() || self.is_closed() {
            return false;
        }
        let Some(here) = self.paths.get(id).filter(|p| p.is_active()) else {
            return false;
        };
        if self.sharing.is_redundant() {
            return !here.copies.is_empty();
        }
        self.paths.iter().any(|(of, p)| of != id && p.is_active() && p.outgoing.in_flight() > 0)
    }

    /// Nothing new can be sent on `id`: puts in a piece that another path carries and that would arrive here
    /// sooner.
    pub(super) fn put_again(&mut self, now: Instant, id: PathId, draft: &mut Draft<'_>) -> bool {
        if draft.room() < MIN_PIECE {
            return false;
        }
        if self.sharing.is_redundant() || self.paths.get(id).is_some_and(Path::is_opening) {
            return self.put_copy(id, draft);
        }
        let Some(piece) = self.find_overtaken(now, id, (draft.room() - MIN_PIECE) as u64) else {
            return false;
        };
        self.put_piece_again(&piece.data, piece.late, draft);
        if let Some(path) = self.paths.get_mut(piece.path) {
            path.outgoing.overtaken(piece.at.0, piece.at.1, piece.data.range.end, piece.data.fin);
        }
        true
    }

    fn put_piece_again(&mut self, data: &Overtakable, late: bool, draft: &mut Draft<'_>) {
        self.session.streams.put_again(data, draft);
        self.sharing.note_reinjected(data.len(), late);
    }

    /// The piece on another path that it helps most to send on `id` too.
    fn find_overtaken(&self, now: Instant, id: PathId, max: u64) -> Option<Piece> {
        let mut eligible = self.snapshots(now);
        scheduler::retain_eligible(&mut eligible);
        let here = *eligible.iter().find(|p| p.id == id)?;
        let max = max.min(here.chunk());
        // The window is full: the oldest bytes hold everything up. Else the last ones do.
        let blocked = self.session.streams.are_pressed();
        let thrifty = self.sharing.is_thrifty(self.session.streams.counts().sent);
        let mut others: Snapshots = self.snapshots(now);
        others.retain(|p| p.id != id && p.in_flight > 0 && (!thrifty || p.lateness() > Duration::ZERO));
        others.iter().find_map(|there| {
            let path = self.paths.get(there.id)?;
            let mut scan = Scan { now, here: &here, there, max };
            if blocked {
                scan.oldest(&self.session.streams, path)
            } else {
                scan.newest(&self.session.streams, path)
            }
        })
    }

    fn put_copy(&mut self, id: PathId, draft: &mut Draft<'_>) -> bool {
        let room = (draft.room() - MIN_PIECE) as u64;
        while let Some(content) = self.paths.get_mut(id).and_then(|p| p.copies.pop_front()) {
            let Some(data) = self.session.streams.overtakable(&content, room) else {
                continue;
            };
            if let Content::Stream { range, fin, .. } = content
                && data.range.end < range.end
                && let Some(path) = self.paths.get_mut(id)
            {
                let range = data.range.end..range.end;
                path.copies.push_front(Content::Stream {
                    id: data.id,
                    range,
                    fin,
                    elsewhere: false,
                    again: false,
                });
            }
            self.put_piece_again(&data, false, draft);
            // The path that carried it first repeats it if need be.
            if let Some(Content::Stream { elsewhere, .. }) = draft.contents.last_mut() {
                *elsewhere = true;
            }
            return true;
        }
        false
    }

    /// Mode `redundant`: what goes on `id` shall go on all others too. So shall, in every mode, the last of
    /// what waits while paths to several places are opening. Where much waits, nobody waits for its end.
    pub(super) fn copy_to_others(&mut self, id: PathId, contents: &[Content], is_last: bool) {
        let opening =
            self.paths.get(id).filter(|path| path.is_opening()).map(|path| path.beginning.is_apart());
        let is_wanted = match opening {
            Some(_) => is_last,
            None => self.sharing.is_redundant() && self.shares_paths(),
        };
        if !is_wanted {
            return;
        }
        let takes = |path: &Path| match opening {
            Some(apart) => path.is_opening() && (apart || path.beginning.is_apart()),
            None => path.is_active(),
        };
        for (_, path) in self.paths.iter_mut().filter(|(of, path)| *of != id && takes(path)) {
            let data = contents.iter().filter(|c| matches!(c, Content::Stream { elsewhere: false, .. }));
            path.copies.extend(data.cloned());
            while path.copies.len() > MAX_COPIES {
                path.copies.pop_front();
            }
        }
    }
}

/// A walk over what is under way on `there`, with an eye on what would arrive sooner on `here`.
struct Scan<'a> {
    now: Instant,
    here: &'a PathSnapshot,
    there: &'a PathSnapshot,
    max: u64,
}

impl Scan<'_> {
    /// From the oldest on: what comes first is wanted first.
    fn oldest(&mut self, streams: &Streams, path: &Path) -> Option<Piece> {
        let mut ahead = 0;
        path.outgoing.segments().enumerate().find_map(|(index, segment)| {
            ahead += if segment.eliciting { u64::from(segment.size) } else { 0 };
            self.consider(streams, index, segment, ahead)
        })
    }

    /// From the newest back, for as long as it helps: what is in front arrives soon anyway.
    fn newest(&mut self, streams: &Streams, path: &Path) -> Option<Piece> {
        let mut ahead = path.outgoing.in_flight();
        for (index, segment) in path.outgoing.segments().enumerate().rev() {
            if segment.eliciting {
                if !self.helps(segment.at, ahead) {
                    return None;
                }
                if let Some(piece) = self.consider(streams, index, segment, ahead) {
                    return Some(piece);
                }
                ahead = ahead.saturating_sub(u64::from(segment.size));
            }
        }
        None
    }

    fn consider(&self, streams: &Streams, index: usize, segment: &Sent, ahead: u64) -> Option<Piece> {
        let mut contents = segment.contents.iter().enumerate();
        let (place, data) =
            contents.find_map(|(place, content)| Some((place, streams.overtakable(content, self.max)?)))?;
        let late = self.there.lateness() > Duration::ZERO;
        let helps =
            if data.again { self.still_helps(segment.at, ahead) } else { self.helps(segment.at, ahead) };
        helps.then_some(Piece { path: self.there.id, at: (index, place), data, late })
    }

    /// Whether bytes sent at `at` on `there`, `ahead` of them and before them, would arrive clearly sooner on
    /// `here`.
    fn helps(&self, at: Instant, ahead: u64) -> bool {
        is_worth_it(self.here.arrival(self.max), expected_at(self.there, at, ahead, self.now))
    }

    /// The same for bytes that were sent again once already. They must not go to and fro: what is expected of
    /// `here` must be what would be said of them there.
    fn still_helps(&self, at: Instant, ahead: u64) -> bool {
        let here = self.here;
        let behind_all = expected_at(here, self.now, here.in_flight + self.max, self.now);
        is_worth_it(here.arrival(self.max).max(behind_all), expected_at(self.there, at, ahead, self.now))
    }
}

/// When bytes sent at `at` on `path`, `ahead` of them and before them, should arrive: how long from `now`.
fn expected_at(path: &PathSnapshot, at: Instant, ahead: u64, now: Instant) -> Duration {
    let by_rate = time_for(ahead, path.expected_rate());
    let by_time = (at + path.srtt).saturating_duration_since(now);
    let acknowledged = by_rate.max(by_time) + path.lateness();
    acknowledged.saturating_sub(path.base_rtt / 2)
}

fn is_worth_it(sooner: Duration, than: Duration) -> bool {
    sooner + GAIN.max(sooner / 4) < than
}
