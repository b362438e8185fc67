//! Many connections that ask for one object after the other.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::task::JoinSet;

use super::client::{Dialler, Got, WebClient};

/// Connections that begin at the same time.
const PARALLEL: usize = 32;
/// For one to begin.
const DIAL: Duration = Duration::from_secs(20);
/// Bytes of the object that each brings first, where all begin together.
const FIRST: u64 = 1;
/// Slow start is over, and queues have their size.
const WARM_UP: Duration = Duration::from_millis(300);

/// What came in some time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    bytes: u64,
    objects: u64,
    /// Connections that brought something.
    carrying: usize,
    took: Duration,
}

impl Counted {
    pub(crate) fn gigabits_per_second(&self) -> f64 {
        self.bytes as f64 * 8.0 / 1e9 / self.took.as_secs_f64()
    }

    pub(crate) fn objects_per_second(&self) -> f64 {
        self.objects as f64 / self.took.as_secs_f64()
    }

    /// How many connections brought something: what is between may have left others waiting.
    pub(crate) fn carrying(&self) -> usize {
        self.carrying
    }
}

struct Counts {
    /// Of each connection.
    bytes: Vec<AtomicU64>,
    objects: AtomicU64,
}

impl Counts {
    fn new(connections: usize) -> Self {
        Self { bytes: (0..connections).map(|_| AtomicU64::new(0)).collect(), objects: AtomicU64::new(0) }
    }

    /// Bytes of each connection so far.
    fn bytes(&self) -> Vec<u64> {
        self.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect()
    }

    fn objects(&self) -> u64 {
        self.objects.load(Ordering::Relaxed)
    }
}

/// How far a connection is before it is put to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Opened {
    /// It was taken, by whatever it leads through.
    Here,
    /// It has brought something of the server.
    ToServer,
}

/// Connections at work. They end when this is dropped.
pub(crate) struct Load {
    counts: Arc<Counts>,
    running: JoinSet<Result<()>>,
}

impl Load {
    /// Opens all connections, and has each ask for objects of so many bytes from then on.
    pub(crate) async fn start(dialler: Dialler, connections: usize, bytes: u64) -> Result<Self> {
        Self::begin(dialler, connections, bytes, Opened::Here).await
    }

    /// Opens them likewise, but has each bring a byte of the server before the first one asks for those: what
    /// is between may take connections that do not lead to the server yet, and have no time for them then.
    pub(crate) async fn start_together(dialler: Dialler, connections: usize, bytes: u64) -> Result<Self> {
        Self::begin(dialler, connections, bytes, Opened::ToServer).await
    }

    async fn begin(dialler: Dialler, connections: usize, bytes: u64, opened: Opened) -> Result<Self> {
        let (mut clients, mut dialling) = (Vec::with_capacity(connections), JoinSet::new());
        for _ in 0..connections {
            if dialling.len() >= PARALLEL
                && let Some(client) = dialling.join_next().await
            {
                clients.push(client??);
            }
            dialling.spawn(open(dialler, opened));
        }
        while let Some(client) = dialling.join_next().await {
            clients.push(client??);
        }
        let (counts, mut running) = (Arc::new(Counts::new(clients.len())), JoinSet::new());
        for (number, client) in clients.into_iter().enumerate() {
            running.spawn(ask_on(dialler, client, bytes, (counts.clone(), number)));
        }
        Ok(Self { counts, running })
    }

    /// Counts for so long, after it has got going.
    pub(crate) async fn measure(&mut self, length: Duration) -> Result<Counted> {
        tokio::time::sleep(WARM_UP).await;
        let (began, bytes, objects) = (Instant::now(), self.counts.bytes(), self.counts.objects());
        tokio::time::sleep(length).await;
        let (took, bytes_now) = (began.elapsed(), self.counts.bytes());
        let objects = self.counts.objects() - objects;
        self.check()?;
        let came: Vec<u64> = bytes_now.iter().zip(&bytes).map(|(now, before)| now - before).collect();
        let carrying = came.iter().filter(|bytes| **bytes > 0).count();
        Ok(Counted { bytes: came.iter().sum(), objects, carrying, took })
    }

    /// Sees to it that no connection has ended.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.running.try_join_next() {
            None => Ok(()),
            Some(ended) => match ended.context("a client panicked")? {
                Ok(()) => bail!("a client ended"),
                Err(error) => Err(error.context("a client ended")),
            },
        }
    }
}

async fn dial(dialler: Dialler) -> Result<WebClient> {
    tokio::time::timeout(DIAL, dialler.dial()).await.context("a connection is not there in time")?
}

