//! The two-step download over two networks, with a real manager that chooses.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World, content};
use crate::scripted::{PART, Script, TOTAL, WHOLE, scripted};
use crate::support::{self, LIMIT, body, field, get, has, status};
use sha2::{Digest as _, Sha256};
use std::io::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};
use whimbrel_lab::{Direction, require};
use whimbrel_multiaccess::protocol::PathReport;
use whimbrel_proxy::HttpProxy;

#[test]
fn a_large_object_comes_over_both_networks_at_once_and_arrives_right() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 20), (20, 10)], "");
    let object = Object::start(&world, 16 << 20);
    let _open = world.warm_up(&object);
    let took = object.download(&world, |_| {});
    let (near, far) = (object.share(0), object.share(1));
    println!(
        "{took:?}: {near:.2} and {far:.2}, {:.1} Mbit/s",
        object.size as f64 * 8e-6 / took.as_secs_f64()
    );
    assert!(near > 0.5 && far > 0.2, "{near} and {far}");
}

#[test]
fn a_large_object_comes_over_both_networks_also_where_neither_has_a_connection_just_then() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 20), (20, 10)], "");
    let object = Object::start(&world, 16 << 20);
    drop(world.warm_up(&object));
    let is_idle = |path: &PathReport| path.connections == 0 && path.srtt_min_ms.is_some();
    world.until_seen("no link has a connection, and each had one", is_idle);
    object.download(&world, |_| {});
    let (near, far) = (object.share(0), object.share(1));
    assert!(near > 0.3 && far > 0.2, "{near} and {far}");
}

#[test]
fn what_came_over_each_network_is_told() {
    if !require!() {
        return;
    }
    let mut made: Option<HttpProxy> = None;
    let world = World::made(
        &[(10, 20), (20, 10)],
        "",
        |_| {},
        |upstream, settings| made.insert(HttpProxy::new(upstream, settings)).clone(),
    );
    let proxy = made.unwrap();
    let object = Object::start(&world, 16 << 20);
    let _open = world.warm_up(&object);
    assert!(proxy.networks().is_empty(), "what others load is not the proxy's");
    object.download(&world, |_| {});
    let told = proxy.networks();
    assert!(told.iter().map(|one| one.received).sum::<u64>() >= object.size as u64, "{told:?}");
    for (n, name) in ["link0", "link1"].into_iter().enumerate() {
        let one = told.iter().find(|one| one.network == name).unwrap();
        // The server's own count, whose last pieces may be under way to a connection that was cut off.
        let served = object.share(n as u8) * object.size as f64;
        assert!(one.received as f64 <= served + f64::from(2 << 20), "{one:?} of {served}");
        assert!(one.received > object.size as u64 / 10 && one.sent > 100, "{told:?}");
    }
}

#[test]
fn a_server_that_has_ranges_for_the_first_part_alone_is_not_read_again_and_again() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 50), (10, 50)], "");
    let warm = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&warm);
    let whole = content(4 << 20);
    let expected = Sha256::digest(&whole).to_vec();
    let total = whole.len();
    let origin = world.origin(move |head, _, stream| {
        let (status, part) = match field(head, "range") {
            Some("bytes=0-8191") => ("206 Partial Content", &whole[..8192]),
            _ => ("200 OK", &whole[..]),
        };
        let length = part.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nETag: \"a\"\r\nContent-Range: bytes 0-8191/{total}\r\n\
             Content-Length: {length}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(part)).is_ok()
    });
    let object = Object { origin, digest: expected, size: total, by_source: Arc::default() };
    object.download(&world, |_| {});
    // The first part, one for each worker at most, and the rest.
    let asked = object.origin.seen().len();
    assert!((2..=6).contains(&asked), "it was asked {asked} times");
}

