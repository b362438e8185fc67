//! How long a certificate is valid.

/// The end of a certificate, as `YYYYMMDDHHMMSSZ`, which sorts as time goes (RFC 5280, §4.1.2.5). `None`: it
/// is no certificate.
pub(super) fn end(certificate: &[u8]) -> Option<String> {
    let certificate = Element::read(certificate)?.content;
    let mut rest = Element::read(certificate)?.content;
    // Version, serial number, algorithm, issuer.
    for _ in 0..4 {
        rest = Element::read(rest)?.rest;
    }
    let validity = Element::read(rest)?.content;
    let end = Element::read(Element::read(validity)?.rest)?;
    let text = str::from_utf8(end.content).ok()?;
    match end.tag {
        UTC_TIME => Some(format!("20{text}")),
        GENERALIZED_TIME => Some(text.to_owned()),
        _ => None,
    }
}

const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

/// An element of DER (X.690, §8.1).
struct Element<'a> {
    tag: u8,
    content: &'a [u8],
    /// What follows it.
    rest: &'a [u8],
}

impl<'a> Element<'a> {
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let (tag, bytes) = bytes.split_first()?;
        let (first, bytes) = bytes.split_first()?;
        let (length, bytes) = match *first {
            short @ 0..=0x7f => (usize::from(short), bytes),
            long @ 0x81..=0x84 => {
                let (length, bytes) = bytes.split_at_checked(usize::from(long & 0x7f))?;
                (length.iter().fold(0, |sum, byte| (sum << 8) | usize::from(*byte)), bytes)
            }
            _ => return None,
        };
        let (content, rest) = bytes.split_at_checked(length)?;
        Some(Self { tag: *tag, content, rest })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    #[test]
    fn the_end_of_a_certificate_is_read_and_nothing_else_is_taken_for_one() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["example.org".to_owned()]).unwrap();
        for (year, text) in [(2031, "20310203000000Z"), (2051, "20510203000000Z")] {
            params.not_after = date_time_ymd(year, 2, 3);
            let certificate = params.self_signed(&key).unwrap();
            assert_eq!(end(certificate.der()).as_deref(), Some(text));
            for length in 0..certificate.der().len() {
                assert_eq!(end(&certificate.der()[..length]), None, "cut after {length}");
            }
        }
        assert_eq!(end(&[0x30, 0x80, 0x30, 0x80]), None);
        assert_eq!(end(&[0x30, 0x84, 0xff, 0xff, 0xff, 0xff]), None);
    }

    proptest! {
        #[test]
        fn nothing_that_is_read_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = end(&bytes);
            let _ = end(&[&[0x30_u8, 0x40, 0x30, 0x3c][..], &bytes].concat());
        }
    }
}
