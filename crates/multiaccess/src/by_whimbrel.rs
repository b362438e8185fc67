//! Where a connection of Whimbrel is right: to a name of Whimbrel, and through the user's gateway for what
//! must not break. Nothing is looked up for that: names of Whimbrel are not DNS's to know.

use crate::decide::Candidate;
use crate::protocol::{Ask, ByWhimbrel, Protocol, SocketOptions, Verdict, Way};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use whimbrel_access::{Granularity, Key, Resilience};
use whimbrel_base::Name;

/// What lasts for so long, in milliseconds, is likely to meet a change of networks: what is known of a mobile
/// network is stale after that time (`docs/access.md`).
const LASTS: u64 = 60_000;
/// SMTP, which gateways pass on for nobody unless they are told to.
const MAIL: u16 = 25;

/// The same question about the networks alone, wherever it leads, for a new connection.
pub(crate) fn anywhere(ask: &Ask) -> Ask {
    Ask { intents: ask.intents, granularity: ask.granularity, track: ask.track, ..Ask::default() }
}

/// Makes what was decided about the networks the answer for this endpoint.
pub(crate) fn to_endpoint(decided: Verdict, endpoint: &Name) -> Verdict {
    let ways = over(&decided);
    let mut verdict = Verdict { ways: Vec::new(), parts: Vec::new(), warm: None, ..decided };
    if !ways.is_empty() {
        verdict.problems.push(format!("{endpoint} has no address in DNS: Whimbrel alone leads there"));
        let why = format!("{endpoint} is a name of Whimbrel, which finds it and stays with it where it goes");
        verdict.whimbrel = Some(ByWhimbrel { endpoint: endpoint.to_string(), gateway: false, ways, why });
    }
    verdict
}

/// Makes what was decided about the networks a connection through this gateway. `None`: it has to wait.
pub(crate) fn through(decided: &Verdict, gateway: &Name, why: String) -> Option<ByWhimbrel> {
    let ways = over(decided);
    let endpoint = gateway.to_string();
    (!ways.is_empty()).then_some(ByWhimbrel { endpoint, gateway: true, ways, why })
}

/// Why something is better carried by the user's gateway, in words. `None`: it is not.
pub(crate) fn why_through(gateway: &Name, ask: &Ask, candidates: &[Candidate]) -> Option<String> {
    let stated = ask.intents.at(ask.granularity);
    let intent = match (stated.resilience, stated.duration) {
        (Some(Resilience::Sensitive), _) => format!("{}=sensitive", Key::Resilience),
        (_, Some(lasts)) if lasts >= LASTS => format!("{}={lasts}", Key::Duration),
        _ => return None,
    };
    // A message is soon over, and can be asked for again.
    let is_new = ask.granularity != Granularity::Message && ask.under_way.is_none();
    let is_host = ask.to.as_deref().is_none_or(names_a_port);
    let is_carried = !candidates.is_empty() && candidates.iter().all(may_be_carried);
    let goes_on = || format!("goes on when a network is lost, through {gateway}; {intent}");
    (is_new && is_host && is_carried).then(goes_on)
}

/// As the client library and proxies name what they connect to. Connections of Whimbrel are named otherwise.
fn names_a_port(to: &str) -> bool {
    let is_host = |host: &str| !host.contains(['@', ' ']);
    to.rsplit_once(':').is_some_and(|(host, port)| is_host(host) && port.parse::<u16>().is_ok())
}

/// Whether gateways lead there unless they are told otherwise: an ordinary host of the internet.
fn may_be_carried(candidate: &Candidate) -> bool {
    let is_ordinary = match candidate.address.ip().to_canonical() {
        IpAddr::V4(ip) => is_ordinary_v4(ip),
        IpAddr::V6(ip) => is_ordinary_v6(ip),
    };
    is_ordinary && candidate.address.port() != MAIL
}

/// The IANA registry of special addresses (RFC 6890), but those for documentation.
fn is_ordinary_v4(ip: Ipv4Addr) -> bool {
    let [a, b, c, _] = ip.octets();
    let is_special = ip.is_private() || ip.is_loopback() || ip.is_link_local();
    let is_shared = a == 100 && b & 0xc0 == 64;
    let is_reserved = a == 0 || a >= 224 || (a, b, c) == (192, 0, 0) || (a == 198 && b & 0xfe == 18);
    !(is_special || is_shared || is_reserved)
}

/// Global unicast, without Teredo and 6to4, which are IPv4 addresses.
fn is_ordinary_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    a & 0xe000 == 0x2000 && a != 0x2002 && (a, b) != (0x2001, 0)
}

