#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const SERVICE: &str = "urn:schemas-upnp-org:service:WANIPv6FirewallControl:1";
const PORTS: [&str; 2] =
    ["urn:schemas-upnp-org:service:WANIPConnection:1", "urn:schemas-upnp-org:service:WANPPPConnection:1"];
const OWN: &str = "2001:db8:1::20";
const INSIDE: &str = "2001:db8:1::1";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// As routes name it.
fn router() -> SocketAddr {
    "[fe80::1%3]:5351".parse().unwrap()
}

/// As miniupnpd answers a search.
fn found(location: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\nST: {SERVICE}\r\nEXT:\r\n\
         SERVER: Debian UPnP/1.1 MiniUPnPd/2.3.1\r\nLocation: {location}\r\n\
         BOOTID.UPNP.ORG: 1795785264\r\n\r\n"
    )
}

fn found_page(heard: Heard) -> Option<Page> {
    match heard {
        Heard::Router(page) => Some(page),
        Heard::Stranger(_) | Heard::Nothing => None,
    }
}

fn described(answer: &str, from: &str) -> Option<Page> {
    found_page(heard(answer.as_bytes(), ip(from), ip(OWN), router()))
}

fn page(url: &str) -> Page {
    Page::absolute(url).unwrap()
}

/// As miniupnpd describes its router, cut to what matters.
fn device(control: &str) -> Answer {
    let other = "<service><serviceType>urn:schemas-upnp-org:service:WANIPConnection:2</serviceType>\
                 <controlURL>/ctl/IPConn</controlURL></service>";
    let body = format!(
        "<?xml version=\"1.0\"?>\n<root xmlns=\"urn:schemas-upnp-org:device-1-0\"><device>\
         <serviceList>{other}<service><serviceType>{SERVICE}</serviceType><SCPDURL>/WANIP6FC.xml</SCPDURL>\
         <controlURL>{control}</controlURL></service></serviceList></device></root>"
    );
    Answer { status: 200, body }
}

/// A description that has this inside.
fn describing(inner: &str) -> Answer {
    Answer { status: 200, body: format!("<?xml version=\"1.0\"?>\r\n<root>{inner}</root>\r\n") }
}

fn service(kind: &str, control: &str) -> String {
    format!(
        "<service><serviceType>{kind}</serviceType><serviceId>urn:upnp-org:serviceId:x</serviceId>\
         <controlURL>{control}</controlURL><eventSubURL>/evt</eventSubURL><SCPDURL>/x.xml</SCPDURL></service>"
    )
}

/// Where a description at 192.168.1.1:5000 says that ports are asked for, and of which service.
fn control_of(description: &Answer) -> Option<(&'static str, String)> {
    let at = page("http://192.168.1.1:5000/igd/desc.xml?v=/1");
    let (kind, control) = description.control(&at, &PORTS)?;
    Some((kind, format!("http://{}{}", control.at, control.path)))
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
    assert_eq!(at_the_other.at(), "[fe80::1%3]:80".parse::<SocketAddr>().unwrap(), "in this host's zone");

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
        "http://[2001:db8:1::1]:0/d",
        "http://[2001:db8:1::1/d",
        "http://[2001:db8:1::1]:80/d HTTP/1.1",
    ] {
        assert!(described(&found(elsewhere), INSIDE).is_none(), "{elsewhere}");
    }
    assert!(described(&own_page.replace("200 OK", "404 Not Found"), INSIDE).is_none());
    assert!(described(&own_page.replace("Location", "Elsewhere"), INSIDE).is_none());
}

