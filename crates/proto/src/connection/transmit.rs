//! Building segments.

use std::time::Instant;

use super::Connection;
use super::draft::Draft;
use crate::frame::{self, Acks, Frame, Join, MAX_REASON, Open, PathReport, kind};
use crate::ids::{PathId, StreamId};
use crate::params::MAX_NOTICE_ADDRESSES;
use crate::path::{Content, First, PathState};
use crate::varint;

/// Room that control frames leave for others in one segment.
const CONTROL_ROOM: usize = 12 * 1024;
/// Less room than this is not worth a piece of stream data.
const MIN_PIECE: usize = 64;
/// Type, length and at most three varints: no frame of numbers is longer.
const SMALL_FRAME: usize = 3 + 3 * 8;
/// CLOSE with the longest reason.
const CLOSE_FRAME: usize = 3 + 8 + MAX_REASON;
/// ADDRESSES with as many as there may be, each with its length and port.
const ADDRESSES_FRAME: usize = 3 + 8 + MAX_NOTICE_ADDRESSES * (2 + 2 + 16);

impl Connection {
    /// Appends one segment for `path` to `out`. Returns false when there is nothing to send there.
    pub fn poll_transmit(&mut self, now: Instant, path: PathId, out: &mut Vec<u8>) -> bool {
        if !self.has_segment(now, path) {
            return false;
        }
        let mut draft = Draft::new(out, self.segment_limit(path));
        let mut eliciting = self.put_first(path, &mut draft);
        eliciting |= self.put_ping(path, &mut draft);
        if self.is_trusted(path) {
            self.put_acks(now, &mut draft);
            eliciting |= self.put_control(&mut draft);
        }
        eliciting |= self.put_streams(path, &mut draft);
        let Some((size, contents)) = draft.finish() else {
            return false;
        };
        if let Some(path) = self.paths.get_mut(&path) {
            path.note_sent(now, size, eliciting, contents);
        }
        true
    }

    /// Whether anything waits that may go on `path` now.
    fn has_segment(&mut self, now: Instant, path: PathId) -> bool {
        self.update_close(now);
        let Some(p) = self.paths.get(&path).filter(|p| p.is_live()) else {
            return false;
        };
        if p.first != First::Done {
            return true;
        }
        if p.state == PathState::Opening {
            return self.segment_limit(path) > MIN_PIECE as u64 && self.may_carry_data(path);
        }
        let ping = p.ping;
        if p.state == PathState::Active {
            self.reinject();
        }
        let acks_wait = || {
            let mut live = self.paths.values().filter(|p| p.is_live());
            live.any(|p| p.ack_due || p.ack_deadline.is_some_and(|at| at <= now))
        };
        ping || (self.is_trusted(path) && (acks_wait() || !self.control.is_empty()))
            || self.may_carry_data(path)
    }

    /// How large the next segment on `path` may be: before the answer, only the early limit may
    /// be used, to the byte (TLS breaks off a connection that exceeds it).
    fn segment_limit(&self, path: PathId) -> u64 {
        match self.paths.get(&path) {
            Some(p) if p.state == PathState::Opening => p.early_limit.saturating_sub(p.bytes_sent),
            _ => u64::MAX,
        }
    }

    /// Whether acknowledgements and control frames may be entrusted to `path`: what goes on a path
    /// that stalls, or that nobody answered yet, is late although another path would be in time.
    fn is_trusted(&self, path: PathId) -> bool {
        let active = self.paths.get(&path).map(|p| p.state) == Some(PathState::Active);
        active || !self.has_active_path()
    }

    /// Stream data goes on the newest path that is not suspect (handover mode `single`).
    fn may_carry_data(&self, path: PathId) -> bool {
        let newest = |state| self.paths.iter().rev().find(|(_, p)| p.state == state).map(|(id, _)| *id);
        newest(PathState::Active).or_else(|| newest(PathState::Opening)) == Some(path)
            && !self.send_queue.is_empty()
            && self.closed.is_none()
    }

