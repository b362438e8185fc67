//! Bytes to frames.

use std::net::SocketAddr;
use std::ops::Range;

use whimbrel_base::ConnectionId;

use super::{
    Acks, Frame, Join, MAX_ADDRESSES, MAX_CANDIDATES, MAX_DATAGRAM_RANGES, MAX_REASON, MAX_REPORTS, Open,
    PathReport, Resume, Resumed, TakeOver, TakenOver, VERSION, kind, message,
};
use crate::assignment::Assignment;
use crate::error::{CloseCode, DecodeError};
use crate::handover::{HandoverMode, Priority};
use crate::ids::{PathId, StreamId};
use crate::params::{MAX_NOTICE_ADDRESSES, Params, decode_address};
use crate::varint::{self, Reader};

/// What stands next in a segment.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart at once; a box would cost more for each frame"
)]
pub(crate) enum Step<'a> {
    Frame(Frame<'a>),
    /// An optional frame of an unknown type, stepped over.
    Skipped,
    End,
}

/// Takes one step through a segment.
pub(crate) fn step<'a>(reader: &mut Reader<'a>) -> Result<Step<'a>, DecodeError> {
    if reader.is_empty() {
        return Ok(Step::End);
    }
    let kind = reader.varint()?;
    let mut body = Reader::new(reader.prefixed()?);
    Ok(decode_body(kind, &mut body)?.map_or(Step::Skipped, Step::Frame))
}

/// Bytes of a stream: as a [`Piece`](super::Piece) of a message, far smaller than what a [`Frame`] has room
/// for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StreamPiece<'a> {
    /// Of which stream.
    pub(crate) id: StreamId,
    /// Offset of the first byte.
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) data: &'a [u8],
    /// The stream ends behind them.
    pub(crate) fin: bool,
}

/// Takes the next frame if it is bytes of a stream. Another one stays, for [`step`].
pub(crate) fn stream<'a>(reader: &mut Reader<'a>) -> Result<Option<StreamPiece<'a>>, DecodeError> {
    let found = body_if(reader, |of| of == kind::STREAM || of == kind::STREAM_FIN)?;
    found.map(|(of, mut body)| decode_stream(of, &mut body)).transpose()
}

/// Takes the next frame if it is an ACK. Another one stays, for [`step`].
pub(crate) fn acks(reader: &mut Reader<'_>) -> Result<Option<Acks>, DecodeError> {
    let found = body_if(reader, |of| of == kind::ACK)?;
    found.map(|(_, mut body)| decode_acks(&mut body)).transpose()
}

/// The next frame's type and body, if it is of a type that is `wanted`.
fn body_if<'a>(
    reader: &mut Reader<'a>,
    wanted: impl Fn(u64) -> bool,
) -> Result<Option<(u64, Reader<'a>)>, DecodeError> {
    let mut ahead = *reader;
    if ahead.is_empty() {
        return Ok(None);
    }
    let of = ahead.varint()?;
    if !wanted(of) {
        return Ok(None);
    }
    let body = Reader::new(ahead.prefixed()?);
    *reader = ahead;
    Ok(Some((of, body)))
}

fn decode_stream<'a>(of: u64, b: &mut Reader<'a>) -> Result<StreamPiece<'a>, DecodeError> {
    Ok(StreamPiece {
        id: StreamId(b.varint()?),
        offset: b.varint()?,
        data: b.rest(),
        fin: of == kind::STREAM_FIN,
    })
}

/// Takes the next frame of a segment; optional frames of unknown types are stepped over.
///
/// # Errors
/// [`DecodeError`] for bytes that are not a frame; nothing may be read behind an error.
pub fn decode<'a>(reader: &mut Reader<'a>) -> Result<Option<Frame<'a>>, DecodeError> {
    loop {
        match step(reader)? {
            Step::Frame(frame) => return Ok(Some(frame)),
            Step::Skipped => {}
            Step::End => return Ok(None),
        }
    }
}

