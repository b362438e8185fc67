//! What is said to and by a router with an IPv6 firewall, by UPnP (WANIPv6FirewallControl:1), without I/O.

use std::fmt::Write as _;
use std::net::{Ipv6Addr, SocketAddrV6};
use std::num::NonZeroU16;
use std::time::Duration;

use crab_nat::InternetProtocol;

use crate::pcp::number;

/// The service of a router that controls its IPv6 firewall.
const SERVICE: &str = "urn:schemas-upnp-org:service:WANIPv6FirewallControl:1";
/// No device has a longer one.
const LONGEST_PATH: usize = 1024;

/// A page of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Page {
    at: SocketAddrV6,
    path: String,
}

impl Page {
    /// What an absolute address says, if that is one of HTTP at a literal address of IPv6.
    fn absolute(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let (ip, port) = authority.strip_prefix('[')?.split_once(']')?;
        // A zone is the device's own.
        let ip: Ipv6Addr = ip.split('%').next()?.parse().ok()?;
        let port = if port.is_empty() { 80 } else { port.strip_prefix(':')?.parse().ok()? };
        let is_http = scheme.eq_ignore_ascii_case("http");
        let path = if path.is_empty() { "/" } else { path };
        is_http.then(|| Self::new(SocketAddrV6::new(ip, port, 0, 0), path)).flatten()
    }

    /// The path stands in the first line of a request.
    fn new(at: SocketAddrV6, path: &str) -> Option<Self> {
        let is_one_word = path.len() <= LONGEST_PATH && path.bytes().all(|byte| byte.is_ascii_graphic());
        is_one_word.then(|| Self { at, path: path.to_owned() })
    }

    /// The page of the same address that this one refers to.
    fn follow(&self, reference: &str) -> Option<Self> {
        if reference.contains("://") {
            let there = Self::absolute(reference)?;
            let is_here = there.at.ip() == self.at.ip();
            return is_here.then(|| there.within(self.at.scope_id()));
        }
        if reference.starts_with('/') {
            return Self::new(self.at, reference);
        }
        let (folder, _) = self.path.rsplit_once('/')?;
        Self::new(self.at, &format!("{folder}/{reference}"))
    }

    /// The same, in a zone of this host if its address needs one.
    fn within(mut self, zone: u32) -> Self {
        if self.at.ip().is_unicast_link_local() {
            self.at.set_scope_id(zone);
        }
        self
    }

    /// Where it is.
    pub(super) fn at(&self) -> SocketAddrV6 {
        self.at
    }

    fn host(&self) -> String {
        format!("[{}]:{}", self.at.ip(), self.at.port())
    }

    /// Asks for it.
    pub(super) fn get(&self) -> String {
        format!("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.path, self.host())
    }

    /// Asks the firewall that it controls to let in a port at this host's address, for so long.
    pub(super) fn add(
        &self,
        own: Ipv6Addr,
        protocol: InternetProtocol,
        port: NonZeroU16,
        lifetime: Duration,
    ) -> String {
        self.call(
            "AddPinhole",
            &[
                // From wherever, and whichever port.
                ("RemoteHost", String::new()),
                ("RemotePort", "0".to_owned()),
                ("InternalClient", own.to_string()),
                ("InternalPort", port.to_string()),
                ("Protocol", number(protocol).to_string()),
                ("LeaseTime", lifetime.as_secs().to_string()),
            ],
        )
    }

    /// Asks the firewall that it controls to let in no longer what has this number.
    pub(super) fn delete(&self, pinhole: u16) -> String {
        self.call("DeletePinhole", &[("UniqueID", pinhole.to_string())])
    }

    fn call(&self, action: &str, arguments: &[(&str, String)]) -> String {
        let mut inner = String::new();
        for (name, value) in arguments {
            // Writing into a string does not fail.
            let _ = write!(inner, "<{name}>{value}</{name}>");
        }
        let body = format!(
            "<?xml version=\"1.0\"?>\r\n\
             <s:Envelope xmlns:s=\"http://schemas.xmlsoap.org/soap/envelope/\" \
             s:encodingStyle=\"http://schemas.xmlsoap.org/soap/encoding/\"><s:Body>\
             <u:{action} xmlns:u=\"{SERVICE}\">{inner}</u:{action}></s:Body></s:Envelope>\r\n"
        );
        format!(
            "POST {} HTTP/1.1\r\nHost: {}\r\nContent-Type: text/xml; charset=\"utf-8\"\r\n\
             SOAPAction: \"{SERVICE}#{action}\"\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            self.path,
            self.host(),
            body.len()
        )
    }
}

/// Asks a router, and nobody else, whether it has such a firewall (UPnP Device Architecture 1.1 §1.3.2).
pub(super) fn search(router: Ipv6Addr) -> String {
    format!(
        "M-SEARCH * HTTP/1.1\r\nHOST: [{router}]:1900\r\nMAN: \"ssdp:discover\"\r\nMX: 1\r\n\
         ST: {SERVICE}\r\n\r\n"
    )
}

/// The page that describes the router, if a datagram from `from` says so. The router is asked at the address
/// that routes name, mostly a link-local one, and may answer from another one of the network that `own` is in.
/// It may name no other machine, and this one is no router, whoever sends with its address.
pub(super) fn description(
    datagram: &[u8],
    from: Ipv6Addr,
    own: Ipv6Addr,
    router: SocketAddrV6,
) -> Option<Page> {
    let head = std::str::from_utf8(datagram).ok()?;
    let page = Page::absolute(header(head, "location")?)?;
    let is_near = from == *router.ip() || from.segments()[..4] == own.segments()[..4];
    let is_its_own = *page.at.ip() == from || page.at.ip() == router.ip();
    (status(head)? == 200 && is_near && from != own && is_its_own).then(|| page.within(router.scope_id()))
}

/// An answer of HTTP.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answer {
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

