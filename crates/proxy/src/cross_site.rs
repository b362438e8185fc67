//! Whether a browser sends a request for a page of another site: no web page may use its reader's key.

/// What a request says of where it comes from: header fields as they stand in it, if they do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Origins<'a> {
    /// `Sec-Fetch-Site` (W3C Fetch Metadata). Browsers send it to trustworthy origins alone, which plain HTTP
    /// is not.
    pub sec_fetch_site: Option<&'a str>,
    /// `Origin` (RFC 6454): with all that is not GET or HEAD, with WebSockets, and with what scripts read.
    pub origin: Option<&'a str>,
    /// `Referer` (RFC 9110, §10.1.3), unless the page that links does not want it.
    pub referer: Option<&'a str>,
    /// `User-Agent`.
    pub user_agent: Option<&'a str>,
    /// Whether there is `Upgrade-Insecure-Requests`, which browsers send when they open a page or a frame,
    /// and with nothing else.
    pub opens_page: bool,
}

/// Whether a request to `authority` (`HOST` or `HOST:PORT`) over `scheme` may be one of another site's page.
/// Each of what it says must fit; a browser that says nothing is taken for one, unless it opens a page.
///
/// `same-site` is not enough: all names as hosts end alike, and browsers take what ends alike for one site.
///
/// What is left: a browser that opens a page and does not say from where. Its reader may have typed the
/// address, or a page with `no-referrer` leads or frames it. Such a page can't read the answer.
///
/// ```
/// use whimbrel_proxy::{Origins, is_cross_site};
/// let own = Origins { origin: Some("http://web.home.ada.at.example.org.whimbrel"), ..Origins::default() };
/// assert!(!is_cross_site(&own, "http", "web.home.ada.at.example.org.whimbrel"));
/// let others = Origins { origin: Some("https://evil.example"), ..Origins::default() };
/// assert!(is_cross_site(&others, "http", "web.home.ada.at.example.org.whimbrel"));
/// ```
pub fn is_cross_site(said: &Origins<'_>, scheme: &str, authority: &str) -> bool {
    let own = |text: &str| origin(text).is_some_and(|origin| Some(origin) == parts(scheme, authority));
    match said.sec_fetch_site.map(str::trim) {
        None | Some("same-origin" | "none") => {}
        Some(_) => return true,
    }
    if said.origin.is_some_and(|text| !own(text)) || said.referer.is_some_and(|text| !own(text)) {
        return true;
    }
    let says_something = said.sec_fetch_site.is_some() || said.origin.is_some() || said.referer.is_some();
    let is_browser = said.user_agent.is_some_and(|agent| agent.trim_start().starts_with("Mozilla/"));
    !says_something && is_browser && !said.opens_page
}

/// Scheme, host and port.
type Origin = (String, String, u16);

/// The origin of a URL, which may be one itself.
fn origin(url: &str) -> Option<Origin> {
    let (scheme, rest) = url.trim().split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    parts(scheme, authority)
}

fn parts(scheme: &str, authority: &str) -> Option<Origin> {
    let scheme = scheme.to_ascii_lowercase();
    let usual = match &scheme[..] {
        "http" | "ws" => 80,
        "https" | "wss" => 443,
        _ => return None,
    };
    // Nobody's origin has a user in it.
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port.parse().ok()?),
        _ => (authority, usual),
    };
    let host = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    (!host.is_empty() && !host.contains('@')).then_some((scheme, host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "web.home.ada.at.example.org.whimbrel";
    const BROWSER: Option<&str> =
        Some("Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0");

    fn says(said: Origins<'_>) -> bool {
        is_cross_site(&said, "http", HOST)
    }

    #[test]
    fn requests_of_other_pages_are_known_by_each_thing_that_they_say() {
        let own = &format!("http://{HOST}/page?q#f")[..];
        for site in ["cross-site", "same-site", "", "nonsense"] {
            assert!(says(Origins { sec_fetch_site: Some(site), ..Origins::default() }), "{site}");
            assert!(says(Origins { sec_fetch_site: Some(site), origin: Some(own), ..Origins::default() }));
        }
        for origin in [
            "null",
            "",
            "https://evil.example",
            "http://other.home.ada.at.example.org.whimbrel",
            "http://web.home.ada.at.example.org.whimbrel:8080",
            "https://web.home.ada.at.example.org.whimbrel",
            "http://web.home.ada.at.example.org.whimbrel.evil.example",
            "http://web.home.ada.at.example.org.whimbrel@evil.example",
            "http://evil.example/?http://web.home.ada.at.example.org.whimbrel",
            "moz-extension://0d1a",
        ] {
            assert!(says(Origins { origin: Some(origin), ..Origins::default() }), "{origin}");
            assert!(says(Origins { referer: Some(origin), ..Origins::default() }), "{origin}");
            assert!(says(Origins { origin: Some(own), referer: Some(origin), ..Origins::default() }));
        }
        assert!(says(Origins { user_agent: BROWSER, ..Origins::default() }), "an image with no-referrer");
    }

    #[test]
    fn own_requests_and_those_of_programs_are_not() {
        let own = &format!("http://{HOST}/page?q#f")[..];
        assert!(!says(Origins::default()), "a program");
        assert!(!says(Origins { user_agent: Some("curl/8.5.0"), ..Origins::default() }));
        assert!(!says(Origins { user_agent: BROWSER, opens_page: true, ..Origins::default() }), "typed");
        for site in ["same-origin", "none"] {
            assert!(!says(Origins { sec_fetch_site: Some(site), user_agent: BROWSER, ..Origins::default() }));
        }
        assert!(!says(Origins { referer: Some(own), user_agent: BROWSER, ..Origins::default() }));
        for origin in [HOST.to_owned(), format!("{HOST}:80"), HOST.to_uppercase(), format!("{HOST}.")] {
            let origin = format!("http://{origin}");
            assert!(!says(Origins { origin: Some(&origin), ..Origins::default() }), "{origin}");
        }
        let with_port = Origins { origin: Some("http://a.at.b.whimbrel:8080"), ..Origins::default() };
        assert!(!is_cross_site(&with_port, "http", "a.at.b.whimbrel:8080"));
    }
}
