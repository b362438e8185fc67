//! What is measured over links whose delay and rate are known.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};
use whimbrel_lab::{Lab, LinkSpec, Rate, require};
use whimbrel_multiaccess::{AccessPath, Survey};

/// One way, in milliseconds.
const DELAYS: [u64; 2] = [30, 75];
const RATE: u64 = 20;

fn assert_near(what: &str, found: f64, expected: f64, share: f64) {
    assert!((found - expected).abs() <= expected * share, "{what}: {found}, expected about {expected}");
}

fn path<'a>(paths: &'a [AccessPath], address: &str) -> &'a AccessPath {
    let address = address.parse().unwrap();
    paths.iter().find(|path| path.addresses.contains(&address)).unwrap()
}

/// Sends bytes back, one by one, until the client closes.
fn echo(listener: &TcpListener) {
    let (mut stream, _) = listener.accept().unwrap();
    let mut byte = [0];
    while stream.read(&mut byte).unwrap() > 0 {
        stream.write_all(&byte).unwrap();
    }
}

/// Two links of 60 and 150 ms there and back. Over each a connection exchanges single bytes, so that nothing
/// queues; then 20 Mbit/s fill the first one for five seconds.
#[test]
fn round_trips_and_rates_of_two_links_are_told_apart_and_right() {
    if !require!() {
        return;
    }
    let lab = Lab::new().unwrap();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let _links = DELAYS.map(|delay| {
        let spec = LinkSpec::default().delay(Duration::from_millis(delay)).rate(Rate::mbit(RATE));
        let link = lab.link(&client, &server, spec).unwrap();
        link.end(&client).add_address(&format!("10.0.{delay}.1/24")).unwrap();
        link.end(&server).add_address(&format!("10.0.{delay}.2/24")).unwrap();
        link
    });
    let runtime = client.runtime(1).unwrap();
    let mut survey = runtime.block_on(async { Survey::open() }).unwrap();
    let began = Instant::now();
    let mut measure = || runtime.block_on(survey.measure(began.elapsed())).unwrap();
    let before = measure();
    assert_eq!(before.len(), 2, "{before:?}");
    assert!(before.iter().all(|path| path.estimate.needs_exploring()), "{before:?}");

    let mut streams = Vec::new();
    for delay in DELAYS {
        let address: SocketAddr = format!("10.0.{delay}.2:7000").parse().unwrap();
        let listener = server.run(|| TcpListener::bind(address)).unwrap();
        std::thread::spawn(move || echo(&listener));
        let mut stream = client.run(|| TcpStream::connect(address)).unwrap();
        for _ in 0..8 {
            stream.write_all(&[1]).unwrap();
            stream.read_exact(&mut [0]).unwrap();
        }
        streams.push(stream);
    }
    let measured = measure();
    for delay in DELAYS {
        let estimate = path(&measured, &format!("10.0.{delay}.1")).estimate;
        let expected = 2.0 * delay as f64 / 1000.0;
        assert_near("smallest", estimate.srtt_min.unwrap().0, expected, 0.1);
        assert_near("median", estimate.srtt_median.unwrap().0, expected, 0.1);
        assert_eq!(estimate.connections, 1);
    }

    let address: SocketAddr = format!("10.0.{}.2:7001", DELAYS[0]).parse().unwrap();
    let listener = server.run(|| TcpListener::bind(address)).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let chunk = [0; 16_384];
        while stream.write_all(&chunk).is_ok() {}
    });
    let mut stream = client.run(|| TcpStream::connect(address)).unwrap();
    let reader = std::thread::spawn(move || {
        let (end, mut buffer) = (Instant::now() + Duration::from_secs(5), [0; 65_536]);
        while Instant::now() < end {
            assert!(stream.read(&mut buffer).unwrap() > 0, "the server ended");
        }
    });
    let mut paths = measure();
    while !reader.is_finished() {
        std::thread::sleep(Duration::from_millis(100));
        paths = measure();
    }
    reader.join().unwrap();
    let rate = RATE as f64 * 1e6 / 8.0;
    let (filled, other) = (path(&paths, "10.0.30.1").estimate, path(&paths, "10.0.75.1").estimate);
    assert_near("best rate", filled.down.best.unwrap().0, rate, 0.15);
    // The other one carried chatter only, which does not say what it can carry.
    assert!(other.down.best.is_none() && other.up.best.is_none(), "{other:?}");
    assert!(filled.up.best.is_none(), "{filled:?}");
    drop(streams);
}
