//! Whether parts of an object belong together (RFC 9110, §8.8, §14 and §15.3.7).

use hyper::header::{
    CONTENT_ENCODING, CONTENT_RANGE, DATE, ETAG, HeaderMap, HeaderName, HeaderValue, LAST_MODIFIED,
};
use std::time::{Duration, SystemTime};

/// A date is a strong validator only if the object had not changed for so long when it was sent. RFC 9110
/// asks for a second; RFC 7232 asked for a minute, which servers whose clocks are set now and then keep as
/// well.
const SETTLED: Duration = Duration::from_secs(60);

/// What says that two answers are of the same object, byte for byte.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Validator {
    field: HeaderName,
    value: HeaderValue,
    /// The content encodings. Another one has other bytes, whatever a server says of its versions.
    encodings: Vec<HeaderValue>,
}

impl Validator {
    /// The strong validator of an answer, if it has one.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        if let Some(value) = only(headers, &ETAG) {
            // `W/"…"` is of a kind that lets bytes differ.
            let is_strong = value.len() >= 2 && value.as_bytes().starts_with(b"\"");
            return is_strong.then(|| Self::new(ETAG, value, headers));
        }
        let value = only(headers, &LAST_MODIFIED)?;
        let changed = date(value)?;
        let sent = date(only(headers, &DATE)?)?;
        let is_settled = sent.duration_since(changed).is_ok_and(|age| age >= SETTLED);
        is_settled.then(|| Self::new(LAST_MODIFIED, value, headers))
    }

    fn new(field: HeaderName, value: &HeaderValue, headers: &HeaderMap) -> Self {
        Self { field, value: value.clone(), encodings: encodings(headers).cloned().collect() }
    }

    /// What goes in `If-Range`.
    pub(super) fn value(&self) -> &HeaderValue {
        &self.value
    }

    /// Whether an answer says that it is of the same object, in the same encoding. One that does not say so
    /// may be of another, even where RFC 9110 lets a part leave its date out.
    pub(super) fn is_of(&self, headers: &HeaderMap) -> bool {
        only(headers, &self.field) == Some(&self.value) && encodings(headers).eq(&self.encodings)
    }
    /// Whether an answer says anything of its version, right or wrong.
    pub(super) fn is_said(&self, headers: &HeaderMap) -> bool {
        headers.contains_key(&self.field)
    }
}

fn encodings(headers: &HeaderMap) -> impl Iterator<Item = &HeaderValue> {
    headers.get_all(CONTENT_ENCODING).iter()
}

/// The value of a field that is there once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

fn date(value: &HeaderValue) -> Option<SystemTime> {
    httpdate::parse_http_date(value.to_str().ok()?).ok()
}

/// Which bytes of an object an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub(super) first: u64,
    pub(super) last: u64,
    pub(super) total: u64,
}

impl Span {
    /// Reads `Content-Range: bytes 0-8191/100000`. `None`: there is none, or one that does not say
    /// everything.
    pub(super) fn of(headers: &HeaderMap) -> Option<Self> {
        let text = only(headers, &CONTENT_RANGE)?.to_str().ok()?;
        let (unit, rest) = text.split_once(' ')?;
        let (range, total) = rest.trim().split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let span = Self { first: number(first)?, last: number(last)?, total: number(total)? };
        let makes_sense =
            unit.eq_ignore_ascii_case("bytes") && span.first <= span.last && span.last < span.total;
        makes_sense.then_some(span)
    }

