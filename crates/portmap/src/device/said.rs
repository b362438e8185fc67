//! What is said to and by a router that speaks UPnP, without I/O.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::xml::{End, ends, leaf};

/// No device has a longer one.
const LONGEST_PATH: usize = 1024;

/// A page of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    at: SocketAddr,
    path: String,
}

impl Page {
    /// What an absolute address says, if that is one of HTTP at a literal address of IP.
    pub(super) fn absolute(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let at = address(authority)?;
        let is_http = scheme.eq_ignore_ascii_case("http");
        let path = if path.is_empty() { "/" } else { path };
        is_http.then(|| Self::new(at, path)).flatten()
    }

    /// The path stands in the first line of a request.
    fn new(at: SocketAddr, path: &str) -> Option<Self> {
        let is_part_of_it = |byte: u8| byte.is_ascii_graphic() && byte != b'#';
        let is_one_word = path.len() <= LONGEST_PATH && path.bytes().all(is_part_of_it);
        is_one_word.then(|| Self { at, path: path.to_owned() })
    }

    /// The page of the same address that this one refers to.
    fn follow(&self, reference: &str) -> Option<Self> {
        if reference.starts_with('/') {
            return Self::new(self.at, reference);
        }
        if reference.contains("://") {
            let there = Self::absolute(reference)?;
            let is_here = there.at.ip() == self.at.ip();
            return is_here.then(|| there.within(self.at));
        }
        let (mut folder, _) = self.path.split('?').next()?.rsplit_once('/')?;
        let mut rest = reference;
        while let Some((step @ ("." | ".."), behind)) = rest.split_once('/') {
            if step == ".." {
                folder = folder.rsplit_once('/').map_or("", |(above, _)| above);
            }
            rest = behind;
        }
        Self::new(self.at, &format!("{folder}/{rest}"))
    }

    /// The same, in the zone of this host that `peer` is in if its address needs one.
    fn within(mut self, peer: SocketAddr) -> Self {
        if let (SocketAddr::V6(at), SocketAddr::V6(peer)) = (&mut self.at, peer)
            && at.ip().is_unicast_link_local()
        {
            at.set_scope_id(peer.scope_id());
        }
        self
    }

    /// Where it is.
    pub(super) fn at(&self) -> SocketAddr {
        self.at
    }

    /// Asks for it.
    pub(super) fn get(&self) -> String {
        format!("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.path, host(self.at))
    }

    /// Asks the service that it controls to do something. No value has characters that XML escapes.
    pub(super) fn call(&self, service: &str, action: &str, arguments: &[(&str, String)]) -> String {
        let mut inner = String::new();
        for (name, value) in arguments {
            // Writing into a string does not fail.
            let _ = write!(inner, "<{name}>{value}</{name}>");
        }
        let body = format!(
            "<?xml version=\"1.0\"?>\r\n\
             <s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\" \
             s:encodingStyle=\"http://schemas.xmlsoap.org/soap/encoding/\"><s:Body>\
             <u:{action} xmlns:u=\"{service}\">{inner}</u:{action}></s:Body></s:Envelope>\r\n"
        );
        format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: text/xml; charset=\"utf-8\"\r\n\
             SOAPAction: \"{service}#{action}\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.path,
            host(self.at),
            body.len()
        )
    }
}

/// The address that stands in a URL, if it is a literal one.
fn address(authority: &str) -> Option<SocketAddr> {
    let (ip, port): (IpAddr, &str) = match authority.strip_prefix('[') {
        Some(bracketed) => {
            let (ip, port) = bracketed.split_once(']')?;
            // A zone is the device's own.
            (ip.split('%').next()?.parse::<Ipv6Addr>().ok()?.into(), port)
        }
        None => {
            let (ip, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
            (ip.parse::<Ipv4Addr>().ok()?.into(), port)
        }
    };
    let port = if port.is_empty() { 80 } else { port.strip_prefix(':')?.parse().ok()? };
    (port != 0).then(|| SocketAddr::new(ip, port))
}

/// An address as others know it, without a zone of this host.
fn host(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip(), at.port())
}

/// Asks those who hear it at an address whether they are, or have, a target (UPnP Device Architecture 1.1
/// §1.3.2).
pub(super) fn search(to: SocketAddr, target: &str) -> String {
    format!(
        "M-SEARCH * HTTP/1.1\r\nHOST: {}\r\nMAN: \"ssdp:discover\"\r\nMX: 1\r\nST: {target}\r\n\r\n",
        host(to)
    )
}

/// What a datagram says that came while a router was searched for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The router describes itself on this page.
    Router(Page),
    /// Another device describes itself.
    Stranger(IpAddr),
    /// Nothing that matters.
    Nothing,
}

/// What a datagram from `from` says. Over IPv6 the router is asked at the address that routes name, mostly a
/// link-local one, and may answer from another one of the network that `own` is in. It may name no other
/// machine, and this one is no router, whoever sends with its address.
pub(super) fn heard(datagram: &[u8], from: IpAddr, own: IpAddr, router: SocketAddr) -> Heard {
    let Some(page) = described(datagram) else { return Heard::Nothing };
    let is_routers = from == router.ip() || is_one_network(from, own);
    let ip = page.at.ip();
    if from == own {
        Heard::Nothing
    } else if is_routers && (ip == from || ip == router.ip()) {
        Heard::Router(page.within(router))
    } else if !is_routers && ip == from {
        Heard::Stranger(from)
    } else {
        Heard::Nothing
    }
}

/// Whether both are addresses of one network of IPv6.
fn is_one_network(one: IpAddr, other: IpAddr) -> bool {
    match (one, other) {
        (IpAddr::V6(one), IpAddr::V6(other)) => one.segments()[..4] == other.segments()[..4],
        _ => false,
    }
}

