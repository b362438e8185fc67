//! Which requests wait for a turn, which connections go with their network, and which are lent again.

use super::*;
use crate::http::moving::Sent;
use crate::{Managed, Reaching};
use http_body_util::{BodyExt as _, Either, Empty};
use hyper::Request;
use hyper::header::{HOST, HeaderValue};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_multiaccess::Client;
use whimbrel_multiaccess::protocol::{Verdict, Way};

const HOUR: Duration = Duration::from_secs(3600);

/// Where every host is another one.
struct Elsewhere;

impl Upstream for Elsewhere {
    fn reach<'a>(&'a self, to: &'a Destination, _: &'a Intents) -> Reaching<'a> {
        let why = "nobody asks".to_owned();
        Box::pin(std::future::ready(Err(UpstreamError::NoWay { to: to.to_string(), why })))
    }
}

async fn has_turns(upstream: impl Upstream, here: bool, host: &str) -> bool {
    let rules = Rules { each: 1, here, rest: HOUR, limit: HOUR };
    let origins = Origins::new(Arc::new(upstream), rules);
    origins.turn(&Destination::new(host, 80).unwrap(), "", false).await.is_some()
}

#[tokio::test]
async fn nothing_of_this_host_waits_unless_it_is_to_or_it_is_another_hosts() {
    let from_here = || Managed::new(Client::off());
    for host in ["127.0.0.1", "0.0.0.0", "::", "localhost"] {
        assert!(!has_turns(from_here(), false, host).await, "{host}");
        assert!(has_turns(from_here(), true, host).await, "{host}");
        assert!(has_turns(Elsewhere, false, host).await, "{host}");
    }
    assert!(has_turns(from_here(), false, "192.0.2.1").await);
}

#[tokio::test]
async fn when_a_network_fails_nothing_on_it_to_that_server_is_offered_any_more_and_all_else_is() {
    let rules = Rules { each: 1, here: false, rest: HOUR, limit: HOUR };
    let origins = Origins::new(Arc::new(Elsewhere), rules);
    let [one, other] = ["192.0.2.1", "192.0.2.2"].map(|host| Destination::new(host, 80).unwrap());
    let by = |network: &str| {
        let destination = Some("192.0.2.1:80".parse().unwrap());
        Candidate::of_way(Way { interface: network.to_owned(), destination, ..Way::default() })
    };
    let mut servers = Vec::new();
    for (id, to, network) in [(1, &one, "wlan0"), (2, &one, "usb0"), (3, &other, "wlan0")] {
        let (stream, server) = tokio::io::duplex(1 << 10);
        servers.push(server);
        let speaks = Speaks::One(Speaker::start(Box::new(stream)).await.unwrap());
        let line = Line::new(id, to.clone(), speaks, Some([10, 0, 0, 1].into()), by(network));
        origins.keep(Box::new(line));
    }
    let offered = |to| origins.offers(to).iter().map(|offer| offer.open.id).collect::<Vec<_>>();
    assert_eq!((offered(&one), offered(&other)), (vec![1, 2], vec![3]));
    origins.failed(&one, &by("wlan0").unwrap()).await;
    assert_eq!((offered(&one), offered(&other)), (vec![2], vec![3]));
    origins.failed_meanwhile(&other, &by("wlan0").unwrap());
    assert_eq!((offered(&one), offered(&other)), (vec![2], vec![]));
}

