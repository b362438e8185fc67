//! The adapter for HTTP: a program that asks anew gets the rest of what another one was given.

use super::entry::Entry;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// The longest head of a request.
const LONGEST: usize = 16 * 1024;
/// For a program to say what it wants.
const LIMIT: Duration = Duration::from_secs(30);
/// What is said of the rest as it was of the whole.
const KEPT: [&str; 4] = ["content-type", "etag", "last-modified", "content-encoding"];

/// The rest of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rest {
    /// What the program gets first.
    pub(super) head: Vec<u8>,
    /// So many bytes of the session are not for it: they are the end of the first program's head.
    pub(super) skip: u64,
}

/// Why there is no rest of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoRest {
    /// The server's first words are no head of HTTP/1.
    #[error("the session's server does not speak HTTP/1; take it as raw bytes")]
    NotHttp,
    /// It is cut in chunks, or no body.
    #[error("the answer that is under way is cut in chunks or has no body; take it as raw bytes")]
    Unknown,
    /// The first answer was over before.
    #[error("the answer that is under way is not the session's first; take it as raw bytes")]
    Later,
    /// It is no film, or a player cannot go on in it.
    #[error(
        "the answer that is under way is no film that can be entered in the middle (WebM, Matroska, MP4 in \
         fragments, MPEG transport stream), or where is not known yet; try again, or take it as http"
    )]
    NoEntry,
    /// The program asks otherwise.
    #[error("the program asks for something else than what is under way: a GET, of all or of the rest")]
    Asked,
}

impl NoRest {
    /// What a program is told.
    pub fn answer(self) -> Vec<u8> {
        let status = if self == Self::Asked { "416 Range Not Satisfiable" } else { "502 Bad Gateway" };
        let text = format!("{self}\n");
        let length = text.len();
        format!(
            "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}"
        )
        .into_bytes()
    }
}

impl Rest {
    /// From an offset in what the server said, which began with this head, for a program that said this.
    pub(crate) fn new(head: &[u8], offset: u64, request: &[u8]) -> Result<Self, NoRest> {
        let answer = Head::new(head).ok_or(NoRest::NotHttp)?;
        let request = Head::of_get(request)?;
        let done = offset.saturating_sub(head.len() as u64);
        let whole = Whole::of(&answer)?;
        if whole.length.is_some_and(|length| done > length) {
            return Err(NoRest::Later);
        }
        let lines = whole.lines(done, request.field("range"))?;
        let kept = answer.fields().filter(|(name, _)| KEPT.contains(&name.to_ascii_lowercase().as_str()));
        let kept: String = kept.map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let head = format!("{lines}{kept}Connection: close\r\n\r\n").into_bytes();
        Ok(Self { head, skip: (answer.length as u64).saturating_sub(offset) })
    }

    /// What the program gets first, where nothing of the session is to be left out.
    pub(crate) fn into_head(self) -> Vec<u8> {
        self.head
    }

    /// From where a player can go on in a film, for one that said this: what it must read first, and then the
    /// rest from there on. The session's bytes come from this offset on.
    pub(super) fn by_time(
        head: &[u8],
        offset: u64,
        entry: Option<&Entry>,
        request: &[u8],
    ) -> Result<Self, NoRest> {
        let answer = Head::new(head).ok_or(NoRest::NotHttp)?;
        let request = Head::of_get(request)?;
        // Players begin with a range of all. There are no others: what it gets is not in the server's file.
        if request.field("range").is_some_and(|range| range != "bytes=0-") {
            return Err(NoRest::Asked);
        }
        let whole = Whole::of(&answer)?;
        let Entry { place, beginning } = entry.ok_or(NoRest::NoEntry)?;
        let done = place.checked_sub(head.len() as u64).ok_or(NoRest::NoEntry)?;
        let skip = place.checked_sub(offset).ok_or(NoRest::NoEntry)?;
        let left = whole.length.map(|length| length.checked_sub(done).ok_or(NoRest::Later)).transpose()?;
        let length =
            left.map(|left| format!("Content-Length: {}\r\n", left.saturating_add(beginning.len() as u64)));
        let kind = answer.field("content-type").map(|kind| format!("Content-Type: {kind}\r\n"));
        let [length, kind] = [length, kind].map(Option::unwrap_or_default);
        let head =
            format!("HTTP/1.1 200 OK\r\n{length}{kind}Accept-Ranges: none\r\nConnection: close\r\n\r\n");
        Ok(Self { head: [head.as_bytes(), beginning].concat(), skip })
    }
}

