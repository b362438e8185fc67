#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const OWN: &str = "2001:db8:1::20";
const INSIDE: &str = "2001:db8:1::1";

fn ip(text: &str) -> Ipv6Addr {
    text.parse().unwrap()
}

/// As routes name it.
fn router() -> SocketAddrV6 {
    SocketAddrV6::new(ip("fe80::1"), 5351, 0, 3)
}

/// As miniupnpd answers a search.
fn found(location: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\nST: {SERVICE}\r\nEXT:\r\n\
         SERVER: Debian UPnP/1.1 MiniUPnPd/2.3.1\r\nLocation: {location}\r\nBOOTID.UPNP.ORG: 1795785264\r\n\r\n"
    )
}

fn described(answer: &str, from: &str) -> Option<Page> {
    description(answer.as_bytes(), ip(from), ip(OWN), router())
}

fn page(url: &str) -> Page {
    Page::absolute(url).unwrap()
}

/// As miniupnpd describes its router, cut to what matters.
fn device(control: &str) -> Answer {
    let other = "<service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:2</serviceType>\
                 <controlURL>/ctl/IPConn</controlURL></service>";
    let body = format!(
        "<?xml version=\"1.0\"?>\n<root xmlns=\"urn:schemas-upnp-org:device-1-0\"><device><serviceList>{other}\
         <service><serviceType>{SERVICE}</serviceType><SCPDURL>/WANIP6FC.xml</SCPDURL>\
         <controlURL>{control}</controlURL></service></serviceList></device></root>"
    );
    Answer { status: 200, body }
}

fn answered(status: u16, inner: &str) -> Answer {
    Answer { status, body: format!("<s:Envelope><s:Body>{inner}</s:Body></s:Envelope>") }
}

#[test]
fn a_router_describes_itself_at_its_own_address_alone() {
    let own_page = found(&format!("http://[{INSIDE}]:34899/rootDesc.xml"));
    let found_at = described(&own_page, INSIDE).unwrap();
    assert_eq!(found_at, page(&format!("http://[{INSIDE}]:34899/rootDesc.xml")));
    // It answers from another of its addresses.
    assert!(described(&own_page, "fe80::1").is_none(), "that one it does not answer from");
    let at_the_other = described(&found("http://[fe80::1%25br0]:80/d"), INSIDE).unwrap();
    assert_eq!(at_the_other.at(), SocketAddrV6::new(ip("fe80::1"), 80, 0, 3), "in this host's zone");

    assert!(described(&own_page, "2001:db8:2::1").is_none(), "from another network");
    assert!(described(&own_page, "fe80::2").is_none(), "from a neighbour");
    let here = found(&format!("http://[{OWN}]:80/d"));
    assert!(described(&here, OWN).is_none(), "from this host's own address");
    for elsewhere in [
        "http://[2001:db8:1::66]:80/d",
        "http://192.168.1.1:80/d",
        "http://router.example/d",
        "https://[2001:db8:1::1]/d",
        "http://[2001:db8:1::1]:99999/d",
        "http://[2001:db8:1::1/d",
        "http://[2001:db8:1::1]:80/d HTTP/1.1",
    ] {
        assert!(described(&found(elsewhere), INSIDE).is_none(), "{elsewhere}");
    }
    assert!(described(&own_page.replace("200 OK", "404 Not Found"), INSIDE).is_none());
    assert!(described(&own_page.replace("Location", "Elsewhere"), INSIDE).is_none());
}

#[test]
fn the_page_that_controls_the_firewall_is_that_of_its_service() {
    let at = page("http://[2001:db8:1::1]:34899/igd/rootDesc.xml");
    let control = |url: &str| device(url).control(&at).map(|page| page.get());
    let get = |path: &str, port: u16| {
        format!("GET {path} HTTP/1.1\r\nHost: [2001:db8:1::1]:{port}\r\nConnection: close\r\n\r\n")
    };
    assert_eq!(control("/ctl/IP6FCtl"), Some(get("/ctl/IP6FCtl", 34899)));
    assert_eq!(control(" ctl?a=1&amp;b=2\n"), Some(get("/igd/ctl?a=1&b=2", 34899)));
    assert_eq!(control("http://[2001:db8:1::1]:81/c"), Some(get("/c", 81)));
    assert_eq!(control("http://[2001:db8:1::2]:81/c"), None, "another machine");
    assert_eq!(control("/c HTTP/1.1\r\nHost: victim"), None, "more than a path");
    assert_eq!(control(&format!("/{}", "c".repeat(LONGEST_PATH))), None);
    let without = Answer { body: device("/c").body.replace("IPv6Firewall", "Nothing"), ..device("/c") };
    assert_eq!(without.control(&at), None);
    assert_eq!(Answer { status: 301, ..device("/c") }.control(&at), None, "it is elsewhere");
}

