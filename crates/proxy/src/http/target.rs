//! Where a request leads: the target of its first line (RFC 9112, §3.2).

use super::problem::Problem;
use crate::{BadDestination, Destination};
use hyper::header::HeaderValue;
use hyper::http::uri::{Authority, PathAndQuery, Scheme};
use hyper::{StatusCode, Uri};

const TUNNEL: &str = "CONNECT wants HOST:PORT, as in example.org:443";

/// The target of a request that is passed on.
#[derive(Debug)]
pub(super) struct Target {
    /// Which server.
    pub(super) to: Destination,
    /// What the server reads in `Host`.
    pub(super) host: HeaderValue,
    /// What it reads in the first line.
    pub(super) path: Uri,
}

impl Target {
    /// Reads an absolute form, such as `http://example.org/index.html`. `said` is what the client says in
    /// `Host`: what counts is the target (RFC 9112, §3.2.2).
    ///
    /// # Errors
    /// For any other form, and for what is not plain HTTP.
    pub(super) fn absolute(uri: &Uri, said: Option<&HeaderValue>) -> Result<Self, Problem> {
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(Problem::bad(
                "this is a proxy, which wants `GET http://HOST/PATH`: set it as the HTTP proxy of your program",
            ));
        };
        if *scheme == Scheme::HTTPS {
            return Err(Problem::bad("https:// goes through CONNECT, so that nobody on the way can read it"));
        }
        if *scheme != Scheme::HTTP {
            return Err(Problem::bad(format!("{scheme}:// is not spoken here; http:// and CONNECT are")));
        }
        let to = destination(authority, Some(80))?;
        let host = match said.filter(|said| names(said.as_bytes(), &to)) {
            // It was read already, and is shared.
            Some(said) => said.clone(),
            None => {
                let host = if to.port() == 80 { bracketed(to.host()) } else { to.to_string() };
                HeaderValue::try_from(host).map_err(|_| Problem::bad("the host is no name"))?
            }
        };
        Ok(Self { to, host, path: path_of(uri)? })
    }
}

/// Whether this is how a server is named in `Host`, letter by letter. No IPv6 address is taken for that.
fn names(host: &[u8], to: &Destination) -> bool {
    let Some(rest) = host.strip_prefix(to.host().as_bytes()).filter(|_| !to.host().contains(':')) else {
        return false;
    };
    match (to.port(), rest) {
        (80, rest) => rest.is_empty(),
        (port, [b':', digits @ ..]) => is_written(port, digits),
        _ => false,
    }
}

/// Whether these are the digits of this number.
fn is_written(number: u16, digits: &[u8]) -> bool {
    let (mut left, mut digits) = (number, digits);
    while let [rest @ .., last] = digits {
        if left == 0 || u16::from(*last) != u16::from(b'0') + left % 10 {
            return false;
        }
        (left, digits) = (left / 10, rest);
    }
    left == 0
}

impl Target {
    /// Reads the target of a request that came inside of a tunnel to `to`, over TLS: a path, or the absolute
    /// form of the same server.
    ///
    /// # Errors
    /// For any other server, which must not be reached by this connection's certificate.
    pub(super) fn inside(uri: &Uri, host: Option<&HeaderValue>, to: &Destination) -> Result<Self, Problem> {
        let is_here = |authority: &Authority| match destination(authority, Some(443))? == *to {
            true => Ok(()),
            false => {
                let text = format!("this connection is for {to}, and no other host");
                Err(Problem::new(StatusCode::MISDIRECTED_REQUEST, text))
            }
        };
        if let Some(field) = host {
            let field = field.to_str().ok().and_then(|text| text.parse::<Authority>().ok());
            is_here(&field.ok_or_else(|| Problem::bad("Host is no host"))?)?;
        }
        if let Some(authority) = uri.authority() {
            if uri.scheme() != Some(&Scheme::HTTPS) {
                return Err(Problem::bad("only https:// is spoken on this connection"));
            }
            is_here(authority)?;
        }
        let host = if to.port() == 443 { bracketed(to.host()) } else { to.to_string() };
        let host = HeaderValue::from_str(&host).map_err(|_| Problem::bad("the host is no name"))?;
        let path = uri.path_and_query().map_or("/", PathAndQuery::as_str);
        // `https://example.org?a=b` has no path.
        let path = if path.starts_with('/') || path == "*" { path.to_owned() } else { format!("/{path}") };
        let path = path.parse().map_err(|_| Problem::bad("the path cannot be read"))?;
        Ok(Self { to: to.clone(), host, path })
    }
}

