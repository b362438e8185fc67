//! The streams between a gateway and one device, for one session: either end.

mod lasting;

pub(super) use lasting::LineRecord;

use super::frame::{Frame, Reader, Writer};
use bytes::Bytes;
use std::io;
use std::time::Duration;
use tokio::time::Instant;
use whimbrel_transport::{
    CloseCode, ConnectionStats, PathInfo, PathState, Priority, RecvHalf, SendHalf, Stream, Urgency,
};

/// The session goes on without this end. The same as in `forward` and `expose`.
const BROKEN: CloseCode = CloseCode::application(1);

/// For a last word to come, once nothing more does on the first stream, or to be taken.
pub(super) const LAST: Duration = Duration::from_secs(10);

/// One stream, and a second one for what must not wait behind bytes, once it is there.
pub(super) struct Line {
    main: Ends,
    control: Option<Ends>,
    /// Nothing comes on the first stream any more. A last word may come on the second until then.
    last: Option<Instant>,
}

struct Ends {
    reader: Reader<RecvHalf>,
    writer: Writer<SendHalf>,
    /// The other end listens.
    is_heard: bool,
}

/// What happened on a line.
pub(super) enum Heard {
    Frame(Frame),
    /// Something was written.
    Nothing,
    /// It is over, in order or not.
    Gone,
}

impl Ends {
    fn new(stream: Stream, words: &[u8]) -> Self {
        let (read, write) = stream.into_split();
        let mut writer = Writer::new(write);
        writer.say_plain(words);
        Self { reader: Reader::new(read), writer, is_heard: true }
    }

    async fn next(&mut self) -> Heard {
        loop {
            tokio::select! {
                frame = self.reader.next() => return match frame {
                    Ok(Some(frame)) => Heard::Frame(frame),
                    Ok(None) => Heard::Gone,
                    Err(error) => {
                        tracing::debug!(%error, "a session's stream broke");
                        Heard::Gone
                    }
                },
                wrote = self.writer.write(), if self.is_heard => match wrote {
                    Ok(()) => return Heard::Nothing,
                    // It may have said a last word before it closed its ears.
                    Err(_) => self.is_heard = false,
                },
            }
        }
    }

    async fn finish(self) -> io::Result<()> {
        // Without its reading half the stream would be stopped before all is said.
        let Self { reader: _reader, writer, .. } = self;
        writer.finish().await
    }
}

/// The longest round trip of the paths that are in use.
pub(super) fn round_trip(stats: &ConnectionStats) -> Option<Duration> {
    let longest = |priority| {
        let used = |path: &&PathInfo| path.state == PathState::Active && path.priority == priority;
        stats.paths.iter().filter(used).map(|path| path.srtt).max()
    };
    longest(Priority::Normal).or_else(|| longest(Priority::Backup))
}

impl Line {
    /// Says these words first, which are no frames.
    pub(super) fn new(stream: Stream, words: &[u8]) -> Self {
        Self { main: Ends::new(stream, words), control: None, last: None }
    }

    /// A second stream, with words before its frames.
    pub(super) fn set_control(&mut self, stream: Stream, words: &[u8]) {
        stream.set_urgency(Urgency::FIRST);
        self.control = Some(Ends::new(stream, words));
    }

    /// What happens next. It is over when both streams are: a last word may come on either. Cancel-safe.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            let Some(control) = &mut self.control else { return self.main.next().await };
            if let Some(last) = self.last {
                let heard = tokio::time::timeout_at(last, control.next()).await;
                return heard.unwrap_or(Heard::Gone);
            }
            let (heard, is_main) = tokio::select! {
                heard = control.next() => (heard, false),
                heard = self.main.next() => (heard, true),
            };
            match (&heard, is_main) {
                (Heard::Gone, true) => self.last = Some(Instant::now() + LAST),
                (Heard::Gone, false) => self.control = None,
                (Heard::Frame(_) | Heard::Nothing, _) => return heard,
            }
        }
    }

    /// More bytes of the connection, if they have come already.
    pub(super) fn bytes_at_hand(&mut self) -> Option<Bytes> {
        self.main.reader.bytes_at_hand()
    }

    /// Whether the frames that came with bytes of the connection are whole, and no more has come.
    pub(super) fn is_between_frames(&self) -> bool {
        self.main.reader.is_between_frames()
    }

    /// Whether there is room for more bytes of the connection.
    pub(super) fn has_room(&self) -> bool {
        self.main.writer.has_room()
    }

    /// For how long no path to the other end has worked, if none does.
    pub(super) fn unreachable(&self) -> Option<Duration> {
        self.stats().unreachable
    }

    /// The round trip to the other end: the longest of the paths that are in use.
    pub(super) fn round_trip(&self) -> Option<Duration> {
        round_trip(&self.stats())
    }

    /// Bytes of the connection, and what frames them, of which nothing is on its way yet.
    pub(super) fn unsent(&self) -> u64 {
        let writer = &self.main.writer;
        writer.gathered() as u64 + writer.inner().stream().backlog().unsent
    }

    /// Whether there is a stream for what must not wait behind bytes.
    pub(super) fn has_control(&self) -> bool {
        self.control.is_some()
    }

    fn stats(&self) -> ConnectionStats {
        self.main.writer.inner().stream().connection().stats()
    }

    pub(super) fn say_data(&mut self, bytes: Bytes) {
        self.main.writer.say_data(bytes);
    }

    /// Says something behind the bytes.
    pub(super) fn say(&mut self, frame: &Frame) {
        self.main.writer.say(frame);
    }

    /// Says something that must not wait.
    pub(super) fn say_first(&mut self, frame: &Frame) {
        let ends = self.control.as_mut().unwrap_or(&mut self.main);
        ends.writer.say(frame);
    }

    /// Writes all out, and ends the streams in order.
    pub(super) async fn finish(self) -> io::Result<()> {
        let Self { main, control, .. } = self;
        match control {
            Some(control) => tokio::try_join!(control.finish(), main.finish()).map(drop),
            None => main.finish().await,
        }
    }

    /// The same, but bytes that are under way are given up where there is a second stream for the last word.
    pub(super) async fn abandon(self) -> io::Result<()> {
        let Self { main, control, .. } = self;
        match control {
            Some(control) => {
                main.writer.inner().stream().reset(BROKEN);
                control.finish().await
            }
            None => main.finish().await,
        }
    }
}
