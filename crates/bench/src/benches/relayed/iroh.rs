//! What iroh's relay carries: datagrams from one of its clients to another one, in batches, as iroh's
//! endpoints send them through a relay.
//!
//! It is spared what its users need besides: the relay speaks without TLS, and nothing is encrypted from end
//! to end or acknowledged. A sender has no more under way than fits into the relay's queue for the receiver,
//! so that none is thrown away.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::{SinkExt, StreamExt};
use iroh::tls::CaTlsConfig;
use iroh::{EndpointId, RelayUrl, SecretKey};
use iroh_relay::client::{Client, ClientBuilder, ClientSink, ClientStream};
use iroh_relay::protos::relay::{ClientToRelayMsg, Datagrams, RelayToClientMsg};
use iroh_relay::server::{self, Server};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use whimbrel_lab::HostChild;

use super::super::runtime;
use super::child::Ready;
use crate::lab::Chain;
use crate::sys;
use crate::system::crypto;

pub(super) const NAME: &str = "iroh-relay";
/// Datagrams of a batch, and the size of each.
const SEGMENTS: usize = 40;
const SEGMENT: u16 = 1200;
/// Batches of one connection that are under way; the relay keeps 512 for a client.
const UNDER_WAY: usize = 64;
/// Queues have their size.
const WARM_UP: Duration = Duration::from_millis(300);

/// Relays in this process, until standard input ends, and says where.
pub(crate) fn run() -> Result<()> {
    sys::raise_file_limit()?;
    let runtime = runtime()?;
    let (relay, port) = runtime.block_on(serve())?;
    println!("{}", serde_json::to_string(&Ready { id: String::new(), port })?);
    std::io::stdout().flush().context("the parent is gone")?;
    // The workers go on meanwhile.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(relay);
    runtime.shutdown_background();
    Ok(())
}

async fn serve() -> Result<(Server, u16)> {
    let mut config = server::ServerConfig::default();
    config.relay = Some(server::RelayConfig::new((Ipv4Addr::UNSPECIFIED, 0)));
    let server = Server::spawn(config).await?;
    let port = server.http_addr().context("the relay does not listen")?.port();
    Ok((server, port))
}

/// Gbit/s that the receivers count.
pub(super) fn bulk(chain: &Chain, count: usize, length: Duration) -> Result<f64> {
    let (_relay, port) = start(chain)?;
    let [to_client, to_server] = chain.relay_ips.map(|ip| SocketAddr::new(ip, port));
    let counted = Arc::new(AtomicU64::new(0));
    let (ways, _takers) = chain.server.wait("take", takers(to_server, count, counted.clone()))??;
    let mut givers = chain.client.wait("give", givers(to_client, ways))??;
    std::thread::sleep(WARM_UP);
    let (began, before) = (Instant::now(), counted.load(Ordering::Relaxed));
    std::thread::sleep(length);
    let bytes = counted.load(Ordering::Relaxed) - before;
    let took = began.elapsed().as_secs_f64();
    ensure!(givers.len() == count && givers.try_join_next().is_none(), "a connection ended");
    Ok(bytes as f64 * 8.0 / 1e9 / took)
}

/// The relay in a process of its own.
fn start(chain: &Chain) -> Result<(HostChild, u16)> {
    let this = std::env::current_exe()?;
    let command = chain.relay.host.command(&this.to_string_lossy());
    let command = command.args(["relay-child", "--connections", "0", "--iroh"]).with(|command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
    });
    let mut relay = command.spawn()?;
    let mut line = String::new();
    BufReader::new(relay.child().stdout.take().context("no output")?).read_line(&mut line)?;
    ensure!(!line.is_empty(), "the relay ended; its message is above");
    let ready: Ready = serde_json::from_str(&line)?;
    Ok((relay, ready.port))
}

async fn client(relay: SocketAddr) -> Result<(EndpointId, Client)> {
    let key = SecretKey::generate();
    let (id, url) = (key.public(), format!("http://{relay}").parse::<RelayUrl>()?);
    let tls = CaTlsConfig::default().client_config(crypto::provider())?;
    let builder = ClientBuilder::new(url, key, iroh::dns::DnsResolver::new()).tls_client_config(tls);
    Ok((id, builder.connect().await?))
}

/// To whom is sent, and for how many batches there is room.
struct Way {
    to: EndpointId,
    room: Arc<Semaphore>,
}

async fn takers(relay: SocketAddr, count: usize, counted: Arc<AtomicU64>) -> Result<(Vec<Way>, JoinSet<()>)> {
    let (mut ways, mut takers) = (Vec::new(), JoinSet::new());
    for _ in 0..count {
        let (to, client) = client(relay).await?;
        let room = Arc::new(Semaphore::new(UNDER_WAY));
        let (stream, sink) = client.split();
        takers.spawn(take(stream, sink, counted.clone(), room.clone()));
        ways.push(Way { to, room });
    }
    Ok((ways, takers))
}

async fn take(mut stream: ClientStream, _sink: ClientSink, counted: Arc<AtomicU64>, room: Arc<Semaphore>) {
    while let Some(Ok(message)) = stream.next().await {
        if let RelayToClientMsg::Datagrams { datagrams, .. } = message {
            counted.fetch_add(datagrams.contents.len() as u64, Ordering::Relaxed);
            room.add_permits(1);
        }
    }
}

async fn givers(relay: SocketAddr, ways: Vec<Way>) -> Result<JoinSet<Result<()>>> {
    let mut givers = JoinSet::new();
    for way in ways {
        let (_, client) = client(relay).await?;
        givers.spawn(give(client, way));
    }
    Ok(givers)
}

async fn give(client: Client, way: Way) -> Result<()> {
    let (_stream, mut sink) = client.split();
    let mut datagrams = Datagrams::from(vec![7_u8; SEGMENTS * usize::from(SEGMENT)]);
    datagrams.segment_size = NonZeroU16::new(SEGMENT);
    loop {
        way.room.acquire().await?.forget();
        let datagrams = datagrams.clone();
        sink.send(ClientToRelayMsg::Datagrams { dst_endpoint_id: way.to, datagrams }).await?;
    }
}
