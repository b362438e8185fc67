//! Frames to bytes.

use std::net::SocketAddr;

use super::{Frame, MAX_CANDIDATES, MAX_DATAGRAM_RANGES, MAX_REASON, PathReport, VERSION, kind, put_extent};
use crate::error::CloseCode;
use crate::params::{MAX_NOTICE_ADDRESSES, encode_address};
use crate::varint;

/// Appends `type | length | body`. Bodies below 16 KiB only; their length takes two bytes.
#[inline]
pub(crate) fn put(out: &mut Vec<u8>, kind: u64, body: impl FnOnce(&mut Vec<u8>)) {
    varint::write(out, kind);
    put_length_prefixed(out, body);
}

/// Appends a two-byte varint length and the body.
#[inline]
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

fn put_addresses(out: &mut Vec<u8>, addresses: &[SocketAddr]) {
    for address in addresses.iter().take(MAX_NOTICE_ADDRESSES) {
        put_length_prefixed(out, |b| encode_address(*address, b));
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
            Self::Resume(resume) => put(out, kind::RESUME, |b| {
                b.extend_from_slice(resume.connection.as_bytes());
                varint::write(b, resume.path.0);
                varint::write(b, resume.generation);
                b.extend_from_slice(&resume.nonce);
                b.extend_from_slice(&resume.proof);
                put_reports(b, &resume.lost);
            }),
            Self::Resumed(resumed) => put(out, kind::RESUMED, |b| {
                varint::write(b, resumed.generation);
                b.extend_from_slice(&resumed.nonce);
                b.extend_from_slice(&resumed.proof);
                put_reports(b, &resumed.lost);
            }),
            Self::Suspend(generation) => put(out, kind::SUSPEND, |b| varint::write(b, *generation)),
            Self::Assign { assignment, addresses } => put(out, kind::ASSIGN, |b| {
                assignment.encode(b);
                put_addresses(b, addresses);
            }),
            Self::TakeOver(take_over) => put(out, kind::TAKE_OVER, |b| {
                b.extend_from_slice(take_over.connection.as_bytes());
                varint::write(b, take_over.path.0);
                varint::write(b, take_over.generation);
                b.extend_from_slice(&take_over.nonce);
                b.extend_from_slice(&take_over.proof);
                put_reports(b, &take_over.lost);
                take_over.assignment.iter().for_each(|assignment| assignment.encode(b));
            }),
            Self::TakenOver(taken_over) => put(out, kind::TAKEN_OVER, |b| {
                varint::write(b, taken_over.generation);
                b.extend_from_slice(&taken_over.nonce);
                b.extend_from_slice(&taken_over.proof);
                put_reports(b, &taken_over.lost);
                taken_over.assignment.iter().for_each(|assignment| assignment.encode(b));
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
            Self::Message { header, size, offset, data } => {
                let whole = *size == data.len() as u64;
                put(out, if whole { kind::MESSAGE } else { kind::MESSAGE_PIECE }, |b| {
                    header.encode(b);
                    if !whole {
                        put_extent(b, *size, *offset);
                    }
                    b.extend_from_slice(data);
                });
            }
            Self::Skip(skip) => put(out, kind::SKIP, |b| {
                skip.header.encode(b);
                varint::write(b, skip.size);
            }),
            Self::Datagrams { path, came } => put(out, kind::DATAGRAMS, |b| {
                varint::write(b, path.0);
                let came = &came[..came.len().min(MAX_DATAGRAM_RANGES)];
                varint::write(b, came.len() as u64);
                for range in came {
                    varint::write(b, range.start);
                    varint::write(b, range.end - range.start);
                }
            }),
            Self::MaxMessages(max) => put(out, kind::MAX_MESSAGES, |b| varint::write(b, *max)),
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
            Self::Retire { path, segments } => put(out, kind::RETIRE, |b| {
                varint::write(b, path.0);
                varint::write(b, *segments);
            }),
            Self::Close { code, reason } => put(out, kind::CLOSE, |b| put_reason(b, *code, reason)),
            Self::CloseAck => put(out, kind::CLOSE_ACK, |_| {}),
            Self::Ping => put(out, kind::PING, |_| {}),
            Self::Addresses { sequence, addresses } => put(out, kind::ADDRESSES, |b| {
                varint::write(b, *sequence);
                put_addresses(b, addresses);
            }),
            Self::Candidates { sequence, addresses } => put(out, kind::CANDIDATES, |b| {
                varint::write(b, *sequence);
                put_addresses(b, &addresses[..addresses.len().min(MAX_CANDIDATES)]);
            }),
            Self::Observed { sequence, address } => put(out, kind::OBSERVED, |b| {
                varint::write(b, *sequence);
                encode_address(*address, b);
            }),
            Self::PathPriority { path, sequence, priority } => put(out, kind::PATH_PRIORITY, |b| {
                varint::write(b, path.0);
                varint::write(b, *sequence);
                varint::write(b, priority.code());
            }),
            Self::AddAddress { id, sequence, priority, address } => put(out, kind::ADD_ADDRESS, |b| {
                varint::write(b, u64::from(*id));
                varint::write(b, *sequence);
                varint::write(b, priority.code());
                encode_address(*address, b);
            }),
            Self::RemoveAddress { id, sequence } => put(out, kind::REMOVE_ADDRESS, |b| {
                varint::write(b, u64::from(*id));
                varint::write(b, *sequence);
            }),
            Self::Handover { sequence, mode } => put(out, kind::HANDOVER, |b| {
                varint::write(b, *sequence);
                varint::write(b, mode.code());
            }),
        }
    }
}