#[test]
fn an_object_of_some_hundred_kilobytes_comes_in_two_parts() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 10), (10, 10)], "");
    let object = Object::start(&world, 600_000);
    let large = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&large);
    object.download(&world, |_| {});
    let asked: Vec<_> =
        object.origin.seen().iter().map(|head| field(head, "range").unwrap().to_owned()).collect();
    assert_eq!(asked[0], "bytes=0-8191");
    assert_eq!(asked.len(), 3, "{asked:?}");
    assert!(object.share(0) > 0.2 && object.share(1) > 0.2);
    let others = object.origin.seen();
    assert!(others[1..].iter().all(|head| has(head, "if-range: \"a\"")), "{others:?}");
}

#[test]
fn an_object_is_completed_when_a_network_goes_or_falls_silent_under_it() {
    if !require!() {
        return;
    }
    for silently in [false, true] {
        let world = World::new(&[(5, 20), (10, 10)], "");
        let object = Object::start(&world, 8 << 20);
        let _open = world.warm_up(&object);
        let mut is_cut = false;
        object.download(&world, |count| {
            if count > 2 << 20 && !is_cut {
                is_cut = true;
                match silently {
                    true => world.links[0].set_blackhole(Direction::Both, true),
                    false => world.links[0].end(&world.client).set_up(false).unwrap(),
                }
            }
        });
        assert!(is_cut && object.share(1) > 0.3, "silently: {silently}, {}", object.share(1));
    }
}

