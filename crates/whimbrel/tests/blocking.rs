//! The blocking face behaves as `std::net` does; the expectations are those of std's own tests of
//! `TcpStream`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;
use whimbrel::blocking::{Endpoint, Stream};
use whimbrel::names::{Admission, Limits, MemoryStore, Service};
use whimbrel::{Allow, ListenOptions, ManualMonitor, transport};

const MOMENT: Duration = Duration::from_millis(100);

#[test]
fn bytes_go_both_ways_and_end() {
    let Pair { mut client, mut server, .. } = pair(131);
    client.write_all(b"ping").unwrap();
    let mut four = [0; 4];
    server.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"ping");
    server.write_all(b"pong").unwrap();
    drop(server);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"pong");
    assert_eq!(client.read(&mut four).unwrap(), 0);
    assert_eq!(client.read(&mut four).unwrap(), 0);
}

#[test]
fn reading_nothing_gives_nothing_at_once() {
    let Pair { mut client, mut server, .. } = pair(132);
    assert_eq!(client.read(&mut []).unwrap(), 0);
    assert_eq!(client.write(&[]).unwrap(), 0);
    server.write_all(b"x").unwrap();
    assert_eq!(client.read(&mut []).unwrap(), 0);
    assert_eq!(client.read(&mut [0; 9]).unwrap(), 1);
}

#[test]
fn timeouts_are_kept_and_zero_is_refused() {
    let Pair { client, .. } = pair(133);
    assert_eq!((client.read_timeout().unwrap(), client.write_timeout().unwrap()), (None, None));
    let clone = client.try_clone().unwrap();
    client.set_read_timeout(Some(MOMENT)).unwrap();
    client.set_write_timeout(Some(MOMENT * 2)).unwrap();
    assert_eq!(clone.read_timeout().unwrap(), Some(MOMENT));
    assert_eq!(clone.write_timeout().unwrap(), Some(MOMENT * 2));
    for zero in
        [client.set_read_timeout(Some(Duration::ZERO)), client.set_write_timeout(Some(Duration::ZERO))]
    {
        assert_eq!(zero.unwrap_err().kind(), ErrorKind::InvalidInput);
    }
}

#[test]
fn a_read_times_out_and_the_stream_goes_on() {
    let Pair { mut client, mut server, .. } = pair(134);
    client.set_read_timeout(Some(MOMENT)).unwrap();
    let start = Instant::now();
    let kind = client.read(&mut [0; 9]).unwrap_err().kind();
    assert!(kind == ErrorKind::WouldBlock || kind == ErrorKind::TimedOut, "{kind:?}");
    assert!((MOMENT..MOMENT * 10).contains(&start.elapsed()), "{:?}", start.elapsed());
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    server.write_all(b"late").unwrap();
    let mut four = [0; 4];
    client.read_exact(&mut four).unwrap();
    assert_eq!(&four, b"late");
}

#[test]
fn a_write_times_out_when_nobody_reads() {
    let Pair { mut client, mut server, .. } = pair(135);
    client.set_write_timeout(Some(MOMENT)).unwrap();
    client.set_linger(None).unwrap();
    let (block, mut written) = (vec![7; 1 << 20], 0u64);
    let kind = loop {
        match client.write(&block) {
            Ok(n) => written += n as u64,
            Err(error) => break error.kind(),
        }
        assert!(written < 1 << 30, "nothing bounds what is written");
    };
    assert!(kind == ErrorKind::WouldBlock || kind == ErrorKind::TimedOut, "{kind:?}");
    // What was taken arrives, and no more.
    client.shutdown(Shutdown::Write).unwrap();
    let mut sink = Vec::new();
    server.read_to_end(&mut sink).unwrap();
    assert_eq!(sink.len() as u64, written);
}

#[test]
fn shutting_writing_down_ends_the_peers_reading_only() {
    let Pair { mut client, mut server, .. } = pair(136);
    client.write_all(b"all").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.write(b"more").unwrap_err().kind(), ErrorKind::BrokenPipe);
    let mut all = Vec::new();
    server.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"all");
    server.write_all(b"answer").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
}

#[test]
fn shutting_reading_down_wakes_whoever_reads() {
    let Pair { client, mut server, .. } = pair(137);
    let mut reading = client.try_clone().unwrap();
    let (done, when_done) = mpsc::channel();
    let reader = thread::spawn(move || {
        done.send(reading.read(&mut [0; 9])).unwrap();
    });
    thread::sleep(MOMENT);
    client.shutdown(Shutdown::Read).unwrap();
    assert_eq!(when_done.recv_timeout(Duration::from_secs(5)).expect("still reading").unwrap(), 0);
    reader.join().unwrap();
    // The other direction is as before.
    (&client).write_all(b"still").unwrap();
    let mut five = [0; 5];
    server.read_exact(&mut five).unwrap();
    // The peer's writes fail, sooner or later.
    let failed = (0..100).find_map(|_| {
        thread::sleep(Duration::from_millis(10));
        server.write(b"unwanted").err()
    });
    assert_eq!(failed.expect("writes go on for ever").kind(), ErrorKind::BrokenPipe);
}

