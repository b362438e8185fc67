//! How much of an object is asked for first, to learn its size, where several networks lead to its server.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::networks::{Object, World, content, range};
use crate::support::{LIMIT, Origin, field, get, has, read_head, status, until};
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use whimbrel_lab::require;

const SIZE: usize = 100_000;
/// When an object is late.
const LATE: Duration = Duration::from_secs(6);

/// Two links of 20 Mbit/s that are known: the nearer one brings 250 KB in a round trip, the other is twice
/// as far. What is open over them stays so.
fn far_and_known() -> (World, [Vec<TcpStream>; 2]) {
    let world = World::with(&[(50, 20), (100, 20)], "", |settings| settings.longest_first = 256 << 10);
    let known = Object::start(&world, 4 << 20);
    let open = [world.warm_up(&known), world.warm_up(&known)];
    world.until_seen("each link has a rate", |path| path.down_best.is_some() && path.srtt_min_ms.is_some());
    (world, open)
}

/// The head of an answer with these bytes of the object.
fn part(first: usize, last: usize) -> String {
    let length = last + 1 - first;
    format!(
        "HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes {first}-{last}/{SIZE}\r\n\
         Content-Length: {length}\r\n\r\n"
    )
}

/// The answer of a server whose object is smaller than any first part.
fn small() -> Vec<u8> {
    let head = "HTTP/1.1 206 Partial Content\r\nETag: \"a\"\r\nContent-Range: bytes 0-999/1000\r\n\
                Content-Length: 1000\r\n\r\n";
    [head.as_bytes(), &[b'x'; 1000]].concat()
}

/// A server with one object, and the ranges that it was asked for.
fn object(world: &World) -> (Origin, Arc<Mutex<Vec<String>>>) {
    let (content, asked) = (content(SIZE), Arc::<Mutex<Vec<String>>>::default());
    let noted = Arc::clone(&asked);
    let origin = world.origin(move |head, _, stream| {
        noted.lock().unwrap().push(field(head, "range").unwrap_or("all").to_owned());
        let (first, last) = range(head, content.len()).unwrap_or((0, content.len() - 1));
        let head = part(first, last);
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&content[first..=last]).is_ok()
    });
    (origin, asked)
}

#[test]
fn an_object_that_comes_in_a_round_trip_of_its_far_network_is_asked_for_at_once_over_an_open_connection() {
    if !require!() {
        return;
    }
    let (world, _open) = far_and_known();
    let (origin, asked) = object(&world);
    let load = || {
        let answer = world.talk(&get(&origin.url("/"), ""));
        assert!(answer.starts_with("HTTP/1.1 200 "), "{}", &answer[..answer.len().min(200)]);
        std::mem::take(&mut *asked.lock().unwrap())
    };
    // The window of a new connection has to grow first.
    let first = load();
    assert!(first.len() > 1 && first[0] == "bytes=0-8191", "{first:?}");
    // A connection may come back a moment after its object has come.
    let later: Vec<Vec<String>> = (0..8).map(|_| load()).collect();
    let is_all = |range: &str| {
        let last = range.strip_prefix("bytes=0-").and_then(|last| last.parse::<usize>().ok());
        last.is_some_and(|last| last >= SIZE - 1)
    };
    assert!(later.iter().any(|asked| asked.len() == 1 && is_all(&asked[0])), "{later:?}");
}

