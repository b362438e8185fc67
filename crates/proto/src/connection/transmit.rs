//! Building segments.

use std::time::Instant;

use super::Connection;
use super::draft::{Draft, MIN_PIECE, SMALL_FRAME};
use super::schedule::Plan;
use crate::frame::{self, Frame, Join, MAX_REASON, Open, PathReport, kind};
use crate::ids::{PathId, StreamId};
use crate::params::MAX_NOTICE_ADDRESSES;
use crate::path::{Content, First, Path};
use crate::varint;

/// Room that control frames leave for others in one segment.
const CONTROL_ROOM: usize = 12 * 1024;
/// CLOSE with the longest reason.
const CLOSE_FRAME: usize = 3 + 8 + MAX_REASON;
/// What STREAM takes besides its data, at most.
const PIECE_HEADER: usize = 19;
/// ADD_ADDRESS with an IPv6 address.
const ADDRESS_FRAME: usize = SMALL_FRAME + 2 + 16;
/// ADDRESSES with as many as there may be, each with its length and port.
const ADDRESSES_FRAME: usize = 3 + 8 + MAX_NOTICE_ADDRESSES * (2 + 2 + 16);

impl Connection {
    /// Whether [`poll_transmit`](Self::poll_transmit) may have something for `path`. Much cheaper than
    /// trying.
    pub fn has_transmit(&mut self, now: Instant, path: PathId) -> bool {
        self.plan(now, path).is_some()
    }

    /// Appends one segment for `path` to `out`. Returns false when there is nothing to send there.
    pub fn poll_transmit(&mut self, now: Instant, path: PathId, out: &mut Vec<u8>) -> bool {
        self.note_time(now);
        let Some(plan) = self.plan(now, path) else {
            return false;
        };
        let mut draft = Draft::new(out, self.segment_limit(path));
        let mut eliciting = self.put_first(path, &mut draft);
        eliciting |= self.put_ping(path, &mut draft);
        let told = self.put_acks(now, path, plan.trusted, &mut draft);
        if plan.trusted {
            eliciting |= self.put_control(path, &mut draft);
        }
        eliciting |= self.put_last_word(path, &mut draft);
        eliciting |= self.put_streams(now, path, &plan, &mut draft);
        if !eliciting && !plan.acks {
            // Acknowledgements that are not due yet are no reason for a segment, or two sides would answer
            // each other's without end.
            draft.discard();
            return false;
        }
        let Some((size, contents)) = draft.finish() else {
            return false;
        };
        self.note_told(&told);
        if let Some(path) = self.paths.get_mut(path) {
            path.note_sent(now, size, eliciting, contents);
        }
        true
    }

    /// How large the next segment on `path` may be: before the answer, only the early limit may
    /// be used, to the byte (TLS breaks off a connection that exceeds it).
    pub(super) fn segment_limit(&self, path: PathId) -> u64 {
        match self.paths.get(path) {
            Some(p) if p.is_opening() => p.early_room(),
            _ => u64::MAX,
        }
    }

    fn put_first(&mut self, id: PathId, draft: &mut Draft<'_>) -> bool {
        let Some(first) = self.paths.get(id).map(Path::first) else {
            return false;
        };
        if first == First::Done {
            return false;
        }
        let lost = self.paths.final_reports();
        for report in &lost {
            self.control.paths_lost.remove(&report.path);
            draft.contents.push(Content::PathLost(report.path));
        }
        let content = (first == First::Accept).then_some(Content::Accept);
        draft.put(&self.first_frame(first, id, lost), content);
        self.put_priority(id, draft);
        if let Some(path) = self.paths.get_mut(id) {
            path.started();
        }
        // The client gives its older paths up when it has our answer: it should know by then what
        // arrived on them, even if that was said on one of them and got lost there.
        self.tell_counts_again();
        true
    }