#[test]
fn a_clone_keeps_the_stream_open() {
    let Pair { client, mut server, .. } = pair(138);
    let mut clone = client.try_clone().unwrap();
    drop(client);
    server.set_read_timeout(Some(MOMENT)).unwrap();
    assert_eq!(server.read(&mut [0; 9]).unwrap_err().kind(), ErrorKind::WouldBlock);
    clone.write_all(b"here").unwrap();
    let mut four = [0; 4];
    server.read_exact(&mut four).unwrap();
    drop(clone);
    assert_eq!(server.read(&mut four).unwrap(), 0);
}

#[test]
fn two_clones_that_read_share_the_bytes() {
    let Pair { client, mut server, .. } = pair(139);
    let total = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (mut clone, total) = (client.try_clone().unwrap(), total.clone());
            thread::spawn(move || {
                let mut piece = [0; 1000];
                while let n @ 1.. = clone.read(&mut piece).unwrap() {
                    total.fetch_add(n as u64, Ordering::Relaxed);
                }
            })
        })
        .collect();
    server.write_all(&vec![1; 3_000_000]).unwrap();
    drop(server);
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert_eq!(total.load(Ordering::Relaxed), 3_000_000);
}

#[test]
fn a_blocked_writer_does_not_stop_the_reader() {
    let Pair { client, server, client_at, .. } = pair(140);
    client.set_linger(None).unwrap();
    let mut writing = client.try_clone().unwrap();
    let written = Arc::new(AtomicU64::new(0));
    let counted = written.clone();
    let writer = thread::spawn(move || {
        let block = vec![1; 1 << 16];
        while let Ok(n) = writing.write(&block) {
            counted.fetch_add(n as u64, Ordering::Relaxed);
        }
    });
    // The server never reads: the writer gets stuck.
    let (mut before, mut since) = (0, Instant::now());
    while since.elapsed() < MOMENT * 10 {
        let now = written.load(Ordering::Relaxed);
        if now != before {
            (before, since) = (now, Instant::now());
        }
        thread::sleep(MOMENT / 10);
    }
    let (mut reading, mut sending) = (client.try_clone().unwrap(), server.try_clone().unwrap());
    reading.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for round in 0..5u8 {
        sending.write_all(&[round; 50_000]).unwrap();
        let mut back = vec![0; 50_000];
        reading.read_exact(&mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == round));
        // A move stops neither.
        client_at.set([ip(140, 10 + round)]);
    }
    assert!(written.load(Ordering::Relaxed) < 64 << 20, "nothing bounds what is written");
    // The peer leaves, and the writer is told.
    server.shutdown(Shutdown::Both).unwrap();
    writer.join().unwrap();
}

#[test]
fn what_was_written_arrives_although_the_stream_is_dropped() {
    let Pair { mut client, mut server, .. } = pair(141);
    let reader = thread::spawn(move || {
        thread::sleep(MOMENT * 3);
        let mut all = Vec::new();
        server.read_to_end(&mut all).unwrap();
        all.len()
    });
    client.write_all(&vec![1; 20_000_000]).unwrap();
    drop(client);
    assert_eq!(reader.join().unwrap(), 20_000_000);
}

