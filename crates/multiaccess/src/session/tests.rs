use super::*;
use crate::Settings;
use tokio::io::AsyncReadExt as _;

fn session() -> (Session, UnixStream) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let shared = Shared::new(Settings::default()).unwrap();
    (Session::new(ours, 1, Arc::new(shared)), theirs)
}

async fn read(stream: &mut UnixStream, most: usize) -> usize {
    let mut buffer = vec![0; most];
    tokio::time::timeout(Duration::from_secs(10), stream.read(&mut buffer)).await.unwrap().unwrap()
}

#[tokio::test]
async fn what_is_written_does_not_stay_though_something_always_waits() {
    let (mut session, mut theirs) = session();
    let line = vec![b'x'; CHUNK];
    let mut moved = 0;
    while moved < 32 * FULL {
        while session.pending() < FULL {
            session.push_line(&line);
        }
        tokio::select! {
            ready = session.stream.writable() => {
                ready.unwrap();
                session.write().unwrap();
                assert!(session.pending() > 0, "the socket holds all of it");
            }
            count = read(&mut theirs, CHUNK) => moved += count,
        }
    }
    assert!(session.output.capacity() <= 8 * FULL, "{}", session.output.capacity());
}

#[tokio::test]
async fn one_who_reads_decisions_slowly_is_told_how_many_it_missed_and_stays() {
    let (session, mut theirs) = session();
    let shared = Arc::clone(&session.shared);
    let running = tokio::spawn(session.run());
    let request = b"{\"watch\":{\"decisions\":true}}\n";
    tokio::io::AsyncWriteExt::write_all(&mut theirs, request).await.unwrap();
    assert!(read(&mut theirs, CHUNK).await > 0);
    // More than the sockets, the output and the ring hold, all while it reads nothing.
    let to = "x".repeat(200);
    let ask = Ask { to: Some(to), ..Ask::default() };
    for _ in 0..20_000 {
        shared.decide(2, &ask, &[], None).unwrap();
        tokio::task::yield_now().await;
    }
    let mut reader = tokio::io::BufReader::new(theirs);
    let mut missed = 0;
    let heard = async {
        let mut line = String::new();
        while missed == 0 {
            line.clear();
            let count = tokio::io::AsyncBufReadExt::read_line(&mut reader, &mut line).await.unwrap();
            assert!(count > 0, "it was dropped");
            missed = serde_json::from_str::<Answer>(&line).unwrap().missed.unwrap_or(0);
        }
    };
    tokio::time::timeout(Duration::from_secs(30), heard).await.unwrap();
    assert!(missed > 1000, "{missed}");
    drop(reader);
    tokio::time::timeout(Duration::from_secs(10), running).await.unwrap().unwrap();
}