#[test]
fn over_ipv4_nobody_but_the_router_is_believed_to_be_it() {
    let (own, router) = (ip("192.168.1.20"), "192.168.1.1:0".parse().unwrap());
    let heard = |location: &str, from: &str| heard(found(location).as_bytes(), ip(from), own, router);
    let own_page = "http://192.168.1.1:5000/rootDesc.xml";
    assert_eq!(heard(own_page, "192.168.1.1"), Heard::Router(page(own_page)));
    assert_eq!(heard("http://192.168.1.1", "192.168.1.1"), Heard::Router(page("http://192.168.1.1:80/")));
    assert_eq!(heard("http://192.168.1.2:5000/d", "192.168.1.2"), Heard::Stranger(ip("192.168.1.2")));
    for (location, from) in [
        (own_page, "192.168.1.2"),
        ("http://192.168.1.2:5000/d", "192.168.1.1"),
        ("http://192.168.1.20:5000/d", "192.168.1.20"),
        ("http://127.0.0.1:5000/d", "192.168.1.1"),
        ("http://192.168.1.1@192.168.1.2/d", "192.168.1.1"),
        ("http://192.168.1.1.example/d", "192.168.1.1"),
        ("http://192.168.1.1:5000/d#x", "192.168.1.1"),
        ("ftp://192.168.1.1:5000/d", "192.168.1.1"),
    ] {
        assert_eq!(heard(location, from), Heard::Nothing, "{location} from {from}");
    }
}

#[test]
fn the_page_that_controls_the_firewall_is_that_of_its_service() {
    let at = page("http://[2001:db8:1::1]:34899/igd/rootDesc.xml");
    let control = |url: &str| device(url).control(&at, &[SERVICE]).map(|(_, page)| page.get());
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
    assert_eq!(without.control(&at, &[SERVICE]), None);
    assert_eq!(Answer { status: 301, ..device("/c") }.control(&at, &[SERVICE]), None, "it is elsewhere");
}

#[test]
fn of_several_services_the_first_that_is_looked_for_is_asked() {
    let [ip_connection, ppp] = PORTS;
    let other = service("urn:schemas-upnp-org:service:WANCommonInterfaceConfig:1", "/upnp/common");
    let (dsl, cable) = (service(ppp, "/upnp/ppp"), service(ip_connection, "/upnp/ip"));
    let nested = format!(
        "<specVersion><major>1</major></specVersion><device><deviceType>d</deviceType>\
         <serviceList>{other}</serviceList><deviceList><device>\
         <serviceList>{dsl}{cable}</serviceList></device></deviceList></device>"
    );
    let at = |path: &str| format!("http://192.168.1.1:5000{path}");
    assert_eq!(control_of(&describing(&nested)), Some((ppp, at("/upnp/ppp"))));
    let other_alone = describing(&format!("<device><serviceList>{other}</serviceList></device>"));
    assert_eq!(control_of(&other_alone), None);
    // What one lacks it does not take from another one.
    let without = format!("<service><serviceType>{ppp}</serviceType></service>{other}{cable}");
    assert_eq!(control_of(&describing(&without)), Some((ip_connection, at("/upnp/ip"))));
    let elsewhere = format!("{}{cable}", service(ppp, "http://192.168.1.2/c"));
    assert_eq!(control_of(&describing(&elsewhere)), Some((ip_connection, at("/upnp/ip"))));
}

