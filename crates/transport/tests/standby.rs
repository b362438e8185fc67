//! What a connection costs whose peer is suspended.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt;
use whimbrel_base::SecretKey;
use whimbrel_transport::{Allow, Connection, Endpoint, ListenOptions, ManualMonitor};

#[global_allocator]
static ALLOC: dhat::Alloc = dhat::Alloc;

const LIMIT: Duration = Duration::from_secs(10);
const WARM_UP: usize = 64;
const CONNECTIONS: usize = 512;
/// Bytes of each, with the TLS session by which its peer comes back. Awake it takes seven times as many.
const MOST: usize = 1700;

async fn endpoint(last: u8) -> Endpoint {
    let monitor = ManualMonitor::new([[127, 0, 79, last].into()]);
    Endpoint::builder().secret_key(SecretKey::generate()).monitor(monitor).bind().await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_peer_is_suspended_costs_little() {
    let server = endpoint(1).await;
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let (told, mut accepted) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            told.send(connection).unwrap();
        }
    });
    let mut kept: Vec<Connection> = Vec::with_capacity(WARM_UP + CONNECTIONS);
    let mut profiler = None;
    for count in [WARM_UP, CONNECTIONS] {
        if count == CONNECTIONS {
            profiler = Some(dhat::Profiler::builder().testing().build());
        }
        let client = endpoint(2).await;
        for _ in 0..count {
            let connection = client.connect(server.addr()).await.unwrap();
            let mut stream = connection.open_stream().await.unwrap();
            stream.write_all(&[7]).await.unwrap();
            connection.suspend(LIMIT).await.unwrap();
            kept.push(accepted.recv().await.unwrap());
        }
        client.close(LIMIT).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
    }
    // On a busy machine they go to rest later.
    let until = Instant::now() + 6 * LIMIT;
    let mut each = dhat::HeapStats::get().curr_bytes / CONNECTIONS;
    while each > MOST && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(200)).await;
        each = dhat::HeapStats::get().curr_bytes / CONNECTIONS;
    }
    drop(profiler);
    println!("{each} bytes each");
    assert!(each <= MOST, "{each} bytes each");
    assert_eq!(kept.len(), WARM_UP + CONNECTIONS);
}