/// Where an object is among what a server says that begins with this head. `None` if it says only a part of
/// one, or in another form.
pub(super) fn object(head: &[u8]) -> Option<Range<u64>> {
    let answer = Head::new(head)?;
    let whole = Whole::of(&answer).ok()?;
    let is_plain =
        answer.field("content-encoding").is_none_or(|coding| coding.eq_ignore_ascii_case("identity"));
    let start = head.len() as u64;
    let end = whole.length.map_or(u64::MAX, |length| start.saturating_add(length));
    (is_plain && whole.start == 0).then_some(start..end)
}

/// What an answer was of.
struct Whole {
    /// Of its body; not known where that ends with the connection.
    length: Option<u64>,
    /// Where that begins in the object.
    start: u64,
    /// Of the object.
    total: Option<u64>,
}

impl Whole {
    fn of(answer: &Head<'_>) -> Result<Self, NoRest> {
        let status = answer.first.split(' ').nth(1).unwrap_or_default();
        if answer.field("transfer-encoding").is_some() || !matches!(status, "200" | "206") {
            return Err(NoRest::Unknown);
        }
        let length = answer.field("content-length").map(|text| number(text).ok_or(NoRest::Unknown));
        let length = length.transpose()?;
        if status == "200" {
            return Ok(Self { length, start: 0, total: length });
        }
        // `bytes 100-199/1000`, or `/*` at its end.
        let range = answer.field("content-range").and_then(|text| text.strip_prefix("bytes "));
        let (range, total) = range.and_then(|text| text.split_once('/')).ok_or(NoRest::Unknown)?;
        let start = range.split_once('-').and_then(|(start, _)| number(start)).ok_or(NoRest::Unknown)?;
        Ok(Self { length, start, total: number(total) })
    }

    /// The first lines of a head for what remains after so many bytes of the body.
    fn lines(&self, done: u64, range: Option<&str>) -> Result<String, NoRest> {
        let left = self.length.map(|length| length - done);
        let length = left.map(|left| format!("Content-Length: {left}\r\n")).unwrap_or_default();
        let Some(range) = range else { return Ok(format!("HTTP/1.1 200 OK\r\n{length}")) };
        let at = self.start.checked_add(done).ok_or(NoRest::Unknown)?;
        let asked = range.strip_prefix("bytes=").and_then(|text| text.strip_suffix('-')).and_then(number);
        match (asked, left, self.total) {
            // Players begin so, to learn whether there are ranges.
            (Some(0), ..) => Ok(format!("HTTP/1.1 200 OK\r\n{length}")),
            (Some(asked), Some(left @ 1..), Some(total)) if asked == at => {
                let last = at.checked_add(left - 1).ok_or(NoRest::Unknown)?;
                Ok(format!(
                    "HTTP/1.1 206 Partial Content\r\n{length}Content-Range: bytes {at}-{last}/{total}\r\n"
                ))
            }
            _ => Err(NoRest::Asked),
        }
    }
}

/// A number as HTTP writes it: `parse` would take a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// The head of a message of HTTP/1.
struct Head<'a> {
    first: &'a str,
    rest: &'a str,
    length: usize,
}

impl<'a> Head<'a> {
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let text = str::from_utf8(bytes).ok()?.strip_suffix("\r\n\r\n")?;
        let (first, rest) = text.split_once("\r\n").unwrap_or((text, ""));
        first.contains("HTTP/1.").then_some(Self { first, rest, length: bytes.len() })
    }

    /// Of a request to get something.
    fn of_get(bytes: &'a [u8]) -> Result<Self, NoRest> {
        Self::new(bytes).filter(|request| request.first.starts_with("GET ")).ok_or(NoRest::Asked)
    }

    fn fields(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let lines = self.rest.split("\r\n").filter_map(|line| line.split_once(':'));
        lines.map(|(name, value)| (name, value.trim()))
    }

    fn field(&self, wanted: &str) -> Option<&'a str> {
        self.fields().find(|(name, _)| name.eq_ignore_ascii_case(wanted)).map(|(_, value)| value)
    }
}