#[test]
fn makers_write_their_descriptions_in_many_ways() {
    let [kind, _] = PORTS;
    let control = |head: &str, url: &str| control_of(&describing(&format!("{head}{}", service(kind, url))));
    let at = |rest: &str| Some((kind, format!("http://192.168.1.1{rest}")));
    assert_eq!(control("", "/c"), at(":5000/c"));
    assert_eq!(control("", "c"), at(":5000/igd/c"));
    assert_eq!(control("", "./a/c"), at(":5000/igd/a/c"));
    assert_eq!(control("", "../../c"), at(":5000/c"));
    assert_eq!(control("", "http://192.168.1.1/c?s=http://x/"), at(":80/c?s=http://x/"));
    assert_eq!(control("", "HTTP://192.168.1.1:81"), at(":81/"));
    assert_eq!(control("", "<![CDATA[/c?a=1&b=2]]>"), at(":5000/c?a=1&b=2"));
    assert_eq!(control("", "\r\n  /c?a=1&amp;b=2\r\n"), at(":5000/c?a=1&b=2"));
    assert_eq!(control("", ""), None);

    let base = |url: &str| format!("<URLBase>{url}</URLBase>");
    assert_eq!(control(&base("http://192.168.1.1:49152"), "c"), at(":49152/c"));
    assert_eq!(control(&base("http://192.168.1.1:49152/up/"), "c"), at(":49152/up/c"));
    assert_eq!(control(&base("http://192.168.1.1:49152/up/"), "/c"), at(":49152/c"));
    assert_eq!(control(&base("http://192.168.1.2:49152/up/"), "/c"), at(":5000/c"), "of another device");
    assert_eq!(control(&base(""), "/c"), at(":5000/c"));

    let prefixed = format!("<!-- 2.0 -->{}", service(kind, "/c"));
    let prefixed = prefixed.replace("</", "</d:").replace("<s", "<d:s");
    let prefixed = prefixed.replace("<controlURL>", "<d:controlURL d:x='>'>");
    assert!(prefixed.contains("<d:service>") && prefixed.contains("</d:controlURL>"), "{prefixed}");
    assert_eq!(control_of(&describing(&prefixed)), at(":5000/c"));
}

#[test]
fn what_was_done_is_known_by_its_values_and_a_refusal_by_its_code() {
    let number = |answer: &Answer| answer.value("UniqueID");
    let done = answered(200, "<u:AddPinholeResponse><UniqueID>5</UniqueID></u:AddPinholeResponse>");
    assert_eq!((number(&done).as_deref(), done.is_done(), done.refusal()), (Some("5"), true, None));
    let typed = answered(200, "<UniqueIDs>1</UniqueIDs><UniqueID dt:dt=\"ui2\"> 65535 </UniqueID>");
    assert_eq!(number(&typed).as_deref(), Some("65535"));
    for nothing in
        ["", "<UniqueID/>", "<UniqueID> </UniqueID>", "<UniqueID>", "<!-- <UniqueID>1</UniqueID> -->"]
    {
        assert_eq!(number(&answered(200, nothing)), None, "{nothing}");
    }
    let refused = answered(500, "<UPnPError><errorCode>606</errorCode></UPnPError>");
    assert_eq!((refused.is_done(), refused.refusal()), (false, Some(606)));
    assert_eq!(answered(500, "no").refusal(), None);
    assert_eq!(answered(500, "<errorCode>65536</errorCode>").refusal(), None);
}

#[test]
fn a_device_is_asked_by_the_name_that_others_know_it_by() {
    let asked = search(router(), SERVICE);
    assert!(asked.starts_with("M-SEARCH * HTTP/1.1\r\nHOST: [fe80::1]:5351\r\n"), "{asked}");
    assert!(asked.ends_with(&format!("\r\nST: {SERVICE}\r\n\r\n")), "{asked}");
    let page = page("http://192.168.1.1:5000/ctl");
    let call = page.call(PORTS[0], "GetExternalIPAddress", &[]);
    assert!(call.starts_with("POST /ctl HTTP/1.1\r\nHost: 192.168.1.1:5000\r\n"), "{call}");
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
        let host = if is_own { ip(INSIDE) } else { IpAddr::from(Ipv6Addr::from(host)) };
        let told = found(&format!("http://[{host}]:{port}/{text}"));
        let datagram = if is_found { told.into_bytes() } else { bytes.clone() };
        let page = found_page(heard(&datagram, ip(INSIDE), ip(OWN), router()));
        prop_assert!(page.is_none_or(|page| [ip(INSIDE), ip("fe80::1")].contains(&page.at().ip())));

        let answer = Answer::read(&bytes, true).unwrap_or_else(|| device(&text));
        let at = self::page("http://[2001:db8:1::1]:34899/rootDesc.xml");
        if let Some((_, control)) = answer.control(&at, &[SERVICE]) {
            let (found, asked) = (control.at(), at.at());
            prop_assert_eq!(found.ip(), asked.ip());
            prop_assert_eq!(control.get().lines().next().unwrap().split(' ').count(), 3);
        }
    }
}