    /// The page by which the firewall is controlled, as the description of its router on `page` says.
    pub(super) fn control(&self, page: &Page) -> Option<Page> {
        if !self.is_done() {
            return None;
        }
        let mut services =
            self.body.split("<service>").skip(1).filter_map(|rest| rest.split("</service>").next());
        let ours = services.find(|service| element(service, "serviceType") == Some(SERVICE))?;
        page.follow(&element(ours, "controlURL")?.replace("&amp;", "&"))
    }

    /// The number of the pinhole that was made, or of that which was there already.
    pub(super) fn pinhole(&self) -> Option<u16> {
        if self.is_done() { element(&self.body, "UniqueID")?.parse().ok() } else { None }
    }

    /// Whether it was done.
    pub(super) fn is_done(&self) -> bool {
        self.status == 200
    }

    /// Why it was not: a code of the service (§2.7) or of UPnP.
    pub(super) fn refusal(&self) -> Option<u16> {
        element(&self.body, "errorCode")?.parse().ok()
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

/// The text of the first element of this name that has any. What devices say of themselves needs no more XML.
fn element<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.split(&format!("<{name}")).skip(1).find_map(|behind| {
        let (attributes, rest) = behind.split_once('>')?;
        let is_it = attributes.is_empty() || attributes.starts_with([' ', '\t', '\r', '\n']);
        let (inner, _) = rest.split_once("</")?;
        (is_it && !attributes.ends_with('/')).then(|| inner.trim())
    })
}

/// Takes bytes for what a router says: for the answer to a search, for one of HTTP, and for the text of one
/// that has done what it was asked.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    let router = SocketAddrV6::new(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1), 5351, 0, 3);
    let own = Ipv6Addr::new(0x2001, 0xdb8, 1, 0, 0, 0, 0, 0x20);
    let leads_to_the_router = |page: &Page| {
        assert_eq!((page.at().ip(), page.at().scope_id()), (router.ip(), router.scope_id()));
        for question in [page.get(), page.delete(1)] {
            let words = question.lines().next().map(|line| line.split(' ').count());
            assert_eq!(words, Some(3), "a request names one page");
        }
    };
    if let Some(page) = description(bytes, *router.ip(), own, router) {
        leads_to_the_router(&page);
    }
    let (early, late) = (Answer::read(bytes, false), Answer::read(bytes, true));
    assert!(early.is_none() || early == late, "an answer that is whole stays what it is");
    let done = Answer { status: 200, body: String::from_utf8_lossy(bytes).into_owned() };
    let page = Page { at: router, path: "/igd/rootDesc.xml".to_owned() };
    for answer in late.iter().chain([&done]) {
        if let Some(control) = answer.control(&page) {
            leads_to_the_router(&control);
        }
        assert!(answer.pinhole().is_none() || answer.is_done());
        // Whatever code it has.
        let _ = answer.refusal();
    }
}

#[cfg(test)]
mod tests;
