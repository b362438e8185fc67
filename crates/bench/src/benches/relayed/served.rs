//! What is behind a relay: a server that knows no TLS and does what clients ask for, so that the relay alone
//! is measured.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::task::JoinSet;
use whimbrel_base::{EndpointAddr, RelayToken, SecretKey, Ticket};
use whimbrel_relay::spare::{Key, Offer, START, decode_start};
use whimbrel_relay::wire::Message;
use whimbrel_relay::{Salt, control_name, token_of};
use whimbrel_transport::{Connection, Endpoint, Stream};

use super::child::SPARES;

/// The server is to send back what comes.
pub(super) const ECHO: u8 = b'e';
/// The server is to count what comes.
pub(super) const COUNT: u8 = b'c';
/// As much as TLS with today's key shares sends first, about.
const HELLO: usize = 1500;
const PIECE: usize = 256 * 1024;
/// Before another spare is tried.
const PAUSE: Duration = Duration::from_millis(2);

/// A ClientHello with this server name, padded (RFC 7685).
pub(super) fn hello(name: &str) -> Vec<u8> {
    let sized = |bytes: Vec<u8>| [&(bytes.len() as u16).to_be_bytes()[..], &bytes].concat();
    let extension = |kind: u16, body| [&kind.to_be_bytes()[..], &sized(body)].concat();
    let names = sized([&[0][..], &sized(name.as_bytes().to_vec())].concat());
    let mut extensions = extension(0, names);
    extensions.extend(extension(21, vec![0; HELLO.saturating_sub(extensions.len() + 60)]));
    // Version, random, no session, one suite, no compression.
    let head = [&[3, 3][..], &[7; 32], &[0, 0, 2, 0x13, 0x01, 1, 0]].concat();
    let body = [head, sized(extensions)].concat();
    let [_, length @ ..] = (body.len() as u32).to_be_bytes();
    let message = [&[1][..], &length, &body].concat();
    [&[22, 3, 1][..], &sized(message)].concat()
}

/// A server that takes connections.
#[derive(Debug)]
pub(super) struct Served {
    /// Bytes that clients sent to be counted.
    pub(super) counted: AtomicU64,
    /// Bytes before the one that says what to do.
    first: usize,
}

impl Served {
    pub(super) fn new(first: usize) -> Arc<Self> {
        Arc::new(Self { counted: AtomicU64::new(0), first })
    }

    /// Serves one client to its end.
    async fn serve(self: Arc<Self>, mut stream: TcpStream) -> std::io::Result<()> {
        let what = {
            let mut first = vec![0; self.first];
            stream.read_exact(&mut first).await?;
            stream.read_u8().await?
        };
        if what == ECHO {
            let mut bytes = [0; 64];
            loop {
                match stream.read(&mut bytes).await? {
                    0 => return Ok(()),
                    count => stream.write_all(&bytes[..count]).await?,
                }
            }
        }
        let mut piece = vec![0; PIECE];
        loop {
            match stream.read(&mut piece).await? {
                0 => return Ok(()),
                count => drop(self.counted.fetch_add(count as u64, Ordering::Relaxed)),
            }
        }
    }

    /// Accepts, as a server that can be dialled. Returns where, and the task that does it.
    pub(super) async fn accept(self: Arc<Self>, ip: IpAddr) -> Result<(SocketAddr, JoinSet<()>)> {
        let listener = TcpListener::bind((ip, 0)).await?;
        let (at, mut tasks) = (listener.local_addr()?, JoinSet::new());
        tasks.spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // As on one that was dialled.
                if stream.set_nodelay(true).is_ok() {
                    tokio::spawn(self.clone().serve(stream));
                }
            }
        });
        Ok((at, tasks))
    }
}

/// A reservation at a relay, with a stock of spares.
pub(super) struct Reservation {
    pub(super) token: RelayToken,
    _control: (Endpoint, Connection, Stream),
    _spares: JoinSet<()>,
}

impl Reservation {
    /// Reserves, and keeps [`SPARES`] spares for `served`.
    pub(super) async fn get(relay: EndpointAddr, served: Arc<Served>) -> Result<Self> {
        let key = SecretKey::generate();
        let endpoint = Endpoint::builder().secret_key(key.clone()).bind().await?;
        let at = *relay.addrs.first().context("the relay has no address")?;
        let ticket = Ticket::new(relay.id, relay.addrs, Some(control_name()?));
        let connection = endpoint.connect(ticket).await.context("the relay does not answer")?;
        let mut stream = connection.open_stream().await?;
        let salt = Salt::of(&key);
        stream.write_all(&Message::Reserve(salt).encode()).await?;
        let reserved = match Message::read(&mut stream).await? {
            Message::Reserved(reserved) => reserved,
            other => bail!("no reservation: {other:?}"),
        };
        let token = token_of(key.id(), &salt);
        let offers = Arc::new(Offers { key: Key::new(&reserved.key), token, at, numbers: AtomicU64::new(0) });
        let mut spares = JoinSet::new();
        for _ in 0..SPARES {
            let (offers, served) = (offers.clone(), served.clone());
            spares.spawn(async move {
                loop {
                    match offers.wait().await {
                        Ok(stream) => drop(tokio::spawn(served.clone().serve(stream))),
                        Err(error) => {
                            tracing::debug!(%error, "a spare was not kept");
                            tokio::time::sleep(PAUSE).await;
                        }
                    }
                }
            });
        }
        Ok(Self { token, _control: (endpoint, connection, stream), _spares: spares })
    }
}

/// How spares are made.
struct Offers {
    key: Key,
    token: RelayToken,
    at: SocketAddr,
    numbers: AtomicU64,
}

impl Offers {
    /// Offers a spare, and waits for its client.
    async fn wait(&self) -> Result<TcpStream> {
        // From whichever address the system takes, as servers do that may use all of them.
        let mut stream = TcpStream::connect(self.at).await?;
        stream.set_nodelay(true)?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let offer = Offer { token: self.token, origin: 1, number };
        stream.write_all(&offer.encode(&self.key)).await?;
        let mut start = [0; START];
        stream.read_exact(&mut start).await?;
        decode_start(&self.key, number, &start).context("the relay's word is not authentic")?;
        Ok(stream)
    }
}

/// Connects from one of this host's addresses: with all its ports there are enough for a crowd.
pub(super) async fn dial(from: IpAddr, to: SocketAddr) -> Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind((from, 0).into())?;
    let stream = socket.connect(to).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use whimbrel_relay::hello::{Hello, read};

    use super::*;

    #[test]
    fn the_relay_reads_the_name_in_what_clients_send_first() {
        let bytes = hello("ybndrfg8ejkmcpqx");
        assert!(bytes.len() > HELLO - 100 && bytes.len() < HELLO + 100, "{}", bytes.len());
        assert_eq!(read(&bytes), Hello::Named("ybndrfg8ejkmcpqx".into()));
        assert_eq!(read(&bytes[..bytes.len() - 1]), Hello::Partial);
    }
}