#[tokio::test]
async fn a_connection_that_was_decided_is_there_until_another_message_takes_the_last_that_goes_its_way() {
    let rules = Rules { each: 1, here: false, rest: HOUR, limit: HOUR };
    let origins = Origins::new(Arc::new(Elsewhere), rules);
    let to = Destination::new("192.0.2.1", 80).unwrap();
    let way = |reuse| {
        let destination = Some("192.0.2.1:80".parse().unwrap());
        Way { reuse, interface: "wlan0".to_owned(), destination, ..Way::default() }
    };
    let mut servers = Vec::new();
    for id in [1, 2] {
        let (stream, server) = tokio::io::duplex(1 << 10);
        servers.push(server);
        let speaks = Speaks::One(Speaker::start(Box::new(stream)).await.unwrap());
        let by = Candidate::of_way(way(None));
        origins.keep(Box::new(Line::new(id, to.clone(), speaks, Some([10, 0, 0, 1].into()), by)));
    }
    let offered = Offer {
        open: OpenConnection { id: 2, source: [10, 0, 0, 1].into(), scheduled: 0 },
        by: Candidate::of_way(way(None)),
    };
    let decided = |reuse| {
        let verdict = Verdict { ways: vec![way(reuse)], ..Verdict::default() };
        Decided::of(verdict, Instant::now(), std::slice::from_ref(&offered), &Client::off())
    };
    assert!(origins.is_there(&to, &decided(Some(2))));
    let taken = origins.take(&to, |line, _| line.id() == 2).await;
    assert!(taken.is_some() && origins.is_there(&to, &decided(Some(2))), "the other goes the same way");
    let last = origins.take(&to, |_, _| true).await;
    assert!(last.is_some() && !origins.is_there(&to, &decided(Some(2))));
    assert!(origins.is_there(&to, &decided(None)), "a new one was decided");
}

/// What a server does on a connection that is kept.
#[derive(Clone, Copy)]
enum Meanwhile {
    Waits,
    Says(&'static str),
    Closes,
}

/// Whether a connection is lent again on which a server gives this answer, and then does this.
async fn is_lent_again(answer: &str, meanwhile: Meanwhile) -> bool {
    let rules = Rules { each: 1, here: false, rest: HOUR, limit: HOUR };
    let origins = Origins::new(Arc::new(Elsewhere), rules);
    let to = Destination::new("192.0.2.1", 80).unwrap();
    let (stream, mut server) = tokio::io::duplex(1 << 10);
    let speaks = Speaks::One(Speaker::start(Box::new(stream)).await.unwrap());
    let mut line = Box::new(Line::new(1, to.clone(), speaks, None, None));
    let mut request: Request<Sent> = Request::new(Either::Right(Empty::new()));
    request.headers_mut().insert(HOST, HeaderValue::from_static("192.0.2.1"));
    let answers = async {
        assert!(server.read(&mut [0; 1 << 10]).await.unwrap() > 0);
        server.write_all(answer.as_bytes()).await.unwrap();
    };
    let (answered, ()) = tokio::join!(line.send(request, HOUR), answers);
    let Ok(head) = answered else { panic!("no answer came of {answer:?}") };
    assert_eq!(head.into_body().collect().await.unwrap().to_bytes(), "hello", "{answer:?}");
    origins.keep(line);
    match meanwhile {
        Meanwhile::Waits => {}
        Meanwhile::Says(words) => server.write_all(words.as_bytes()).await.unwrap(),
        Meanwhile::Closes => server.shutdown().await.unwrap(),
    }
    origins.take(&to, |_, _| true).await.is_some()
}

#[tokio::test]
async fn a_connection_is_lent_again_unless_its_server_ends_it_or_says_what_nobody_asked_for() {
    use Meanwhile::{Closes, Says, Waits};
    const HELLO: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
    const CHUNKED: &str =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n";
    // Whose answer would that be?
    const ANOTHER: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    let [hello_and_another, chunked_and_another] = [HELLO, CHUNKED].map(|first| format!("{first}{ANOTHER}"));
    for (answer, meanwhile, is_lent) in [
        (HELLO, Waits, true),
        (CHUNKED, Waits, true),
        ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", Waits, false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", Waits, false),
        (hello_and_another.as_str(), Waits, false),
        (chunked_and_another.as_str(), Waits, false),
        (HELLO, Says(ANOTHER), false),
        (HELLO, Says("x"), false),
        (HELLO, Closes, false),
        (CHUNKED, Closes, false),
    ] {
        assert_eq!(is_lent_again(answer, meanwhile).await, is_lent, "{answer:?}");
    }
}
