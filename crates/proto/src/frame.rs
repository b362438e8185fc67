//! Frames: what segments consist of. `docs/protocol.md` is the specification.
//!
//! Each frame is `type | length | body` with varints, so a reader can step over one that it does
//! not know: odd types are optional and skipped, even types must be understood.

use std::net::SocketAddr;

use smallvec::SmallVec;
use whimbrel_base::ConnectionId;

use crate::error::{CloseCode, DecodeError};
use crate::ids::{PathId, StreamId};
use crate::params::{MAX_NOTICE_ADDRESSES, Params, decode_address, encode_address};
use crate::varint::{self, Reader};

/// Protocol version in OPEN.
pub const VERSION: u8 = 1;
/// Most paths that one frame may report on.
pub(crate) const MAX_REPORTS: usize = 64;
/// Longest reason in CLOSE and REFUSE, in bytes; longer ones are cut.
pub const MAX_REASON: usize = 256;

/// What arrived on each path, and by how many microseconds the newest of it was held back.
pub type Acks = SmallVec<[(PathReport, u64); 1]>;

pub(crate) mod kind {
    pub(crate) const OPEN: u64 = 0x00;
    pub(crate) const ACCEPT: u64 = 0x02;
    pub(crate) const JOIN: u64 = 0x04;
    pub(crate) const JOINED: u64 = 0x06;
    pub(crate) const REFUSE: u64 = 0x08;
    pub(crate) const ACK: u64 = 0x0a;
    pub(crate) const STREAM: u64 = 0x0c;
    pub(crate) const STREAM_FIN: u64 = 0x0e;
    pub(crate) const MAX_DATA: u64 = 0x10;
    pub(crate) const MAX_STREAM_DATA: u64 = 0x12;
    pub(crate) const MAX_STREAMS: u64 = 0x14;
    pub(crate) const RESET: u64 = 0x16;
    pub(crate) const STOP: u64 = 0x18;
    pub(crate) const PATH_LOST: u64 = 0x1a;
    pub(crate) const CLOSE: u64 = 0x1c;
    pub(crate) const CLOSE_ACK: u64 = 0x1e;
    pub(crate) const PING: u64 = 0x21;
    pub(crate) const ADDRESSES: u64 = 0x23;
}

/// How many segments of a path were received. For a lost path the count is final.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathReport {
    /// The path.
    pub path: PathId,
    /// Segments received on it, from its first.
    pub received: u64,
}

/// The first frame of a connection's first path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Open {
    /// The connection's id, chosen by the client at random.
    pub connection: ConnectionId,
    /// This path's number: 0, or higher when an earlier attempt was cut off.
    pub path: PathId,
    /// The client's half of the connection secret.
    pub random: [u8; 32],
    /// Earlier attempts that the client gave up.
    pub lost: Vec<PathReport>,
    /// The client's parameters.
    pub params: Params,
}

/// The first frame of each further path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// The connection that the path belongs to.
    pub connection: ConnectionId,
    /// The path's number, never used before.
    pub path: PathId,
    /// Proof of the connection secret.
    pub proof: [u8; 32],
    /// What was received on paths that are gone.
    pub lost: Vec<PathReport>,
}

/// One decoded frame; byte strings borrow from the segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame<'a> {
    /// Opens a connection.
    Open(Open),
    /// Answers OPEN.
    Accept {
        /// The server's half of the connection secret.
        random: [u8; 32],
        /// What was received on earlier attempts.
        lost: Vec<PathReport>,
        /// The server's parameters.
        params: Params,
    },
    /// Adds a path.
    Join(Join),
    /// Answers JOIN.
    Joined {
        /// What was received on paths that are gone.
        lost: Vec<PathReport>,
    },
    /// Answers OPEN or JOIN: no.
    Refuse {
        /// Why.
        code: CloseCode,
        /// Why, for people.
        reason: &'a str,
    },
    /// Segments received, per path, and how long the newest of each waited for this frame (µs).
    Ack(Acks),
    /// Bytes of a stream.
    Stream {
        /// The stream.
        id: StreamId,
        /// Offset of the first byte.
        offset: u64,
        /// The bytes.
        data: &'a [u8],
        /// The stream ends behind them.
        fin: bool,
    },
    /// Credit over all streams: total bytes.
    MaxData(u64),
    /// Credit of one stream: total bytes.
    MaxStreamData(StreamId, u64),
    /// Streams that the receiver may have opened in total.
    MaxStreams(u64),
    /// The sender gives its half of the stream up.
    Reset {
        /// The stream.
        id: StreamId,
        /// Why.
        code: CloseCode,
        /// Bytes that count against credit.
        final_size: u64,
    },
    /// The receiver does not want the rest of the stream.
    Stop(StreamId, CloseCode),
    /// A path is given up; the count is final.
    PathLost(PathReport),
    /// The connection ends.
    Close {
        /// Why.
        code: CloseCode,
        /// Why, for people.
        reason: &'a str,
    },
    /// CLOSE arrived.
    CloseAck,
    /// Asks for an acknowledgement.
    Ping,
    /// The sender's notice addresses, replacing those with a lower sequence number.
    Addresses {
        /// Grows with each change.
        sequence: u64,
        /// UDP addresses.
        addresses: Vec<SocketAddr>,
    },
}

