//! The head of a request or an answer.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};

/// The longest head that is read.
const LONGEST: u64 = 16 << 10;

/// A first line, and fields below it.
pub(super) struct Head(String);

impl Head {
    /// Reads one. `None`: nothing more comes.
    pub(super) async fn read(stream: &mut (impl AsyncBufRead + Unpin)) -> io::Result<Option<Self>> {
        let (mut text, mut left) = (String::new(), LONGEST);
        loop {
            let length = (&mut *stream).take(left).read_line(&mut text).await?;
            left -= length as u64;
            if length == 0 && text.is_empty() {
                return Ok(None);
            }
            if length == 0 || !text.ends_with('\n') {
                // It ends, or is longer than it may be.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            if length <= 2 && text.ends_with("\r\n\r\n") {
                return Ok(Some(Self(text)));
            }
        }
    }

    /// A word of the first line.
    pub(super) fn word(&self, number: usize) -> &str {
        let first = self.0.lines().next().unwrap_or_default();
        first.split(' ').nth(number).unwrap_or_default()
    }

    /// The value of a field, if it is there.
    pub(super) fn field(&self, name: &str) -> Option<&str> {
        let fields = self.0.lines().skip(1).filter_map(|line| line.split_once(':'));
        let mut named = fields.filter(|(field, _)| field.eq_ignore_ascii_case(name));
        named.next().map(|(_, value)| value.trim())
    }

    /// Whether the connection ends behind this message, as far as its head says.
    pub(super) fn closes(&self, version: &str) -> bool {
        let says =
            |what: &str| self.field("connection").is_some_and(|value| value.eq_ignore_ascii_case(what));
        says("close") || (version == "HTTP/1.0" && !says("keep-alive"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn heads_are_read_one_after_the_other() {
        let mut text = &b"GET /7 HTTP/1.1\r\nhost: a:80\r\nRange:bytes=1-\r\n\r\nGET / HTTP/1.0\r\n\r\nx"[..];
        let head = Head::read(&mut text).await.unwrap().unwrap();
        assert_eq!((head.word(0), head.word(1)), ("GET", "/7"));
        assert_eq!((head.field("Host"), head.field("range")), (Some("a:80"), Some("bytes=1-")));
        assert!(!head.closes(head.word(2)) && head.field("etag").is_none());
        let head = Head::read(&mut text).await.unwrap().unwrap();
        assert!(head.closes(head.word(2)));
        assert!(Head::read(&mut text).await.is_err(), "it does not end");
        assert!(Head::read(&mut &b""[..]).await.unwrap().is_none());
        // Also where a line ends just there.
        for line in ["a: b\r\n", "a: bcd\r\n"] {
            assert!(Head::read(&mut line.repeat(10_000).as_bytes()).await.is_err());
        }
    }
}