    fn first_frame(&self, first: First, path: PathId, lost: Vec<PathReport>) -> Frame<'static> {
        match first {
            First::Open => Frame::Open(Open {
                connection: self.id,
                path,
                random: self.random,
                lost,
                params: self.config.params.clone(),
            }),
            First::Accept => Frame::Accept { random: self.random, lost, params: self.config.params.clone() },
            First::Join => {
                Frame::Join(Join { connection: self.id, path, proof: self.join_proof(path), lost })
            }
            First::Joined | First::Done => Frame::Joined { lost },
        }
    }

    fn join_proof(&self, path: PathId) -> [u8; 32] {
        let Some(secret) = &self.secret else {
            unreachable!("a client joins once ACCEPT told it the secret");
        };
        secret.join_proof(self.id, path)
    }

    fn put_ping(&mut self, path: PathId, draft: &mut Draft<'_>) -> bool {
        let ping = self.paths.get_mut(path).map(|p| &mut p.ping);
        let wanted = ping.is_some_and(std::mem::take);
        if wanted {
            draft.put(&Frame::Ping, None);
        }
        wanted
    }

    fn put_control(&mut self, path: PathId, draft: &mut Draft<'_>) -> bool {
        let before = draft.len();
        if self.control.is_empty() || !self.is_quick(path) {
            return false;
        }
        if draft.room() >= 3 * SMALL_FRAME {
            if std::mem::take(&mut self.control.max_data) {
                draft.put(&Frame::MaxData(self.credit.granted()), Some(Content::MaxData));
            }
            if std::mem::take(&mut self.control.max_streams) {
                let frame = Frame::MaxStreams(self.numbers.granted());
                draft.put(&frame, Some(Content::MaxStreams));
            }
            self.put_handover(draft);
        }
        if draft.room() >= ADDRESSES_FRAME && std::mem::take(&mut self.control.addresses) {
            let (sequence, addresses) = self.local_addresses.clone();
            let frame = Frame::Addresses { sequence, addresses };
            draft.put(&frame, Some(Content::Addresses(sequence)));
        }
        self.put_priorities(path, draft, |d| d.room() >= SMALL_FRAME);
        self.put_addresses_by_id(draft, |d| d.room() >= ADDRESS_FRAME);
        self.put_retires(draft);
        self.put_lost_paths(draft);
        self.put_stream_control(draft);
        self.put_close(draft);
        draft.len() > before
    }

    fn put_lost_paths(&mut self, draft: &mut Draft<'_>) {
        while draft.room() >= SMALL_FRAME
            && let Some(path) = self.control.paths_lost.pop_first()
        {
            if let Some(report) = self.paths.final_report(path) {
                draft.put(&Frame::PathLost(report), Some(Content::PathLost(path)));
            }
        }
    }

    fn put_stream_control(&mut self, draft: &mut Draft<'_>) {
        let has_room = |d: &Draft<'_>| d.room() >= SMALL_FRAME && d.len() < CONTROL_ROOM;
        while has_room(draft)
            && let Some(id) = self.control.max_stream_data.pop_first()
        {
            if let Some(stream) = self.streams.get(&id) {
                let frame = Frame::MaxStreamData(id, stream.recv.window.limit());
                draft.put(&frame, Some(Content::MaxStreamData(id)));
            }
        }
        while has_room(draft)
            && let Some(id) = self.control.resets.pop_first()
        {
            if let Some(stream) = self.streams.get(&id)
                && let Some((code, _)) = stream.send.reset
            {
                let frame = Frame::Reset { id, code, final_size: stream.send.next() };
                draft.put(&frame, Some(Content::Reset(id)));
            }
        }
        while has_room(draft)
            && let Some(id) = self.control.stops.pop_first()
        {
            if let Some(code) = self.streams.get(&id).and_then(|s| s.recv.stop) {
                draft.put(&Frame::Stop(id, code), Some(Content::Stop(id)));
            }
        }
    }

    fn put_close(&mut self, draft: &mut Draft<'_>) {
        if draft.room() < CLOSE_FRAME + SMALL_FRAME {
            return;
        }
        if std::mem::take(&mut self.control.close)
            && let Some((code, reason)) = self.closing_frame()
        {
            draft.put(&Frame::Close { code, reason }, Some(Content::Close));
        }
        if std::mem::take(&mut self.control.close_ack) {
            draft.put(&Frame::CloseAck, Some(Content::CloseAck));
        }
    }

    /// Says CLOSE_ACK on this path, unless it was the one to carry it anyway.
    fn put_last_word(&mut self, path: PathId, draft: &mut Draft<'_>) -> bool {
        let wanted = self.paths.get_mut(path).is_some_and(|p| std::mem::take(&mut p.last_word));
        let said = draft.contents.contains(&Content::CloseAck);
        let fits = draft.room() >= SMALL_FRAME;
        if wanted && !said && fits {
            draft.put(&Frame::CloseAck, Some(Content::CloseAck));
        }
        wanted && !said && fits
    }

    fn put_streams(&mut self, now: Instant, path: PathId, plan: &Plan, draft: &mut Draft<'_>) -> bool {
        let before = draft.len();
        // What a slow path owes the others is older than anything new.
        if plan.again && self.scheduler.scheduler().is_redundant() && self.put_again(now, path, draft) {
            return true;
        }
        if plan.chunk > 0 {
            self.put_new(path, plan.chunk, draft);
        }
        if draft.len() == before && plan.again {
            self.put_again(now, path, draft);
        }
        draft.len() > before
    }

    /// Round the queue, until the segment is full, or holds a chunk, or nobody in it may send.
    fn put_new(&mut self, path: PathId, chunk: u64, draft: &mut Draft<'_>) {
        let first = draft.contents.len();
        let limit = (draft.len() as u64).saturating_add(chunk).min(1 << 20) as usize;
        let mut barren = 0;
        while draft.room() >= MIN_PIECE
            && draft.len() < limit
            && barren < self.send_queue.len()
            && let Some(id) = self.send_queue.pop_front()
        {
            let most = (limit - draft.len()).max(MIN_PIECE);
            let piece = self.put_piece(id, draft.room().min(most + PIECE_HEADER), draft.out);
            let sent = piece.is_some();
            if sent {
                self.wake_writer(id);
            }
            draft.contents.extend(piece);
            // To the back of the queue, so that streams take turns.
            self.enqueue(id);
            if sent {
                barren = 0;
            } else if self.send_queue.back() == Some(&id) {
                barren += 1;
            }
        }
        if draft.contents.len() > first {
            self.chunks_sent += 1;
            if let Some(path) = self.paths.get_mut(path) {
                path.figures.note_used(self.chunks_sent);
            }
            self.copy_to_others(path, &draft.contents[first..]);
        }
    }

    fn put_piece(&mut self, id: StreamId, room: usize, out: &mut Vec<u8>) -> Option<Content> {
        let stream = self.streams.get_mut(&id)?;
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
        self.stats.stream_bytes_sent += fresh;
        self.stats.stream_bytes_resent += (range.end - range.start) - fresh;
        Some(Content::Stream { id, range, fin, elsewhere: false })
    }
}