fn decode_body<'a>(kind: u64, b: &mut Reader<'a>) -> Result<Option<Frame<'a>>, DecodeError> {
    Ok(Some(match kind {
        kind::STREAM | kind::STREAM_FIN => {
            let StreamPiece { id, offset, data, fin } = decode_stream(kind, b)?;
            Frame::Stream { id, offset, data, fin }
        }
        kind::MESSAGE | kind::MESSAGE_PIECE | kind::SKIP => message::decode(kind, b)?,
        kind::DATAGRAMS => Frame::Datagrams { path: PathId(b.varint()?), came: datagrams(b)? },
        kind::MAX_MESSAGES => Frame::MaxMessages(b.varint()?),
        kind::ACK => Frame::Ack(decode_acks(b)?),
        kind::OPEN => Frame::Open(decode_open(b)?),
        kind::ACCEPT => {
            Frame::Accept { random: b.array()?, lost: reports(b)?, params: Params::decode(b.rest())? }
        }
        kind::JOIN => Frame::Join(Join {
            connection: ConnectionId::from_bytes(&b.array()?),
            path: PathId(b.varint()?),
            proof: b.array()?,
            lost: reports(b)?,
        }),
        kind::JOINED => Frame::Joined { lost: reports(b)? },
        kind::RESUME => Frame::Resume(Resume {
            connection: ConnectionId::from_bytes(&b.array()?),
            path: PathId(b.varint()?),
            generation: b.varint()?,
            nonce: b.array()?,
            proof: b.array()?,
            lost: reports(b)?,
        }),
        kind::RESUMED => Frame::Resumed(Resumed {
            generation: b.varint()?,
            nonce: b.array()?,
            proof: b.array()?,
            lost: reports(b)?,
        }),
        kind::SUSPEND => Frame::Suspend(b.varint()?),
        kind::ASSIGN => Frame::Assign { assignment: Assignment::decode(b)?, addresses: decode_addresses(b)? },
        kind::TAKE_OVER => Frame::TakeOver(TakeOver {
            connection: ConnectionId::from_bytes(&b.array()?),
            path: PathId(b.varint()?),
            generation: b.varint()?,
            nonce: b.array()?,
            proof: b.array()?,
            lost: reports(b)?,
            assignment: assignment(b)?,
        }),
        kind::TAKEN_OVER => Frame::TakenOver(TakenOver {
            generation: b.varint()?,
            nonce: b.array()?,
            proof: b.array()?,
            lost: reports(b)?,
            assignment: assignment(b)?,
        }),
        kind::REFUSE => {
            let (code, reason) = reason(b)?;
            Frame::Refuse { code, reason }
        }
        kind::MAX_DATA => Frame::MaxData(b.varint()?),
        kind::MAX_STREAM_DATA => Frame::MaxStreamData(StreamId(b.varint()?), b.varint()?),
        kind::MAX_STREAMS => Frame::MaxStreams(b.varint()?),
        kind::RESET => {
            Frame::Reset { id: StreamId(b.varint()?), code: CloseCode(b.varint()?), final_size: b.varint()? }
        }
        kind::STOP => Frame::Stop(StreamId(b.varint()?), CloseCode(b.varint()?)),
        kind::PATH_LOST => Frame::PathLost(PathReport { path: PathId(b.varint()?), received: b.varint()? }),
        kind::RETIRE => Frame::Retire { path: PathId(b.varint()?), segments: b.varint()? },
        kind::CLOSE => {
            let (code, reason) = reason(b)?;
            Frame::Close { code, reason }
        }
        kind::CLOSE_ACK => Frame::CloseAck,
        kind::PING => Frame::Ping,
        kind::ADDRESSES => Frame::Addresses { sequence: b.varint()?, addresses: decode_addresses(b)? },
        kind::CANDIDATES => Frame::Candidates { sequence: b.varint()?, addresses: candidates(b)? },
        kind::OBSERVED => Frame::Observed { sequence: b.varint()?, address: decode_address(b)? },
        kind::PATH_PRIORITY => Frame::PathPriority {
            path: PathId(b.varint()?),
            sequence: b.varint()?,
            priority: Priority::from_code(b.varint()?)?,
        },
        kind::ADD_ADDRESS => Frame::AddAddress {
            id: address_id(b)?,
            sequence: b.varint()?,
            priority: Priority::from_code(b.varint()?)?,
            address: decode_address(b)?,
        },
        kind::REMOVE_ADDRESS => Frame::RemoveAddress { id: address_id(b)?, sequence: b.varint()? },
        kind::HANDOVER => {
            Frame::Handover { sequence: b.varint()?, mode: HandoverMode::from_code(b.varint()?)? }
        }
        optional if optional & 1 == 1 => return Ok(None),
        unknown => return Err(DecodeError::UnknownFrame(unknown)),
    }))
}

fn decode_acks(b: &mut Reader<'_>) -> Result<Acks, DecodeError> {
    let count = report_count(b)?;
    (0..count)
        .map(|_| {
            let report = PathReport { path: PathId(b.varint()?), received: b.varint()? };
            Ok((report, b.varint()?))
        })
        .collect()
}

fn datagrams(b: &mut Reader<'_>) -> Result<Vec<Range<u64>>, DecodeError> {
    let count = b.varint()?;
    if count > MAX_DATAGRAM_RANGES as u64 {
        return Err(DecodeError::TooLarge("ranges of datagrams"));
    }
    let range = |b: &mut Reader<'_>| {
        let (first, length) = (b.varint()?, b.varint()?);
        let end = first.checked_add(length).filter(|end| length > 0 && *end <= varint::MAX);
        end.map(|end| first..end).ok_or(DecodeError::Invalid("range of datagrams"))
    };
    (0..count).map(|_| range(b)).collect()
}

