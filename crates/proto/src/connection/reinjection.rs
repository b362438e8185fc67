//! Sending again what is on its way elsewhere: bytes that sit on slow or suspect paths hold up what arrived
//! behind them [msocket §III-C]. Bounded by what helps, and on steady paths by a small share of all that was
//! sent.

use std::ops::Range;
use std::time::{Duration, Instant};

use super::Connection;
use super::draft::{Draft, MIN_PIECE};
use crate::frame::{self, kind};
use crate::ids::{PathId, StreamId};
use crate::path::{Content, Path, Sent};
use crate::scheduler::{self, PathSnapshot, Snapshots, time_for};
use crate::varint;

/// It must arrive sooner by this much, or by a quarter, to be worth it.
const GAIN: Duration = Duration::from_millis(5);
/// On steady paths, one byte of so many may go twice, beyond the first few.
const SHARE: u64 = 25;
const FREE: u64 = 16 * 1024;
/// Mode `redundant`: chunks that a slow path may be behind the fastest.
const MAX_COPIES: usize = 1024;

/// A piece of stream data under way on another path.
struct Piece {
    path: PathId,
    /// Which segment, and what in it.
    at: (usize, usize),
    id: StreamId,
    range: Range<u64>,
    fin: bool,
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
            self.stats.stream_bytes_reinjected += self.put_back(contents);
        }
    }

    /// Whether `id` might send again what is under way on other paths.
    pub(super) fn may_send_again(&self, id: PathId) -> bool {
        if !self.shares_paths() || self.closed.is_some() {
            return false;
        }
        let Some(here) = self.paths.get(id).filter(|p| p.is_active()) else {
            return false;
        };
        if self.scheduler.scheduler().is_redundant() {
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
        if self.scheduler.scheduler().is_redundant() {
            return self.put_copy(id, draft);
        }
        let Some(piece) = self.find_overtaken(now, id, (draft.room() - MIN_PIECE) as u64) else {
            return false;
        };
        self.put_piece_again(&piece, draft);
        if let Some(path) = self.paths.get_mut(piece.path) {
            path.outgoing.overtaken(piece.at.0, piece.at.1, piece.range.end, piece.fin);
        }
        true
    }

    fn put_piece_again(&mut self, piece: &Piece, draft: &mut Draft<'_>) {
        let Some(stream) = self.streams.get(&piece.id) else {
            return;
        };
        let bytes = piece.range.end - piece.range.start;
        frame::put(draft.out, if piece.fin { kind::STREAM_FIN } else { kind::STREAM }, |out| {
            varint::write(out, piece.id.0);
            varint::write(out, piece.range.start);
            stream.send.copy(piece.range.clone(), out);
        });
        self.stats.stream_bytes_resent += bytes;
        self.stats.stream_bytes_reinjected += bytes;
        if !piece.late {
            self.sent_twice += bytes;
        }
        let (id, range, fin) = (piece.id, piece.range.clone(), piece.fin);
        draft.contents.push(Content::Stream { id, range, fin, elsewhere: false });
    }

    /// The piece on another path that it helps most to send on `id` too.
    fn find_overtaken(&self, now: Instant, id: PathId, max: u64) -> Option<Piece> {
        let mut eligible = self.snapshots(now);
        scheduler::retain_eligible(&mut eligible);
        let here = *eligible.iter().find(|p| p.id == id)?;
        let max = max.min(here.chunk());
        // The window is full: the oldest bytes hold everything up. Else the last ones do.
        let blocked = !self.send_queue.is_empty() || !self.blocked_writers.is_empty();
        let thrifty = self.sent_twice >= FREE + self.stats.stream_bytes_sent / SHARE;
        let mut others: Snapshots = self.snapshots(now);
        others.retain(|p| p.id != id && p.in_flight > 0 && (!thrifty || p.lateness() > Duration::ZERO));
        others.iter().find_map(|there| {
            let path = self.paths.get(there.id)?;
            let mut scan = Scan { now, here: &here, there, max };
            let found = if blocked { scan.oldest(self, path) } else { scan.newest(self, path) };
            found.map(|piece| Piece { late: there.lateness() > Duration::ZERO, ..piece })
        })
    }

    /// The part of a content that the peer may not have and that is not on its way elsewhere too.
    fn overtakable(&self, path: PathId, at: (usize, usize), content: &Content, max: u64) -> Option<Piece> {
        let Content::Stream { id, range, fin, elsewhere: false } = content else {
            return None;
        };
        let stream = self.streams.get(id)?;
        if stream.send.reset.is_some() || (range.is_empty() && !fin) {
            return None;
        }
        let missing = stream.send.is_missing(range) || (*fin && range.is_empty());
        let end = range.end.min(range.start + max);
        let fin = *fin && end == range.end;
        missing.then_some(Piece { path, at, id: *id, range: range.start..end, fin, late: false })
    }

    fn put_copy(&mut self, id: PathId, draft: &mut Draft<'_>) -> bool {
        let room = (draft.room() - MIN_PIECE) as u64;
        while let Some(content) = self.paths.get_mut(id).and_then(|p| p.copies.pop_front()) {
            let Some(piece) = self.overtakable(id, (0, 0), &content, room) else {
                continue;
            };
            if let Content::Stream { range, fin, .. } = content
                && piece.range.end < range.end
                && let Some(path) = self.paths.get_mut(id)
            {
                let range = piece.range.end..range.end;
                path.copies.push_front(Content::Stream { id: piece.id, range, fin, elsewhere: false });
            }
            self.put_piece_again(&piece, draft);
            // The path that carried it first repeats it if need be.
            if let Some(Content::Stream { elsewhere, .. }) = draft.contents.last_mut() {
                *elsewhere = true;
            }
            return true;
        }
        false
    }

    /// Mode `redundant`: what goes on `id` shall go on all others too.
    pub(super) fn copy_to_others(&mut self, id: PathId, contents: &[Content]) {
        if !self.scheduler.scheduler().is_redundant() || !self.shares_paths() {
            return;
        }
        let others = self.paths.iter_mut().filter(|(of, p)| *of != id && p.is_active());
        for (_, path) in others {
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
    fn oldest(&mut self, connection: &Connection, path: &Path) -> Option<Piece> {
        let mut ahead = 0;
        path.outgoing.segments().enumerate().find_map(|(index, segment)| {
            ahead += if segment.eliciting { u64::from(segment.size) } else { 0 };
            self.consider(connection, index, segment, ahead)
        })
    }

    /// From the newest back, for as long as it helps: what is in front arrives soon anyway.
    fn newest(&mut self, connection: &Connection, path: &Path) -> Option<Piece> {
        let mut ahead = path.outgoing.in_flight();
        for (index, segment) in path.outgoing.segments().enumerate().rev() {
            if segment.eliciting {
                if !self.helps(segment.at, ahead) {
                    return None;
                }
                if let Some(piece) = self.consider(connection, index, segment, ahead) {
                    return Some(piece);
                }
                ahead = ahead.saturating_sub(u64::from(segment.size));
            }
        }
        None
    }

    fn consider(&self, connection: &Connection, index: usize, segment: &Sent, ahead: u64) -> Option<Piece> {
        let mut contents = segment.contents.iter().enumerate();
        let piece = contents.find_map(|(place, content)| {
            connection.overtakable(self.there.id, (index, place), content, self.max)
        })?;
        self.helps(segment.at, ahead).then_some(piece)
    }

    /// Whether bytes sent at `at` on `there`, `ahead` of them and before them, would arrive clearly sooner on
    /// `here`.
    fn helps(&self, at: Instant, ahead: u64) -> bool {
        let there = self.there;
        let by_rate = time_for(ahead, there.expected_rate());
        let by_time = (at + there.srtt).saturating_duration_since(self.now);
        let acknowledged = by_rate.max(by_time) + there.lateness();
        let arrives = acknowledged.saturating_sub(there.base_rtt / 2);
        let sooner = self.here.arrival(self.max);
        sooner + GAIN.max(sooner / 4) < arrives
    }
}
