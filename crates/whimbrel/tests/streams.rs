//! What a program can do with streams beyond reading and writing.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use whimbrel::{
    Allow, CarrierKind, Carriers, CloseCode, Connection, Endpoint, ListenOptions, ManualMonitor, RateLimit,
    Stream, StreamError, Urgency,
};

async fn pair(net: u8, kind: CarrierKind) -> (Connection, Connection) {
    let builder = |host| {
        let address = ManualMonitor::new([IpAddr::from([127, 0, net, host])]);
        Endpoint::builder().monitor(address).carriers(Carriers::Only(kind))
    };
    let server = builder(1).bind().await.unwrap();
    let client = builder(2).bind().await.unwrap();
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let (connected, accepted) = tokio::join!(client.connect(server.addr()), listener.accept());
    (connected.unwrap(), accepted.unwrap())
}

async fn streams(client: &Connection, server: &Connection) -> (Stream, Stream) {
    let mut opened = client.open_stream().await.unwrap();
    opened.write_all(b"!").await.unwrap();
    let mut accepted = server.accept_stream().await.unwrap();
    assert_eq!(accepted.read_u8().await.unwrap(), b'!');
    (opened, accepted)
}

fn code_of(error: &io::Error) -> Option<CloseCode> {
    match StreamError::of(error) {
        Some(StreamError::Reset(_, code) | StreamError::Stopped(_, code)) => Some(*code),
        _ => None,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_bring_every_byte_in_order_and_then_the_end() {
    const SIZE: usize = 3_000_000;
    for (kind, net) in [(CarrierKind::Tcp, 181), (CarrierKind::Quic, 182)] {
        let (client, server) = pair(net, kind).await;
        let (mut opened, mut accepted) = streams(&client, &server).await;
        let data: Vec<u8> = (0..SIZE as u32).map(|i| (i * 7 % 251) as u8).collect();
        let sent = data.clone();
        let sending = tokio::spawn(async move {
            opened.write_all(&sent).await.unwrap();
            opened.finish().unwrap();
            opened.drained().await.unwrap();
        });
        let (mut got, mut chunks) = (vec![0; 1000], Vec::new());
        accepted.read_exact(&mut got).await.unwrap();
        while let Some(chunk) = accepted.read_chunk().await.unwrap() {
            assert!(!chunk.is_empty());
            // Some are kept for long: they must not change.
            chunks.push(chunk);
        }
        got.extend(chunks.concat());
        assert!(got == data, "other bytes over {kind}");
        assert_eq!(accepted.read_chunk().await.unwrap(), None);
        sending.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn both_sides_learn_the_code_with_which_the_other_gave_a_stream_up() {
    let (client, server) = pair(183, CarrierKind::Tcp).await;
    let (opened, mut accepted) = streams(&client, &server).await;
    opened.reset(CloseCode::application(3));
    let error = accepted.read_u8().await.unwrap_err();
    assert_eq!(
        (error.kind(), code_of(&error)),
        (io::ErrorKind::ConnectionReset, Some(CloseCode::application(3)))
    );

    let (mut opened, accepted) = streams(&client, &server).await;
    accepted.stop(CloseCode::application(4));
    let error = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            if let Err(error) = opened.write_all(&[0; 1000]).await {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let error = error.await.expect("the other side reads on");
    assert_eq!((error.kind(), code_of(&error)), (io::ErrorKind::BrokenPipe, Some(CloseCode::application(4))));
    assert_eq!(code_of(&io::Error::other("something else")), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_of_one_way_is_accepted_apart_from_others_and_read_to_its_end() {
    for (kind, net) in [(CarrierKind::Tcp, 191), (CarrierKind::Quic, 192)] {
        let (client, server) = pair(net, kind).await;
        for (from, to) in [(&client, &server), (&server, &client)] {
            let mut one_way = from.open_uni().await.unwrap();
            let mut both_ways = from.open_stream().await.unwrap();
            one_way.write_all(b"one way").await.unwrap();
            both_ways.write_all(b"both ways").await.unwrap();
            both_ways.finish().unwrap();
            one_way.shutdown().await.unwrap();
            // The later one first: neither waits for the other.
            let mut accepted = to.accept_stream().await.unwrap();
            let mut text = String::new();
            accepted.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "both ways");
            let mut accepted = to.accept_uni().await.unwrap();
            text.clear();
            accepted.read_to_string(&mut text).await.unwrap();
            assert_eq!(text, "one way");
            one_way.stream().drained().await.unwrap();
        }
        let unread = client.open_uni().await.unwrap();
        let accepted = server.accept_uni().await.unwrap();
        drop(accepted);
        let refused = async {
            let mut unread = unread;
            while unread.write_all(&[0; 1000]).await.is_ok() {}
        };
        tokio::time::timeout(Duration::from_secs(10), refused).await.expect("nobody reads it");
    }
}

/// Ten streams of bulk share a limit of 200 kB/s with one more that has 10 kB to send.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_urgent_stream_goes_before_bulk_and_an_equal_one_takes_its_turn() {
    for (kind, net) in [(CarrierKind::Tcp, 193), (CarrierKind::Quic, 194)] {
        let (client, server) = pair(net, kind).await;
        client.set_rate_limit(RateLimit::new(200_000));
        let reader = server.clone();
        tokio::spawn(async move {
            while let Ok(mut stream) = reader.accept_uni().await {
                tokio::spawn(async move { tokio::io::copy(&mut stream, &mut tokio::io::sink()).await });
            }
        });
        for _ in 0..10 {
            let mut bulk = client.open_uni().await.unwrap();
            tokio::spawn(async move { while bulk.write_all(&[7; 4096]).await.is_ok() {} });
        }
        tokio::time::sleep(Duration::from_millis(300)).await;
        let mut took = Vec::new();
        for urgency in [Urgency::default(), Urgency::FIRST] {
            let mut stream = client.open_stream().await.unwrap();
            stream.set_urgency(urgency);
            let begin = std::time::Instant::now();
            stream.write_all(&[8; 10_000]).await.unwrap();
            let mut accepted = server.accept_stream().await.unwrap();
            accepted.read_exact(&mut [0; 10_000]).await.unwrap();
            took.push(begin.elapsed());
        }
        // Alone it takes 50 ms, as one of eleven 550 ms.
        assert!(took[0] > Duration::from_millis(200) && took[1] * 2 < took[0], "{kind}: {took:?}");
    }
}
