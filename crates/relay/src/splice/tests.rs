use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use whimbrel_base::RelayToken;

use super::*;
use crate::limits::Limits;
use crate::traffic::{Line, Traffic};

async fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dialled = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (dialled, listener.accept().await.unwrap().0)
}

/// A client, a server, and the splice between.
async fn spliced() -> (TcpStream, TcpStream, tokio::task::JoinHandle<io::Result<u64>>) {
    let ((client, one), (server, other)) = (pair().await, pair().await);
    let task = tokio::spawn(async move {
        let bytes = AtomicU64::new(0);
        let spliced = splice(&one, &other, &mut Underway::default(), &Meter::new(&bytes)).await;
        spliced.map(|()| bytes.into_inner())
    });
    (client, server, task)
}

#[tokio::test]
async fn each_direction_ends_by_itself_and_no_byte_is_lost() {
    const SIZE: usize = 20 << 20;
    let (mut client, mut server, task) = spliced().await;
    let sent: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
    let expected = sent.clone();
    let sending = tokio::spawn(async move {
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).await.unwrap();
        answer
    });
    let mut heard = Vec::new();
    server.read_to_end(&mut heard).await.unwrap();
    assert!(heard == expected);
    server.write_all(b"heard").await.unwrap();
    drop(server);
    assert_eq!(sending.await.unwrap(), b"heard");
    assert_eq!(task.await.unwrap().unwrap(), SIZE as u64 + 5);
}

#[tokio::test]
async fn what_is_under_way_outlives_those_who_pass_it_on() {
    const SIZE: usize = 24 << 20;
    let ((mut client, one), (mut server, other)) = (pair().await, pair().await);
    let sending = tokio::spawn(async move {
        let sent: Vec<u8> = (0..SIZE).map(|n| (n % 251) as u8).collect();
        client.write_all(&sent).await.unwrap();
        client.shutdown().await.unwrap();
        client
    });
    let reading = tokio::spawn(async move {
        let (mut heard, mut piece) = (Vec::new(), vec![0; 100_000]);
        loop {
            match server.read(&mut piece).await.unwrap() {
                0 => return heard,
                count => heard.extend_from_slice(&piece[..count]),
            }
            // The relay is ahead of it: something waits in between, in a pipe or not.
            tokio::time::sleep(Duration::from_micros(200)).await;
        }
    });
    let (bytes, mut underway, mut halts, mut waited) = (AtomicU64::new(0), Underway::default(), 0, 0);
    loop {
        let meter = Meter::new(&bytes);
        let passing = splice(&one, &other, &mut underway, &meter);
        if tokio::time::timeout(Duration::from_millis(2), passing).await.is_ok() || reading.is_finished() {
            break;
        }
        halts += 1;
        let Underway { there, back } = std::mem::take(&mut underway);
        let ((waiting, ended), (behind, _)) = (there.into_parts().unwrap(), back.into_parts().unwrap());
        assert!(behind.is_empty() && waiting.len() <= BUFFER);
        waited += usize::from(!waiting.is_empty());
        underway.there = Direction::going_on(waiting, ended);
    }
    let heard = reading.await.unwrap();
    assert!(heard.len() == SIZE && heard.iter().enumerate().all(|(n, byte)| *byte == (n % 251) as u8));
    assert!(halts > 10 && waited > 0, "{waited} of {halts} times something waited");
    assert_eq!(bytes.into_inner(), SIZE as u64);
    drop(sending.await.unwrap());
}

#[tokio::test]
async fn a_side_that_breaks_ends_the_other() {
    let (client, mut server, task) = spliced().await;
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    assert!(task.await.unwrap().is_err());
    assert_eq!(server.read(&mut [0; 9]).await.unwrap_or(0), 0);
}

#[tokio::test]
async fn a_reader_that_stalls_holds_the_sender_up_and_no_more_than_a_piece_is_kept() {
    const KERNEL: usize = 128 << 10;
    let ((client, one), (server, other)) = (pair().await, pair().await);
    for socket in [&client, &one, &other, &server] {
        // The kernel keeps little, so that what the relay kept would be seen.
        SockRef::from(socket).set_send_buffer_size(KERNEL).unwrap();
        SockRef::from(socket).set_recv_buffer_size(KERNEL).unwrap();
    }
    let task = tokio::spawn(async move {
        let bytes = AtomicU64::new(0);
        splice(&one, &other, &mut Underway::default(), &Meter::new(&bytes)).await
    });
    let mut total = 0_usize;
    let chunk = vec![0; 1 << 16];
    while let Ok(Ok(())) = tokio::time::timeout(Duration::from_millis(300), client.writable()).await {
        match client.try_write(&chunk) {
            Ok(count) => total += count,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        // The kernel takes twice what it is told, in two sockets on each side: 1 MiB.
        assert!(total < 4 << 20, "somebody keeps it all");
    }
    drop((client, server));
    task.abort();
}

#[tokio::test]
async fn what_is_held_up_by_a_limit_comes_whole_and_counts_while_it_runs() {
    const SIZE: usize = 1 << 20;
    let ((mut client, one), (mut server, other)) = (pair().await, pair().await);
    let limits = Limits { bytes_per_second: Some((SIZE / 2) as f64), ..Limits::default() };
    let traffic = Arc::new(Traffic::new(Line::new(&limits)));
    let (relays, token) = (traffic.clone(), RelayToken::from_bytes([7; 10]));
    let begun = Instant::now();
    let task = tokio::spawn(async move {
        let bytes = AtomicU64::new(0);
        let meter = Meter::of_relay(&bytes, &relays, token, [127, 0, 0, 1].into());
        splice(&one, &other, &mut Underway::default(), &meter).await
    });
    let sending = tokio::spawn(async move {
        client.write_all(&vec![7; SIZE]).await.unwrap();
        client
    });
    let mut heard = vec![0; SIZE];
    server.read_exact(&mut heard).await.unwrap();
    // Half of it may pass at once, and less than a piece too much.
    assert!(begun.elapsed() >= Duration::from_millis(800), "{:?}", begun.elapsed());
    assert!(heard.iter().all(|byte| *byte == 7));
    assert_eq!(traffic.running(), SIZE as u64);
    drop((sending.await.unwrap(), server));
    task.await.unwrap().unwrap();
}

/// Pipes of this process, by its own table of open files.
#[cfg(target_os = "linux")]
fn pipes() -> usize {
    let files = std::fs::read_dir("/proc/self/fd").unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("pipe:")).count()
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn connections_that_carried_much_and_are_idle_hold_no_pipes() {
    const CONNECTIONS: usize = 40;
    let mut open = Vec::new();
    let before = pipes();
    for _ in 0..CONNECTIONS {
        let (mut client, mut server, task) = spliced().await;
        let sending = tokio::spawn(async move {
            client.write_all(&vec![7; 4 << 20]).await.unwrap();
            client
        });
        server.read_exact(&mut vec![0; 4 << 20]).await.unwrap();
        open.push((sending.await.unwrap(), server, task));
    }
    // Other tests of this process have some under way; each of these would have two ends.
    assert!(pipes() < before + CONNECTIONS, "{} pipes, {before} before", pipes());
    for (mut client, mut server, _task) in open {
        client.write_all(b"?").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'?');
    }
}
