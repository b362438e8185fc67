//! The attributes that messages of netlink consist of: a length, a kind and a value each.

/// A set of attributes is the value (NLA_F_NESTED of `linux/netlink.h`); with the bit beside it, no part of
/// the kind.
const NESTED: u16 = 1 << 15;
const KIND: u16 = !(NESTED | 1 << 14);
/// The length of an attribute without its value.
const HEADER: usize = 4;

/// The attributes in these bytes, up to the first one that is cut short.
pub(crate) fn attributes(bytes: &[u8]) -> Attributes<'_> {
    Attributes { rest: bytes }
}

/// The value of the first attribute of this kind.
pub(crate) fn attribute(bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    attributes(bytes).find(|(kind, _)| *kind == wanted).map(|(_, value)| value)
}

/// The number that is the value of the first attribute of this kind, of this length.
pub(crate) fn number_u32(bytes: &[u8], wanted: u16) -> Option<u32> {
    attribute(bytes, wanted)?.try_into().ok().map(u32::from_ne_bytes)
}

/// Iterates over attributes.
#[derive(Debug, Clone)]
pub(crate) struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let length = usize::from(u16::from_ne_bytes(*self.rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*self.rest.get(2..)?.first_chunk()?) & KIND;
        let value = self.rest.get(HEADER..length)?;
        self.rest = self.rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

/// Adds an attribute. Values are short: addresses, numbers and names.
pub(crate) fn put(bytes: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(HEADER + value.len()).unwrap_or(u16::MAX);
    bytes.extend_from_slice(&length.to_ne_bytes());
    bytes.extend_from_slice(&kind.to_ne_bytes());
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
}

/// Adds an attribute whose value is a set of attributes.
pub(crate) fn put_nested(bytes: &mut Vec<u8>, kind: u16, inner: &[u8]) {
    put(bytes, kind | NESTED, inner);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_found_again_and_padding_belongs_to_nothing() {
        let mut inner = Vec::new();
        put(&mut inner, 2, &[9]);
        put(&mut inner, 3, &7u32.to_ne_bytes());
        let mut bytes = Vec::new();
        put_nested(&mut bytes, 1, &inner);
        put(&mut bytes, 5, b"abcde");
        assert_eq!(bytes.len(), 4 + 16 + 12);
        let found: Vec<(u16, &[u8])> = attributes(&bytes).collect();
        assert_eq!(found, [(1, &inner[..]), (5, &b"abcde"[..])]);
        assert_eq!(attribute(attribute(&bytes, 1).unwrap(), 2), Some(&[9][..]));
        assert_eq!((number_u32(&inner, 3), number_u32(&inner, 2)), (Some(7), None));
    }

    #[test]
    fn whatever_the_bytes_are_reading_ends() {
        // Lengths that are none, too small, and too large; and what is cut anywhere.
        for length in [0u16, 1, 3, 4, 5, 8, 9, u16::MAX] {
            let mut bytes = length.to_ne_bytes().to_vec();
            bytes.extend_from_slice(&[1, 0, 7, 7, 7, 7]);
            for cut in 0..=bytes.len() {
                assert!(attributes(&bytes[..cut]).count() <= 2, "{length}, {cut}");
            }
        }
        assert_eq!(attributes(&[0xff; 64]).count(), 0);
        assert_eq!(attributes(&[0; 64]).count(), 0);
    }
}
