//! A file of its own, so that the processor time of the process is this test's.
#![allow(clippy::unwrap_used, clippy::expect_used)]
#![cfg(target_os = "linux")]

use std::io::{Read, Write};
use std::net::Shutdown;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;

/// Processor time of this process so far.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

#[test]
fn end_of_file_is_reported_and_costs_no_cpu() {
    let Pair { mut client, mut server, .. } = pair(151);
    server.write_all(b"the end").unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"the end");
    for _ in 0..1000 {
        assert_eq!(client.read(&mut [0; 100]).unwrap(), 0);
    }
    // The connection lives on in the other direction: nothing spins meanwhile, while one side waits in a
    // read.
    let reader = thread::spawn(move || {
        let mut text = String::new();
        server.read_to_string(&mut text).unwrap();
        text
    });
    let (start, before) = (Instant::now(), processor_time());
    thread::sleep(Duration::from_secs(2));
    let spent = processor_time() - before;
    println!("{spent:?} of processor time in {:?}", start.elapsed());
    assert!(spent <= Duration::from_millis(30), "{spent:?}");
    client.write_all(b"still here").unwrap();
    drop(client);
    assert_eq!(reader.join().unwrap(), "still here");
}
