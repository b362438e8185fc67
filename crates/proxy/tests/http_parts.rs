//! Objects whose connection broke: what may be put together with what had come, and what may not.
#![allow(clippy::unwrap_used)]

use crate::support::{Origin, body, field, get, proxy, talk};
use std::io::Write as _;

/// What the first answer says of its object.
const DATED: &str = "Date: Tue, 03 Mar 2026 12:10:00 GMT\r\nLast-Modified: Tue, 03 Mar 2026 12:00:00 GMT";
const TAGGED: &str = "ETag: \"a\"";
const TOTAL: usize = 1000;
const CUT: usize = 400;

/// Asks a server that hangs up after 400 of 1000 bytes `A`. To what is asked of it then it says this: a head,
/// and so many bytes `B`. Returns the body for the client, and how often the server was asked.
fn resumed(said: &'static str, head: &'static str, count: usize) -> (String, usize) {
    let origin = Origin::start(move |_, n, stream| {
        if n == 0 {
            let more = format!("{said}\r\nAccept-Ranges: bytes\r\nContent-Length: {TOTAL}");
            write!(stream, "HTTP/1.1 200 OK\r\n{more}\r\n\r\n{}", "A".repeat(CUT)).unwrap();
        } else {
            let _ = write!(stream, "{head}\r\n\r\n{}", "B".repeat(count));
        }
        false
    });
    let answer = talk(proxy(|_| {}).address, &get(&origin.url("/"), ""));
    assert_eq!(field(&answer, "content-length"), Some("1000"), "{answer}");
    (body(&answer).to_owned(), origin.seen().len())
}

#[test]
fn what_goes_on_as_the_same_object_is_put_together() {
    let whole = "A".repeat(CUT) + &"B".repeat(TOTAL - CUT);
    let part = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 400-999/1000\r\nContent-Length: 600\r\n\
                ETag: \"a\"";
    assert_eq!(resumed(TAGGED, part, 600), (whole.clone(), 2));
    let part = "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 400-999/1000\r\nContent-Length: 600\r\n\
                Last-Modified: Tue, 03 Mar 2026 12:00:00 GMT";
    assert_eq!(resumed(DATED, part, 600), (whole.clone(), 2));
    let all = "HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nLast-Modified: Tue, 03 Mar 2026 12:00:00 GMT";
    assert_eq!(resumed(DATED, all, 1000), (whole, 2));
}

#[test]
fn what_does_not_say_that_it_is_the_same_object_is_never_put_together() {
    for (said, head, count) in [
        (DATED, "HTTP/1.1 200 OK\r\nContent-Length: 5000", 5000),
        (DATED, "HTTP/1.1 200 OK\r\nContent-Length: 1000", 1000),
        (
            DATED,
            "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nLast-Modified: Tue, 03 Mar 2026 12:00:00 GMT",
            5000,
        ),
        (TAGGED, "HTTP/1.1 200 OK\r\nContent-Length: 5000\r\nETag: \"a\"", 5000),
        (
            DATED,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 400-999/1000\r\nContent-Length: 600",
            600,
        ),
        (
            TAGGED,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 400-999/1000\r\nContent-Length: 600\r\n\
             ETag: \"a\"\r\nContent-Encoding: gzip",
            600,
        ),
        (
            TAGGED,
            "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 400-999/1000\r\n\
             Transfer-Encoding: gzip, chunked\r\nETag: \"a\"\r\n\r\n258",
            600,
        ),
    ] {
        let (body, asked) = resumed(said, head, count);
        assert!("A".repeat(CUT).starts_with(&body), "{head}: {} bytes {body}", body.len());
        assert!(!body.is_empty() && asked == 2, "{head}: {} bytes, asked {asked} times", body.len());
    }
}
