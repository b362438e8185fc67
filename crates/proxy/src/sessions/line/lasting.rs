//! A line that is halted, and goes on later.

use super::{Ends, Line};
use crate::sessions::frame::{Reader, Writer};
use crate::sessions::parts::Body;
use serde::{Deserialize, Serialize};
use std::io;
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

/// What is half heard and half said on a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::sessions) struct LineRecord {
    main: EndsRecord,
    control: Option<EndsRecord>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EndsRecord {
    /// Bytes of the next frame.
    came: usize,
    /// Bytes that are to be said.
    out: usize,
    /// What is to be said behind them.
    count: Option<u64>,
    is_heard: bool,
}

impl Line {
    /// Halts. Bytes that are under way are put behind others.
    pub(in crate::sessions) fn halt(self, body: &mut Vec<u8>) -> (LineRecord, Vec<(RecvHalf, SendHalf)>) {
        let (main, halves) = self.main.halt(body);
        let mut streams = vec![halves];
        let control = self.control.map(|control| {
            let (control, halves) = control.halt(body);
            streams.push(halves);
            control
        });
        (LineRecord { main, control }, streams)
    }

    /// Goes on where it was halted.
    pub(in crate::sessions) fn going_on(
        record: &LineRecord,
        body: &mut Body,
        main: Stream,
        control: Option<Stream>,
    ) -> io::Result<Self> {
        let mut line = Self { main: Ends::going_on(&record.main, body, main)?, control: None, last: None };
        if let Some((record, stream)) = record.control.as_ref().zip(control) {
            line.control = Some(Ends::going_on(record, body, stream)?);
        }
        Ok(line)
    }
}

impl Ends {
    fn halt(self, body: &mut Vec<u8>) -> (EndsRecord, (RecvHalf, SendHalf)) {
        let Self { reader, writer, is_heard } = self;
        let ((read, came), (write, out, count)) = (reader.halt(), writer.halt());
        body.extend_from_slice(&came);
        body.extend_from_slice(&out);
        (EndsRecord { came: came.len(), out: out.len(), count, is_heard }, (read, write))
    }

    fn going_on(record: &EndsRecord, body: &mut Body, stream: Stream) -> io::Result<Self> {
        let (came, out) = (body.take(record.came)?, body.take(record.out)?);
        let (read, write) = stream.into_split();
        let reader = Reader::going_on(read, came);
        let writer = Writer::going_on(write, &out, record.count);
        Ok(Self { reader, writer, is_heard: record.is_heard })
    }
}