/// The near link brings 14 000 bytes in 56 ms, the far one answers after 100: were each object as large, four
/// of them at once were a reason to go there.
#[test]
fn small_objects_stay_on_a_near_and_slow_network_once_it_is_known_that_the_server_has_such() {
    if !require!() {
        return;
    }
    let world = World::with(&[(5, 2), (50, 20)], "", |settings| settings.first_step = 14_000);
    let _open = world.warm_up_to(&[2, 20], &Object::start(&world, 1 << 20));
    let sources = Arc::<Mutex<Vec<IpAddr>>>::default();
    let noted = Arc::clone(&sources);
    let origin = world.origin(move |_, _, stream| {
        noted.lock().unwrap().push(stream.peer_addr().unwrap().ip());
        stream.write_all(&small()).is_ok()
    });
    let load = || assert!(world.talk(&get(&origin.url("/"), "")).ends_with("xxx"));
    (0..4).for_each(|_| load());
    sources.lock().unwrap().clear();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(load);
        }
    });
    let near = IpAddr::from([10, 0, 0, 1]);
    let sources = sources.lock().unwrap();
    assert!(sources.len() == 6 && sources.iter().all(|source| *source == near), "{sources:?}");
}

/// As long as nothing is known of the server, each of twelve objects counts as 14 000 bytes, which take 56 ms
/// on the near link: the last of them are to go far, over connections that take 200 ms to open. By then the
/// near ones have told that all are small.
#[test]
fn an_object_does_not_leave_a_network_for_want_of_room_that_it_turns_out_to_have() {
    if !require!() {
        return;
    }
    let world = World::with(&[(5, 2), (100, 8)], "", |settings| settings.first_step = 14_000);
    let _open = world.warm_up_to(&[2, 8], &Object::start(&world, 1 << 20));
    let asked = Arc::<Mutex<Vec<(String, IpAddr)>>>::default();
    let noted = Arc::clone(&asked);
    let origin = world.origin(move |head, _, stream| {
        let object = head.split(' ').nth(1).unwrap().to_owned();
        noted.lock().unwrap().push((object, stream.peer_addr().unwrap().ip()));
        stream.write_all(&small()).is_ok()
    });
    std::thread::scope(|scope| {
        for loader in 0..12 {
            let (world, origin) = (&world, &origin);
            scope.spawn(move || {
                for n in 0..4 {
                    let answer = world.talk(&get(&origin.url(&format!("/{loader}-{n}")), ""));
                    assert!(
                        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&"x".repeat(1000)),
                        "{answer}"
                    );
                }
            });
        }
    });
    // One that is late is asked for over the other network too: the first one counts.
    let asked = asked.lock().unwrap();
    let first: HashMap<&str, IpAddr> =
        asked.iter().rev().map(|(object, from)| (&object[..], *from)).collect();
    let near = IpAddr::from([10, 0, 0, 1]);
    assert!(first.len() == 48 && first.values().all(|from| *from == near), "{asked:?}");
}

