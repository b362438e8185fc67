//! Where another player can go on in a film, as a gateway tells a device.
//!
//! ```text
//! told = place (8), beginning (2 + n)
//! ```

use super::container::MOST_BEGINNING;
use std::io::{self, ErrorKind};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// A place at which another player can go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    /// The offset among all that the server sends.
    pub(super) place: u64,
    /// What the player must read first.
    pub(super) beginning: Vec<u8>,
}

impl Entry {
    /// What a device is told. Of no entry: one without a beginning.
    pub(super) fn told(entry: Option<&Self>) -> Vec<u8> {
        let (place, beginning) =
            entry.map_or((0, b"".as_slice()), |entry| (entry.place, &entry.beginning[..]));
        let length = u16::try_from(beginning.len()).unwrap_or(u16::MAX).to_be_bytes();
        [&place.to_be_bytes()[..], &length, beginning].concat()
    }

    /// Takes what was told from a stream, and not a byte of what follows it.
    pub(super) async fn read(from: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<Self>> {
        let place = from.read_u64().await?;
        let length = usize::from(from.read_u16().await?);
        if length > MOST_BEGINNING {
            let text = format!("a film's beginning of {length} bytes is longer than one may be");
            return Err(io::Error::new(ErrorKind::InvalidData, text));
        }
        let mut beginning = vec![0; length];
        from.read_exact(&mut beginning).await?;
        Ok((length > 0).then_some(Self { place, beginning }))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn what_is_told_of_an_entry_is_understood_and_what_follows_is_left() {
        for length in [1, MOST_BEGINNING] {
            let entry = Entry { place: 1 << 40, beginning: vec![7; length] };
            let told = Entry::told(Some(&entry));
            for cut in (0..told.len()).step_by(1 + length / 100) {
                assert!(Entry::read(&mut &told[..cut]).await.is_err(), "cut at {cut}");
            }
            let more = [&told[..], b"more"].concat();
            let mut stream = &more[..];
            assert_eq!(Entry::read(&mut stream).await.unwrap(), Some(entry));
            assert_eq!(stream, b"more");
        }
        assert_eq!(Entry::read(&mut &Entry::told(None)[..]).await.unwrap(), None);
        let long = [&[0_u8; 8][..], &[0xff, 0xff], &[0; 65_535]].concat();
        assert!(Entry::read(&mut &long[..]).await.is_err(), "longer than it may be");
    }
}
