//! Header fields: which of them belong to one connection alone (RFC 9110, §7.6.1), and how a message is
//! framed.

use super::problem::Problem;
use hyper::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_RANGE, COOKIE, HOST, HeaderMap, HeaderName,
    HeaderValue, MAX_FORWARDS, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING,
    UPGRADE, VIA, WWW_AUTHENTICATE,
};
use hyper::{StatusCode, Version};

/// What goes no further than a connection, named by `Connection` or not.
static OF_THE_CONNECTION: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What a message of HTTP/2 must not have (RFC 9113, §8.2.2).
const OF_HTTP1: [HeaderName; 5] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TRANSFER_ENCODING,
    UPGRADE,
];

/// What is said of the bytes of one message, and is untrue of a whole that is made of several.
const OF_THE_PART: [HeaderName; 3] =
    [CONTENT_RANGE, HeaderName::from_static("content-digest"), HeaderName::from_static("content-md5")];

/// What `Connection` cannot take away: routing, framing and the detection of loops depend on it.
const KEPT: [HeaderName; 4] = [HOST, CONTENT_LENGTH, VIA, MAX_FORWARDS];

/// Removes what belongs to the connection that a message came on.
pub(super) fn remove_of_the_connection(headers: &mut HeaderMap) {
    // Mostly there is nothing: to look at what is there costs less than to look for each that could be.
    if !headers.keys().any(|name| OF_THE_CONNECTION.contains(name)) {
        return;
    }
    let named: Vec<HeaderName> = tokens(headers, &CONNECTION)
        .filter_map(|token| HeaderName::from_bytes(token.as_bytes()).ok())
        .filter(|name| !KEPT.contains(name))
        .collect();
    for name in named.iter().chain(&OF_THE_CONNECTION) {
        headers.remove(name);
    }
}

/// Removes what is true of a part alone, such as its digests (RFC 9530, §2), from the head of a whole.
pub(super) fn remove_of_the_part(headers: &mut HeaderMap) {
    for name in &OF_THE_PART {
        headers.remove(name);
    }
}

/// The elements of a list, over all lines of the field.
/// An element with bytes that are no ASCII is left out, and not those beside it.
fn tokens<'a>(headers: &'a HeaderMap, name: &HeaderName) -> impl Iterator<Item = &'a str> {
    let elements = headers.get_all(name).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let readable = elements.filter(|element| element.is_ascii());
    readable.filter_map(|element| str::from_utf8(element).ok()).map(str::trim).filter(|text| !text.is_empty())
}

/// Whether the client wants to speak WebSocket (RFC 6455) on its connection.
pub(super) fn wants_websocket(headers: &HeaderMap) -> bool {
    let has = |name, wanted: &str| tokens(headers, name).any(|token| token.eq_ignore_ascii_case(wanted));
    has(&CONNECTION, "upgrade") && has(&UPGRADE, "websocket")
}

/// Asks for WebSocket, or agrees to it, on the next connection.
pub(super) fn upgrade_to_websocket(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
}

/// Joins the lines of `Cookie`, of which HTTP/2 may have several, and HTTP/1.1 has one (RFC 9113, §8.2.3).
pub(super) fn join_cookies(headers: &mut HeaderMap) {
    let lines: Vec<&[u8]> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(one) = HeaderValue::from_bytes(&lines.join(&b"; "[..]))
    {
        headers.insert(COOKIE, one);
    }
}

/// Whether a message came through the proxy of this pseudonym already.
pub(super) fn came_through(headers: &HeaderMap, pseudonym: &str) -> bool {
    tokens(headers, &VIA).any(|one| one.split_whitespace().nth(1) == Some(pseudonym))
}

/// How many more proxies a message may go through; `None`: any number.
///
/// # Errors
/// When that cannot be read.
pub(super) fn forwards_left(headers: &HeaderMap) -> Result<Option<u32>, Problem> {
    let Some(value) = headers.get(MAX_FORWARDS) else { return Ok(None) };
    let digits = value.to_str().ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()));
    let left = digits.and_then(|text| text.parse().ok());
    left.map(Some).ok_or_else(|| Problem::bad("Max-Forwards is no number"))
}

