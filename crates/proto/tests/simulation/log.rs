//! What left and what was told, in that order, for tests that hold the one against the other.

use whimbrel_proto::fuzzing::frame::{self, Frame};
use whimbrel_proto::fuzzing::varint::Reader;
use whimbrel_proto::{Event, FlowId, Side};

/// Bytes of a piece that are kept.
const KEPT: usize = 8;

/// Something that a side did.
#[derive(Debug, Clone)]
pub(crate) enum Logged {
    /// It put a piece of a message on a carrier, or the whole of it.
    Piece {
        side: Side,
        flow: FlowId,
        number: u64,
        offset: u64,
        /// The first bytes of it.
        start: Vec<u8>,
    },
    /// It told its application something.
    Told(Side, Event),
}

/// The pieces of messages among the frames.
pub(crate) fn pieces(side: Side, frames: &[u8]) -> Vec<Logged> {
    let mut reader = Reader::new(frames);
    let mut all = Vec::new();
    while let Some(frame) = frame::decode(&mut reader).unwrap() {
        if let Frame::Message { header, offset, data, .. } = frame {
            let start = data[..data.len().min(KEPT)].to_vec();
            let (flow, number) = (FlowId(header.flow), header.number);
            all.push(Logged::Piece { side, flow, number, offset, start });
        }
    }
    all
}

/// As [`pieces`], in a datagram, whose number comes first.
pub(crate) fn pieces_alone(side: Side, datagram: &[u8]) -> Vec<Logged> {
    let mut reader = Reader::new(datagram);
    reader.varint().unwrap();
    pieces(side, reader.rest())
}
