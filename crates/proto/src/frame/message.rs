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
    #[inline]
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

    #[inline]
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

/// A message, or a piece of one: far smaller than what a [`Frame`] has room for, and there are many.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece<'a> {
    /// Which one.
    pub(crate) header: MessageHeader,
    /// Bytes of the whole message.
    pub(crate) size: u64,
    /// Offset of the first byte.
    pub(crate) offset: u64,
    /// The bytes.
    pub(crate) data: &'a [u8],
}

/// Takes the next frame if it is a message or a piece of one. Another one stays, for
/// [`step`](super::step).
#[inline]
pub(crate) fn piece<'a>(reader: &mut Reader<'a>) -> Result<Option<Piece<'a>>, DecodeError> {
    if reader.is_empty() {
        return Ok(None);
    }
    let mut ahead = *reader;
    let of = ahead.varint()?;
    if of != kind::MESSAGE && of != kind::MESSAGE_PIECE {
        return Ok(None);
    }
    let mut body = Reader::new(ahead.prefixed()?);
    *reader = ahead;
    decode_piece(of, &mut body).map(Some)
}

#[inline]
fn decode_piece<'a>(of: u64, b: &mut Reader<'a>) -> Result<Piece<'a>, DecodeError> {
    let header = MessageHeader::decode(b)?;
    if of == kind::MESSAGE {
        let data = b.rest();
        return Ok(Piece { header, size: data.len() as u64, offset: 0, data });
    }
    let size = size(b)?;
    let (offset, data) = (b.varint()?, b.rest());
    // A message without bytes has no pieces, and a piece without bytes brings nothing.
    if data.is_empty() || offset.checked_add(data.len() as u64).is_none_or(|end| end > size) {
        return Err(DecodeError::Invalid("extent of a message"));
    }
    Ok(Piece { header, size, offset, data })
}

pub(super) fn decode<'a>(of: u64, b: &mut Reader<'a>) -> Result<Frame<'a>, DecodeError> {
    if of == kind::SKIP {
        let header = MessageHeader::decode(b)?;
        return Ok(Frame::Skip(Skip { header, size: size(b)? }));
    }
    let Piece { header, size, offset, data } = decode_piece(of, b)?;
    Ok(Frame::Message { header, size, offset, data })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::decode as decode_next;
    use super::*;

    fn message(size: u64, offset: u64, data: &[u8]) -> Frame<'_> {
        let class = Class::RELIABLE_SEQUENCED;
        let place = Some(Place { group: 3, epoch: 4, index: 0 });
        Frame::Message {
            header: MessageHeader { flow: 7, number: 300, class, tag: Some(Tag(9)), place },
            size,
            offset,
            data,
        }
    }

    #[test]
    fn a_message_and_a_piece_are_the_same_by_either_way() {
        for frame in [message(5, 0, b"whole"), message(0, 0, b""), message(900, 20, b"piece")] {
            let mut bytes = Vec::new();
            frame.encode(&mut bytes);
            let mut reader = Reader::new(&bytes);
            let Piece { header, size, offset, data } = piece(&mut reader).unwrap().unwrap();
            assert!(reader.is_empty());
            assert_eq!(Frame::Message { header, size, offset, data }, frame);
            assert_eq!(decode_next(&mut Reader::new(&bytes)), Ok(Some(frame)));
        }
    }

    #[test]
    fn a_type_may_be_written_longer_than_needed() {
        let mut bytes = Vec::new();
        message(5, 0, b"whole").encode(&mut bytes);
        assert_eq!(u64::from(bytes[0]), kind::MESSAGE);
        bytes[0] = 0x40;
        bytes.insert(1, kind::MESSAGE as u8);
        assert_eq!(piece(&mut Reader::new(&bytes)).unwrap().unwrap().data, b"whole");
    }

    #[test]
    fn other_frames_stay_where_they_are_and_a_broken_one_is_an_error() {
        let mut bytes = Vec::new();
        Frame::MaxMessages(5).encode(&mut bytes);
        let mut reader = Reader::new(&bytes);
        assert_eq!(piece(&mut reader), Ok(None));
        assert_eq!(reader.rest(), bytes);
        assert_eq!(piece(&mut Reader::new(&[])), Ok(None));
        let mut bytes = Vec::new();
        message(900, 20, b"piece").encode(&mut bytes);
        assert_eq!(piece(&mut Reader::new(&bytes[..bytes.len() - 1])), Err(DecodeError::Truncated));
        message(3, 2, b"beyond").encode(&mut bytes);
        let mut reader = Reader::new(&bytes);
        assert!(piece(&mut reader).is_ok_and(|piece| piece.is_some()));
        assert_eq!(piece(&mut reader), Err(DecodeError::Invalid("extent of a message")));
    }
}
