//! Whether it is a browser that begins to speak HTTP, or a page's TURN: over SOCKS it can't be seen which
//! page of which site asks, and no web page may use its reader's key.

/// A head of a request that is longer is taken for a browser's.
const LONGEST: usize = 16 * 1024;

/// With what a browser begins: what scripts ask for with other methods, it asks by OPTIONS whether it may.
const METHODS: [&[u8]; 7] = [b"GET ", b"HEAD ", b"POST ", b"OPTIONS ", b"PUT ", b"DELETE ", b"PATCH "];

/// Fields that browsers send and programs do not.
const FIELDS: [&str; 4] = ["origin", "referer", "cookie", "upgrade-insecure-requests"];

/// With what a page's WebRTC begins at a TURN server over TCP: a request to bind or to allocate (RFC 8489,
/// §5; RFC 8656, §7), a length, and what all of STUN has there.
const STUN_REQUESTS: [&[u8]; 2] = [&[0, 1], &[0, 3]];
const STUN_COOKIE: &[u8] = &[0x21, 0x12, 0xa4, 0x42];

/// Whose words these are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Program,
    Browser,
    /// It can't be told before more has come.
    More,
}

/// Says whose words these are, from the beginning on. Waits only for what is certainly HTTP or STUN.
pub(super) fn judge(bytes: &[u8]) -> Verdict {
    if bytes.is_empty() {
        return Verdict::More;
    }
    if !METHODS.iter().any(|method| fits(bytes, method)) {
        return judge_stun(bytes);
    }
    let (is_long, text) = (bytes.len() > LONGEST, String::from_utf8_lossy(bytes));
    let undecided = if is_long { Verdict::Browser } else { Verdict::More };
    let Some((first, rest)) = text.split_once('\n') else { return undecided };
    if !first.trim_end().rsplit(' ').next().is_some_and(|last| last.starts_with("HTTP/1.")) {
        return Verdict::Program;
    }
    for line in rest.split_inclusive('\n') {
        if !line.ends_with('\n') {
            return undecided;
        }
        if line.trim_end().is_empty() {
            return Verdict::Program;
        }
        if is_of_browser(line) {
            return Verdict::Browser;
        }
    }
    undecided
}

/// Whether bytes begin with this, as far as there are any.
fn fits(bytes: &[u8], begin: &[u8]) -> bool {
    bytes.iter().zip(begin).all(|(one, other)| one == other)
}

/// Programs that speak STUN to a name are taken for browsers too.
fn judge_stun(bytes: &[u8]) -> Verdict {
    let is_request = STUN_REQUESTS.iter().any(|request| fits(bytes, request));
    match (bytes.get(4..), is_request) {
        (_, false) => Verdict::Program,
        (None, true) => Verdict::More,
        (Some(rest), true) if !fits(rest, STUN_COOKIE) => Verdict::Program,
        (Some(rest), true) if rest.len() < STUN_COOKIE.len() => Verdict::More,
        _ => Verdict::Browser,
    }
}

fn is_of_browser(line: &str) -> bool {
    let (name, value) = line.split_once(':').unwrap_or((line, ""));
    let name = name.trim().to_ascii_lowercase();
    let is_agent = name == "user-agent" && value.trim_start().starts_with("Mozilla/");
    is_agent || name.starts_with("sec-") || FIELDS.contains(&&name[..])
}

/// What it is told.
pub(super) const ANSWER: &[u8] = b"HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain\r\n\
    Connection: close\r\n\r\nBy SOCKS, names as hosts are for programs only: it cannot be seen which site's page \
    asks. Use the HTTP proxy (whimbrel proxy http, whimbrel proxy pac).\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browsers_are_known_by_what_they_send_and_programs_are_not_held_up() {
        for field in [
            "User-Agent: Mozilla/5.0 (X11)",
            "user-agent:Mozilla/5.0",
            "Origin: null",
            "Referer: http://evil.example/",
            "Sec-Fetch-Site: none",
            "sec-websocket-key: x",
            "Cookie: a=b",
            "Upgrade-Insecure-Requests: 1",
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: x\r\n{field}\r\nAccept: */*\r\n\r\n");
            let until = head.find(field).unwrap_or_default() + field.len() + 2;
            assert_eq!(judge(head.as_bytes()), Verdict::Browser, "{field}");
            for cut in 0..until {
                assert_eq!(judge(&head.as_bytes()[..cut]), Verdict::More, "{field} cut at {cut}");
            }
        }
        for program in [
            &b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n\r\n"[..],
            b"POST / HTTP/1.0\n\nUser-Agent: Mozilla/ in a body",
            b"GET key\r\n",
            b"SSH-2.0-OpenSSH_9.6\r\n",
            b"\x16\x03\x01",
            b"PUTX",
            b"get / HTTP/1.1",
        ] {
            assert_eq!(judge(program), Verdict::Program, "{program:?}");
        }
    }

    #[test]
    fn a_pages_turn_is_known_and_other_programs_in_bytes_are_not_held_up() {
        for request in [b"\0\x01\0\x08\x21\x12\xa4\x42", b"\0\x03\0\x00\x21\x12\xa4\x42"] {
            assert_eq!(judge(request), Verdict::Browser);
            for cut in 0..request.len() {
                assert_eq!(judge(&request[..cut]), Verdict::More, "cut at {cut}");
            }
        }
        for program in
            [&b"\0\x1d\x12\x34\x01"[..], b"\0\x01\0\x08\x21\x12\xa4\x43", b"\0\x01\0\x08\0", b"\0\0"]
        {
            assert_eq!(judge(program), Verdict::Program, "{program:?}");
        }
    }

    #[test]
    fn a_head_without_an_end_is_not_waited_for_for_ever() {
        let long = [b"GET /".to_vec(), vec![b'a'; LONGEST]].concat();
        assert_eq!(judge(&long), Verdict::Browser);
        let long = [b"GET / HTTP/1.1\r\n".to_vec(), b"a: b\r\n".repeat(LONGEST / 6)].concat();
        assert_eq!(judge(&long), Verdict::Browser);
    }
}
