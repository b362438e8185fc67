//! A download over plain TCP that begins anew on the other device, for comparison: a program that knows how
//! far it came, and a server that is willing to go on from there, as with HTTP's ranges.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::scenario::{SERVER_RTT, Scenario};
use super::server::{Server, Work};
use crate::lab::Hub;

const PORT: u16 = 8080;
const READ: usize = 64 * 1024;
const LIMIT: Duration = Duration::from_secs(180);

/// What came of it.
pub(super) struct Again {
    /// From the new device's first word until it had the first byte.
    pub(super) first: Duration,
    pub(super) total: Duration,
}

/// In the gateway's place there is a relay of TCP, so that the way is the same.
pub(super) fn run(scenario: &Scenario, size: usize, after: Duration) -> Result<Again> {
    let devices = [("phone", Some(scenario.from.link())), ("desk", Some(scenario.to.link()))];
    let hub = Hub::new(SERVER_RTT, &devices)?;
    let server = Server::start(&hub.server, size)?;
    let [phone, desk] = [&hub.devices[0], &hub.devices[1]];
    let start = |ip| Relay::start(&hub, ip, server.address);
    let _relays = [start(phone.gateway)?, start(desk.gateway)?];
    let begun = Instant::now();
    let mut bytes = phone.site.within(LIMIT, "a download", async {
        let mut stream = ask(phone.gateway, 0).await?;
        read(&mut stream, begun + after).await
    })??;
    ensure!(bytes.len() < size, "the download ended before it moved");
    std::thread::sleep(after.saturating_sub(begun.elapsed()));
    let asked = Instant::now();
    let (first, rest) = desk.site.within(LIMIT, "the rest of a download", async {
        let mut stream = ask(desk.gateway, bytes.len()).await?;
        let mut one = [0];
        stream.read_exact(&mut one).await?;
        let first = asked.elapsed();
        let mut rest = read(&mut stream, asked + LIMIT).await?;
        rest.insert(0, one[0]);
        anyhow::Ok((first, rest))
    })??;
    let total = begun.elapsed();
    bytes.extend(rest);
    ensure!(bytes == *server.content, "what was downloaded is not the file");
    Ok(Again { first, total })
}

async fn ask(relay: IpAddr, from: usize) -> Result<TcpStream> {
    let mut stream = TcpStream::connect((relay, PORT)).await.context("the relay is not reached")?;
    stream.write_all(&Work::Bulk(from as u64).request()).await?;
    Ok(stream)
}

/// All that comes until a moment, or until the end.
async fn read(stream: &mut TcpStream, until: Instant) -> Result<Vec<u8>> {
    let (mut all, mut some) = (Vec::new(), vec![0; READ]);
    let reading = async {
        loop {
            match stream.read(&mut some).await? {
                0 => return anyhow::Ok(()),
                n => all.extend_from_slice(&some[..n]),
            }
        }
    };
    match tokio::time::timeout_at(until.into(), reading).await {
        Ok(result) => result?,
        Err(_) => tracing::debug!("the phone is left"),
    }
    Ok(all)
}

/// It ends when this is dropped.
struct Relay(JoinHandle<()>);

impl Relay {
    fn start(hub: &Hub, ip: IpAddr, server: SocketAddr) -> Result<Self> {
        let listener = hub.gateway.wait("listen", async move { TcpListener::bind((ip, PORT)).await })??;
        Ok(Self(hub.gateway.runtime.spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                tokio::spawn(async move {
                    let mut server = TcpStream::connect(server).await?;
                    client.set_nodelay(true)?;
                    server.set_nodelay(true)?;
                    copy_bidirectional(&mut client, &mut server).await
                });
            }
        })))
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.0.abort();
    }
}