/// Reads the head of a program's request.
///
/// # Errors
/// When it does not come in time, is too long, or something follows it.
pub async fn read_request(program: &mut (impl AsyncRead + Unpin)) -> io::Result<Vec<u8>> {
    let reading = async {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= LONGEST || head.windows(4).any(|four| four == b"\r\n\r\n") {
                return Err(io::Error::new(ErrorKind::InvalidData, "this is no GET of HTTP/1"));
            }
            let mut some = (&mut *program).take((LONGEST - head.len()) as u64);
            if some.read_buf(&mut head).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(head)
    };
    tokio::time::timeout(LIMIT, reading).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// Reads bytes as the head of an answer, and those behind it as that of a program's request for the rest. For
/// fuzzers.
pub fn read_anything(bytes: &[u8]) {
    const END: &[u8] = b"\r\n\r\n";
    let Some(end) = bytes.windows(END.len()).position(|four| four == END) else { return };
    let (head, request) = bytes.split_at(end + END.len());
    let length = head.len() as u64;
    for offset in [0, length, length.saturating_add(request.len() as u64), u64::MAX] {
        let entry = Entry { place: offset, beginning: b"film".to_vec() };
        let by_time = Rest::by_time(head, offset, Some(&entry), request);
        assert!(by_time.is_err() || offset >= length, "no player goes on in a head");
        let Ok(rest) = Rest::new(head, offset, request) else { continue };
        assert!(rest.skip <= length, "nothing of the body is left out");
        let ends = rest.head.windows(END.len()).filter(|four| *four == END).count();
        assert!(ends == 1 && Head::new(&rest.head).is_some(), "a program gets one head");
    }
    if let Some(object) = object(head) {
        assert!(object.start == length && object.end >= length, "an object is behind its head");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const GET: &[u8] = b"GET /film HTTP/1.1\r\nHost: x\r\n\r\n";
    const HEAD: &[u8] =
        b"HTTP/1.0 200 OK\r\nServer: x\r\nContent-type: video/mp4\r\nContent-Length: 1000\r\n\r\n";

    fn rest(head: &[u8], body: i64, request: &[u8]) -> Result<(String, u64), NoRest> {
        let offset = (head.len() as i64 + body) as u64;
        Rest::new(head, offset, request).map(|rest| (String::from_utf8(rest.head).unwrap(), rest.skip))
    }

    fn with(range: &str) -> Vec<u8> {
        format!("GET / HTTP/1.1\r\nRange: {range}\r\n\r\n").into_bytes()
    }

    #[test]
    fn the_rest_has_its_own_length_and_the_wholes_kind() {
        let expected =
            "HTTP/1.1 200 OK\r\nContent-Length: 600\r\nContent-type: video/mp4\r\nConnection: close\r\n\r\n";
        assert_eq!(rest(HEAD, 400, GET).unwrap(), (expected.to_owned(), 0));
        let (head, skip) = rest(HEAD, -5, GET).unwrap();
        assert!(head.contains("Content-Length: 1000\r\n"));
        assert_eq!(skip, 5, "the end of the head is not the body's beginning");
        assert!(rest(HEAD, 1000, GET).unwrap().0.contains("Content-Length: 0\r\n"));
        // A body that ends with its connection has no length.
        let endless = rest(b"HTTP/1.0 200 OK\r\n\r\n", 10, GET).unwrap().0;
        assert_eq!(endless, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n");
    }

    #[test]
    fn a_range_is_given_if_it_is_the_rest_and_refused_if_not() {
        let (head, _) = rest(HEAD, 400, &with("bytes=400-")).unwrap();
        assert!(head.starts_with("HTTP/1.1 206 "), "{head}");
        assert!(head.contains("Content-Length: 600\r\nContent-Range: bytes 400-999/1000\r\n"), "{head}");
        assert!(rest(HEAD, 400, &with("bytes=0-")).unwrap().0.starts_with("HTTP/1.1 200 OK\r\n"));
        for other in ["bytes=399-", "bytes=400-500", "bytes=-5", "bytes=+400-", "lines=400-", ""] {
            assert_eq!(rest(HEAD, 400, &with(other)), Err(NoRest::Asked), "{other}");
        }
        assert_eq!(rest(HEAD, 1000, &with("bytes=1000-")), Err(NoRest::Asked), "nothing is left");
        let part = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 100\r\nContent-Range: bytes 300-399/1000\r\n\r\n";
        let (head, _) = rest(part, 40, &with("bytes=340-")).unwrap();
        assert!(head.contains("Content-Range: bytes 340-399/1000\r\n"), "{head}");
    }

    #[test]
    fn what_is_no_answer_with_a_rest_is_refused() {
        assert_eq!(rest(b"", 0, GET), Err(NoRest::NotHttp));
        assert_eq!(rest(HEAD, 1001, GET), Err(NoRest::Later));
        for unknown in [
            &b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"[..],
            b"HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: +5\r\n\r\n",
            b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\n\r\n",
        ] {
            assert_eq!(rest(unknown, 0, GET), Err(NoRest::Unknown));
        }
        let end = u64::MAX;
        for range in [format!("{end}-{end}/{end}"), format!("{}-{end}/{end}", end - 1)] {
            let far =
                format!("HTTP/1.1 206 Part\r\nContent-Length: 9\r\nContent-Range: bytes {range}\r\n\r\n");
            assert_eq!(rest(far.as_bytes(), 1, &with(&format!("bytes={end}-"))), Err(NoRest::Unknown));
        }
        for asked in [&b"POST / HTTP/1.1\r\n\r\n"[..], b"GET /\r\n\r\n", b"GET / HTTP/1.1\r\n"] {
            assert_eq!(rest(HEAD, 1, asked), Err(NoRest::Asked));
        }
        assert!(NoRest::Asked.answer().starts_with(b"HTTP/1.1 416 "));
        assert!(NoRest::Later.answer().starts_with(b"HTTP/1.1 502 "));
    }

    #[test]
    fn a_player_gets_what_it_must_read_first_and_the_rest_of_a_film_from_a_place_on() {
        let begin = HEAD.len() as u64;
        let entry = Entry { place: begin + 300, beginning: b"tracks".to_vec() };
        let by_time = |offset: u64, request: &[u8]| Rest::by_time(HEAD, offset, Some(&entry), request);
        let expected = "HTTP/1.1 200 OK\r\nContent-Length: 706\r\nContent-Type: video/mp4\r\n\
                        Accept-Ranges: none\r\nConnection: close\r\n\r\ntracks";
        for request in [GET.to_vec(), with("bytes=0-")] {
            let rest = by_time(begin + 300, &request).unwrap();
            assert_eq!((str::from_utf8(&rest.head).unwrap(), rest.skip), (expected, 0));
        }
        assert_eq!(by_time(begin + 290, GET).unwrap().skip, 10, "what is before the place is not for it");
        for other in ["bytes=300-", "bytes=0-9"] {
            assert_eq!(by_time(begin + 300, &with(other)), Err(NoRest::Asked));
        }
        assert_eq!(by_time(begin + 301, GET), Err(NoRest::NoEntry), "that does not come");
        assert_eq!(Rest::by_time(HEAD, begin, None, GET), Err(NoRest::NoEntry));
        let early = Entry { place: begin - 1, ..entry.clone() };
        assert_eq!(Rest::by_time(HEAD, 0, Some(&early), GET), Err(NoRest::NoEntry));
        let late = Entry { place: begin + 1001, ..entry.clone() };
        assert_eq!(Rest::by_time(HEAD, begin, Some(&late), GET), Err(NoRest::Later));
        let endless = b"HTTP/1.0 200 OK\r\n\r\n";
        let rest = Rest::by_time(endless, begin + 300, Some(&entry), GET).unwrap();
        assert!(!String::from_utf8(rest.head).unwrap().contains("Content-Length"));
    }

    #[tokio::test]
    async fn a_request_is_read_to_its_end_and_what_is_none_is_refused() {
        assert_eq!(read_request(&mut &GET[..]).await.unwrap(), GET);
        let more = [GET, b"x"].concat();
        assert!(read_request(&mut &more[..]).await.is_err());
        assert!(read_request(&mut &GET[..9]).await.is_err());
        assert!(read_request(&mut &vec![b'x'; 2 * LONGEST][..]).await.is_err());
    }

    /// A field of an answer.
    const FIELD: &str = "Content-Length: [0-9]{1,20}|ETag: [ -~]{0,20}|[ -~]{1,20}|\
                         Content-Range: bytes [0-9]{1,20}-[0-9]{1,20}/([0-9]{1,20}|\\*)";

    proptest::proptest! {
        #[test]
        fn a_program_gets_one_head_whatever_a_server_says(
            status in "(200 OK|206 Partial Content|404 Not Found)",
            fields in proptest::collection::vec(FIELD, 0..5),
            asked in "(Range: bytes=[0-9]{1,20}-\r\n)?",
        ) {
            let fields: String = fields.iter().map(|field| format!("{field}\r\n")).collect();
            let answer = format!("HTTP/1.1 {status}\r\n{fields}\r\n");
            read_anything(format!("{answer}GET / HTTP/1.1\r\n{asked}\r\n").as_bytes());
        }
    }
}