/// The ways of a decision, for a connection of Whimbrel: each network once. Those of parts carry together.
fn over(decided: &Verdict) -> Vec<Way> {
    let of_whimbrel = |way: &Way| Way {
        reuse: None,
        destination: None,
        protocol: Protocol::Whimbrel,
        options: SocketOptions::default(),
        round_trip: None,
        holds: None,
        completes_ms: None,
        failed_lately: false,
        ..way.clone()
    };
    let mut ways: Vec<Way> = Vec::new();
    for way in &decided.ways {
        if ways.iter().all(|other| other.interface != way.interface) {
            ways.push(of_whimbrel(way));
        }
    }
    if let Some(first) = ways.first_mut() {
        let parts = decided.parts.iter().map(|part| part.way.interface.clone());
        first.also.extend(parts.filter(|interface| *interface != first.interface));
    }
    ways
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::protocol::PartWay;

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn way(interface: &str) -> Way {
        let options =
            SocketOptions { bind_to_device: Some(interface.to_owned()), ..SocketOptions::default() };
        Way { interface: interface.to_owned(), why: "is first".to_owned(), options, ..Way::default() }
    }

    fn why(to: &str, granularity: Granularity, intents: &str) -> Option<String> {
        let address = to.parse().unwrap();
        let ask =
            Ask { intents: intents.parse().unwrap(), granularity, to: Some(to.into()), ..Ask::default() };
        why_through(&name("gate.home.ada@example.org"), &ask, &[Candidate { address, interface: None }])
    }

    #[test]
    fn a_name_of_whimbrel_is_reached_by_whimbrel_over_the_networks_that_were_decided() {
        let parts = vec![PartWay { bytes: 1, way: way("wlan0") }, PartWay { bytes: 1, way: way("usb0") }];
        let decided = Verdict { ways: vec![way("wlan0"), way("usb0")], parts, ..Verdict::default() };
        let verdict = to_endpoint(decided, &name("ssh.laptop.ada@example.org"));
        assert!(verdict.ways.is_empty() && verdict.parts.is_empty(), "plain connections lead nowhere");
        assert!(verdict.problems[0].contains("Whimbrel alone leads there"), "{verdict:?}");
        let by = verdict.whimbrel.unwrap();
        assert_eq!((by.endpoint.as_str(), by.gateway), ("ssh.laptop.ada@example.org", false));
        assert_eq!(by.ways[0].also, ["usb0"]);
        assert_eq!(by.ways[1].why, "is first");
        let is_bare =
            |way: &Way| way.protocol == Protocol::Whimbrel && way.options == SocketOptions::default();
        assert!(by.ways.len() == 2 && by.ways.iter().all(is_bare), "{by:?}");
        // Where nothing may be used it has to wait, as anything.
        let waits = Verdict { problems: vec!["it has to wait".to_owned()], ..Verdict::default() };
        assert_eq!(to_endpoint(waits.clone(), &name("ada@example.org")), waits);
    }

    #[test]
    fn a_network_by_which_several_addresses_are_reached_stands_once_in_what_goes_through_the_gateway() {
        let to = |interface: &str, address: &str| {
            let destination = Some(address.parse().unwrap());
            Way { destination, failed_lately: true, ..way(interface) }
        };
        let near = ["203.0.113.9:443", "203.0.113.8:443"];
        let ways = vec![to("wlan0", near[0]), to("wlan0", near[1]), to("usb0", near[0])];
        let decided = Verdict { ways, ..Verdict::default() };
        let by = through(&decided, &name("gate.home.ada@example.org"), "so".to_owned()).unwrap();
        let networks: Vec<&str> = by.ways.iter().map(|way| way.interface.as_str()).collect();
        assert_eq!(networks, ["wlan0", "usb0"]);
        // What failed was another destination.
        assert!(by.gateway && by.ways.iter().all(|way| way.destination.is_none() && !way.failed_lately));
    }

    #[test]
    fn what_must_not_break_or_lasts_goes_through_the_gateway_and_nothing_else_does() {
        use Granularity::{Connection, Message, Stream};
        let far = "203.0.113.9:443";
        let told = why(far, Connection, "resilience=sensitive").unwrap();
        let gateway = "gate.home.ada@example.org";
        assert_eq!(told, format!("goes on when a network is lost, through {gateway}; resilience=sensitive"));
        assert!(why(far, Stream, "duration=60000").unwrap().ends_with("; duration=60000"));
        for (granularity, intents) in [
            (Message, "resilience=sensitive"),
            (Connection, ""),
            (Connection, "duration=59999"),
            (Stream, "resilience=resilient"),
        ] {
            assert_eq!(why(far, granularity, intents), None, "{granularity:?} {intents}");
        }
    }

    #[test]
    fn a_gateway_is_not_to_carry_what_gateways_refuse() {
        let carried = |to: &str| why(to, Granularity::Connection, "resilience=sensitive").is_some();
        for to in [
            "10.0.0.1:80",
            "172.31.0.1:80",
            "192.168.1.1:80",
            "127.0.0.1:80",
            "169.254.169.254:80",
            "100.127.0.1:80",
            "0.0.0.0:80",
            "224.0.0.1:80",
            "255.255.255.255:80",
            "192.0.0.192:80",
            "198.19.0.1:80",
            "9.9.9.9:25",
            "[::1]:80",
            "[fe80::1]:80",
            "[fd00:ec2::254]:80",
            "[::ffff:10.0.0.1]:80",
            "[2002:a00:1::]:80",
            "[2001::1]:80",
            "[64:ff9b::9.9.9.9]:80",
            "[ff0e::1]:80",
        ] {
            assert!(!carried(to), "{to}");
        }
        for to in ["9.9.9.9:443", "172.32.0.1:80", "100.128.0.1:80", "[2001:db8::1]:443", "[2620:fe::fe]:80"]
        {
            assert!(carried(to), "{to}");
        }
    }

    #[test]
    fn connections_of_whimbrel_themselves_are_not_sent_through_the_gateway() {
        let address = "203.0.113.9:443".parse().unwrap();
        let candidates = [Candidate { address, interface: None }];
        let why = |to: Option<&str>| {
            let intents = "resilience=sensitive".parse().unwrap();
            let (to, granularity) = (to.map(str::to_owned), Granularity::Stream);
            let ask = Ask { intents, granularity, to, addresses: vec![address], ..Ask::default() };
            why_through(&name("gate.home.ada@example.org"), &ask, &candidates)
        };
        assert!(why(Some("example.org:443")).is_some() && why(None).is_some());
        assert!(why(Some("web.home.ada@example.org")).is_none() && why(Some("whimbrel 7f3a")).is_none());
    }
}