/// The fields of a range would be a tenth of them.
#[test]
fn objects_are_asked_for_without_a_range_once_a_servers_are_tiny_also_where_one_is_large_for_once() {
    if !require!() {
        return;
    }
    let world = World::with(&[(5, 2), (50, 20)], "", |_| {});
    let _open = world.warm_up_to(&[2, 20], &Object::start(&world, 1 << 20));
    let content = content(SIZE);
    let (expected, asked) = (content.clone(), Arc::<Mutex<Vec<String>>>::default());
    let noted = Arc::clone(&asked);
    let origin = world.origin(move |head, _, stream| {
        noted.lock().unwrap().push(field(head, "range").unwrap_or("all").to_owned());
        let size = if head.starts_with("GET /large ") { SIZE } else { 1000 };
        let (status, fields, first, last) = match range(head, size) {
            Some((first, last)) => {
                ("206 P", format!("Content-Range: bytes {first}-{last}/{size}\r\n"), first, last)
            }
            None => ("200 OK", String::new(), 0, size - 1),
        };
        let length = last + 1 - first;
        let head = format!("HTTP/1.1 {status}\r\nETag: \"a\"\r\n{fields}Content-Length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).is_ok() && stream.write_all(&content[first..=last]).is_ok()
    });
    let load = |path: &str| {
        let mut client = world.connect();
        client.write_all(get(&origin.url(path), "").as_bytes()).unwrap();
        let head = read_head(&mut client).unwrap();
        let mut object = vec![0; field(&head, "content-length").unwrap().parse().unwrap()];
        client.read_exact(&mut object).unwrap();
        assert!(status(&head) == 200 && object == expected[..object.len()], "{head}");
        object.len()
    };
    assert!((0..6).all(|_| load("/small") == 1000));
    assert_eq!(load("/large"), SIZE);
    let by_range =
        || asked.lock().unwrap().drain(..).map(|range| range.starts_with("bytes=0-")).collect::<Vec<_>>();
    assert_eq!(by_range(), [true, true, true, true, false, false, false]);
    // Another one may be as large.
    assert_eq!(load("/small"), 1000);
    assert_eq!(by_range(), [true]);
}

/// Nothing is known of its size when it leaves, and what the near network brings soon is.
#[test]
fn an_object_that_left_a_network_for_want_of_room_is_asked_for_there_once_there_is_room() {
    if !require!() {
        return;
    }
    let world = World::with(&[(5, 2), (100, 8)], "", |settings| settings.first_step = 14_000);
    let _open = world.warm_up_to(&[2, 8], &Object::start(&world, 1 << 20));
    let far = IpAddr::from([10, 0, 1, 1]);
    let (over, is_over) = mpsc::channel::<()>();
    let is_over = Mutex::new(is_over);
    let asked = Arc::<Mutex<Vec<(String, IpAddr)>>>::default();
    let noted = Arc::clone(&asked);
    let origin = world.origin(move |head, _, stream| {
        let (object, from) = (head.split(' ').nth(1).unwrap().to_owned(), stream.peer_addr().unwrap().ip());
        noted.lock().unwrap().push((object.clone(), from));
        if object == "/first" {
            // Others are late after three times as long. Meanwhile a connection is opened over the far
            // network.
            std::thread::sleep(LATE / 3);
        } else if from != far {
            // Nothing is known of any before one has left.
            let has_left = || noted.lock().unwrap().iter().any(|(_, from)| *from == far);
            (0..1000).take_while(|_| !has_left()).for_each(|_| std::thread::sleep(Duration::from_millis(1)));
        } else {
            let _ = is_over.lock().unwrap().recv_timeout(4 * LATE);
            return false;
        }
        stream.write_all(&small()).is_ok()
    });
    let load = |object: &str| {
        let answer = world.talk(&get(&origin.url(object), ""));
        assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&"x".repeat(1000)), "{answer}");
    };
    load("/first");
    let began = Instant::now();
    std::thread::scope(|scope| {
        // Of the last eight "/first" is one: nothing is late or overdue before 3 s.
        (0..7).for_each(|n| {
            drop(scope.spawn({
                let load = &load;
                move || load(&format!("/{n}"))
            }))
        });
    });
    // None of them waited until then.
    assert!(began.elapsed() < LATE / 3, "{:?}", began.elapsed());
    drop(over);
    let asked = asked.lock().unwrap();
    assert!(asked.iter().any(|(_, from)| *from == far), "none left: {asked:?}");
}

/// As over a radio network that stands still: nothing breaks, and nothing comes.
#[test]
fn an_object_that_does_not_come_over_one_network_comes_over_the_other() {
    if !require!() {
        return;
    }
    let world = World::with(&[(5, 2), (50, 20)], "", |settings| settings.first_step = 14_000);
    let _open = world.warm_up_to(&[2, 20], &Object::start(&world, 1 << 20));
    let (near, far) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 1, 1]));
    let (stands_still, sources) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Vec<IpAddr>>>::default());
    let (is_still, noted) = (Arc::clone(&stands_still), Arc::clone(&sources));
    let origin = world.origin(move |_, _, stream| {
        let from = stream.peer_addr().unwrap().ip();
        noted.lock().unwrap().push(from);
        while from == near && is_still.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
        stream.write_all(&small()).is_ok()
    });
    let load = || {
        assert!(world.talk(&get(&origin.url("/"), "")).ends_with("xxx"));
        std::mem::take(&mut *sources.lock().unwrap())
    };
    for _ in 0..4 {
        assert_eq!(load(), [near], "nothing is asked for twice");
    }
    stands_still.store(true, Ordering::Relaxed);
    assert_eq!(load(), [near, far]);
    stands_still.store(false, Ordering::Relaxed);
}

