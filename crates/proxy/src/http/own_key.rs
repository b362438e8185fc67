//! Names as hosts are reached with the user's key: no page of another site may have that done for it.

use super::problem::Problem;
use crate::{Destination, Origins, is_cross_site, is_whimbrel_host};
use hyper::StatusCode;
use hyper::header::{HeaderMap, HeaderName, ORIGIN, REFERER, UPGRADE_INSECURE_REQUESTS, USER_AGENT};

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Checks a request to `authority`, as it stands in the target.
///
/// # Errors
/// When it leads to a name and may come from a page of another site.
pub(super) fn check_request(to: &Destination, authority: &str, headers: &HeaderMap) -> Result<(), Problem> {
    if !is_whimbrel_host(to.host()) || !is_elsewhere(authority, headers) {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        format!(
            "a page of another site asks for {to}, which is reached with your key; open it by its address"
        ),
    ))
}

/// Checks a CONNECT. What comes in the tunnel, and for which page, is not seen here, so that no browser gets
/// one: what each has in common is its `User-Agent`.
///
/// # Errors
/// When it leads to a name and comes from a browser.
pub(super) fn check_tunnel(to: &Destination, headers: &HeaderMap) -> Result<(), Problem> {
    if !is_whimbrel_host(to.host()) {
        return Ok(());
    }
    let agents = headers.get_all(USER_AGENT).iter();
    let is_browser =
        agents.into_iter().any(|agent| agent.as_bytes().trim_ascii_start().starts_with(b"Mozilla/"));
    // No program has a reason to say these.
    let says_origin = [ORIGIN, SEC_FETCH_SITE, REFERER].iter().any(|name| headers.contains_key(name));
    if !is_browser && !says_origin {
        return Ok(());
    }
    Err(Problem::new(
        StatusCode::FORBIDDEN,
        format!("a browser gets no tunnel to {to}: no page may use your key unseen; open it as http://"),
    ))
}

fn is_elsewhere(authority: &str, headers: &HeaderMap) -> bool {
    let judged = [SEC_FETCH_SITE, ORIGIN, REFERER, USER_AGENT];
    // Which of several lines counts is not for this proxy to guess.
    if judged.iter().any(|name| headers.get_all(name).iter().count() > 1) {
        return true;
    }
    // What cannot be read is nobody's own.
    let of = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or("unreadable"));
    let said = Origins {
        sec_fetch_site: of(&SEC_FETCH_SITE),
        origin: of(&ORIGIN),
        referer: of(&REFERER),
        user_agent: of(&USER_AGENT),
        opens_page: headers.contains_key(UPGRADE_INSECURE_REQUESTS),
    };
    is_cross_site(&said, "http", authority)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const HOST: &str = "web.home.ada.at.example.org.whimbrel";
    const BROWSER: &str = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0";

    fn headers(lines: &[(&'static str, &[u8])]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, hyper::header::HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn another_sites_page_reaches_no_name_whichever_line_says_so() {
        let to = Destination::new(HOST, 80).unwrap();
        let own = format!("http://{HOST}");
        let check = |lines: &[(&'static str, &[u8])]| check_request(&to, HOST, &headers(lines)).is_ok();
        assert!(check(&[]) && check(&[("origin", own.as_bytes()), ("sec-fetch-site", b"same-origin")]));
        assert!(!check(&[("origin", b"https://evil.example")]));
        assert!(!check(&[("origin", own.as_bytes()), ("origin", b"https://evil.example")]));
        assert!(!check(&[("sec-fetch-site", b"same-origin"), ("sec-fetch-site", b"cross-site")]));
        assert!(!check(&[("sec-fetch-site", b"cross-site")]));
        assert!(!check(&[("origin", b"https://evil\xff.example")]));
        assert!(!check(&[("user-agent", BROWSER.as_bytes())]));
        // What is no name is no business of this.
        let other = Destination::new("example.org", 80).unwrap();
        let lines = headers(&[("origin", b"https://evil.example")]);
        assert!(check_request(&other, "example.org", &lines).is_ok());
    }

    #[test]
    fn a_browser_gets_no_tunnel_to_a_name() {
        let to = Destination::new(HOST, 443).unwrap();
        let check = |lines: &[(&'static str, &[u8])]| check_tunnel(&to, &headers(lines)).is_ok();
        assert!(check(&[]) && check(&[("user-agent", b"curl/8.5.0")]));
        assert!(!check(&[("user-agent", BROWSER.as_bytes())]));
        assert!(!check(&[("user-agent", b"x"), ("user-agent", BROWSER.as_bytes())]));
        assert!(!check(&[("origin", b"null")]) && !check(&[("sec-fetch-site", b"none")]));
        let other = Destination::new("example.org", 443).unwrap();
        assert!(check_tunnel(&other, &headers(&[("user-agent", BROWSER.as_bytes())])).is_ok());
    }
}