/// Takes all addresses, and waits until the endpoint has noticed.
fn go_away(stream: &Stream, at: &ManualMonitor) {
    at.set([]);
    let start = Instant::now();
    while stream.connection().stats().unreachable.is_none() {
        assert!(start.elapsed() < Duration::from_secs(5), "still there");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_drop_waits_for_a_moved_peer_and_no_longer() {
    let Pair { mut client, mut server, client_at, .. } = pair(142);
    // Away: no address at all.
    go_away(&client, &client_at);
    client.write_all(b"wait for me").unwrap();
    let back = thread::spawn(move || {
        thread::sleep(MOMENT * 3);
        client_at.set([ip(142, 7)]);
    });
    let start = Instant::now();
    client.close(Duration::from_secs(10)).unwrap();
    assert!(start.elapsed() >= MOMENT * 2, "{:?}", start.elapsed());
    back.join().unwrap();
    let mut all = String::new();
    server.read_to_string(&mut all).unwrap();
    assert_eq!(all, "wait for me");

    let Pair { mut client, client_at, server, .. } = pair(143);
    server.set_linger(None).unwrap();
    go_away(&client, &client_at);
    client.write_all(b"unheard").unwrap();
    client.set_linger(Some(MOMENT)).unwrap();
    let clone = client.try_clone().unwrap();
    assert_eq!(clone.close(MOMENT).unwrap_err().kind(), ErrorKind::TimedOut);
    let start = Instant::now();
    drop(client);
    assert!(start.elapsed() < MOMENT * 10, "{:?}", start.elapsed());
}

#[test]
fn a_drop_of_a_finished_exchange_is_quick() {
    let Pair { mut client, mut server, .. } = pair(144);
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut text = String::new();
    server.read_to_string(&mut text).unwrap();
    server.write_all(b"answer").unwrap();
    let start = Instant::now();
    drop(server);
    client.read_to_string(&mut text).unwrap();
    drop(client);
    assert!(start.elapsed() < MOMENT * 5, "{:?}", start.elapsed());
}

#[test]
fn incoming_gives_every_caller_and_ends_with_the_endpoint() {
    let (serving, _at) = endpoint(145, 1);
    let listener = serving.listen(ListenOptions::unnamed().allow(Allow::Any)).unwrap();
    let ticket = listener.ticket();
    let server = thread::spawn(move || {
        let mut served = 0;
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            served += 1;
            thread::spawn(move || {
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                stream.write_all(text.to_uppercase().as_bytes()).unwrap();
            });
        }
        served
    });
    let callers: Vec<_> = (0..10u8)
        .map(|i| {
            let ticket = ticket.to_string();
            thread::spawn(move || {
                let (calling, _at) = endpoint(145, 10 + i);
                let mut stream = calling.connect(ticket).unwrap();
                write!(stream, "caller {i}").unwrap();
                stream.shutdown(Shutdown::Write).unwrap();
                let mut text = String::new();
                stream.read_to_string(&mut text).unwrap();
                assert_eq!(text, format!("CALLER {i}"));
            })
        })
        .collect();
    callers.into_iter().for_each(|caller| caller.join().unwrap());
    serving.close(Duration::from_secs(2));
    assert_eq!(server.join().unwrap(), 10);
}

#[test]
fn nobody_there_is_an_error_in_time() {
    let config = whimbrel::Config { connect_timeout: Duration::from_secs(1), ..Default::default() };
    let at = ManualMonitor::new([ip(146, 1)]);
    let calling = Endpoint::bind(whimbrel::Endpoint::builder().config(config).monitor(at)).unwrap();
    let (gone, _gone_at) = endpoint(146, 2);
    let ticket = gone.ticket();
    // It is bound, but does not listen: nobody answers, and the attempt is bounded.
    assert_eq!(calling.connect(&ticket).unwrap_err().kind(), ErrorKind::TimedOut);
    let start = Instant::now();
    let late = calling.connect_timeout(&ticket, MOMENT * 3).unwrap_err();
    assert_eq!(late.kind(), ErrorKind::TimedOut);
    assert!(start.elapsed() < Duration::from_secs(2));
    assert_eq!(calling.connect_timeout(&ticket, Duration::ZERO).unwrap_err().kind(), ErrorKind::InvalidInput);
    assert_eq!(calling.connect("not a name").unwrap_err().kind(), ErrorKind::InvalidInput);
    let unnamed = calling.connect("anna@example.org").unwrap_err();
    assert_eq!(unnamed.kind(), ErrorKind::InvalidInput);
    assert!(unnamed.to_string().contains("no name service"), "{unnamed}");
}

#[test]
fn it_works_inside_a_runtime_too() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let Pair { mut client, mut server, .. } = pair(147);
        for _ in 0..1000 {
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
        }
    });
}

#[test]
fn the_process_has_a_default_endpoint() {
    let (own, _at) = endpoint(148, 1);
    own.clone().set_process_default();
    assert_eq!(Endpoint::process_default().unwrap().id(), own.id());
}

#[test]
fn no_name_is_registered_for_a_key_that_ends_with_the_process() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let service = runtime.block_on(async {
        let at = ManualMonitor::new([ip(150, 200)]);
        let own = transport::Endpoint::builder().monitor(at).bind().await.unwrap();
        Service::start(own, MemoryStore::new(), Admission::any(), Limits::default()).await.unwrap()
    });
    let at = ManualMonitor::new([ip(150, 1)]);
    let builder = whimbrel::Endpoint::builder().names(service.addr()).monitor(at);
    let fleeting = Endpoint::bind(builder).unwrap();
    let named = ListenOptions::named("anna@example.org").allow(Allow::Any);
    let refused = fleeting.listen(named).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("a key that ends with this endpoint"), "{refused}");
    assert_eq!(fleeting.connect("anna@example.org").unwrap_err().kind(), ErrorKind::NotFound);
    // A ticket is of use for as long as the key is.
    fleeting.listen(ListenOptions::unnamed().allow(Allow::Any)).unwrap();
}

/// The listener's side ends last, with nothing to say: the caller's drop must not wait for an answer that
/// never comes.
#[test]
fn who_ends_last_says_that_it_read_the_end() {
    let Pair { mut client, mut server, .. } = pair(149);
    server.shutdown(Shutdown::Write).unwrap();
    assert_eq!(client.read(&mut [0; 9]).unwrap(), 0);
    let ending = thread::spawn(move || {
        let start = Instant::now();
        client.close(Duration::from_secs(5)).unwrap();
        start.elapsed()
    });
    assert_eq!(server.read(&mut [0; 9]).unwrap(), 0);
    drop(server);
    assert!(ending.join().unwrap() < MOMENT * 5);
}
