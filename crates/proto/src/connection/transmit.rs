//! Building segments.

use std::time::Instant;

use smallvec::SmallVec;

use super::Connection;
use crate::frame::{self, Frame, Join, Open, PathReport, kind};
use crate::ids::{PathId, StreamId};
use crate::path::{Content, First, PathState};
use crate::segment::{LENGTH_SIZE, MAX_SEGMENT};
use crate::varint;

/// Room that control frames leave for others in one segment.
const CONTROL_ROOM: usize = 12 * 1024;
/// Less room than this is not worth a piece of stream data.
const MIN_PIECE: usize = 64;

impl Connection {
    /// Appends one segment for `path` to `out`. Returns false when there is nothing to send there.
    pub fn poll_transmit(&mut self, now: Instant, path: PathId, out: &mut Vec<u8>) -> bool {
        if !self.has_segment(now, path) {
            return false;
        }
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_SIZE]);
        let mut contents = SmallVec::new();
        let mut eliciting = self.put_first(path, out, &mut contents);
        self.put_acks(now, out);
        if self.answered_or_early(path) {
            eliciting |= self.put_control(path, out, start, &mut contents);
            eliciting |= self.put_streams(path, out, start, &mut contents);
        }
        let length = out.len() - start - LENGTH_SIZE;
        if length == 0 {
            out.truncate(start);
            return false;
        }
        out[start..start + LENGTH_SIZE].copy_from_slice(&(length as u16 | 0x4000).to_be_bytes());
        if let Some(path) = self.paths.get_mut(&path) {
            path.note_sent(now, length + LENGTH_SIZE, eliciting, contents);
        }
        true
    }

    /// Whether anything waits that may go on `path` now.
    fn has_segment(&mut self, now: Instant, path: PathId) -> bool {
        self.update_close();
        let Some(p) = self.paths.get(&path).filter(|p| p.is_live()) else {
            return false;
        };
        if p.first != First::Done {
            return true;
        }
        if p.state == PathState::Opening {
            return self.answered_or_early(path) && self.may_carry_data(path);
        }
        p.ping
            || self
                .paths
                .values()
                .any(|p| p.ack_due || p.ack_deadline.is_some_and(|at| at <= now))
            || !self.control.is_empty()
            || self.may_carry_data(path)
    }

    /// Before the answer, only the early limit may be used.
    fn answered_or_early(&self, path: PathId) -> bool {
        self.paths.get(&path).is_some_and(|p| {
            p.state != PathState::Opening || p.bytes_sent + (MAX_SEGMENT as u64) / 4 < p.early_limit
        })
    }

    /// Stream data goes on the newest path that is not suspect (handover mode `single`).
    fn may_carry_data(&self, path: PathId) -> bool {
        let newest = |state| {
            self.paths
                .iter()
                .rev()
                .find(|(_, p)| p.state == state)
                .map(|(id, _)| *id)
        };
        newest(PathState::Active).or_else(|| newest(PathState::Opening)) == Some(path)
            && !self.send_queue.is_empty()
            && self.closed.is_none()
    }

    fn put_first(
        &mut self,
        id: PathId,
        out: &mut Vec<u8>,
        contents: &mut SmallVec<[Content; 1]>,
    ) -> bool {
        let Some(first) = self.paths.get(&id).map(|p| p.first) else {
            return false;
        };
        if first == First::Done {
            return false;
        }
        let lost = self.lost_reports();
        contents.extend(lost.iter().map(|report| Content::PathLost(report.path)));
        self.control.paths_lost.clear();
        self.first_frame(first, id, lost).encode(out);
        if first == First::Accept {
            contents.push(Content::Accept);
        }
        if let Some(path) = self.paths.get_mut(&id) {
            path.first = First::Done;
        }
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
            First::Accept => Frame::Accept {
                random: self.random,
                lost,
                params: self.config.params.clone(),
            },
            First::Join => Frame::Join(Join {
                connection: self.id,
                path,
                proof: self
                    .secret
                    .as_ref()
                    .map(|s| s.join_proof(self.id, path))
                    .unwrap_or_default(),
                lost,
            }),
            First::Joined | First::Done => Frame::Joined { lost },
        }
    }

    /// Acknowledges, on whatever path this is, what came in on all of them (DESIGN §10.8).
    fn put_acks(&mut self, now: Instant, out: &mut Vec<u8>) {
        let mut acks = Vec::new();
        for (&path, p) in self.paths.iter_mut().filter(|(_, p)| p.is_live()) {
            if p.received > p.reported {
                let delay = now
                    .saturating_duration_since(p.newest_eliciting)
                    .as_micros() as u64;
                let received = p.received;
                acks.push((PathReport { path, received }, delay.min(varint::MAX)));
                p.reported = received;
            }
            p.ack_deadline = None;
            p.ack_due = false;
            p.unreported_bytes = 0;
        }
        acks.truncate(frame::MAX_REPORTS);
        if !acks.is_empty() {
            Frame::Ack(acks).encode(out);
        }
    }

    fn put_control(
        &mut self,
        path: PathId,
        out: &mut Vec<u8>,
        start: usize,
        contents: &mut SmallVec<[Content; 1]>,
    ) -> bool {
        let before = out.len();
        if self
            .paths
            .get_mut(&path)
            .is_some_and(|p| std::mem::take(&mut p.ping))
        {
            Frame::Ping.encode(out);
        }
        if std::mem::take(&mut self.control.max_data) {
            Frame::MaxData(self.data_granted).encode(out);
            contents.push(Content::MaxData);
        }
        if std::mem::take(&mut self.control.max_streams) {
            Frame::MaxStreams(self.max_streams_peer).encode(out);
            contents.push(Content::MaxStreams);
        }
        if std::mem::take(&mut self.control.addresses) {
            let (sequence, addresses) = self.local_addresses.clone();
            Frame::Addresses {
                sequence,
                addresses,
            }
            .encode(out);
            contents.push(Content::Addresses(sequence));
        }
        self.put_lost_paths(out, contents);
        self.put_stream_control(out, start, contents);
        self.put_close(out, contents);
        out.len() > before
    }

    fn put_lost_paths(&mut self, out: &mut Vec<u8>, contents: &mut SmallVec<[Content; 1]>) {
        if self.control.paths_lost.is_empty() {
            return;
        }
        self.control.paths_lost.clear();
        for report in self.lost_reports() {
            Frame::PathLost(report).encode(out);
            contents.push(Content::PathLost(report.path));
        }
    }

    fn put_stream_control(
        &mut self,
        out: &mut Vec<u8>,
        start: usize,
        contents: &mut SmallVec<[Content; 1]>,
    ) {
        let has_room = |out: &Vec<u8>| out.len() - start < CONTROL_ROOM;
        while has_room(out)
            && let Some(id) = self.control.max_stream_data.pop_first()
        {
            if let Some(stream) = self.streams.get(&id) {
                Frame::MaxStreamData(id, stream.recv.max_data).encode(out);
                contents.push(Content::MaxStreamData(id));
            }
        }
        while has_room(out)
            && let Some(id) = self.control.resets.pop_first()
        {
            if let Some(stream) = self.streams.get(&id)
                && let Some((code, _)) = stream.send.reset
            {
                Frame::Reset {
                    id,
                    code,
                    final_size: stream.send.next(),
                }
                .encode(out);
                contents.push(Content::Reset(id));
            }
        }
        while has_room(out)
            && let Some(id) = self.control.stops.pop_first()
        {
            if let Some(code) = self.streams.get(&id).and_then(|s| s.recv.stop) {
                Frame::Stop(id, code).encode(out);
                contents.push(Content::Stop(id));
            }
        }
    }

    fn put_close(&mut self, out: &mut Vec<u8>, contents: &mut SmallVec<[Content; 1]>) {
        if std::mem::take(&mut self.control.close)
            && let Some((code, reason)) = self.closing_frame()
        {
            Frame::Close { code, reason }.encode(out);
            contents.push(Content::Close);
        }
        if std::mem::take(&mut self.control.close_ack) {
            Frame::CloseAck.encode(out);
            contents.push(Content::CloseAck);
        }
    }

    fn put_streams(
        &mut self,
        path: PathId,
        out: &mut Vec<u8>,
        start: usize,
        contents: &mut SmallVec<[Content; 1]>,
    ) -> bool {
        let before = out.len();
        if !self.may_carry_data(path) {
            return false;
        }
        for _ in 0..self.send_queue.len() {
            let room = MAX_SEGMENT.saturating_sub(out.len() - start);
            if room < MIN_PIECE {
                break;
            }
            let Some(id) = self.send_queue.pop_front() else {
                break;
            };
            if let Some(content) = self.put_piece(id, room, out) {
                contents.push(content);
            }
            // To the back of the queue, so that streams take turns.
            self.enqueue(id);
        }
        out.len() > before
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
        frame::put(
            out,
            if fin { kind::STREAM_FIN } else { kind::STREAM },
            |out| {
                varint::write(out, id.0);
                varint::write(out, offset);
                stream.send.copy(range.clone(), out);
            },
        );
        let fresh = stream.send.sent(&range, fin);
        self.data_sent += fresh;
        self.stats.stream_bytes_sent += fresh;
        self.stats.stream_bytes_resent += (range.end - range.start) - fresh;
        Some(Content::Stream { id, range, fin })
    }
}
