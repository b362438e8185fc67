//! What iroh's relay carries: datagrams from one of its clients to another one, in batches, as iroh's
//! endpoints send them through a relay.
//!
//! It is spared what its users need besides: the relay speaks without TLS, and nothing is encrypted from end
//! to end or acknowledged. Another row is with TLS, as its program runs unless it is for developers
//! (`--dev`). A sender has no more under way than fits into the relay's queue for the receiver, so that none
//! is thrown away.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU16;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

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
use super::carried::{Carried, Meter};
use super::child::Ready;
use crate::lab::Chain;
use crate::sys;
use crate::system::crypto;

/// How the relay is spoken with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speech {
    Plain,
    Tls,
}

impl Speech {
    pub(super) const ALL: [Self; 2] = [Self::Plain, Self::Tls];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Plain => "iroh-relay",
            Self::Tls => "iroh-relay with TLS",
        }
    }
}

/// Datagrams of a batch, and the size of each.
const SEGMENTS: usize = 40;
const SEGMENT: u16 = 1200;
/// Batches of one connection that are under way; the relay keeps 512 for a client.
const UNDER_WAY: usize = 64;
/// Queues have their size.
const WARM_UP: Duration = Duration::from_millis(300);

/// Relays in this process, until standard input ends, and says where. Over TLS under these addresses, if
/// there are any.
pub(crate) fn run(tls: &[IpAddr]) -> Result<()> {
    sys::raise_file_limit()?;
    let runtime = runtime()?;
    let (relay, ready) = runtime.block_on(serve(tls))?;
    println!("{}", serde_json::to_string(&ready)?);
    std::io::stdout().flush().context("the parent is gone")?;
    // The workers go on meanwhile.
    std::io::stdin().read_to_end(&mut Vec::new())?;
    drop(relay);
    runtime.shutdown_background();
    Ok(())
}

/// The relay, and in the place of its id the certificate that it shows.
async fn serve(tls: &[IpAddr]) -> Result<(Server, Ready)> {
    let any = (Ipv4Addr::UNSPECIFIED, 0);
    let (mut config, mut relay) = (server::ServerConfig::default(), server::RelayConfig::new(any));
    let mut id = String::new();
    if !tls.is_empty() {
        let (server_config, certificate) = crypto::server_at(tls.iter().map(ToString::to_string).collect())?;
        id = crypto::to_hex(&certificate);
        relay.tls = Some(server::TlsConfig::new(any, server::CertConfig::Manual { server_config }));
    }
    config.relay = Some(relay);
    let server = Server::spawn(config).await?;
    let at = if tls.is_empty() { server.http_addr() } else { server.https_addr() };
    let port = at.context("the relay does not listen")?.port();
    Ok((server, Ready { id, port }))
}

/// What the receivers count.
pub(super) fn bulk(chain: &Chain, speech: Speech, count: usize, length: Duration) -> Result<Carried> {
    let (mut relay, at) = start(chain, speech)?;
    let counted = Arc::new(AtomicU64::new(0));
    let (ways, _takers) = chain.server.wait("take", takers(&at, count, counted.clone()))??;
    let mut givers = chain.client.wait("give", givers(&at, ways))??;
    std::thread::sleep(WARM_UP);
    let meter = Meter::start(relay.child().id(), &counted)?;
    std::thread::sleep(length);
    let carried = meter.stop(&counted)?;
    ensure!(givers.len() == count && givers.try_join_next().is_none(), "a connection ended");
    Ok(carried)
}

/// Where clients find the relay.
struct At {
    /// For those who send, and those who receive.
    urls: [RelayUrl; 2],
    trusted: CaTlsConfig,
}

/// The relay in a process of its own.
fn start(chain: &Chain, speech: Speech) -> Result<(HostChild, At)> {
    let this = std::env::current_exe()?;
    let command = chain.relay.host.command(&this.to_string_lossy());
    let mut arguments = vec!["relay-child".into(), "--connections".into(), "0".into(), "--iroh".into()];
    if speech == Speech::Tls {
        arguments.extend(chain.relay_ips.map(|ip| format!("--tls={ip}")));
    }
    let command = command.args(&arguments).with(|command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
    });
    let mut relay = command.spawn()?;
    let mut line = String::new();
    BufReader::new(relay.child().stdout.take().context("no output")?).read_line(&mut line)?;
    ensure!(!line.is_empty(), "the relay ended; its message is above");
    let ready: Ready = serde_json::from_str(&line)?;
    let (scheme, trusted) = match speech {
        Speech::Tls => ("https", CaTlsConfig::custom_roots([crypto::from_hex(&ready.id)?.into()])),
        Speech::Plain => ("http", CaTlsConfig::default()),
    };
    let url = |ip| format!("{scheme}://{}", SocketAddr::new(ip, ready.port)).parse::<RelayUrl>();
    let [to_client, to_server] = chain.relay_ips;
    Ok((relay, At { urls: [url(to_client)?, url(to_server)?], trusted }))
}

async fn client(url: RelayUrl, trusted: &CaTlsConfig) -> Result<(EndpointId, Client)> {
    let key = SecretKey::generate();
    let (id, tls) = (key.public(), trusted.client_config(crypto::provider())?);
    let builder = ClientBuilder::new(url, key, iroh::dns::DnsResolver::new()).tls_client_config(tls);
    Ok((id, builder.connect().await?))
}

/// To whom is sent, and for how many batches there is room.
struct Way {
    to: EndpointId,
    room: Arc<Semaphore>,
}

async fn takers(at: &At, count: usize, counted: Arc<AtomicU64>) -> Result<(Vec<Way>, JoinSet<()>)> {
    let (mut ways, mut takers) = (Vec::new(), JoinSet::new());
    for _ in 0..count {
        let (to, client) = client(at.urls[1].clone(), &at.trusted).await?;
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

async fn givers(at: &At, ways: Vec<Way>) -> Result<JoinSet<Result<()>>> {
    let mut givers = JoinSet::new();
    for way in ways {
        let (_, client) = client(at.urls[0].clone(), &at.trusted).await?;
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