#[test]
fn a_request_whose_network_falls_silent_before_the_answer_is_asked_again_over_another() {
    if !require!() {
        return;
    }
    let world = World::new(&[(5, 20), (10, 20)], "[policy]\nname = \"eaf\"");
    let origin = world.origin(|_, n, stream| {
        if n == 0 {
            // Meanwhile its way back is cut.
            std::thread::sleep(2 * LIMIT);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
    });
    let mut client = world.connect();
    client.write_all(get(&origin.url("/"), "").as_bytes()).unwrap();
    let end = Instant::now() + LIMIT;
    while origin.seen().is_empty() {
        assert!(Instant::now() < end, "nothing is asked");
        std::thread::sleep(Duration::from_millis(10));
    }
    world.links[0].set_blackhole(Direction::Both, true);
    let answer = support::rest(&mut client);
    assert_eq!((status(&answer), body(&answer)), (200, "hello"), "{answer}");
    assert_eq!(origin.seen().len(), 2);
}

#[test]
fn every_answer_to_a_first_part_leads_to_the_object_or_to_a_visible_end() {
    if !require!() {
        return;
    }
    let world = World::new(&[(2, 50), (2, 50)], "[policy]\nname = \"eaf\"");
    let content: String = (0..TOTAL).map(|n| char::from(b'a' + (n % 23) as u8)).collect();
    // What is said, how many requests that takes, and whether the object arrives.
    let cases: &[(&str, Script, usize, bool)] = &[
        ("as it should be", (PART, PART, ""), 2, true),
        ("whole to a range", (WHOLE, "", ""), 1, true),
        (
            "chunked to a range",
            ("200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4e20\r\n{}\r\n0\r\n\r\n", "", ""),
            1,
            true,
        ),
        ("to the end of the connection", ("200 OK\r\nConnection: close\r\n\r\n{}", "", ""), 1, true),
        (
            "a part in chunks",
            (
                "206 Partial Content\r\nETag: \"a\"\r\nRANGE\r\nTransfer-Encoding: chunked\r\n\r\n2000\r\n{}\r\n0\r\n\r\n",
                PART,
                "",
            ),
            2,
            true,
        ),
        ("no Content-Range", ("206 Partial Content\r\nETag: \"a\"\r\nLENGTH\r\n\r\n{}", "", WHOLE), 2, true),
        (
            "no total",
            (
                "206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes 0-8191/*\r\nLENGTH\r\n\r\n{}",
                "",
                WHOLE,
            ),
            2,
            true,
        ),
        (
            "another part",
            (
                "206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes 1-8192/20000\r\nLENGTH\r\n\r\n{}",
                "",
                WHOLE,
            ),
            2,
            true,
        ),
        (
            "less than it says",
            (
                "206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes 0-8000/20000\r\nLENGTH\r\n\r\n{}",
                "",
                WHOLE,
            ),
            2,
            true,
        ),
        ("no validator", ("206 Partial Content\r\nRANGE\r\nLENGTH\r\n\r\n{}", "", WHOLE), 2, true),
        (
            "a weak validator",
            ("206 Partial Content\r\nETag: W/\"a\"\r\nRANGE\r\nLENGTH\r\n\r\n{}", "", WHOLE),
            2,
            true,
        ),
        (
            "none satisfies",
            ("416 Range Not Satisfiable\r\nContent-Range: bytes */0\r\nContent-Length: 0\r\n\r\n", "", WHOLE),
            2,
            true,
        ),
        ("400 to a range", ("400 Bad Request\r\nContent-Length: 0\r\n\r\n", "", WHOLE), 2, true),
        ("403 to a range", ("403 Forbidden\r\nContent-Length: 0\r\n\r\n", "", WHOLE), 2, true),
        ("501 to a range", ("501 Not Implemented\r\nContent-Length: 0\r\n\r\n", "", WHOLE), 2, true),
        (
            "a digest of the part",
            (
                "206 Partial Content\r\nETag: \"a\"\r\nContent-Digest: sha-256=:x:\r\n\
                 RANGE\r\nLENGTH\r\n\r\n{}",
                PART,
                "",
            ),
            2,
            true,
        ),
        (
            "the rest is in another encoding",
            (
                PART,
                "206 Partial Content\r\nETag: \"a\"\r\nContent-Encoding: gzip\r\n\
                 RANGE\r\nLENGTH\r\n\r\n{}",
                "",
            ),
            2,
            false,
        ),
        (
            "the rest comes whole",
            (PART, "200 OK\r\nETag: \"a\"\r\nContent-Length: 20000\r\n\r\nWHOLE", ""),
            2,
            true,
        ),
        (
            "it changes",
            (PART, "206 Partial Content\r\nETag: \"b\"\r\nRANGE\r\nLENGTH\r\n\r\n{}", ""),
            2,
            false,
        ),
        (
            "it becomes another one",
            (PART, "200 OK\r\nETag: \"b\"\r\nContent-Length: 3\r\n\r\nnew", ""),
            2,
            false,
        ),
        (
            "it grows",
            (
                PART,
                "206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes 8192-19999/30000\r\nLENGTH\r\n\r\n{}",
                "",
            ),
            2,
            false,
        ),
        ("it is gone", (PART, "404 Not Found\r\nContent-Length: 0\r\n\r\n", ""), 2, false),
    ];
    for (what, script, requests, arrives) in cases {
        let origin = match script.1.contains("WHOLE") {
            false => scripted(&world, *script),
            // The whole object again, with the same validator.
            true => {
                let whole = content.clone();
                world.origin(move |head, _, stream| {
                    let head = match field(head, "range") {
                        Some("bytes=0-8191") => format!(
                            "206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes 0-8191/20000\r\n\
                             Content-Length: 8192\r\n\r\n{}",
                            &whole[..8192]
                        ),
                        _ => format!("200 OK\r\nETag: \"a\"\r\nContent-Length: 20000\r\n\r\n{whole}"),
                    };
                    stream.write_all(format!("HTTP/1.1 {head}").as_bytes()).unwrap();
                    true
                })
            }
        };
        let fields = "Cookie: a=b\r\nAuthorization: Basic eDp5\r\nAccept-Encoding: gzip\r\n";
        let mut words = get(&origin.url("/o"), fields);
        words = words.replace("HTTP/1.1", "HTTP/1.0");
        let answer = world.talk(&words);
        let seen = origin.seen();
        assert_eq!(status(&answer), 200, "{what}: {answer}");
        for gone in ["content-range", "content-digest"] {
            assert!(field(&answer, gone).is_none(), "{what}: {answer}");
        }
        assert_eq!(body(&answer) == content, *arrives, "{what}: {} bytes", body(&answer).len());
        if !arrives {
            // The client is told of a length that does not come.
            assert_eq!(field(&answer, "content-length"), Some("20000"), "{what}");
            assert!(content.starts_with(body(&answer)) && body(&answer).len() < TOTAL, "{what}");
        }
        assert_eq!(seen.len(), *requests, "{what}: {seen:?}");
        for head in &seen {
            assert!(has(head, "cookie: a=b") && has(head, "authorization: Basic eDp5"), "{what}: {head}");
            assert!(
                has(head, "accept-encoding: gzip") && head.starts_with("GET /o HTTP/1.1\r\n"),
                "{what}: {head}"
            );
        }
    }
}

#[test]
fn an_empty_object_errors_and_redirections_are_passed_on_as_they_are() {
    if !require!() {
        return;
    }
    let world = World::new(&[(2, 50), (2, 50)], "[policy]\nname = \"eaf\"");
    for (first, whole, code) in [
        (
            "416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n",
            "200 OK\r\nContent-Length: 0\r\n\r\n",
            200,
        ),
        ("200 OK\r\nContent-Length: 0\r\n\r\n", "", 200),
        ("302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "", 302),
        ("404 Not Found\r\nContent-Length: 0\r\n\r\n", "", 404),
        ("500 Internal Server Error\r\nContent-Length: 0\r\n\r\n", "", 500),
    ] {
        let origin = scripted(&world, (first, "", whole));
        let answer = world.talk(&get(&origin.url("/"), ""));
        assert_eq!((status(&answer), body(&answer)), (code, ""), "{answer}");
    }
}

#[test]
fn servers_without_usable_ranges_are_not_asked_for_them_again_and_conditions_never_are() {
    if !require!() {
        return;
    }
    let world = World::new(&[(2, 50), (2, 50)], "[policy]\nname = \"eaf\"");
    let weak = "206 Partial Content\r\nETag: W/\"a\"\r\nRANGE\r\nLENGTH\r\n\r\n{}";
    let none = "200 OK\r\nAccept-Ranges: none\r\nLENGTH\r\n\r\n{}";
    for (first, asked) in [(weak, 3), (none, 2)] {
        let origin = scripted(&world, (first, "", WHOLE));
        for _ in 0..2 {
            assert_eq!(body(&world.talk(&get(&origin.url("/"), ""))).len(), TOTAL);
        }
        let seen = origin.seen();
        assert_eq!(seen.len(), asked, "{seen:?}");
        assert_eq!(seen.iter().filter(|head| field(head, "range").is_some()).count(), 1, "{seen:?}");
    }
    let origin = scripted(&world, (PART, PART, WHOLE));
    let conditional = "If-None-Match: \"x\"\r\n";
    assert_eq!(body(&world.talk(&get(&origin.url("/"), conditional))).len(), TOTAL);
    let own = "Range: bytes=5-9\r\n";
    assert_eq!(body(&world.talk(&get(&origin.url("/"), own))), "fghij");
    let head = get(&origin.url("/"), "").replace("GET", "HEAD");
    assert_eq!(status(&world.talk(&head)), 200);
    let seen = origin.seen();
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(field(&seen[0], "range").is_none() && has(&seen[1], "range: bytes=5-9"), "{seen:?}");
}

#[test]
fn with_one_network_an_object_is_asked_for_at_once() {
    if !require!() {
        return;
    }
    let world = World::new(&[(2, 50)], "");
    let origin = scripted(&world, (PART, PART, WHOLE));
    assert_eq!(body(&world.talk(&get(&origin.url("/"), ""))).len(), TOTAL);
    assert!(field(&origin.seen()[0], "range").is_none());
}
