//! A device's line that is halted, and goes on later.

use super::{Down, Pauses, Phase, Said, Seat, Up};
use crate::Place;
use crate::sessions::line::{Line, LineRecord};
use crate::sessions::parts::Body;
use serde::{Deserialize, Serialize};
use std::io;
use std::sync::Arc;
use whimbrel_base::EndpointId;
use whimbrel_transport::{RecvHalf, SendHalf, Stream};

/// How far a device is that is to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::sessions) struct SeatRecord {
    sent: u64,
    end: Said,
    base: u64,
    received: u64,
    told: u64,
    announced: u64,
    /// How many PAUSE were said, and answered.
    pauses: (u32, u32),
    line: LineRecord,
}

impl SeatRecord {
    /// Whether bytes are missing that the device has sent.
    pub(in crate::sessions) fn has_gap(&self) -> bool {
        self.announced > self.received
    }
}

impl Seat {
    /// Halts. The device was told to go on before.
    pub(in crate::sessions) fn halt(self, body: &mut Vec<u8>) -> (SeatRecord, Vec<(RecvHalf, SendHalf)>) {
        let (line, streams) = self.line.halt(body);
        let (Down { sent, end, .. }, Up { base, received, told, announced }) = (self.down, self.up);
        let pauses = (self.pauses.said, self.pauses.answered);
        (SeatRecord { sent, end, base, received, told, announced, pauses, line }, streams)
    }

    /// Goes on where it was halted.
    pub(in crate::sessions) fn going_on(
        record: &SeatRecord,
        body: &mut Body,
        (main, control): (Stream, Option<Stream>),
        place: Arc<Place<EndpointId>>,
    ) -> io::Result<Self> {
        let SeatRecord { sent, end, base, received, told, announced, pauses: (said, answered), .. } = *record;
        Ok(Self {
            device: main.peer_id(),
            line: Line::going_on(&record.line, body, main, control)?,
            phase: Phase::Active,
            down: Down { sent, end, ahead: None },
            up: Up { base, received, told, announced },
            pauses: Pauses { said, answered },
            place,
        })
    }
}
