//! What another device needs to ask a server for the rest of an object.

use super::fields;
use super::moving::Sent;
use super::validator::{Span, Validator};
use crate::{BadDestination, Destination};
use http_body_util::{Either, Empty};
use hyper::header::{
    CONTENT_ENCODING, CONTENT_LENGTH, DATE, ETAG, HOST, HeaderMap, HeaderName, HeaderValue, IF_MATCH,
    IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, IF_UNMODIFIED_SINCE, LAST_MODIFIED, RANGE, VIA,
};
use hyper::{Request, StatusCode, Uri};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// What a request says of its own range and of versions, or of who passed it on: the next one says it anew.
static NOT_KEPT: [HeaderName; 9] = [
    HOST,
    RANGE,
    IF_RANGE,
    IF_MATCH,
    IF_NONE_MATCH,
    IF_MODIFIED_SINCE,
    IF_UNMODIFIED_SINCE,
    VIA,
    CONTENT_LENGTH,
];
/// What an answer says of the version.
static OF_THE_VERSION: [HeaderName; 4] = [ETAG, LAST_MODIFIED, DATE, CONTENT_ENCODING];

/// Fields of a head.
type Fields = Vec<(String, Vec<u8>)>;

/// An object that a program gets over HTTPS which ended in its proxy, and how much of it the program has. It
/// is for the device alone that the user hands it to: what the program said to the server to be known by it,
/// such as cookies, is in it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WebObject {
    host: String,
    port: u16,
    /// Path and query.
    path: String,
    /// Of the request.
    said: Fields,
    /// Of the answer: its version.
    version: Fields,
    /// What was asked for, among all bytes of the object.
    start: u64,
    end: u64,
    total: u64,
    /// The first byte that the program does not have.
    at: u64,
}

/// Without what the program said to the server.
impl fmt::Debug for WebObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, at, end, total, .. } = self;
        write!(f, "WebObject(https://{host}:{port}, {at} to {end} of {total})")
    }
}

/// Whether this is of all objects that another device can ask for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the other device says something that is no object of HTTPS")]
pub(super) struct NoObject;

impl From<BadDestination> for NoObject {
    fn from(_: BadDestination) -> Self {
        Self
    }
}

impl WebObject {
    /// One that was asked for by this, and of which these bytes come. `None`: no answer's version is known.
    pub(super) fn new(
        (to, path, request): (&Destination, &str, &HeaderMap),
        answer: &HeaderMap,
        bytes: Range<u64>,
        total: u64,
    ) -> Option<Self> {
        Validator::of(answer)?;
        let mut request = request.clone();
        fields::remove_of_the_connection(&mut request);
        let said = request.iter().filter(|(name, _)| !NOT_KEPT.contains(name)).map(kept).collect();
        let version = answer.iter().filter(|(name, _)| OF_THE_VERSION.contains(name)).map(kept).collect();
        let (host, port, path) = (to.host().to_owned(), to.port(), path.to_owned());
        Some(Self {
            host,
            port,
            path,
            said,
            version,
            start: bytes.start,
            end: bytes.end,
            total,
            at: bytes.start,
        })
    }

    /// So many bytes later. `None`: nothing is left.
    pub(super) fn after(mut self, passed: u64) -> Option<Self> {
        self.advance(passed).then_some(self)
    }

    /// So many bytes have come. Returns whether something is left.
    pub(super) fn advance(&mut self, passed: u64) -> bool {
        self.at = self.at.saturating_add(passed);
        self.left() > 0
    }

    /// How many bytes are missing.
    pub(super) fn left(&self) -> u64 {
        self.end.saturating_sub(self.at)
    }

    /// Where it is shown to people: without the query, which may have secrets.
    pub(super) fn shown(to: &Destination, path: &str) -> String {
        let path = path.split('?').next().unwrap_or_default();
        match to.port() {
            443 => format!("https://{}{path}", to.host()),
            _ => format!("https://{to}{path}"),
        }
    }

    /// The first byte that is missing.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Where it is, for people.
    pub fn place(&self) -> String {
        match self.to() {
            Ok(to) => Self::shown(&to, &self.path),
            Err(NoObject) => "nowhere".to_owned(),
        }
    }