/// The first network brings half of the rest and stands still; as soon as the other one is asked for what is
/// left, which its server never sends, the first goes on. The server has been slow before, so that nothing is
/// given up meanwhile, however busy this machine is.
#[test]
fn a_range_that_stands_still_is_asked_for_over_another_network_and_goes_on_to_come_over_its_own() {
    if !require!() {
        return;
    }
    let world = World::with(&[(5, 2), (50, 20)], "", |settings| {
        (settings.first_step, settings.stall) = (14_000, 4 * LIMIT);
    });
    let _open = world.warm_up_to(&[2, 20], &Object::start(&world, 1 << 20));
    let content: Vec<u8> = (0..SIZE).map(|at| b'a' + (at / 997 % 26) as u8).collect();
    let (body, still) = (content.clone(), Mutex::new(None));
    let (other, is_asked) = mpsc::channel();
    let is_asked = Mutex::new(is_asked);
    let (_over, is_over) = mpsc::channel::<()>();
    let is_over = Mutex::new(is_over);
    let asked = Arc::<Mutex<Vec<usize>>>::default();
    let firsts = Arc::clone(&asked);
    let origin = world.origin(move |head, _, stream| {
        let from = stream.peer_addr().unwrap().ip();
        let (first, last) = range(head, SIZE).unwrap();
        let is_rest = first >= 2048 && last + 1 == SIZE;
        if head.starts_with("GET /slow ") {
            std::thread::sleep(LATE / 3);
            return stream.write_all(&small()).is_ok();
        }
        if stream.write_all(part(first, last).as_bytes()).is_err() {
            return false;
        }
        if !is_rest {
            return stream.write_all(&body[first..=last]).is_ok();
        }
        firsts.lock().unwrap().push(first);
        if *still.lock().unwrap().get_or_insert(from) != from {
            other.send(()).unwrap();
            let _ = is_over.lock().unwrap().recv_timeout(4 * LIMIT);
            return false;
        }
        let half = first.midpoint(last);
        let has_begun = stream.write_all(&body[first..half]).is_ok();
        has_begun
            && is_asked.lock().unwrap().recv_timeout(LIMIT).is_ok()
            && stream.write_all(&body[half..=last]).is_ok()
    });
    assert!(world.talk(&get(&origin.url("/slow"), "")).ends_with("xxx"));
    let answer = world.talk(&get(&origin.url("/"), ""));
    assert!(answer.as_bytes().ends_with(&content), "{} bytes, asked from {asked:?}", answer.len());
    let asked = asked.lock().unwrap();
    assert!(asked.len() == 2 && asked[1] > asked[0], "what has come is not asked for again: {asked:?}");
}

/// The same after the first part: nobody waits for as long as an object may be silent that has nowhere to go.
#[test]
fn an_object_that_stops_after_its_first_part_goes_on_over_the_other_network() {
    if !require!() {
        return;
    }
    let world = World::with(&[(5, 2), (50, 20)], "", |settings| {
        (settings.first_step, settings.stall) = (14_000, 4 * LIMIT);
    });
    let _open = world.warm_up_to(&[2, 20], &Object::start(&world, 1 << 20));
    let still = Arc::<Mutex<Option<IpAddr>>>::default();
    let stands_still = Arc::clone(&still);
    let (over, is_over) = mpsc::channel::<()>();
    let is_over = Mutex::new(is_over);
    let origin = world.origin(move |head, _, stream| {
        let from = stream.peer_addr().unwrap().ip();
        let (first, last) = range(head, SIZE).unwrap();
        let is_rest = first >= 14_000;
        if stream.write_all(part(first, last).as_bytes()).is_err() {
            return false;
        }
        // The network that the rest is first asked for over stands still from then on.
        if is_rest && *still.lock().unwrap().get_or_insert(from) == from {
            let _ = is_over.lock().unwrap().recv_timeout(4 * LIMIT);
            return false;
        }
        stream.write_all(&vec![b'x'; last + 1 - first]).is_ok()
    });
    let answer = world.talk(&get(&origin.url("/"), ""));
    assert!(answer.ends_with(&"x".repeat(SIZE)), "{}", &answer[..answer.len().min(200)]);
    assert!(stands_still.lock().unwrap().is_some());
    drop(over);
}