/// The page that an answer to a search names.
fn described(datagram: &[u8]) -> Option<Page> {
    let head = std::str::from_utf8(datagram).ok()?;
    let page = Page::absolute(header(head, "location")?)?;
    (status(head)? == 200).then_some(page)
}

/// An answer of HTTP.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    status: u16,
    body: String,
}

impl Answer {
    /// The answer that came, once all of it has; without a length that is when its sender says no more.
    pub(super) fn read(bytes: &[u8], is_over: bool) -> Option<Self> {
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n")?;
        let head = std::str::from_utf8(&bytes[..end]).ok()?;
        let rest = &bytes[end + 4..];
        let coding = header(head, "transfer-encoding");
        let is_chunked = coding.is_some_and(|coding| coding.eq_ignore_ascii_case("chunked"));
        let body = match header(head, "content-length") {
            _ if is_chunked => unchunked(rest)?,
            Some(length) => rest.get(..length.parse::<usize>().ok()?)?.to_vec(),
            None if is_over => rest.to_vec(),
            None => return None,
        };
        Some(Self { status: status(head)?, body: String::from_utf8_lossy(&body).into_owned() })
    }

    /// The first of some services that the description on `page` has, and the page by which it is controlled.
    /// References are meant from `URLBase` on (UPnP Device Architecture 1.0 §2.1) if the same device has it.
    pub(super) fn control(&self, page: &Page, services: &[&'static str]) -> Option<(&'static str, Page)> {
        if !self.is_done() {
            return None;
        }
        let base = self.value("URLBase").and_then(|base| page.follow(&base));
        let base = base.as_ref().unwrap_or(page);
        let (mut kind, mut control) = (None, None);
        for end in ends(&self.body) {
            match end {
                End::Leaf("serviceType", text) => {
                    kind = services.iter().copied().find(|service| *service == text);
                }
                End::Leaf("controlURL", text) if !text.is_empty() => control = base.follow(&text),
                End::Branch("service") => {
                    let service = kind.take().zip(control.take());
                    if service.is_some() {
                        return service;
                    }
                }
                _ => {}
            }
        }
        None
    }

    /// The text of the first element of this name that has any.
    pub(crate) fn value(&self, name: &str) -> Option<String> {
        leaf(&self.body, name)
    }

    /// Whether it was done.
    pub(super) fn is_done(&self) -> bool {
        self.status == 200
    }

    /// Why it was not: a code of the service or of UPnP (§3.2.2).
    pub(super) fn refusal(&self) -> Option<u16> {
        self.value("errorCode")?.parse().ok()
    }
}

/// The status in the first line of an answer.
fn status(head: &str) -> Option<u16> {
    let mut words = head.lines().next()?.split_ascii_whitespace();
    words.next().filter(|version| version.starts_with("HTTP/1."))?;
    words.next()?.parse().ok()
}

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let mut fields = head.lines().skip(1).filter_map(|line| line.split_once(':'));
    fields.find(|(field, _)| field.trim().eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// What was sent in chunks (RFC 9112 §7.1), if all of them are there.
fn unchunked(mut rest: &[u8]) -> Option<Vec<u8>> {
    let mut whole = Vec::new();
    loop {
        let end = rest.windows(2).position(|two| two == b"\r\n")?;
        let line = std::str::from_utf8(&rest[..end]).ok()?;
        let size = usize::from_str_radix(line.split(';').next()?.trim(), 16).ok()?;
        let chunks = &rest[end + 2..];
        if size == 0 {
            return Some(whole);
        }
        whole.extend_from_slice(chunks.get(..size)?);
        rest = chunks[size..].strip_prefix(b"\r\n")?;
    }
}

/// Takes bytes for what a router says: for the answer to a search, for one of HTTP, and for the text of one
/// that has done what it was asked.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    let services = [
        "urn:schemas-upnp-org:service:WANIPv6FirewallControl:1",
        "urn:schemas-upnp-org:service:WANIPConnection:2",
    ];
    let own4 = IpAddr::V4(Ipv4Addr::new(192, 168, 1, 20));
    let own6 = IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x20));
    let router4 = SocketAddr::from(([192, 168, 1, 1], 5000));
    let router6 = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1);
    let router6 = SocketAddr::V6(std::net::SocketAddrV6::new(router6, 5000, 0, 3));
    let (early, late) = (Answer::read(bytes, false), Answer::read(bytes, true));
    assert!(early.is_none() || early == late, "an answer that is whole stays what it is");
    let done = Answer { status: 200, body: String::from_utf8_lossy(bytes).into_owned() };
    for (own, router) in [(own4, router4), (own6, router6)] {
        if let Heard::Router(page) = heard(bytes, router.ip(), own, router) {
            leads_to(router, &page);
        }
        let page = Page { at: router, path: "/igd/rootDesc.xml".to_owned() };
        for answer in late.iter().chain([&done]) {
            if let Some((kind, control)) = answer.control(&page, &services) {
                assert!(answer.is_done() && services.contains(&kind));
                leads_to(router, &control);
            }
            // Whatever code it has.
            let _ = answer.refusal();
        }
    }
}

/// Checks that a page is the router's, and the only one that a request names.
#[cfg(feature = "fuzzing")]
fn leads_to(router: SocketAddr, page: &Page) {
    let zone = |at: SocketAddr| match at {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(at) => at.scope_id(),
    };
    assert_eq!((page.at.ip(), zone(page.at)), (router.ip(), zone(router)));
    for question in [page.get(), page.call("service", "Action", &[])] {
        let words = question.lines().next().map(|line| line.split(' ').count());
        assert_eq!(words, Some(3), "a request names one page");
    }
}

#[cfg(test)]
mod tests;
