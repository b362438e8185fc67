//! Bytes that tell their own offset, sent and compared.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use whimbrel_transport::{Allow, Connection, Endpoint, ListenOptions, Listener, RecvHalf, SendHalf, Stream};

use super::net::{LIMIT, Node};

const BLOCK: usize = 256 * 1024;

/// Each eight bytes of a stream are a different number; the same in every stream.
fn word(index: u64) -> [u8; 8] {
    (index ^ (index << 29)).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()
}

/// Fills `block` with what belongs at `offset`.
pub(crate) fn fill(block: &mut [u8], offset: u64) {
    let mut at = offset;
    let mut rest = block;
    while !rest.is_empty() {
        let skip = (at % 8) as usize;
        let bytes = &word(at / 8)[skip..];
        let n = bytes.len().min(rest.len());
        rest[..n].copy_from_slice(&bytes[..n]);
        rest = &mut rest[n..];
        at += n as u64;
    }
}

/// Panics unless `block` is what belongs at `offset`.
pub(crate) fn check(block: &[u8], offset: u64) {
    let mut at = offset;
    let mut rest = block;
    while !rest.is_empty() {
        let skip = (at % 8) as usize;
        let bytes = &word(at / 8)[skip..];
        let n = bytes.len().min(rest.len());
        assert!(rest[..n] == bytes[..n], "wrong bytes at offset {at}");
        rest = &rest[n..];
        at += n as u64;
    }
}

/// Bytes that arrived and were compared.
#[derive(Clone, Default)]
pub(crate) struct Meter(Arc<watch::Sender<u64>>);

impl Meter {
    fn add(&self, n: usize) {
        self.0.send_modify(|total| *total += n as u64);
    }

    pub(crate) fn get(&self) -> u64 {
        *self.0.borrow()
    }

    /// Waits until that many bytes are there.
    pub(crate) async fn reach(&self, bytes: u64) {
        self.0.subscribe().wait_for(|total| *total >= bytes).await.unwrap();
    }
}

/// Sends `total` bytes and the end.
async fn send(write: &mut SendHalf, total: u64) -> std::io::Result<()> {
    send_metered(write, total, &Meter::default()).await
}

async fn send_metered(write: &mut SendHalf, total: u64, meter: &Meter) -> std::io::Result<()> {
    let mut block = vec![0; BLOCK];
    let mut sent = 0;
    while sent < total {
        let n = BLOCK.min((total - sent) as usize);
        fill(&mut block[..n], sent);
        let n = write.write(&block[..n]).await?;
        sent += n as u64;
        meter.add(n);
    }
    write.shutdown().await
}

/// Receives and compares up to the end; returns how many bytes there were.
pub(crate) async fn receive(read: &mut RecvHalf, meter: &Meter) -> std::io::Result<u64> {
    let mut block = vec![0; BLOCK];
    let mut received = 0;
    loop {
        let n = read.read(&mut block).await?;
        if n == 0 {
            return Ok(received);
        }
        check(&block[..n], received);
        received += n as u64;
        meter.add(n);
    }
}

/// Sends `total` bytes a little at a time, as a live video or a terminal does, and the end.
async fn drip(write: &mut SendHalf, total: u64) -> std::io::Result<()> {
    let mut block = [0; DROP];
    let mut sent = 0;
    while sent < total {
        let n = DROP.min((total - sent) as usize);
        fill(&mut block[..n], sent);
        write.write_all(&block[..n]).await?;
        sent += n as u64;
        tokio::time::sleep(DRIP_PAUSE).await;
    }
    write.shutdown().await
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    Up,
    Down,
    /// Down, slowly.
    Drip,
}

/// Answers what clients ask for, each request on a stream of its own.
pub(crate) struct Server {
    pub(crate) endpoint: Endpoint,
    /// Bytes uploaded by all clients.
    pub(crate) uploaded: Meter,
    task: JoinHandle<()>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Starts on an endpoint without a name.
    pub(crate) fn start(node: &Node, endpoint: Endpoint) -> Self {
        let listener = node.wait(endpoint.listen(ListenOptions::unnamed().allow(Allow::Any))).unwrap();
        Self::with(node, endpoint, listener)
    }

    pub(crate) fn with(node: &Node, endpoint: Endpoint, listener: Listener) -> Self {
        let uploaded = Meter::default();
        let task = node.runtime.spawn(accept(listener, uploaded.clone()));
        Self { endpoint, uploaded, task }
    }
}

async fn accept(mut listener: Listener, uploaded: Meter) {
    while let Some(connection) = listener.accept().await {
        tokio::spawn(serve(connection, uploaded.clone()));
    }
}

/// Serves one connection until it ends.
pub(crate) async fn serve(connection: Connection, uploaded: Meter) {
    while let Ok(stream) = connection.accept_stream().await {
        let uploaded = uploaded.clone();
        // Whether a request ended early is for the client to notice.
        tokio::spawn(async move { drop(answer(stream, &uploaded).await) });
    }
}

const UPLOAD: u8 = b'U';
const DOWNLOAD: u8 = b'D';
const ECHO: u8 = b'E';
const DRIP: u8 = b'd';
const DEAF: u8 = b'b';

/// Of a drip: a little, often.
const DROP: usize = 1024;
const DRIP_PAUSE: Duration = Duration::from_millis(20);

