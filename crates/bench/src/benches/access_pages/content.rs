//! What objects are made of: an image that browsers know as one, and bytes that tell where they belong.

/// A PNG of one pixel. Browsers do not mind what follows it.
const PNG: [u8; 67] = [
    0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a, 0x00, 0x00, 0x00, 0x0d, 0x49, 0x48, 0x44, 0x52, 0x00,
    0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x01, 0x08, 0x00, 0x00, 0x00, 0x00, 0x3a, 0x7e, 0x9b, 0x55, 0x00,
    0x00, 0x00, 0x0a, 0x49, 0x44, 0x41, 0x54, 0x78, 0xda, 0x63, 0x60, 0x00, 0x00, 0x00, 0x02, 0x00, 0x01,
    0xe5, 0x27, 0xde, 0xfc, 0x00, 0x00, 0x00, 0x00, 0x49, 0x45, 0x4e, 0x44, 0xae, 0x42, 0x60, 0x82,
];
/// No object is smaller.
pub(super) const LEAST: u64 = 100;

/// The path of an object: its size and its number.
pub(super) fn object_path(number: u16, bytes: u64) -> String {
    format!("/o/{bytes}/{number}")
}

/// The size and number that a path says.
pub(super) fn object_of(path: &str) -> Option<(u64, u16)> {
    let (bytes, number) = path.strip_prefix("/o/")?.split_once('/')?;
    Some((bytes.parse().ok()?, number.parse().ok()?))
}

/// The byte of an object at a place.
pub(super) fn byte(number: u16, at: u64) -> u8 {
    match PNG.get(at as usize) {
        Some(byte) => *byte,
        None => ((at.wrapping_mul(2_654_435_761) >> 13) as u8).wrapping_add(number as u8),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_says_size_and_number() {
        assert_eq!(object_of(&object_path(7, 1000)), Some((1000, 7)));
        assert_eq!(object_of("/o/1000"), None);
    }
}