async fn open(dialler: Dialler, opened: Opened) -> Result<WebClient> {
    let mut client = dial(dialler).await?;
    if opened == Opened::ToServer {
        let first = tokio::time::timeout(DIAL, client.get(FIRST, |_, _| {}));
        let got = first.await.context("a connection brings nothing in time")??;
        ensure!(got == Got::Object, "a connection brings one object and no more: {got:?}");
    }
    Ok(client)
}

/// Asks for one object after the other, over new connections where the one before is closed. What comes is
/// counted as that of the connection of this number.
async fn ask_on(
    dialler: Dialler,
    mut client: WebClient,
    bytes: u64,
    (counts, number): (Arc<Counts>, usize),
) -> Result<()> {
    // The first object comes over the connection that was opened: another one may not lead to the server yet.
    let mut was_used = false;
    loop {
        let count = |_: u64, piece: &[u8]| {
            counts.bytes[number].fetch_add(piece.len() as u64, Ordering::Relaxed);
        };
        let got = client.get(bytes, count).await?;
        match got {
            Got::Nothing => ensure!(was_used, "there is no answer"),
            Got::Object | Got::Last => drop(counts.objects.fetch_add(1, Ordering::Relaxed)),
        }
        was_used = got == Got::Object;
        if !was_used {
            client = dial(dialler).await?;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;
    use crate::web::client::Way;
    use crate::web::content::Content;
    use crate::web::server::accept;

    const LIMIT: Duration = Duration::from_secs(30);

    async fn listen() -> (TcpListener, Dialler) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        (listener, Dialler { at, way: Way::Plain, server: at })
    }

    /// Waits until twelve objects came.
    async fn wait_for_objects(load: &mut Load) {
        let began = Instant::now();
        while load.counts.objects() < 12 {
            assert!(began.elapsed() < LIMIT, "{} came", load.counts.objects());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        load.check().unwrap();
    }

    #[tokio::test]
    async fn every_byte_and_every_whole_object_is_counted() {
        let (listener, dialler) = listen().await;
        tokio::spawn(accept(listener, Content::new()));
        let mut load = Load::start(dialler, 3, 100_000).await.unwrap();
        wait_for_objects(&mut load).await;
        let (bytes, objects): (u64, _) = (load.counts.bytes().iter().sum(), load.counts.objects());
        // An object is counted behind its last byte, and each connection has one under way.
        assert!(bytes >= objects * 100_000 && bytes <= (objects + 3) * 100_000, "{bytes} in {objects}");
        let took = Duration::from_secs(2);
        let counted = Counted { bytes: 250_000_000, objects: 500, carrying: 3, took };
        assert_eq!((counted.gigabits_per_second(), counted.objects_per_second()), (1.0, 250.0));
    }

    /// Takes connections, and leads so many of them on to the server: the others wait, as at a proxy that has
    /// no time for them.
    async fn lead_some(listener: TcpListener, server: std::net::SocketAddr, some: usize) {
        let (mut led, mut waiting) = (JoinSet::new(), Vec::new());
        while let Ok((mut client, _)) = listener.accept().await {
            if led.len() >= some {
                waiting.push(client);
                continue;
            }
            led.spawn(async move {
                let mut server = tokio::net::TcpStream::connect(server).await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await
            });
        }
    }

    #[tokio::test]
    async fn connections_begin_together_only_if_each_leads_to_the_server() {
        let (listener, server) = listen().await;
        tokio::spawn(accept(listener, Content::new()));
        let (listener, dialler) = listen().await;
        tokio::spawn(lead_some(listener, server.at, 3));
        let all = Load::start_together(dialler, 3, 1000);
        let mut load = tokio::time::timeout(LIMIT, all).await.unwrap().unwrap();
        wait_for_objects(&mut load).await;
        let one_more = tokio::time::timeout(Duration::from_secs(1), Load::start_together(dialler, 1, 1000));
        assert!(one_more.await.is_err(), "it is not waited for");
        assert!(Load::start(dialler, 1, 1000).await.is_ok());
    }

    #[tokio::test]
    async fn connections_that_bring_nothing_are_not_counted_as_carrying() {
        let (listener, server) = listen().await;
        tokio::spawn(accept(listener, Content::new()));
        let (listener, dialler) = listen().await;
        tokio::spawn(lead_some(listener, server.at, 2));
        let mut load = Load::start(dialler, 5, 1000).await.unwrap();
        wait_for_objects(&mut load).await;
        let counted = load.measure(Duration::from_secs(2)).await.unwrap();
        assert_eq!(counted.carrying(), 2);
    }

    #[tokio::test]
    async fn a_connection_that_ends_is_noticed() {
        let (listener, dialler) = listen().await;
        tokio::spawn(async move { while listener.accept().await.is_ok() {} });
        let mut load = Load::start(dialler, 1, 1000).await.unwrap();
        let began = Instant::now();
        while load.check().is_ok() {
            assert!(began.elapsed() < LIMIT);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
