//! Limits of a connection's rate on loopback, over each carrier.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Config, Connection, Endpoint, ListenOptions, ManualMonitor, RateLimit,
};

/// A connection over loopback whose ends have the numbers `first` and the next, with both its endpoints.
async fn pair(first: u8, carrier: CarrierKind) -> (Connection, Connection, [Endpoint; 2]) {
    let at = |last| ManualMonitor::new([IpAddr::from([127, 0, 79, last])]);
    let config = Config { carriers: Carriers::Only(carrier), ..Config::default() };
    let caller = Endpoint::builder().monitor(at(first)).config(config).bind().await.unwrap();
    let called = Endpoint::builder().monitor(at(first + 1)).bind().await.unwrap();
    let mut listener = called.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let client = caller.connect(called.addr()).await.unwrap();
    let server = listener.accept().await.unwrap();
    (client, server, [caller, called])
}

/// Bytes that arrive within `time` of a stream that is never out of data.
async fn carried(client: &Connection, server: &Connection, time: Duration) -> u64 {
    let mut writer = client.open_stream().await.unwrap();
    let busy = tokio::spawn(async move { while writer.write_all(&[7; 32 * 1024]).await.is_ok() {} });
    let mut reader = server.accept_stream().await.unwrap();
    let mut buffer = vec![0; 64 * 1024];
    // What was saved up, and what fills the queues, is not part of the rate.
    let mut until = Instant::now() + Duration::from_millis(500);
    let mut total = 0;
    let mut counts = false;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, reader.read(&mut buffer)).await {
            Ok(read) => total += read.unwrap() as u64,
            Err(_) if counts => break,
            Err(_) => (until, total, counts) = (Instant::now() + time, 0, true),
        }
    }
    busy.abort();
    total
}

async fn a_limit_is_kept(first: u8, carrier: CarrierKind) {
    let (client, server, _endpoints) = pair(first, carrier).await;
    for (limited, time) in [(2_000_000, 10), (250_000, 5)] {
        client.set_rate_limit(RateLimit::new(limited));
        let read = carried(&client, &server, Duration::from_secs(time)).await;
        let asked = limited * time;
        println!("{carrier}: {read} of {asked} bytes, {:+.2} %", read as f64 * 100.0 / asked as f64 - 100.0);
        assert!(read.abs_diff(asked) * 100 <= asked * 3, "{read} instead of {asked} bytes");
    }
    client.set_rate_limit(None);
    let free = carried(&client, &server, Duration::from_secs(1)).await;
    assert!(free > 10_000_000, "{free}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_kept_within_three_percent_over_tcp_and_lifted() {
    a_limit_is_kept(1, CarrierKind::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_is_kept_within_three_percent_over_quic_and_lifted() {
    a_limit_is_kept(3, CarrierKind::Quic).await;
}