    fn put_first(&mut self, id: PathId, draft: &mut Draft<'_>) -> bool {
        let Some(first) = self.paths.get(&id).map(|p| p.first) else {
            return false;
        };
        if first == First::Done {
            return false;
        }
        let lost = self.lost_reports();
        for report in &lost {
            self.control.paths_lost.remove(&report.path);
            draft.contents.push(Content::PathLost(report.path));
        }
        let content = (first == First::Accept).then_some(Content::Accept);
        draft.put(&self.first_frame(first, id, lost), content);
        if let Some(path) = self.paths.get_mut(&id) {
            path.first = First::Done;
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
            First::Join => Frame::Join(Join {
                connection: self.id,
                path,
                proof: self.secret.as_ref().map(|s| s.join_proof(self.id, path)).unwrap_or_default(),
                lost,
            }),
            First::Joined | First::Done => Frame::Joined { lost },
        }
    }

    fn put_ping(&mut self, path: PathId, draft: &mut Draft<'_>) -> bool {
        let ping = self.paths.get_mut(&path).map(|p| &mut p.ping);
        let wanted = ping.is_some_and(std::mem::take);
        if wanted {
            draft.put(&Frame::Ping, None);
        }
        wanted
    }

    /// Acknowledges, on whatever path this is, what came in on all of them (DESIGN §10.8).
    fn put_acks(&mut self, now: Instant, draft: &mut Draft<'_>) {
        let fitting = draft.room().saturating_sub(SMALL_FRAME) / SMALL_FRAME;
        let mut acks = Acks::new();
        let live = self.paths.iter_mut().filter(|(_, p)| p.is_live());
        for (&path, p) in live.take(fitting.min(frame::MAX_REPORTS)) {
            if p.received > p.reported {
                let delay = now.saturating_duration_since(p.newest_eliciting).as_micros() as u64;
                let received = p.received;
                acks.push((PathReport { path, received }, delay.min(varint::MAX)));
                p.reported = received;
            }
            p.ack_deadline = None;
            p.ack_due = false;
            p.unreported_bytes = 0;
        }
        if !acks.is_empty() {
            draft.put(&Frame::Ack(acks), None);
        }
    }

    fn put_control(&mut self, draft: &mut Draft<'_>) -> bool {
        let before = draft.len();
        if draft.room() >= 2 * SMALL_FRAME {
            if std::mem::take(&mut self.control.max_data) {
                draft.put(&Frame::MaxData(self.data_granted), Some(Content::MaxData));
            }
            if std::mem::take(&mut self.control.max_streams) {
                let frame = Frame::MaxStreams(self.max_streams_peer);
                draft.put(&frame, Some(Content::MaxStreams));
            }
        }
        if draft.room() >= ADDRESSES_FRAME && std::mem::take(&mut self.control.addresses) {
            let (sequence, addresses) = self.local_addresses.clone();
            let frame = Frame::Addresses { sequence, addresses };
            draft.put(&frame, Some(Content::Addresses(sequence)));
        }
        self.put_lost_paths(draft);
        self.put_stream_control(draft);
        self.put_close(draft);
        draft.len() > before
    }

    fn put_lost_paths(&mut self, draft: &mut Draft<'_>) {
        while draft.room() >= SMALL_FRAME
            && let Some(path) = self.control.paths_lost.pop_first()
        {
            if let Some(report) = self.lost_report(path) {
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
                let frame = Frame::MaxStreamData(id, stream.recv.max_data);
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

    fn put_streams(&mut self, path: PathId, draft: &mut Draft<'_>) -> bool {
        let before = draft.len();
        if !self.may_carry_data(path) {
            return false;
        }
        // Round the queue, until the segment is full or nobody in it may send.
        let mut barren = 0;
        while draft.room() >= MIN_PIECE
            && barren < self.send_queue.len()
            && let Some(id) = self.send_queue.pop_front()
        {
            let piece = self.put_piece(id, draft.room(), draft.out);
            let sent = piece.is_some();
            draft.contents.extend(piece);
            // To the back of the queue, so that streams take turns.
            self.enqueue(id);
            if sent {
                barren = 0;
            } else if self.send_queue.back() == Some(&id) {
                barren += 1;
            }
        }
        self.wake_writers();
        draft.len() > before
    }

    fn put_piece(&mut self, id: StreamId, room: usize, out: &mut Vec<u8>) -> Option<Content> {
        let stream = self.streams.get_mut(&id)?;
        stream.queued = false;
        let credit = self.data_allowed - self.data_sent;
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
        self.data_sent += fresh;
        self.stats.stream_bytes_sent += fresh;
        self.stats.stream_bytes_resent += (range.end - range.start) - fresh;
        Some(Content::Stream { id, range, fin })
    }
}