/// The path and query of an absolute form, as a form of its own.
fn path_of(uri: &Uri) -> Result<Uri, Problem> {
    let text = match uri.path_and_query() {
        // It was read already, and is shared.
        Some(whole) if whole.as_str().len() > 1 && whole.as_str().starts_with('/') => {
            return Ok(Uri::from(whole.clone()));
        }
        Some(whole) => whole.as_str(),
        None => "/",
    };
    // `http://example.org?a=b` has no path.
    let text = if text.starts_with('/') { text.to_owned() } else { format!("/{text}") };
    text.parse().map_err(|_| Problem::bad("the path cannot be read"))
}

/// Reads the authority form of CONNECT: `example.org:443`.
///
/// # Errors
/// When it is none.
pub(super) fn tunnel(uri: &Uri) -> Result<Destination, Problem> {
    let wrong = || Problem::bad(TUNNEL);
    if uri.scheme().is_some() || uri.path_and_query().is_some_and(|path| !path.as_str().is_empty()) {
        return Err(wrong());
    }
    destination(uri.authority().ok_or_else(wrong)?, None)
}

/// Reads a host and a port; `usual` stands where there is none.
///
/// # Errors
/// When it is none, or a user is named.
pub(super) fn destination(authority: &Authority, usual: Option<u16>) -> Result<Destination, Problem> {
    let text = authority.as_str();
    if text.contains('@') {
        return Err(Problem::bad("a user and a password in the address are not passed on; leave them out"));
    }
    let host = authority.host();
    let refused = |error: BadDestination| Problem::bad(error.to_string());
    let port = match (text.get(host.len()..), usual) {
        // Without a port, or with an empty one (RFC 3986, §3.2.3).
        (Some("" | ":"), Some(usual)) => usual,
        (Some("" | ":"), None) => return Err(Problem::bad(TUNNEL)),
        (Some(rest), _) => rest
            .strip_prefix(':')
            .filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|digits| digits.parse().ok())
            .ok_or_else(|| Problem::bad("the port is no number from 1 to 65535"))?,
        (None, _) => return Err(Problem::bad("the address cannot be read")),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    Destination::new(host, port).map_err(refused)
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn read(text: &str) -> Option<(String, String, String)> {
        let target = Target::absolute(&text.parse().ok()?, None).ok()?;
        let host = target.host.to_str().unwrap().to_owned();
        Some((target.to.to_string(), host, target.path.to_string()))
    }

    #[test]
    fn an_absolute_form_is_a_destination_a_host_and_a_path() {
        for (text, to, host, path) in [
            ("http://Example.ORG/a?b=c", "example.org:80", "example.org", "/a?b=c"),
            ("http://example.org", "example.org:80", "example.org", "/"),
            ("http://example.org:/", "example.org:80", "example.org", "/"),
            ("http://example.org:8080/", "example.org:8080", "example.org:8080", "/"),
            ("http://example.org?b=c", "example.org:80", "example.org", "/?b=c"),
            // What looks like a host stays a part of the path, and a fragment is nobody's but the client's.
            (
                "http://example.org//evil.example/../a?b#c",
                "example.org:80",
                "example.org",
                "//evil.example/../a?b",
            ),
            ("http://192.0.2.1:8080/a", "192.0.2.1:8080", "192.0.2.1:8080", "/a"),
            ("http://[2001:DB8::1]/", "[2001:db8::1]:80", "[2001:db8::1]", "/"),
            ("http://[2001:db8::1]:8080/", "[2001:db8::1]:8080", "[2001:db8::1]:8080", "/"),
        ] {
            let expected = (to.to_owned(), host.to_owned(), path.to_owned());
            assert_eq!(read(text), Some(expected), "{text}");
        }
    }

    #[test]
    fn the_server_reads_the_target_in_host_whatever_the_client_says_there() {
        for (text, said, host) in [
            ("http://example.org:8080/", "example.org:8080", "example.org:8080"),
            ("http://example.org/", "example.org", "example.org"),
            ("http://example.org/", "example.org:80", "example.org"),
            ("http://example.org/", "example.organ", "example.org"),
            ("http://example.org:8080/", "example.org", "example.org:8080"),
            ("http://example.org:8080/", "example.org:", "example.org:8080"),
            ("http://example.org:8080/", "example.org:80800", "example.org:8080"),
            ("http://example.org:8080/", "example.org:08080", "example.org:8080"),
            ("http://example.org:8080/", "example.org:80", "example.org:8080"),
            ("http://example.org:8080/", "example.org:808x", "example.org:8080"),
            ("http://example.org/", "Example.org", "example.org"),
            ("http://example.org/", "evil.example", "example.org"),
            ("http://[2001:db8::1]/", "2001:db8::1", "[2001:db8::1]"),
            ("http://[2001:db8::1]/", "[2001:db8::1]", "[2001:db8::1]"),
        ] {
            let said = HeaderValue::from_static(said);
            let target = Target::absolute(&text.parse().unwrap(), Some(&said)).unwrap();
            assert_eq!(target.host, host, "{text} {said:?}");
        }
        let to = |port| Destination::new("example.org", port).unwrap();
        assert!(names(b"example.org", &to(80)) && names(b"example.org:65535", &to(65535)));
    }

    #[test]
    fn other_forms_schemes_users_and_ports_are_refused() {
        for text in [
            "/index.html",
            "*",
            "example.org:80",
            "https://example.org/",
            "ftp://example.org/",
            "http://user@example.org/",
            "http://user:password@example.org/",
            "http://example.org:0/",
            "http://example.org:65536/",
            "http://a..b/",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn inside_of_a_tunnel_only_its_server_is_asked() {
        let to = Destination::new("example.org", 443).unwrap();
        let read = |text: &str, host: Option<&str>| {
            let host = host.map(|host| host.parse().unwrap());
            let target = Target::inside(&text.parse().unwrap(), host.as_ref(), &to).ok()?;
            assert_eq!((&target.to, target.host.to_str().unwrap()), (&to, "example.org"));
            Some(target.path.to_string())
        };
        for (text, host, path) in [
            ("/a?b=c", Some("example.org"), "/a?b=c"),
            ("/", Some("Example.ORG.:443"), "/"),
            ("/", None, "/"),
            ("*", Some("example.org"), "*"),
            ("https://example.org/a", Some("example.org"), "/a"),
            ("https://example.org:443?b=c", Some("example.org:443"), "/?b=c"),
        ] {
            assert_eq!(read(text, host).as_deref(), Some(path), "{text} {host:?}");
        }
        for (text, host) in [
            ("/", "evil.example"),
            ("/", "www.example.org"),
            ("/", "example.org:8443"),
            ("/", "user@example.org"),
            ("/", "example.org, evil.example"),
            ("/", ""),
            ("http://example.org/", "example.org"),
            ("https://evil.example/", "example.org"),
            ("https://user@example.org/", "example.org"),
            ("example.org:443", "example.org"),
        ] {
            assert_eq!(read(text, Some(host)), None, "{text} {host}");
        }
    }

    #[test]
    fn a_tunnel_leads_to_a_host_and_a_port() {
        let read = |text: &str| tunnel(&text.parse().unwrap()).ok().map(|to| to.to_string());
        assert_eq!(read("example.org:443").as_deref(), Some("example.org:443"));
        assert_eq!(read("[::1]:443").as_deref(), Some("[::1]:443"));
        for text in ["example.org", "http://example.org:443/", "user@example.org:443", "a:0", "/"] {
            assert_eq!(read(text), None, "{text}");
        }
    }
}
