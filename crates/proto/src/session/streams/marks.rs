//! What the peer has to be told about streams. All are statements of the newest value, so a lost one is
//! simply marked again.

use std::collections::BTreeSet;

use super::Streams;
use crate::content::Content;
use crate::draft::{Draft, SMALL_FRAME};
use crate::frame::Frame;
use crate::ids::StreamId;

/// Room that frames about streams leave for others in one segment.
const CONTROL_ROOM: usize = 12 * 1024;

#[derive(Debug, Default)]
pub(super) struct Marks {
    max_data: bool,
    max_streams: bool,
    max_stream_data: BTreeSet<StreamId>,
    resets: BTreeSet<StreamId>,
    stops: BTreeSet<StreamId>,
}

impl Marks {
    pub(super) fn max_data_if(&mut self, raised: bool) {
        self.max_data |= raised;
    }

    pub(super) fn max_streams_if(&mut self, raised: bool) {
        self.max_streams |= raised;
    }

    pub(super) fn max_stream_data(&mut self, id: StreamId) {
        self.max_stream_data.insert(id);
    }

    pub(super) fn reset(&mut self, id: StreamId) {
        self.resets.insert(id);
    }

    pub(super) fn stop(&mut self, id: StreamId) {
        self.stops.insert(id);
    }

    /// Has everything said about a stream.
    pub(super) fn about(&mut self, id: StreamId, is_reset: bool, is_stopped: bool) {
        if !is_stopped {
            self.max_stream_data(id);
        }
        if is_reset {
            self.reset(id);
        }
        if is_stopped {
            self.stop(id);
        }
    }

    fn is_empty(&self) -> bool {
        !self.max_data
            && !self.max_streams
            && self.max_stream_data.is_empty()
            && self.resets.is_empty()
            && self.stops.is_empty()
    }
}

impl Streams {
    /// Something has to be told about streams, besides their data.
    pub(crate) fn have_control(&self) -> bool {
        !self.marks.is_empty()
    }

    /// Marks what a lost segment carried.
    pub(crate) fn mark(&mut self, content: &Content) {
        match content {
            Content::MaxData => self.marks.max_data = true,
            Content::MaxStreams => self.marks.max_streams = true,
            Content::MaxStreamData(id) => self.marks.max_stream_data(*id),
            Content::Reset(id) => self.marks.reset(*id),
            Content::Stop(id) => self.marks.stop(*id),
            _ => {}
        }
    }

    /// Puts in what the peer may send and open over all streams.
    pub(crate) fn put_limits(&mut self, draft: &mut Draft<'_>) {
        if std::mem::take(&mut self.marks.max_data) {
            draft.put(&Frame::MaxData(self.credit.granted()), Some(Content::MaxData));
        }
        if std::mem::take(&mut self.marks.max_streams) {
            let frame = Frame::MaxStreams(self.numbers.granted());
            draft.put(&frame, Some(Content::MaxStreams));
        }
    }

    /// Puts in what is to be told about single streams.
    pub(crate) fn put_control(&mut self, draft: &mut Draft<'_>) {
        let has_room = |d: &Draft<'_>| d.room() >= SMALL_FRAME && d.len() < CONTROL_ROOM;
        // First of all, because one may say what kind of stream it is.
        while has_room(draft)
            && let Some(id) = self.marks.stops.pop_first()
        {
            if let Some(code) = self.map.get(&id).and_then(|s| s.recv.stop) {
                draft.put(&Frame::Stop(id, code), Some(Content::Stop(id)));
            }
        }
        while has_room(draft)
            && let Some(id) = self.marks.max_stream_data.pop_first()
        {
            if let Some(stream) = self.map.get(&id) {
                let frame = Frame::MaxStreamData(id, stream.recv.window.limit());
                draft.put(&frame, Some(Content::MaxStreamData(id)));
            }
        }
        while has_room(draft)
            && let Some(id) = self.marks.resets.pop_first()
        {
            if let Some(stream) = self.map.get(&id)
                && let Some((code, _)) = stream.send.reset
            {
                let frame = Frame::Reset { id, code, final_size: stream.send.next() };
                draft.put(&frame, Some(Content::Reset(id)));
            }
        }
    }
}