/// Appends `type | length | body`. Bodies below 16 KiB only; their length takes two bytes.
pub(crate) fn put(out: &mut Vec<u8>, kind: u64, body: impl FnOnce(&mut Vec<u8>)) {
    varint::write(out, kind);
    put_length_prefixed(out, body);
}

/// Appends a two-byte varint length and the body.
pub(crate) fn put_length_prefixed(out: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0, 0]);
    body(out);
    let length = out.len() - at - 2;
    debug_assert!(length < 0x4000, "frame of {length} bytes");
    out[at..at + 2].copy_from_slice(&(length as u16 | 0x4000).to_be_bytes());
}

fn put_reports(out: &mut Vec<u8>, reports: &[PathReport]) {
    varint::write(out, reports.len() as u64);
    for report in reports {
        varint::write(out, report.path.0);
        varint::write(out, report.received);
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

fn put_reason(out: &mut Vec<u8>, code: CloseCode, reason: &str) {
    varint::write(out, code.0);
    let mut end = reason.len().min(MAX_REASON);
    while !reason.is_char_boundary(end) {
        end -= 1;
    }
    out.extend_from_slice(&reason.as_bytes()[..end]);
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

impl Frame<'_> {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Open(open) => put(out, kind::OPEN, |b| {
                b.push(VERSION);
                b.extend_from_slice(open.connection.as_bytes());
                varint::write(b, open.path.0);
                b.extend_from_slice(&open.random);
                put_reports(b, &open.lost);
                open.params.encode(b);
            }),
            Self::Accept { random, lost, params } => put(out, kind::ACCEPT, |b| {
                b.extend_from_slice(random);
                put_reports(b, lost);
                params.encode(b);
            }),
            Self::Join(join) => put(out, kind::JOIN, |b| {
                b.extend_from_slice(join.connection.as_bytes());
                varint::write(b, join.path.0);
                b.extend_from_slice(&join.proof);
                put_reports(b, &join.lost);
            }),
            Self::Joined { lost } => put(out, kind::JOINED, |b| put_reports(b, lost)),
            Self::Refuse { code, reason } => put(out, kind::REFUSE, |b| put_reason(b, *code, reason)),
            Self::Ack(acks) => put(out, kind::ACK, |b| {
                varint::write(b, acks.len() as u64);
                for (report, delay) in acks {
                    varint::write(b, report.path.0);
                    varint::write(b, report.received);
                    varint::write(b, *delay);
                }
            }),
            Self::Stream { id, offset, data, fin } => {
                let kind = if *fin { kind::STREAM_FIN } else { kind::STREAM };
                put(out, kind, |b| {
                    varint::write(b, id.0);
                    varint::write(b, *offset);
                    b.extend_from_slice(data);
                });
            }
            Self::MaxData(max) => put(out, kind::MAX_DATA, |b| varint::write(b, *max)),
            Self::MaxStreamData(id, max) => put(out, kind::MAX_STREAM_DATA, |b| {
                varint::write(b, id.0);
                varint::write(b, *max);
            }),
            Self::MaxStreams(max) => put(out, kind::MAX_STREAMS, |b| varint::write(b, *max)),
            Self::Reset { id, code, final_size } => put(out, kind::RESET, |b| {
                varint::write(b, id.0);
                varint::write(b, code.0);
                varint::write(b, *final_size);
            }),
            Self::Stop(id, code) => put(out, kind::STOP, |b| {
                varint::write(b, id.0);
                varint::write(b, code.0);
            }),
            Self::PathLost(report) => put(out, kind::PATH_LOST, |b| {
                varint::write(b, report.path.0);
                varint::write(b, report.received);
            }),
            Self::Close { code, reason } => put(out, kind::CLOSE, |b| put_reason(b, *code, reason)),
            Self::CloseAck => put(out, kind::CLOSE_ACK, |_| {}),
            Self::Ping => put(out, kind::PING, |_| {}),
            Self::Addresses { sequence, addresses } => put(out, kind::ADDRESSES, |b| {
                varint::write(b, *sequence);
                for address in addresses.iter().take(MAX_NOTICE_ADDRESSES) {
                    put_length_prefixed(b, |b| encode_address(*address, b));
                }
            }),
        }
    }
}

/// What stands next in a segment.
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
        kind::STREAM | kind::STREAM_FIN => Frame::Stream {
            id: StreamId(b.varint()?),
            offset: b.varint()?,
            data: b.rest(),
            fin: kind == kind::STREAM_FIN,
        },
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
        kind::CLOSE => {
            let (code, reason) = reason(b)?;
            Frame::Close { code, reason }
        }
        kind::CLOSE_ACK => Frame::CloseAck,
        kind::PING => Frame::Ping,
        kind::ADDRESSES => decode_addresses(b)?,
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

fn decode_addresses<'a>(b: &mut Reader<'a>) -> Result<Frame<'a>, DecodeError> {
    let sequence = b.varint()?;
    let mut addresses = Vec::new();
    while !b.is_empty() {
        if addresses.len() == MAX_NOTICE_ADDRESSES {
            return Err(DecodeError::TooLarge("notice addresses"));
        }
        addresses.push(decode_address(&mut Reader::new(b.prefixed()?))?);
    }
    Ok(Frame::Addresses { sequence, addresses })
}