fn decode_open(b: &mut Reader<'_>) -> Result<Open, DecodeError> {
    if b.byte()? != VERSION {
        return Err(DecodeError::Invalid("version"));
    }
    Ok(Open {
        connection: ConnectionId::from_bytes(&b.array()?),
        path: PathId(b.varint()?),
        random: b.array()?,
        lost: reports(b)?,
        params: Params::decode(b.rest())?,
    })
}

fn assignment(b: &mut Reader<'_>) -> Result<Option<Assignment>, DecodeError> {
    (!b.is_empty()).then(|| Assignment::decode(b)).transpose()
}

fn decode_addresses(b: &mut Reader<'_>) -> Result<Vec<SocketAddr>, DecodeError> {
    let mut addresses = Vec::new();
    while !b.is_empty() {
        if addresses.len() == MAX_NOTICE_ADDRESSES {
            return Err(DecodeError::TooLarge("notice addresses"));
        }
        addresses.push(decode_address(&mut Reader::new(b.prefixed()?))?);
    }
    Ok(addresses)
}

fn candidates(b: &mut Reader<'_>) -> Result<Vec<SocketAddr>, DecodeError> {
    let addresses = decode_addresses(b)?;
    if addresses.len() > MAX_CANDIDATES {
        return Err(DecodeError::TooLarge("candidates"));
    }
    Ok(addresses)
}

fn address_id(b: &mut Reader<'_>) -> Result<u8, DecodeError> {
    match b.varint()? {
        id if id < u64::from(MAX_ADDRESSES) => Ok(id as u8),
        _ => Err(DecodeError::TooLarge("address id")),
    }
}

fn reports(reader: &mut Reader<'_>) -> Result<Vec<PathReport>, DecodeError> {
    let count = report_count(reader)?;
    (0..count)
        .map(|_| Ok(PathReport { path: PathId(reader.varint()?), received: reader.varint()? }))
        .collect()
}

fn report_count(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    match reader.varint()? {
        count if count > MAX_REPORTS as u64 => Err(DecodeError::TooLarge("path reports")),
        count => Ok(count),
    }
}

fn reason<'a>(reader: &mut Reader<'a>) -> Result<(CloseCode, &'a str), DecodeError> {
    let code = CloseCode(reader.varint()?);
    let text = reader.bytes(reader.rest().len())?;
    if text.len() > MAX_REASON {
        return Err(DecodeError::TooLarge("reason"));
    }
    let text = std::str::from_utf8(text).map_err(|_| DecodeError::Invalid("reason"))?;
    Ok((code, text))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The next frame, if it is one for which there is a shorter way than [`decode`].
    fn short_way<'a>(reader: &mut Reader<'a>) -> Result<Option<Frame<'a>>, DecodeError> {
        if let Some(acks) = acks(reader)? {
            return Ok(Some(Frame::Ack(acks)));
        }
        let piece = stream(reader)?;
        Ok(piece.map(|StreamPiece { id, offset, data, fin }| Frame::Stream { id, offset, data, fin }))
    }

    #[test]
    fn acknowledgements_and_bytes_of_streams_are_the_same_by_either_way_and_what_is_neither_stays() {
        let report = |path, received| PathReport { path: PathId(path), received };
        let reports: Acks = [(report(0, 7), 250), (report(3, 70_000), 0)].into_iter().collect();
        let bytes_of = |data: &'static [u8], fin| Frame::Stream { id: StreamId(4), offset: 900, data, fin };
        for frame in [Frame::Ack(reports), bytes_of(b"bytes", true), bytes_of(b"", false), Frame::Ping] {
            let mut segment = Vec::new();
            frame.encode(&mut segment);
            Frame::CloseAck.encode(&mut segment);
            let (mut short, mut long) = (Reader::new(&segment), Reader::new(&segment));
            let found = short_way(&mut short).unwrap();
            assert_eq!(decode(&mut long).unwrap().unwrap(), frame);
            match found {
                Some(found) => assert_eq!((found, short.rest()), (frame, long.rest())),
                None => assert_eq!((frame, short.rest()), (Frame::Ping, &segment[..])),
            }
        }
    }

    proptest! {
        #[test]
        fn what_one_way_refuses_the_other_does_for_the_same_reason(
            of in prop::sample::select(vec![kind::STREAM, kind::STREAM_FIN, kind::ACK]),
            length in 0u8..24,
            rest in prop::collection::vec(any::<u8>(), 0..24),
        ) {
            let mut segment = Vec::new();
            varint::write(&mut segment, of);
            segment.push(length);
            segment.extend(rest);
            let (mut short, mut long) = (Reader::new(&segment), Reader::new(&segment));
            let (found, expected) = (short_way(&mut short), decode(&mut long));
            let is_taken = expected.is_ok();
            prop_assert_eq!(found, expected);
            if is_taken {
                prop_assert_eq!(short.rest(), long.rest());
            }
        }
    }
}