    /// Its server.
    pub(super) fn to(&self) -> Result<Destination, NoObject> {
        Ok(Destination::new(&self.host, self.port)?)
    }

    /// How its server is asked for what is missing.
    pub(super) fn request(&self) -> Result<Request<Sent>, NoObject> {
        let to = self.to()?;
        let mut request = Request::new(Either::Right(Empty::new()));
        let path = self.path.starts_with('/').then(|| self.path.parse::<Uri>().ok()).flatten();
        *request.uri_mut() = path.ok_or(NoObject)?;
        let headers = request.headers_mut();
        read(&self.said, headers)?;
        // Whatever was said of these, is not for another device to say.
        NOT_KEPT.iter().for_each(|name| drop(headers.remove(name)));
        fields::remove_of_the_connection(headers);
        fields::join_cookies(headers);
        let host = match (to.port(), to.host()) {
            (443, host) if host.contains(':') => format!("[{host}]"),
            (443, host) => host.to_owned(),
            _ => to.to_string(),
        };
        if !(self.start <= self.at && self.at < self.end && self.end <= self.total) {
            return Err(NoObject);
        }
        let range = format!("bytes={}-{}", self.at, self.end - 1);
        for (name, value) in [(HOST, host), (RANGE, range)] {
            headers.insert(name, HeaderValue::try_from(value).map_err(|_| NoObject)?);
        }
        headers.insert(IF_RANGE, self.validator()?.value().clone());
        Ok(request)
    }

    fn validator(&self) -> Result<Validator, NoObject> {
        let mut version = HeaderMap::new();
        read(&self.version, &mut version)?;
        Validator::of(&version).ok_or(NoObject)
    }

    /// What an answer to that is.
    pub(super) fn judge(&self, status: StatusCode, headers: &HeaderMap) -> Result<Judged, NoObject> {
        let is_same = self.validator()?.is_of(headers);
        Ok(match status {
            StatusCode::PARTIAL_CONTENT => {
                let rest = Span { first: self.at, last: self.end - 1, total: self.total };
                if is_same && Span::of(headers) == Some(rest) { Judged::Rest } else { Judged::Changed }
            }
            StatusCode::OK if is_same => Judged::Whole,
            StatusCode::OK
            | StatusCode::RANGE_NOT_SATISFIABLE
            | StatusCode::PRECONDITION_FAILED
            | StatusCode::NOT_FOUND
            | StatusCode::GONE => Judged::Changed,
            status => Judged::Other(status),
        })
    }

    /// The head with which its server may have answered the first program: what a program that asks anew is
    /// answered, is said after that. How many bytes of the body are behind it.
    pub(super) fn first_head(&self, rest: &HeaderMap) -> (Vec<u8>, u64) {
        let length = self.end - self.start;
        let first = match length == self.total {
            true => "HTTP/1.1 200 OK\r\n".to_owned(),
            false => format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {}-{}/{}\r\n",
                self.start,
                self.end - 1,
                self.total
            ),
        };
        let mut head = format!("{first}Content-Length: {length}\r\n");
        for (name, value) in rest {
            // Those of the whole; what has other letters is left out.
            if let (true, Ok(value)) =
                (*name != CONTENT_LENGTH && !name.as_str().contains("range"), value.to_str())
            {
                head.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        head.push_str("\r\n");
        (head.into_bytes(), self.at - self.start)
    }
}

/// An answer to who asks for the rest.
pub(super) enum Judged {
    /// It is that.
    Rest,
    /// It is all of the object: there are no parts.
    Whole,
    /// It is of another object, or does not say which.
    Changed,
    /// The server does not want to.
    Other(StatusCode),
}

fn kept((name, value): (&HeaderName, &HeaderValue)) -> (String, Vec<u8>) {
    (name.as_str().to_owned(), value.as_bytes().to_vec())
}

fn read(fields: &Fields, into: &mut HeaderMap) -> Result<(), NoObject> {
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| NoObject)?;
        let value = HeaderValue::from_bytes(value).map_err(|_| NoObject)?;
        into.try_append(name, value).map_err(|_| NoObject)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        lines.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    const TAG: (&str, &str) = ("etag", "\"a\"");

