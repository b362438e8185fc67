//! z-base-32, the base-32 alphabet made for people (Zooko O'Whielacronx, "human-oriented base-32 encoding").
//!
//! Five bits a character, most significant first; the last character is filled up with zero bits. Decoding is
//! strict: lower case only, and the fill must be zero, so a byte string has exactly one text.

const ALPHABET: &[u8; 32] = b"ybndrfg8ejkmcpqxot1uwisza345h769";

/// Why a text is not z-base-32.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Z32Error {
    /// This character is not in the alphabet.
    Character(char),
    /// The number of characters belongs to no whole number of bytes, or to too many, or the fill bits are not
    /// zero.
    Length,
}

/// Encodes bytes.
pub(crate) fn encode(bytes: &[u8]) -> String {
    let mut text = String::with_capacity((bytes.len() * 8).div_ceil(5));
    let (mut bits, mut held) = (0u32, 0u32);
    for byte in bytes {
        bits = (bits << 8) | u32::from(*byte);
        held += 8;
        while held >= 5 {
            held -= 5;
            text.push(symbol(bits >> held));
        }
        bits &= (1 << held) - 1;
    }
    if held > 0 {
        text.push(symbol(bits << (5 - held)));
    }
    text
}

/// Decodes text. The caller bounds the length of the text.
pub(crate) fn decode(text: &str) -> Result<Vec<u8>, Z32Error> {
    let mut bytes = Vec::with_capacity(text.len() * 5 / 8);
    let (mut bits, mut held) = (0u32, 0u32);
    for character in text.chars() {
        bits = (bits << 5) | value(character).ok_or(Z32Error::Character(character))?;
        held += 5;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    // Five or more bits left over would be a character that adds nothing.
    if held >= 5 || bits != 0 {
        return Err(Z32Error::Length);
    }
    Ok(bytes)
}

/// Decodes text of so many bytes at most. A longer one is refused before it is decoded, so that it costs
/// nothing.
pub(crate) fn decode_at_most(text: &str, most: usize) -> Result<Vec<u8>, Z32Error> {
    if text.len() > (most * 8).div_ceil(5) {
        return Err(Z32Error::Length);
    }
    decode(text)
}

fn symbol(bits: u32) -> char {
    char::from(ALPHABET[(bits & 31) as usize])
}

fn value(character: char) -> Option<u32> {
    let byte = u8::try_from(character).ok()?;
    ALPHABET.iter().position(|symbol| *symbol == byte).map(|position| position as u32)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_answers() {
        // From the z-base-32 document and the libbase32 test suite.
        assert_eq!(encode(&[]), "");
        assert_eq!(encode(&[0xf0, 0xbf, 0xc7]), "6n9hq");
        assert_eq!(encode(&[0xd4, 0x7a, 0x04]), "4t7ye");
        assert_eq!(encode(&[0xff]), "9h");
        assert_eq!(decode("6n9hq").unwrap(), [0xf0, 0xbf, 0xc7]);
    }

    #[test]
    fn only_one_text_for_the_same_bytes() {
        assert_eq!(decode("99"), Err(Z32Error::Length), "fill bits must be zero");
        assert_eq!(decode("9hy"), Err(Z32Error::Length), "a character that adds nothing");
        assert_eq!(decode("9H"), Err(Z32Error::Character('H')));
        assert_eq!(decode("9é"), Err(Z32Error::Character('é')));
    }

    #[test]
    fn a_text_of_more_bytes_than_may_be_is_refused() {
        let bytes = [7; 11];
        let text = encode(&bytes);
        assert_eq!(decode_at_most(&text, 11).unwrap(), bytes);
        assert_eq!(decode_at_most(&text, 10), Err(Z32Error::Length));
        assert_eq!(decode_at_most(&encode(&bytes[..10]), 10).unwrap(), bytes[..10]);
    }

    proptest! {
        #[test]
        fn round_trip(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decode(&encode(&bytes)).unwrap(), bytes);
        }

        #[test]
        fn what_decodes_is_canonical(text in "[ybndrfg8ejkmcpqxot1uwisza345h769]{0,60}") {
            if let Ok(bytes) = decode(&text) {
                prop_assert_eq!(encode(&bytes), text);
            }
        }
    }
}
