//! The frames of messages.

use super::{Frame, kind};
use crate::error::DecodeError;
use crate::flow::{Class, MAX_FLOWS, MAX_MESSAGE, Tag};
use crate::varint::{self, Reader};

const RELIABLE: u8 = 1;
const SEQUENCED: u8 = 2;
const TAGGED: u8 = 4;
const GROUPED: u8 = 8;

/// Where a message stands in its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The group.
    pub group: u8,
    /// Reliable messages of the group before it.
    pub epoch: u64,
    /// Unreliable messages of the group between the last reliable one and it.
    pub index: u64,
}

/// What is said of a message in each of its pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageHeader {
    /// The flow, below 1024.
    pub flow: u64,
    /// Its number in the flow.
    pub number: u64,
    /// The flow's class.
    pub class: Class,
    /// What the sender calls messages of its kind.
    pub tag: Option<Tag>,
    /// Its place in a group; of sequenced flows only.
    pub place: Option<Place>,
}

/// A message will not come, or not whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skip {
    /// Which message. Without a tag.
    pub header: MessageHeader,
    /// Its size, which was counted against credit.
    pub size: u64,
}

impl MessageHeader {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        varint::write(out, self.flow);
        varint::write(out, self.number);
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        out.push(
            flag(self.class.reliable, RELIABLE)
                | flag(self.class.sequenced, SEQUENCED)
                | flag(self.tag.is_some(), TAGGED)
                | flag(self.place.is_some(), GROUPED),
        );
        if let Some(Tag(tag)) = self.tag {
            varint::write(out, tag);
        }
        if let Some(place) = self.place {
            out.push(place.group);
            varint::write(out, place.epoch);
            varint::write(out, place.index);
        }
    }

    fn decode(b: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let flow = b.varint()?;
        if flow >= MAX_FLOWS {
            return Err(DecodeError::TooLarge("flow"));
        }
        let number = b.varint()?;
        let flags = b.byte()?;
        let is = |bit: u8| flags & bit != 0;
        let class = Class { reliable: is(RELIABLE), sequenced: is(SEQUENCED) };
        if flags & !(RELIABLE | SEQUENCED | TAGGED | GROUPED) != 0 || (is(GROUPED) && !class.sequenced) {
            return Err(DecodeError::Invalid("class of a message"));
        }
        let tag = if is(TAGGED) { Some(Tag(b.varint()?)) } else { None };
        let place = match is(GROUPED) {
            true => Some(Place { group: b.byte()?, epoch: b.varint()?, index: b.varint()? }),
            false => None,
        };
        Ok(Self { flow, number, class, tag, place })
    }
}

/// The size of a message, and where in it a piece begins.
pub(crate) fn put_extent(out: &mut Vec<u8>, size: u64, offset: u64) {
    varint::write(out, size);
    varint::write(out, offset);
}

fn size(b: &mut Reader<'_>) -> Result<u64, DecodeError> {
    match b.varint()? {
        size if size > MAX_MESSAGE => Err(DecodeError::TooLarge("size of a message")),
        size => Ok(size),
    }
}

pub(super) fn decode<'a>(of: u64, b: &mut Reader<'a>) -> Result<Frame<'a>, DecodeError> {
    let header = MessageHeader::decode(b)?;
    if of == kind::MESSAGE {
        let data = b.rest();
        return Ok(Frame::Message { header, size: data.len() as u64, offset: 0, data });
    }
    let size = size(b)?;
    if of == kind::SKIP {
        return Ok(Frame::Skip(Skip { header, size }));
    }
    let (offset, data) = (b.varint()?, b.rest());
    // A message without bytes has no pieces, and a piece without bytes brings nothing.
    if data.is_empty() || offset.checked_add(data.len() as u64).is_none_or(|end| end > size) {
        return Err(DecodeError::Invalid("extent of a message"));
    }
    Ok(Frame::Message { header, size, offset, data })
}
