//! All streams, written down.

use super::arrivals::Arrivals;
use super::{Counts, Limits, Streams};
use crate::error::DecodeError;
use crate::event::{Event, Events};
use crate::ids::{Side, StreamId};
use crate::params::Params;
use crate::session::credit::Credit;
use crate::session::send_memory::SendMemory;
use crate::session::stream_numbers::StreamNumbers;
use crate::snapshot;
use crate::stream::{Recv, Send, Stream};
use crate::varint::Reader;

impl Streams {
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        self.numbers.write_down(out);
        self.arrivals.write_down(out);
        self.credit.write_down(out);
        let Counts { sent, resent, received, duplicate } = self.counts;
        snapshot::numbers(out, [sent, resent, received, duplicate]);
        snapshot::number(out, self.map.len() as u64);
        for (id, stream) in &self.map {
            snapshot::number(out, id.0);
            snapshot::number(out, stream.level.into());
            stream.send.write_down(out);
            stream.recv.write_down(out);
        }
    }

    /// Reads streams back. Everything waits to be said again, and is to be looked at by the application.
    pub(crate) fn read_back(
        reader: &mut Reader<'_>,
        side: Side,
        peer_params: Option<&Params>,
        limits: Limits,
        memory: SendMemory,
        events: &mut Events,
    ) -> Result<Self, DecodeError> {
        let numbers = StreamNumbers::read_back(reader)?;
        let arrivals = Arrivals::read_back(reader, side)?;
        let credit = Credit::read_back(reader)?;
        let [sent, resent, received, duplicate] = snapshot::read_numbers(reader)?;
        let pool = limits.pool.clone();
        arrivals.iter().for_each(|id| events.push(Event::StreamOpened(id)));
        let mut this = Self::new(side, limits, numbers, credit, memory);
        this.arrivals = arrivals;
        this.peer_window = peer_params.map(|params| params.max_stream_data);
        this.counts = Counts { sent, resent, received, duplicate };
        for _ in 0..reader.varint()? {
            let id = StreamId(reader.varint()?);
            let level = snapshot::read_urgency(reader)?.level();
            let (send, recv) = (Send::read_back(reader, &pool)?, Recv::read_back(reader, &pool)?);
            this.memory.change(0, send.held());
            this.pieces += recv.pieces();
            let announce = id.opener() == side && send.is_unheard();
            if recv.is_readable() {
                events.push(Event::Readable(id));
            }
            events.push(Event::Writable(id));
            this.marks.about(id, send.owes_reset(), recv.stop.is_some());
            let stream = Stream { send, recv, queued: false, announce, pressing: false, level };
            this.map.insert(id, Box::new(stream));
            this.enqueue(id);
        }
        this.marks.max_data_if(true);
        this.marks.max_streams_if(true);
        Ok(this)
    }
}
