//! What a written-down session consists of: numbers, byte strings, lists and options.

use std::net::SocketAddr;
use std::time::Duration;

use crate::error::{CloseCode, DecodeError};
use crate::flow::Urgency;
use crate::handover::Priority;
use crate::params::{decode_address, encode_address};
use crate::varint::{self, Reader};

/// Version of what [`Connection::snapshot`](crate::Connection::snapshot) writes.
pub(crate) const VERSION: u8 = 7;
/// From this version on, what a peer has behind a gap of a stream is left out.
pub(crate) const WITHOUT_ISLANDS: u8 = 6;
/// From this version on, timeouts that are as usual are left out.
pub(crate) const FEW_TIMEOUTS: u8 = 7;
/// The oldest version that is read: it holds neither timeouts nor limits, and no counts of single flows.
pub(crate) const OLDEST: u8 = 4;

pub(crate) fn number(out: &mut Vec<u8>, value: u64) {
    varint::write(out, value.min(varint::MAX));
}

pub(crate) fn numbers<const N: usize>(out: &mut Vec<u8>, values: [u64; N]) {
    values.into_iter().for_each(|value| number(out, value));
}

pub(crate) fn read_numbers<const N: usize>(reader: &mut Reader<'_>) -> Result<[u64; N], DecodeError> {
    let mut values = [0; N];
    for value in &mut values {
        *value = reader.varint()?;
    }
    Ok(values)
}

/// The most that something may have come to that is counted on: so it never gets to the end of what can be
/// written down.
pub(crate) const MOST_COUNTED: u64 = 1 << 61;

/// Numbers that are counted on from.
pub(crate) fn read_counts<const N: usize>(reader: &mut Reader<'_>) -> Result<[u64; N], DecodeError> {
    let values = read_numbers(reader)?;
    let sane = values.iter().all(|value| *value <= MOST_COUNTED);
    if sane { Ok(values) } else { Err(DecodeError::TooLarge("count in a snapshot")) }
}

/// A time in microseconds.
pub(crate) fn time(out: &mut Vec<u8>, value: Duration) {
    number(out, u64::try_from(value.as_micros()).unwrap_or(u64::MAX));
}

pub(crate) fn read_time(reader: &mut Reader<'_>) -> Result<Duration, DecodeError> {
    Ok(Duration::from_micros(reader.varint()?))
}

/// Bytes behind their length.
pub(crate) fn bytes(out: &mut Vec<u8>, value: &[u8]) {
    number(out, value.len() as u64);
    out.extend_from_slice(value);
}

pub(crate) fn flag(out: &mut Vec<u8>, value: bool) {
    out.push(u8::from(value));
}

pub(crate) fn read_flag(reader: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Invalid("flag")),
    }
}

/// A number that may be missing: one more than it, or 0.
pub(crate) fn optional(out: &mut Vec<u8>, value: Option<u64>) {
    number(out, value.map_or(0, |value| value.saturating_add(1)));
}

pub(crate) fn read_optional(reader: &mut Reader<'_>) -> Result<Option<u64>, DecodeError> {
    Ok(reader.varint()?.checked_sub(1))
}

pub(crate) fn code(out: &mut Vec<u8>, value: Option<CloseCode>) {
    optional(out, value.map(|code| code.0));
}

pub(crate) fn read_code(reader: &mut Reader<'_>) -> Result<Option<CloseCode>, DecodeError> {
    Ok(read_optional(reader)?.map(CloseCode))
}

pub(crate) fn address(out: &mut Vec<u8>, value: SocketAddr) {
    let mut encoded = Vec::with_capacity(18);
    encode_address(value, &mut encoded);
    bytes(out, &encoded);
}

pub(crate) fn read_address(reader: &mut Reader<'_>) -> Result<SocketAddr, DecodeError> {
    decode_address(&mut Reader::new(reader.prefixed()?))
}

pub(crate) fn read_urgency(reader: &mut Reader<'_>) -> Result<Urgency, DecodeError> {
    Urgency::new(reader.byte()?).ok_or(DecodeError::Invalid("urgency"))
}

pub(crate) fn read_priority(reader: &mut Reader<'_>) -> Result<Priority, DecodeError> {
    Priority::from_code(reader.varint()?)
}