/// The first part comes over the near network. Its server goes on with it, or breaks it, once it is asked for
/// the rest, which the far network brings sooner and is more than a window.
#[test]
fn the_rest_is_asked_for_elsewhere_while_the_first_part_comes_and_what_breaks_of_that_is_asked_for_again() {
    if !require!() {
        return;
    }
    let world = World::with(&[(5, 2), (50, 20)], "", |settings| {
        (settings.first_step, settings.window) = (14_000, 64 << 10);
    });
    let _open = world.warm_up_to(&[2, 20], &Object::start(&world, 1 << 20));
    let expected: Vec<u8> = (0..SIZE).map(|at| b'a' + (at / 997 % 26) as u8).collect();
    let (sent, breaks) = (expected.clone(), Arc::new(AtomicBool::new(false)));
    let (rest, is_asked) = mpsc::channel();
    let is_asked = Mutex::new(is_asked);
    let waited = Arc::<AtomicUsize>::default();
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let (is_to_break, counted, noted) = (Arc::clone(&breaks), Arc::clone(&waited), Arc::clone(&asked));
    let origin = world.origin(move |head, _, stream| {
        noted.lock().unwrap().push(field(head, "range").unwrap_or("all").to_owned());
        let (first, last) = range(head, SIZE).unwrap_or((0, SIZE - 1));
        if first > 1000 {
            rest.send(()).unwrap();
        }
        let begin = [part(first, last).as_bytes(), &sent[first..first + 1000]].concat();
        let has_begun = stream.write_all(&begin).is_ok();
        if first == 0 {
            let is_asked = is_asked.lock().unwrap().recv_timeout(LIMIT);
            counted.fetch_add(usize::from(is_asked.is_err()), Ordering::SeqCst);
            if is_to_break.load(Ordering::SeqCst) {
                return false;
            }
        }
        has_begun && stream.write_all(&sent[first + 1000..=last]).is_ok()
    });
    for what in [false, true] {
        breaks.store(what, Ordering::SeqCst);
        asked.lock().unwrap().clear();
        let answer = world.talk(&get(&origin.url("/"), ""));
        let asked = asked.lock().unwrap();
        assert!(answer.as_bytes().ends_with(&expected), "{} bytes, asked for {asked:?}", answer.len());
        assert_eq!(waited.load(Ordering::SeqCst), 0, "the rest waits for the first part: {asked:?}");
        let again = asked.iter().filter(|range| range.starts_with("bytes=1000-"));
        assert_eq!(again.count(), usize::from(what), "{asked:?}");
    }
}

/// What a client reads of the object, which tells when the first of it is there.
fn read(world: &World, origin: &Origin, begun: &Sender<()>) -> Vec<u8> {
    let mut client = world.connect();
    client.write_all(get(&origin.url("/"), "").as_bytes()).unwrap();
    let head = read_head(&mut client).unwrap();
    assert!(status(&head) == 200 && has(&head, &format!("content-length: {SIZE}")), "{head}");
    assert!(field(&head, "content-range").is_none(), "{head}");
    let mut object = vec![0; SIZE];
    client.read_exact(&mut object[..1000]).unwrap();
    begun.send(()).unwrap();
    client.read_exact(&mut object[1000..]).unwrap();
    object
}

