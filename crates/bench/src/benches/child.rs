//! One side of `idle` or `accept`: a process that holds connections and tells, line by line over its
//! standard streams, what they cost it.

use std::io::{BufRead, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use super::runtime;
use crate::sys;
use crate::system::{self, Address, BoxFuture, Channel, Client, Handler, Kind, Start, echo};

/// Connections that are made at the same time.
const PARALLEL: usize = 32;
/// Connections that come and go before the baseline is taken: caches and pools have their size then.
const WARM_UP: usize = 64;
/// Freed memory has been handed back after this.
const SETTLE: Duration = Duration::from_millis(1500);

/// Which side to be.
#[derive(Debug, Clone, Args)]
pub(crate) struct Role {
    #[arg(long, value_enum)]
    system: Kind,
    /// The server's address in JSON; without it, be the server.
    #[arg(long)]
    server: Option<String>,
    /// As a server, keep each connection and do nothing with it, instead of echoing what it brings.
    #[arg(long)]
    keep: bool,
    /// As a client of whimbrel, dial over QUIC alone.
    #[arg(long)]
    quic: bool,
}

/// What the parent asks for.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Request {
    /// Client: open so many connections, so many of each endpoint, and use each once.
    Connect { count: usize, each: usize },
    /// Client: for so many seconds, open connections, use each once, and close it.
    Churn(f64),
    /// Server: wait until so many connections are open.
    Expect(usize),
    /// Tell what is used.
    Measure,
}

/// What a child answers.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The server's address, or that the client is warm.
    Ready(Option<Address>),
    Done,
    /// Connections a second.
    Rate(f64),
    Usage {
        resident: u64,
        /// Of the heap, where the allocator tells.
        allocated: Option<u64>,
        /// On being asked.
        cpu_nanos: u64,
        /// Once memory was handed back, which costs time of its own.
        cpu_nanos_settled: u64,
    },
}

pub(crate) fn run(role: Role) -> Result<()> {
    sys::raise_file_limit()?;
    let runtime = runtime()?;
    let result = match role.server {
        None if role.keep => runtime.block_on(keep()),
        None => runtime.block_on(serve(role.system)),
        Some(server) => {
            let address = serde_json::from_str(&server).context("malformed address")?;
            runtime.block_on(runtime.spawn(dial(Dialler {
                system: role.system,
                address,
                quic: role.quic,
            })))?
        }
    };
    runtime.shutdown_background();
    result
}

fn say(reply: &Reply) -> Result<()> {
    println!("{}", serde_json::to_string(reply)?);
    std::io::stdout().flush().context("the parent is gone")
}

/// The parent's next request; `None` when it is gone.
async fn next_request() -> Result<Option<Request>> {
    let line = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let line = line.await??;
    if line.is_empty() { Ok(None) } else { Ok(Some(serde_json::from_str(&line)?)) }
}

async fn measure() -> Result<()> {
    let cpu_nanos = cpu_nanos();
    sys::trim();
    tokio::time::sleep(SETTLE).await;
    sys::trim();
    let resident = sys::resident()?;
    let allocated = sys::allocated();
    say(&Reply::Usage { resident, allocated, cpu_nanos, cpu_nanos_settled: self::cpu_nanos() })
}

fn cpu_nanos() -> u64 {
    u64::try_from(sys::cpu_time().as_nanos()).unwrap_or(u64::MAX)
}

async fn serve(system: Kind) -> Result<()> {
    let open = Arc::new(AtomicUsize::new(0));
    let address = system.serve(counting(echo(), open.clone())).await?;
    answer(address, &open).await
}

/// A server of whimbrel that does nothing with its connections.
async fn keep() -> Result<()> {
    let open = Arc::new(AtomicUsize::new(0));
    let address = system::keep(open.clone()).await?;
    answer(address, &open).await
}