    fn object() -> WebObject {
        let to = Destination::new("example.org", 443).unwrap();
        let request = headers(&[
            ("host", "example.org"),
            ("cookie", "a=b"),
            ("range", "bytes=0-"),
            ("if-none-match", "\"x\""),
            ("proxy-authorization", "secret"),
            ("via", "1.1 whimbrel"),
            ("accept-encoding", "gzip"),
        ]);
        WebObject::new((&to, "/film?token=x", &request), &headers(&[TAG]), 0..1000, 1000).unwrap()
    }

    #[test]
    fn the_rest_of_an_object_is_asked_for_as_the_object_was_and_by_its_version() {
        let object = object().after(400).unwrap();
        let request = object.request().unwrap();
        assert_eq!(request.uri(), "/film?token=x");
        let said = request.headers();
        let expected = headers(&[
            ("host", "example.org"),
            ("cookie", "a=b"),
            ("accept-encoding", "gzip"),
            ("range", "bytes=400-999"),
            ("if-range", "\"a\""),
        ]);
        assert_eq!(said, &expected);
        assert_eq!(object.place(), "https://example.org/film");
        assert!(!format!("{object:?}").contains("token"), "{object:?}");
        assert_eq!((object.at(), object.left()), (400, 600));
        assert_eq!(self::object().after(1000), None, "nothing is left");
    }

    #[test]
    fn what_has_no_version_is_none_and_so_is_what_a_device_says_that_makes_no_sense() {
        let to = Destination::new("example.org", 443).unwrap();
        let none = HeaderMap::new();
        assert_eq!(WebObject::new((&to, "/", &none), &headers(&[("etag", "W/\"a\"")]), 0..9, 9), None);
        let good = object();
        for wrong in [
            WebObject { at: 1000, ..good.clone() },
            WebObject { end: 1001, ..good.clone() },
            WebObject { start: 2, at: 1, ..good.clone() },
            WebObject { path: "http://other.example/".to_owned(), ..good.clone() },
            WebObject { host: "a b".to_owned(), ..good.clone() },
            WebObject { port: 0, ..good.clone() },
            WebObject { said: vec![("a b".to_owned(), Vec::new())], ..good.clone() },
            WebObject { said: vec![("a".to_owned(), b"x\r\nb: c".to_vec())], ..good.clone() },
            WebObject { version: Vec::new(), ..good.clone() },
        ] {
            assert!(wrong.request().is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn only_the_rest_of_the_same_object_is_taken_for_it() {
        let object = object().after(400).unwrap();
        let of = |status: u16, lines: &[(&'static str, &'static str)]| {
            object.judge(StatusCode::from_u16(status).unwrap(), &headers(lines)).unwrap()
        };
        let range = ("content-range", "bytes 400-999/1000");
        assert!(matches!(of(206, &[TAG, range]), Judged::Rest));
        assert!(matches!(of(206, &[range]), Judged::Changed));
        assert!(matches!(of(206, &[("etag", "\"b\""), range]), Judged::Changed));
        assert!(matches!(of(206, &[TAG, range, ("content-encoding", "gzip")]), Judged::Changed));
        assert!(matches!(of(206, &[TAG, ("content-range", "bytes 401-999/1000")]), Judged::Changed));
        assert!(matches!(of(206, &[TAG, ("content-range", "bytes 400-999/1001")]), Judged::Changed));
        assert!(matches!(of(200, &[TAG]), Judged::Whole));
        assert!(matches!(of(200, &[]), Judged::Changed) && matches!(of(416, &[TAG]), Judged::Changed));
        assert!(matches!(of(503, &[]), Judged::Other(_)));
    }

    #[test]
    fn the_first_answer_is_known_by_the_rest_of_it() {
        let object = object().after(400).unwrap();
        let rest =
            headers(&[TAG, ("content-type", "video/mp4"), ("content-range", "x"), ("content-length", "1")]);
        let (head, done) = object.first_head(&rest);
        let head = String::from_utf8(head).unwrap();
        assert!(head.starts_with("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n"), "{head}");
        assert!(head.contains("content-type: video/mp4\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(!head.contains("content-range") && done == 400, "{head}");
    }
}