async fn answer(stream: Stream, uploaded: &Meter) -> std::io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    match read.read_u8().await? {
        UPLOAD => {
            let received = receive(&mut read, uploaded).await?;
            write.write_u64(received).await?;
            write.shutdown().await
        }
        DOWNLOAD => {
            let total = read.read_u64().await?;
            send(&mut write, total).await
        }
        DRIP => {
            let total = read.read_u64().await?;
            drip(&mut write, total).await
        }
        DEAF => {
            let total = read.read_u64().await?;
            send(&mut write, total).await?;
            receive(&mut read, uploaded).await.map(drop)
        }
        ECHO => {
            tokio::io::copy(&mut read, &mut write).await?;
            write.shutdown().await
        }
        other => panic!("request {other}"),
    }
}

/// A transfer under way, started by the client.
pub(crate) struct Transfer {
    /// Bytes compared by the receiver.
    pub(crate) meter: Meter,
    task: JoinHandle<std::io::Result<u64>>,
    total: u64,
}

impl Transfer {
    pub(crate) fn start(
        client: &Node,
        connection: &Connection,
        server: &Server,
        way: Way,
        total: u64,
    ) -> Self {
        match way {
            Way::Up => {
                let task = client.runtime.spawn(upload(connection.clone(), total));
                Self { meter: server.uploaded.clone(), task, total }
            }
            Way::Down => Self::download(client, connection, DOWNLOAD, total),
            Way::Drip => Self::download(client, connection, DRIP, total),
        }
    }

    /// A download from a peer of which nothing else is known.
    pub(crate) fn from_process(client: &Node, connection: &Connection, total: u64) -> Self {
        Self::download(client, connection, DOWNLOAD, total)
    }

    fn download(client: &Node, connection: &Connection, request: u8, total: u64) -> Self {
        let meter = Meter::default();
        let task = download(connection.clone(), request, total, meter.clone());
        Self { meter, task: client.runtime.spawn(task), total }
    }

    /// Waits until the receiver has that many bytes.
    pub(crate) fn reach(&self, client: &Node, bytes: u64) {
        client.wait(self.meter.reach(bytes));
    }

    pub(crate) fn is_finished(&self) -> bool {
        self.task.is_finished()
    }

    /// Waits for the end and compares the total.
    pub(crate) fn finish(self, client: &Node) {
        self.finish_within(client, LIMIT);
    }

    pub(crate) fn finish_within(self, client: &Node, limit: Duration) {
        let total = client.wait_for(limit, self.task).unwrap().unwrap();
        assert_eq!(total, self.total);
    }
}

async fn upload(connection: Connection, total: u64) -> std::io::Result<u64> {
    write_upload(&connection, total).await?.read_u64().await
}

/// Writes a whole upload; what is returned will receive the answer.
pub(crate) async fn write_upload(connection: &Connection, total: u64) -> std::io::Result<RecvHalf> {
    let (read, mut write) = connection.open_stream().await?.into_split();
    write.write_u8(UPLOAD).await?;
    send(&mut write, total).await?;
    Ok(read)
}

async fn download(connection: Connection, request: u8, total: u64, meter: Meter) -> std::io::Result<u64> {
    let (mut read, mut write) = connection.open_stream().await?.into_split();
    write.write_u8(request).await?;
    write.write_u64(total).await?;
    receive(&mut read, &meter).await
}

/// A stream on which everything comes back.
pub(crate) struct Echo {
    stream: Stream,
}

impl Echo {
    pub(crate) async fn open(connection: &Connection) -> Self {
        let mut stream = connection.open_stream().await.unwrap();
        stream.write_u8(ECHO).await.unwrap();
        let mut echo = Self { stream };
        echo.say(b"hello").await;
        echo
    }

    /// Sends, waits until it is back, and tells how long that took.
    pub(crate) async fn say(&mut self, what: &[u8]) -> Duration {
        let began = Instant::now();
        self.stream.write_all(what).await.unwrap();
        let mut back = vec![0; what.len()];
        self.stream.read_exact(&mut back).await.unwrap();
        assert_eq!(back, what);
        began.elapsed()
    }
}

/// Asks for `total` bytes, and sends as many at the same time, which the server reads only after it has sent
/// its own.
pub(crate) struct DeafPeer {
    pub(crate) received: Meter,
    pub(crate) written: Meter,
    reader: JoinHandle<std::io::Result<u64>>,
    writer: JoinHandle<std::io::Result<()>>,
}

impl DeafPeer {
    pub(crate) async fn start(connection: &Connection, total: u64) -> Self {
        let (mut read, mut write) = connection.open_stream().await.unwrap().into_split();
        write.write_u8(DEAF).await.unwrap();
        write.write_u64(total).await.unwrap();
        let (received, written) = (Meter::default(), Meter::default());
        let (reading, writing) = (received.clone(), written.clone());
        Self {
            received,
            written,
            reader: tokio::spawn(async move { receive(&mut read, &reading).await }),
            writer: tokio::spawn(async move { send_metered(&mut write, total, &writing).await }),
        }
    }

    /// Waits for the end of both directions; returns how many bytes were received.
    pub(crate) async fn finish(self) -> u64 {
        self.writer.await.unwrap().unwrap();
        self.reader.await.unwrap().unwrap()
    }
}