#[test]
fn what_is_asked_of_a_firewall_is_laid_out_as_its_service_says() {
    let control = page("http://[2001:db8:1::1]:34899/ctl/IP6FCtl");
    let port = NonZeroU16::new(4433).unwrap();
    let asked = control.add(ip(OWN), InternetProtocol::Udp, port, Duration::from_secs(3600));
    let (head, body) = asked.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /ctl/IP6FCtl HTTP/1.1\r\nHost: [2001:db8:1::1]:34899\r\n"), "{head}");
    assert_eq!(header(head, "SOAPAction"), Some(format!("\"{SERVICE}#AddPinhole\"").as_str()));
    assert_eq!(header(head, "Content-Length"), Some(body.len().to_string().as_str()));
    let arguments = "<RemoteHost></RemoteHost><RemotePort>0</RemotePort><InternalClient>2001:db8:1::20\
                     </InternalClient><InternalPort>4433</InternalPort><Protocol>17</Protocol>\
                     <LeaseTime>3600</LeaseTime>";
    assert!(
        body.contains(&format!("<u:AddPinhole xmlns:u=\"{SERVICE}\">{arguments}</u:AddPinhole>")),
        "{body}"
    );
    let deleted = control.delete(7);
    assert!(deleted.contains("<UniqueID>7</UniqueID></u:DeletePinhole>"), "{deleted}");
}

#[test]
fn a_pinhole_is_known_by_its_number_and_a_refusal_by_its_code() {
    let done = answered(200, "<u:AddPinholeResponse><UniqueID>5</UniqueID></u:AddPinholeResponse>");
    assert_eq!((done.pinhole(), done.is_done()), (Some(5), true));
    let typed = answered(200, "<UniqueIDs>1</UniqueIDs><UniqueID dt:dt=\"ui2\"> 65535 </UniqueID>");
    assert_eq!(typed.pinhole(), Some(65535));
    for nothing in ["", "<UniqueID/>", "<UniqueID>65536</UniqueID>", "<UniqueID>"] {
        assert_eq!(answered(200, nothing).pinhole(), None, "{nothing}");
    }
    let refused = answered(500, "<UPnPError><errorCode>606</errorCode></UPnPError><UniqueID>5</UniqueID>");
    assert_eq!((refused.pinhole(), refused.is_done(), refused.refusal()), (None, false, Some(606)));
    assert_eq!(answered(500, "no").refusal(), None);
}

#[test]
fn an_answer_is_read_when_all_of_it_has_come() {
    let counted: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello";
    let chunked: &[u8] =
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2;a=b\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
    let hello = Answer { status: 200, body: "hello".to_owned() };
    for (whole, rest) in [(counted, 0), (chunked, b"\r\n".len())] {
        assert_eq!(Answer::read(whole, false).as_ref(), Some(&hello));
        for end in 0..whole.len() - rest {
            assert_eq!(Answer::read(&whole[..end], true), None, "{end} bytes");
        }
    }
    let open: &[u8] = b"HTTP/1.0 500 No\r\nServer: x\r\n\r\nhello";
    assert_eq!(Answer::read(open, false), None, "more may come");
    assert_eq!(Answer::read(open, true), Some(Answer { status: 500, ..hello }));
    assert_eq!(Answer::read(b"ICY 200 OK\r\n\r\n", true), None, "another protocol");
    let endless: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nhe";
    assert_eq!(Answer::read(endless, true), None);
}

proptest! {
    #[test]
    fn whatever_comes_leads_to_the_router_alone(
        bytes in prop::collection::vec(any::<u8>(), 0..200), is_own in any::<bool>(), host in any::<u128>(),
        port in any::<u16>(), is_found in any::<bool>(), text in "[ -~\r\n]{0,80}",
    ) {
        let host = if is_own { ip(INSIDE) } else { Ipv6Addr::from(host) };
        let told = found(&format!("http://[{host}]:{port}/{text}"));
        let datagram = if is_found { told.into_bytes() } else { bytes.clone() };
        let page = description(&datagram, ip(INSIDE), ip(OWN), router());
        prop_assert!(page.is_none_or(|page| [ip(INSIDE), ip("fe80::1")].contains(page.at().ip())));

        let answer = Answer::read(&bytes, true).unwrap_or_else(|| device(&text));
        let at = self::page("http://[2001:db8:1::1]:34899/rootDesc.xml");
        if let Some(control) = answer.control(&at) {
            let (found, asked) = (control.at(), at.at());
            prop_assert_eq!(found.ip(), asked.ip());
            prop_assert_eq!(control.get().lines().next().unwrap().split(' ').count(), 3);
        }
    }
}