/// Answers the parent's requests; `open` counts connections.
async fn answer(address: Address, open: &AtomicUsize) -> Result<()> {
    say(&Reply::Ready(Some(address)))?;
    while let Some(request) = next_request().await? {
        match request {
            Request::Expect(count) => {
                while open.load(Ordering::Relaxed) != count {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
                say(&Reply::Done)?;
            }
            Request::Measure => measure().await?,
            Request::Connect { .. } | Request::Churn(_) => bail!("a server does not connect"),
        }
    }
    Ok(())
}

/// A handler that also counts the channels it is busy with.
fn counting(handler: Handler, open: Arc<AtomicUsize>) -> Handler {
    Arc::new(move |channel: Channel| -> BoxFuture<'static, ()> {
        let (busy, open) = (handler(channel), open.clone());
        Box::pin(async move {
            open.fetch_add(1, Ordering::Relaxed);
            busy.await;
            open.fetch_sub(1, Ordering::Relaxed);
        })
    })
}

/// Makes clients of one server.
struct Dialler {
    system: Kind,
    address: Address,
    quic: bool,
}

impl Dialler {
    async fn client(&self) -> Result<Arc<dyn Client>> {
        let client = if self.quic {
            system::over_quic(&self.address).await?
        } else {
            self.system.client(self.address.clone()).await?
        };
        Ok(client.into())
    }
}

async fn dial(dialler: Dialler) -> Result<()> {
    let client = dialler.client().await?;
    drop(connect_many(&client, WARM_UP).await?);
    say(&Reply::Ready(None))?;
    let (mut held, mut others) = (Vec::new(), Vec::new());
    while let Some(request) = next_request().await? {
        match request {
            Request::Connect { count, each } => {
                let mut left = count;
                while left > 0 {
                    let part = left.min(each.max(1));
                    let one = if part == count { client.clone() } else { dialler.client().await? };
                    held.extend(connect_many(&one, part).await?);
                    others.push(one);
                    left -= part;
                }
                say(&Reply::Done)?;
            }
            Request::Churn(seconds) => {
                let rate = churn(&client, Duration::try_from_secs_f64(seconds)?).await?;
                say(&Reply::Rate(rate))?;
            }
            Request::Measure => measure().await?,
            Request::Expect(_) => bail!("a client expects nobody"),
        }
    }
    drop((held, others));
    Ok(())
}

async fn connect_many(client: &Arc<dyn Client>, count: usize) -> Result<Vec<Channel>> {
    let mut channels = Vec::with_capacity(count);
    let mut running = JoinSet::new();
    for _ in 0..count {
        if running.len() >= PARALLEL
            && let Some(channel) = running.join_next().await
        {
            channels.push(channel??);
        }
        running.spawn(connect(client.clone()));
    }
    while let Some(channel) = running.join_next().await {
        channels.push(channel??);
    }
    Ok(channels)
}

/// Connections a second that were opened, used once, and closed.
async fn churn(client: &Arc<dyn Client>, length: Duration) -> Result<f64> {
    let began = tokio::time::Instant::now();
    let mut running = JoinSet::new();
    for _ in 0..PARALLEL {
        let client = client.clone();
        running.spawn(async move {
            let mut count = 0_u64;
            while began.elapsed() < length {
                let mut channel = connect(client.clone()).await?;
                // A failure to say goodbye changes nothing that was counted.
                let _ = channel.shutdown().await;
                count += 1;
            }
            anyhow::Ok(count)
        });
    }
    let mut count = 0;
    while let Some(one) = running.join_next().await {
        count += one??;
    }
    Ok(count as f64 / began.elapsed().as_secs_f64())
}

/// A connection that has carried a byte in both directions.
async fn connect(client: Arc<dyn Client>) -> Result<Channel> {
    let mut channel = client.connect(Start::Plain).await?;
    let mut byte = [1];
    channel.write_all(&byte).await?;
    channel.flush().await?;
    channel.read_exact(&mut byte).await?;
    Ok(channel)
}