/// Checks that a request says once where it goes and how long it is. hyper has refused lengths that
/// contradict each other, folded lines and bare carriage returns before, and takes no length beside an
/// encoding; and of HTTP/2 a body of another length than is stated. A request of HTTP/2 may name its host in
/// its target alone.
///
/// # Errors
/// What is wrong.
pub(super) fn check_request(headers: &HeaderMap, version: Version) -> Result<(), Problem> {
    match (headers.get_all(HOST).iter().count(), version) {
        (0, Version::HTTP_10 | Version::HTTP_2) | (1, _) => {}
        (0, _) => return Err(Problem::bad("there is no Host field")),
        _ => return Err(Problem::bad("there are several Host fields")),
    }
    if version == Version::HTTP_2 && OF_HTTP1.iter().any(|name| headers.contains_key(name)) {
        return Err(Problem::bad("a request of HTTP/2 has fields of a connection of HTTP/1.1"));
    }
    if !is_plainly_encoded(headers) {
        let text = "of transfer encodings only `chunked`, once, is understood";
        return Err(Problem::new(StatusCode::NOT_IMPLEMENTED, text));
    }
    Ok(())
}

/// Checks how an answer is framed, and returns its length where it states one.
///
/// # Errors
/// When a client might read another length in it than this proxy.
pub(super) fn check_answer(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    if !is_plainly_encoded(headers) {
        return Err(Problem::gateway("the server's transfer encoding is not `chunked` alone"));
    }
    let length = content_length(headers)?;
    if length.is_some() && headers.contains_key(TRANSFER_ENCODING) {
        return Err(Problem::gateway(
            "the server states a length and a transfer encoding; one must be wrong",
        ));
    }
    Ok(length)
}

fn content_length(headers: &HeaderMap) -> Result<Option<u64>, Problem> {
    let wrong = || Problem::gateway("the server states its length in a way that cannot be read");
    let mut length = None;
    for line in headers.get_all(CONTENT_LENGTH) {
        for one in line.to_str().map_err(|_| wrong())?.split(',') {
            let one = one.trim();
            if one.is_empty() || !one.bytes().all(|byte| byte.is_ascii_digit()) {
                return Err(wrong());
            }
            let one: u64 = one.parse().map_err(|_| wrong())?;
            if length.is_some_and(|known| known != one) {
                return Err(Problem::gateway("the server states several lengths"));
            }
            length = Some(one);
        }
    }
    Ok(length)
}

fn is_plainly_encoded(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    match (encodings.next(), encodings.next()) {
        (None, _) => true,
        (Some(one), None) => one.as_bytes().eq_ignore_ascii_case(b"chunked"),
        _ => false,
    }
}