#[test]
fn an_object_that_was_asked_for_at_once_is_passed_on_as_it_comes_and_goes_on_where_it_breaks() {
    if !require!() {
        return;
    }
    let (world, _open) = far_and_known();
    let (begun, has_begun) = mpsc::channel();
    let has_begun = Mutex::new(has_begun);
    let breaks = Arc::new(AtomicBool::new(false));
    // How often it went on, waited without success, and broke.
    let counts = Arc::new([0; 3].map(AtomicUsize::new));
    let (sent, counted, is_to_break) = (content(SIZE), Arc::clone(&counts), Arc::clone(&breaks));
    let origin = world.origin(move |head, _, stream| {
        let (first, last) = range(head, SIZE).unwrap_or((0, SIZE - 1));
        let (one, other) = sent[first..=last].split_at((last + 1 - first) / 2);
        let is_all = (first, last) == (0, SIZE - 1);
        if is_all {
            // Of objects before.
            has_begun.lock().unwrap().try_iter().for_each(drop);
        }
        let begin = [part(first, last).as_bytes(), one].concat();
        if stream.write_all(&begin).is_err() {
            return false;
        }
        if is_all {
            let came = has_begun.lock().unwrap().recv_timeout(LIMIT);
            let what = if came.is_err() { 1 } else { 2 * usize::from(is_to_break.load(Ordering::SeqCst)) };
            counted[what].fetch_add(1, Ordering::SeqCst);
            if what > 0 {
                return false;
            }
        }
        stream.write_all(other).is_ok()
    });
    let expected = content(SIZE);
    for what in [0, 2] {
        breaks.store(what == 2, Ordering::SeqCst);
        // A connection is open only for the second one, and may come back a moment after its object has come.
        for _ in 0..16 {
            assert!(read(&world, &origin, &begun) == expected, "other bytes");
            if counts[what].load(Ordering::SeqCst) > 0 {
                break;
            }
        }
    }
    let [went_on, waited, broke] = [0, 1, 2].map(|what| counts[what].load(Ordering::SeqCst));
    assert!(went_on > 0 && waited == 0 && broke > 0, "{went_on} {waited} {broke}");
}

/// Nothing is known of the server when they are asked for. Its objects turn out to be small while they wait.
#[test]
fn what_is_under_way_counts_for_less_with_the_manager_once_less_is_to_be_expected_of_it() {
    if !require!() {
        return;
    }
    let world = World::new(&[(10, 4), (200, 4)], "");
    let known = Object::start(&world, 4 << 20);
    let _open = world.warm_up(&known);
    world.until_seen("each link has a rate", |path| path.down_best.is_some());
    let (release, held) = mpsc::channel::<()>();
    let (held, asked) = (Mutex::new(held), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&asked);
    let origin = world.origin(move |head, _, stream| {
        counted.fetch_add(1, Ordering::Relaxed);
        if head.contains("/slow") {
            // None is overdue before half as much again.
            std::thread::sleep(Duration::from_secs(3));
        } else if head.contains("/held") {
            let _ = held.lock().unwrap().recv_timeout(LIMIT);
        }
        stream.write_all(&small()).is_ok()
    });
    let asks = |path: &str| assert_eq!(status(&world.talk(&get(&origin.url(path), ""))), 200);
    asks("/slow");
    std::thread::scope(|scope| {
        (0..5).for_each(|_| drop(scope.spawn(|| asks("/held"))));
        until("five are asked for", || asked.load(Ordering::Relaxed) >= 6);
        let foreseen = || world.foreseen(origin.address, 20_000);
        let before = foreseen();
        (0..3).for_each(|_| asks("/small"));
        let less = Duration::from_millis(25);
        until("the next one is to come earlier", || foreseen() + less < before);
        drop(release);
    });
}