    /// How many bytes it has.
    pub(super) fn len(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// A number without a sign, which `parse` would take.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Reads bytes as fields of an answer that has a part of an object: each line as the value of the field that
/// its first byte stands for. For fuzzers.
pub fn read_anything(bytes: &[u8]) {
    let names = [CONTENT_RANGE, ETAG, LAST_MODIFIED, DATE, CONTENT_ENCODING];
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').take(16) {
        let Some((which, value)) = line.split_first() else { continue };
        let Ok(value) = HeaderValue::from_bytes(value) else { continue };
        headers.append(&names[usize::from(*which) % names.len()], value);
    }
    if let Some(span) = Span::of(&headers) {
        assert!((1..=span.total).contains(&span.len()), "a part is no longer than its object");
    }
    if let Some(validator) = Validator::of(&headers) {
        assert!(validator.is_said(&headers) && validator.is_of(&headers), "an answer is of its own object");
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    const NOON: &str = "Tue, 03 Mar 2026 12:00:00 GMT";
    const SOON: &str = "Tue, 03 Mar 2026 12:00:30 GMT";
    const LATER: &str = "Tue, 03 Mar 2026 12:01:00 GMT";

    #[test]
    fn only_strong_validators_count() {
        let of = |lines: &[(&'static str, &str)]| Validator::of(&headers(lines)).map(|one| one.value);
        assert_eq!(of(&[("etag", "\"a\"")]).unwrap(), "\"a\"");
        assert_eq!(of(&[("etag", "W/\"a\"")]), None);
        assert_eq!(of(&[("etag", "W/\"a\""), ("last-modified", NOON), ("date", LATER)]), None);
        assert_eq!(of(&[("etag", "\"a\""), ("etag", "\"b\"")]), None);
        assert_eq!(of(&[("last-modified", NOON), ("date", LATER)]).unwrap(), NOON);
        assert_eq!(of(&[("last-modified", NOON), ("date", SOON)]), None);
        assert_eq!(of(&[("last-modified", NOON)]), None);
        assert_eq!(of(&[("last-modified", "yesterday"), ("date", LATER)]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn a_part_belongs_to_the_object_only_if_its_validator_is_the_same() {
        let by_tag = Validator::of(&headers(&[("etag", "\"a\"")])).unwrap();
        assert!(by_tag.is_of(&headers(&[("etag", "\"a\"")])));
        assert!(!by_tag.is_of(&headers(&[("etag", "\"b\"")])));
        assert!(!by_tag.is_of(&headers(&[])));
        let by_date = Validator::of(&headers(&[("last-modified", NOON), ("date", LATER)])).unwrap();
        assert!(by_date.is_of(&headers(&[("last-modified", NOON)])));
        assert!(!by_date.is_of(&headers(&[])), "it does not say which version it is of");
        assert!(!by_date.is_of(&headers(&[("last-modified", SOON)])));
    }

    #[test]
    fn a_part_belongs_to_the_object_only_if_its_encoding_is_the_same() {
        let plain = Validator::of(&headers(&[("etag", "\"a\"")])).unwrap();
        assert!(!plain.is_of(&headers(&[("etag", "\"a\""), ("content-encoding", "gzip")])));
        let zipped = headers(&[("etag", "\"a\""), ("content-encoding", "gzip")]);
        let by_zipped = Validator::of(&zipped).unwrap();
        assert!(by_zipped.is_of(&zipped));
        assert!(!by_zipped.is_of(&headers(&[("etag", "\"a\"")])));
    }

    #[test]
    fn a_span_says_everything_or_is_none() {
        let of = |text: &str| Span::of(&headers(&[("content-range", text)]));
        assert_eq!(of("bytes 0-8191/100000"), Some(Span { first: 0, last: 8191, total: 100_000 }));
        assert_eq!(of("bytes 0-0/1").map(|span| span.len()), Some(1));
        for wrong in [
            "bytes 0-8191/*",
            "bytes */100",
            "bytes 5-4/100",
            "bytes 0-100/100",
            "bytes 0-+9/100",
            "lines 0-9/100",
            "0-9/100",
            "bytes 0-9",
            "",
            "bytes 0-99999999999999999999/999999999999999999999",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
        assert_eq!(Span::of(&headers(&[])), None);
    }

    proptest::proptest! {
        #[test]
        fn whatever_an_answer_says_of_a_part_is_read(
            lines in "(Abytes [0-9]{1,20}-[0-9]{1,20}/[0-9]{1,20}\n|[A-E][ -~]{0,12}\n){0,6}",
        ) {
            read_anything(lines.as_bytes());
        }
    }
}