/// Whether a message belongs to an authentication of its connection (NTLM, Negotiate): such a connection must
/// carry no message of anybody else.
pub(super) fn authenticates_the_connection(headers: &HeaderMap) -> bool {
    tokens(headers, &AUTHORIZATION).chain(tokens(headers, &WWW_AUTHENTICATE)).any(|one| {
        let scheme = one.split_whitespace().next().unwrap_or_default();
        scheme.eq_ignore_ascii_case("ntlm") || scheme.eq_ignore_ascii_case("negotiate")
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn what_belongs_to_a_connection_goes_no_further() {
        let mut fields = headers(&[
            ("connection", "close, X-One"),
            ("connection", "x-two, host, content-length, via"),
            ("x-one", "1"),
            ("x-two", "2"),
            ("x-three", "3"),
            ("host", "example.org"),
            ("content-length", "5"),
            ("via", "1.1 other"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "keep-alive"),
            ("proxy-authorization", "Basic x"),
            ("proxy-authenticate", "Basic"),
            ("te", "trailers"),
            ("trailer", "x"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "h2c"),
        ]);
        remove_of_the_connection(&mut fields);
        let mut left: Vec<&str> = fields.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["content-length", "host", "via", "x-three"]);
    }

    #[test]
    fn bytes_that_are_no_ascii_hide_nothing_that_stands_beside_them() {
        let mut fields = headers(&[("x-one", "1"), ("x-two", "2"), ("x-three", "3")]);
        fields.append(CONNECTION, HeaderValue::from_bytes(b"x-one, \xff\xfe, X-Two").unwrap());
        fields.append(VIA, HeaderValue::from_bytes(b"1.0 fr\xe9d, 1.1 whimbrel-1").unwrap());
        fields.append(WWW_AUTHENTICATE, HeaderValue::from_bytes(b"x\xe9, NTLM").unwrap());
        assert!(came_through(&fields, "whimbrel-1"));
        assert!(authenticates_the_connection(&fields));
        remove_of_the_connection(&mut fields);
        assert!(!fields.contains_key("x-one") && !fields.contains_key("x-two"), "{fields:?}");
        assert!(fields.contains_key("x-three"));
    }

    #[test]
    fn what_is_true_of_a_part_is_not_said_of_the_whole() {
        let mut fields = headers(&[
            ("content-range", "bytes 0-4/9"),
            ("content-digest", "sha-256=:x:"),
            ("content-md5", "x"),
            ("repr-digest", "sha-256=:y:"),
            ("etag", "\"a\""),
        ]);
        remove_of_the_part(&mut fields);
        assert_eq!(fields.len(), 2);
        assert!(fields.contains_key("repr-digest") && fields.contains_key("etag"));
    }

    #[test]
    fn a_loop_is_seen_by_the_pseudonym() {
        let fields = headers(&[("via", "1.0 fred, 1.1 whimbrel-1 (a, comment)"), ("via", "1.1 p")]);
        assert!(came_through(&fields, "whimbrel-1") && came_through(&fields, "fred"));
        assert!(!came_through(&fields, "whimbrel") && !came_through(&fields, "1.1"));
    }

    #[test]
    fn lengths_that_contradict_each_other_are_refused() {
        let read = |lines: &[(&str, &str)]| check_answer(&headers(lines)).ok();
        assert_eq!(read(&[]), Some(None));
        assert_eq!(read(&[("content-length", "5")]), Some(Some(5)));
        assert_eq!(read(&[("content-length", "5, 5"), ("content-length", "5")]), Some(Some(5)));
        assert_eq!(read(&[("transfer-encoding", "chunked")]), Some(None));
        for wrong in [
            &[("content-length", "5"), ("content-length", "6")][..],
            &[("content-length", "5, 6")],
            &[("content-length", "+5")],
            &[("content-length", "")],
            &[("content-length", "99999999999999999999999")],
            &[("content-length", "5"), ("transfer-encoding", "chunked")],
            &[("transfer-encoding", "gzip, chunked")],
            &[("transfer-encoding", "chunked"), ("transfer-encoding", "chunked")],
        ] {
            assert_eq!(read(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_request_names_its_host_once() {
        let check = |lines: &[(&str, &str)], version| check_request(&headers(lines), version).is_ok();
        assert!(check(&[("host", "a")], Version::HTTP_11));
        assert!(check(&[], Version::HTTP_10));
        assert!(!check(&[], Version::HTTP_11));
        assert!(!check(&[("host", "a"), ("host", "b")], Version::HTTP_11));
        assert!(check(&[], Version::HTTP_2) && check(&[("host", "a")], Version::HTTP_2));
        assert!(!check(&[("host", "a"), ("host", "b")], Version::HTTP_2));
    }

    #[test]
    fn what_frames_a_message_of_http1_is_refused_in_one_of_http2() {
        for (name, value) in [
            ("connection", "x-one"),
            ("keep-alive", "timeout=5"),
            ("proxy-connection", "close"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
        ] {
            let fields = headers(&[("host", "a"), (name, value)]);
            assert!(check_request(&fields, Version::HTTP_2).is_err(), "{name}");
            assert!(check_request(&fields, Version::HTTP_11).is_ok(), "{name}");
        }
    }

    #[test]
    fn crumbs_of_a_cookie_are_one_line_again() {
        let mut fields = headers(&[("cookie", "a=b"), ("cookie", "c=d; e=f"), ("x-one", "1")]);
        join_cookies(&mut fields);
        assert_eq!(fields.get_all("cookie").iter().collect::<Vec<_>>(), ["a=b; c=d; e=f"]);
        join_cookies(&mut fields);
        assert_eq!(fields.len(), 2);
    }

    #[test]
    fn an_authenticated_connection_is_recognised() {
        assert!(authenticates_the_connection(&headers(&[("authorization", "NTLM TlRM")])));
        assert!(authenticates_the_connection(&headers(&[("www-authenticate", "Basic realm=x, Negotiate")])));
        assert!(!authenticates_the_connection(&headers(&[("authorization", "Basic x")])));
    }
}
