//! Streams that nobody reads, over real sockets: they cost the others nothing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::IpAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::timeout;
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Config, Connection, Endpoint, ListenOptions, Listener, ManualMonitor,
    Stream,
};

/// With the one that is read, as many as are independent of each other.
const STALLED: usize = 4095;
/// What is written on each of them: 16 windows of the connection in all.
const EACH: usize = 4 << 10;
const WINDOW: u64 = 1 << 20;
const BULK: usize = 16 << 20;
/// For a very busy machine.
const LIMIT: Duration = Duration::from_secs(120);

async fn endpoint(last: u8, carriers: Carriers) -> Endpoint {
    let monitor = ManualMonitor::new([IpAddr::from([127, 0, 82, last])]);
    let config = Config { window: WINDOW, ..Config::default() };
    Endpoint::builder().monitor(monitor).config(config).carriers(carriers).bind().await.unwrap()
}

/// What a stream carries, so that none is taken for another.
fn mark(number: usize) -> u8 {
    (number % 251) as u8
}

fn bulk() -> Vec<u8> {
    (0..BULK as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Reads nothing of the first streams until all of the last one has come. Returns what ends the connection
/// when it is dropped.
async fn read_last_first(mut listener: Listener) -> (Connection, Vec<Stream>) {
    let connection = listener.accept().await.unwrap();
    let mut unread = Vec::new();
    for _ in 0..STALLED {
        unread.push(connection.accept_stream().await.unwrap());
    }
    let mut last = connection.accept_stream().await.unwrap();
    let mut all = vec![0; BULK];
    last.read_exact(&mut all).await.unwrap();
    assert!(all == bulk());
    for (number, stream) in unread.iter_mut().enumerate() {
        let mut piece = [0; EACH];
        stream.read_exact(&mut piece).await.unwrap();
        assert!(piece == [mark(number); EACH], "stream {number}");
    }
    unread.push(last);
    (connection, unread)
}

/// Writes on all streams, and waits until the peer has everything. Returns the streams, which are open still.
async fn write_all(connection: &Connection) -> Vec<Stream> {
    let mut stalled = Vec::new();
    for number in 0..STALLED {
        let mut stream = connection.open_stream().await.unwrap();
        stream.write_all(&[mark(number); EACH]).await.unwrap();
        stalled.push(stream);
    }
    // The peer keeps it, because its application does not read.
    for stream in &stalled {
        stream.drained().await.unwrap();
    }
    let mut last = connection.open_stream().await.unwrap();
    last.write_all(&bulk()).await.unwrap();
    last.drained().await.unwrap();
    stalled.push(last);
    stalled
}

async fn stalled_streams(client: u8, server: u8, carriers: Carriers) {
    let server = endpoint(server, carriers).await;
    let listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let reader = tokio::spawn(read_last_first(listener));
    let client = endpoint(client, carriers).await;
    let connection = client.connect(server.addr()).await.unwrap();
    let written = timeout(LIMIT, write_all(&connection)).await;
    let _written = written.expect("streams that nobody reads hold up the one that is read");
    let read = timeout(LIMIT, reader).await.expect("what was not read before cannot be read");
    drop(read.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_four_thousand_streams_that_nobody_reads_another_one_runs_over_tcp() {
    stalled_streams(1, 2, Carriers::Only(CarrierKind::Tcp)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beside_four_thousand_streams_that_nobody_reads_another_one_runs_over_quic() {
    stalled_streams(3, 4, Carriers::Only(CarrierKind::Quic)).await;
}
