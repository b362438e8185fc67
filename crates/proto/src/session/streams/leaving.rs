//! What streams put into segments, for the first time and again.

use std::ops::Range;

use super::{Door, Streams};
use crate::content::Content;
use crate::draft::{Draft, MIN_PIECE};
use crate::error::CloseCode;
use crate::event::Events;
use crate::frame::{self, Frame, kind};
use crate::ids::StreamId;
use crate::message::turns::Levels;
use crate::varint;

/// Streams that are looked at to tell how much waits.
const LOOK: usize = 16;
/// What STREAM takes besides its data, at most.
const PIECE_HEADER: usize = 19;

/// A piece of a stream that is under way, and that it would help to send elsewhere too.
#[derive(Debug, Clone)]
pub(crate) struct Overtakable {
    pub(crate) id: StreamId,
    pub(crate) range: Range<u64>,
    pub(crate) fin: bool,
    /// It went on another path before this one.
    pub(crate) again: bool,
}

impl Overtakable {
    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }
}

impl Streams {
    /// Bytes of streams of these levels of urgency that could be sent for the first time, or have to go again,
    /// and what may be expected to follow them.
    pub(crate) fn waiting(&self, levels: Levels) -> u64 {
        if self.door == Door::Closed {
            return 0;
        }
        let credit = self.credit.room();
        let (mut fresh, mut more, mut rest) = (0u64, 0u64, 0u64);
        for stream in self.queue.iter(levels).take(LOOK).filter_map(|id| self.map.get(id)) {
            let unsent = stream.send.sendable();
            fresh = fresh.saturating_add(unsent);
            if stream.pressing && unsent > 0 && credit > 0 {
                // It has gone on for so long, and may go on for as long again.
                more = more.saturating_add(stream.send.next());
            }
            rest += stream.send.to_repeat() + u64::from(stream.announce || stream.send.owes_end());
        }
        if self.queue.iter(levels).nth(LOOK).is_some() {
            rest += 1;
        }
        fresh.min(credit).saturating_add(more).saturating_add(rest)
    }

    /// Levels of urgency at which streams wait, though they may not be allowed to send.
    pub(crate) fn levels(&self) -> Levels {
        self.queue.waiting()
    }

    /// Round the queue of a level, until the segment is full, or `limit` bytes long, or nobody in it may
    /// send; with `once`, until one stream has sent. False if none has.
    pub(crate) fn put_at(
        &mut self,
        level: u8,
        limit: usize,
        once: bool,
        draft: &mut Draft<'_>,
        events: &mut Events,
    ) -> bool {
        let (mut barren, mut any) = (0, false);
        while draft.room() >= MIN_PIECE
            && draft.len() < limit
            && barren < self.queue.len_at(level)
            && !(once && any)
            && let Some(id) = self.queue.pop(level)
        {
            let most = (limit - draft.len()).max(MIN_PIECE);
            let before = draft.len();
            let one_way = self.put_one_way(id, draft);
            let piece = self.put_piece(id, draft.room().min(most + PIECE_HEADER), draft.out);
            let sent = piece.is_some();
            if one_way && !sent {
                draft.take_back(before);
            }
            if sent {
                self.wake_writer(id, events);
            }
            any |= sent;
            draft.contents.extend(piece);
            // To the back of the queue, so that streams take turns.
            let waits = self.enqueue_again(id);
            barren = match sent {
                true => 0,
                false => barren + usize::from(waits),
            };
        }
        any
    }

    /// Puts in that a stream goes one way, if it does and the peer may not know it: whichever frame names the
    /// stream first, this stands before it. False if not.
    fn put_one_way(&self, id: StreamId, draft: &mut Draft<'_>) -> bool {
        let says = self.map.get(&id).is_some_and(|stream| stream.goes_one_way());
        if says {
            draft.put(&Frame::Stop(id, CloseCode::ONE_WAY), Some(Content::Stop(id)));
        }
        says
    }

    fn put_piece(&mut self, id: StreamId, room: usize, out: &mut Vec<u8>) -> Option<Content> {
        let stream = self.map.get_mut(&id)?;
        stream.queued = false;
        let credit = self.credit.room();
        // Type, two bytes of length, stream id, offset.
        let overhead = 1 + 2 + varint::size(id.0) + 8;
        let piece = stream.send.next_piece((room - overhead) as u64, credit);
        let (range, fin) = match piece {
            Some(piece) => piece,
            None if stream.announce => (stream.send.next()..stream.send.next(), false),
            None => return None,
        };
        if range.is_empty() && !fin && !stream.announce {
            return None;
        }
        stream.announce = false;
        let offset = range.start;
        frame::put(out, if fin { kind::STREAM_FIN } else { kind::STREAM }, |out| {
            varint::write(out, id.0);
            varint::write(out, offset);
            stream.send.copy(range.clone(), out);
        });
        let fresh = stream.send.sent(&range, fin);
        if stream.send.unsent() == 0 {
            stream.pressing = false;
        }
        self.credit.note_sent(fresh);
        self.counts.sent += fresh;
        self.counts.resent += (range.end - range.start) - fresh;
        Some(Content::Stream { id, range, fin, elsewhere: false, again: false })
    }

    /// Puts in a piece that is under way on another path too.
    pub(crate) fn put_again(&mut self, piece: &Overtakable, draft: &mut Draft<'_>) {
        self.put_one_way(piece.id, draft);
        let Some(stream) = self.map.get(&piece.id) else {
            return;
        };
        frame::put(draft.out, if piece.fin { kind::STREAM_FIN } else { kind::STREAM }, |out| {
            varint::write(out, piece.id.0);
            varint::write(out, piece.range.start);
            stream.send.copy(piece.range.clone(), out);
        });
        self.counts.resent += piece.len();
        let (id, range, fin) = (piece.id, piece.range.clone(), piece.fin);
        draft.contents.push(Content::Stream { id, range, fin, elsewhere: false, again: true });
    }

    /// The part of a content, at most `max` bytes, that the peer may not have and that is not on its way
    /// elsewhere too.
    pub(crate) fn overtakable(&self, content: &Content, max: u64) -> Option<Overtakable> {
        let Content::Stream { id, range, fin, elsewhere: false, again } = content else {
            return None;
        };
        let stream = self.map.get(id)?;
        if stream.send.reset.is_some() || (range.is_empty() && !fin) {
            return None;
        }
        let missing = stream.send.is_missing(range) || (*fin && range.is_empty());
        let end = range.end.min(range.start + max);
        let fin = *fin && end == range.end;
        missing.then_some(Overtakable { id: *id, range: range.start..end, fin, again: *again })
    }

    /// What a path carried has to go again. Returns how many bytes that is.
    pub(crate) fn put_back(&mut self, id: StreamId, range: Range<u64>, fin: bool) -> u64 {
        let Some(stream) = self.map.get_mut(&id) else {
            return 0;
        };
        // It was sent for the stream to be known, which its bytes would do too.
        stream.announce |= range.is_empty() && !fin;
        let bytes = stream.send.requeue(range, fin);
        self.enqueue(id);
        bytes
    }
}
