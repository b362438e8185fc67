//! What messages consist of, written down.

use std::time::Duration;

use super::seen::Seen;
use super::{Class, FlowOptions, NUMBER_WINDOW, Outcome, Tag};
use crate::error::DecodeError;
use crate::frame::Place;
use crate::snapshot::{self, flag, number, optional, read_flag, read_optional};
use crate::varint::Reader;

pub(super) fn class(out: &mut Vec<u8>, class: Class) {
    flag(out, class.reliable);
    flag(out, class.sequenced);
}

pub(super) fn read_class(reader: &mut Reader<'_>) -> Result<Class, DecodeError> {
    Ok(Class { reliable: read_flag(reader)?, sequenced: read_flag(reader)? })
}

pub(super) fn tag(out: &mut Vec<u8>, tag: Option<Tag>) {
    flag(out, tag.is_some());
    tag.iter().for_each(|tag| number(out, tag.0));
}

pub(super) fn read_tag(reader: &mut Reader<'_>) -> Result<Option<Tag>, DecodeError> {
    if read_flag(reader)? { Ok(Some(Tag(reader.varint()?))) } else { Ok(None) }
}

pub(super) fn time(out: &mut Vec<u8>, time: Option<Duration>) {
    optional(out, time.map(|time| time.as_micros().min(u128::from(crate::varint::MAX - 1)) as u64));
}

pub(super) fn read_time(reader: &mut Reader<'_>) -> Result<Option<Duration>, DecodeError> {
    Ok(read_optional(reader)?.map(Duration::from_micros))
}

pub(super) fn place(out: &mut Vec<u8>, place: Option<Place>) {
    flag(out, place.is_some());
    if let Some(Place { group, epoch, index }) = place {
        out.push(group);
        snapshot::numbers(out, [epoch, index]);
    }
}

pub(super) fn read_place(reader: &mut Reader<'_>) -> Result<Option<Place>, DecodeError> {
    if !read_flag(reader)? {
        return Ok(None);
    }
    Ok(Some(Place { group: reader.byte()?, epoch: reader.varint()?, index: reader.varint()? }))
}

pub(super) fn seen(out: &mut Vec<u8>, seen: &Seen) {
    let lowest = seen.lowest();
    number(out, lowest);
    number(out, seen.beyond().count() as u64);
    seen.beyond().for_each(|beyond| number(out, beyond - lowest));
}

pub(super) fn read_seen(reader: &mut Reader<'_>) -> Result<Seen, DecodeError> {
    let lowest = reader.varint()?;
    let mut seen = Seen::below(lowest);
    for _ in 0..reader.varint()? {
        let beyond = reader.varint()?;
        if beyond == 0 || beyond >= NUMBER_WINDOW {
            return Err(DecodeError::Invalid("number of a message"));
        }
        seen.insert(lowest.saturating_add(beyond));
    }
    Ok(seen)
}

pub(super) fn outcome(out: &mut Vec<u8>, outcome: Option<Outcome>) {
    out.push(match outcome {
        None => 0,
        Some(Outcome::Delivered) => 1,
        Some(Outcome::Expired) => 2,
        Some(Outcome::Replaced) => 3,
        Some(Outcome::Cancelled) => 4,
        Some(Outcome::Lost) => 5,
    });
}

pub(super) fn read_outcome(reader: &mut Reader<'_>) -> Result<Option<Outcome>, DecodeError> {
    Ok(match reader.byte()? {
        0 => None,
        1 => Some(Outcome::Delivered),
        2 => Some(Outcome::Expired),
        3 => Some(Outcome::Replaced),
        4 => Some(Outcome::Cancelled),
        5 => Some(Outcome::Lost),
        _ => return Err(DecodeError::Invalid("outcome of a message")),
    })
}

pub(super) fn options(out: &mut Vec<u8>, options: &FlowOptions) {
    class(out, options.class);
    out.extend_from_slice(&[options.urgency.level(), options.weight]);
    time(out, Some(options.buffering));
    optional(out, options.group.map(u64::from));
    flag(out, options.redundant);
    number(out, options.queue);
}

pub(super) fn read_options(reader: &mut Reader<'_>) -> Result<FlowOptions, DecodeError> {
    Ok(FlowOptions {
        class: read_class(reader)?,
        urgency: snapshot::read_urgency(reader)?,
        weight: reader.byte()?,
        buffering: read_time(reader)?.unwrap_or_default(),
        group: match read_optional(reader)? {
            Some(group) => Some(u8::try_from(group).map_err(|_| DecodeError::Invalid("group of a flow"))?),
            None => None,
        },
        redundant: read_flag(reader)?,
        queue: reader.varint()?,
    })
}
