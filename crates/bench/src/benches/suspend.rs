//! How soon a suspended connection goes on elsewhere, and how large it is meanwhile.
//!
//! Two hosts and a server around a router, 100 ms apart. A connection with one stream is suspended on the
//! first host right after 1 MiB was written, and resumed on the second. *told*: the peer hears of it, as it
//! should be; some of the data arrives meanwhile. *cut*: the first host has lost its address, so nobody is
//! told, and nothing of what was written is acknowledged: all of it is in the snapshot, which shows what that
//! holds besides. The time counts from `resume` until the server's application has read all of that, and one
//! byte more that was written after it; two round trips, and what a snapshot's bytes take over a fresh
//! connection from the second host, are no excess.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::time::timeout;
use whimbrel_base::{EndpointAddr, SecretKey};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Config, Connection, Endpoint, ListenOptions, Listener, Stream,
};

use super::{Plan, lanes};
use crate::lab::{Net, Node};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const RTT: Duration = Duration::from_millis(100);
const DATA: usize = 1 << 20;
const BLOCK: usize = 64 * 1024;
/// Of a stream, before what is measured.
const WARM_UP: usize = 4 << 20;
/// What a peer that cannot be told is waited for.
const UNTOLD: Duration = Duration::from_millis(50);
const TOLD: Duration = Duration::from_secs(5);
/// A stream that takes nothing for so long is full.
const FULL: Duration = Duration::from_millis(100);
const CALM: Duration = Duration::from_millis(300);
const LANES: usize = 2;

const SPEC: Spec = Spec {
    name: "suspend",
    title: "from resume elsewhere to the last byte of 1 MiB in flight, RTT 100 ms; excess: beyond 2 RTT + transfer",
    metrics: &[
        Metric { key: "resumed", unit: "ms" },
        Metric { key: "transfer", unit: "ms" },
        Metric { key: "excess", unit: "ms" },
        Metric { key: "suspend", unit: "ms" },
        Metric { key: "written", unit: "bytes" },
        Metric { key: "snapshot", unit: "bytes" },
        Metric { key: "overhead", unit: "bytes" },
    ],
    targets: &[
        at_most("excess", 20.0, 0.0),
        // 4 KiB, and 64 bytes for the stream.
        at_most("overhead", 4160.0, 1024.0),
    ],
    plot: Plot::Cases { metric: "excess", unit: "ms" },
};

const fn at_most(metric: &'static str, limit: f64, aim: f64) -> Target {
    Target {
        case: "",
        of: "whimbrel",
        metric,
        against: None,
        judged: Judged::Median,
        bound: Bound::AtMost(limit),
        aim,
    }
}

#[derive(Debug, Clone, Copy)]
struct Job {
    carriers: Carriers,
    told: bool,
    round: u32,
}

impl Job {
    fn name(&self) -> String {
        format!("{}, {}", self.carriers, if self.told { "told" } else { "cut" })
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let all = [Carriers::Auto, Carriers::Only(CarrierKind::Tcp), Carriers::Only(CarrierKind::Quic)];
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(9) {
        for carriers in all {
            jobs.extend([true, false].map(|told| Job { carriers, told, round }));
        }
    }
    let done = lanes::run(&jobs, LANES, &SPEC, output, Job::name, |job| {
        Ok((vec![World::new(job.carriers)?.trial(job)?], ()))
    })?;
    let settings = json!({
        "rtt_ms": RTT.as_millis(),
        "bytes": DATA,
        "streams": 1,
        "links": "as fast as the machine",
        "carrier": "as the case says",
        "transfer": "as many bytes as the snapshot has, over a fresh connection from the second host",
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

/// Connections that the server accepted, and what is read of each one's stream.
type Arrivals = mpsc::UnboundedReceiver<(Connection, mpsc::UnboundedReceiver<Read>)>;

/// Fields are dropped in this order.
struct World {
    arrivals: Arrivals,
    server: Endpoint,
    here: Endpoint,
    there: Endpoint,
    net: Net,
}

/// So many bytes of a stream were read by then.
#[derive(Debug, Clone, Copy)]
struct Read {
    bytes: usize,
    at: Instant,
}

impl World {
    fn new(carriers: Carriers) -> Result<Self> {
        let net = Net::star(["here", "there", "server"], RTT)?;
        let [here, there, server] = net.nodes();
        let key = SecretKey::generate();
        // All of the data can be written at once.
        let config = Config { carriers, stream_unsent: 2 * DATA as u64, ..Config::default() };
        let bind = |node: &Node, key: SecretKey| -> Result<Endpoint> {
            let builder = Endpoint::builder().secret_key(key).config(config.clone());
            Ok(node.wait("bind", builder.bind())??)
        };
        let endpoints = [bind(here, key.clone())?, bind(there, key)?];
        let serving = bind(server, SecretKey::generate())?;
        let options = ListenOptions::unnamed().allow(Allow::Any);
        let listener = server.wait("listen", serving.listen(options))??;
        let (told, arrivals) = mpsc::unbounded_channel();
        server.runtime.spawn(accept_all(listener, told));
        let [here, there] = endpoints;
        Ok(Self { arrivals, server: serving, here, there, net })
    }

    fn trial(mut self, job: &Job) -> Result<Trial> {
        let net = &self.net;
        let [here, there, _] = net.nodes();
        let address = self.server.addr();
        let connection = here.wait("connect", self.here.connect(address.clone()))??;
        let (_accepted, mut reads) = accepted(net, &mut self.arrivals)?;
        let mut stream = here.wait("open a stream", connection.open_stream())??;
        // Whatever carrier takes over is there then, and the peer lets the stream have 1 MiB on its way.
        here.wait("write", stream.write_all(&vec![7; WARM_UP]))??;
        until(net, &mut reads, WARM_UP)?;
        std::thread::sleep(CALM + RTT * 4);
        let (written, limit) = if job.told {
            here.wait("write", stream.write_all(&vec![7; DATA]))??;
            (DATA, TOLD)
        } else {
            here.leave()?;
            (here.wait("write", write_some(&mut stream, DATA))??, UNTOLD)
        };
        let began = Instant::now();
        let asleep = here.wait("suspend", connection.suspend(limit))??;
        let suspend = began.elapsed();
        drop((stream, connection));
        let began = Instant::now();
        let resumed = there.wait("resume", self.there.resume(&asleep))??;
        let mut stream = resumed.streams().pop().context("the stream is gone")?;
        there.wait("write", stream.write_all(&[7]))??;
        let last = until(net, &mut reads, WARM_UP + written + 1)?;
        let took = last.saturating_duration_since(began);
        let snapshot = asleep.as_bytes().len();
        let transfer = transfer(net, &mut self.arrivals, &self.there, address, snapshot)?;
        drop(resumed);
        let millis = |time: Duration| time.as_secs_f64() * 1000.0;
        let trial = Trial::new("whimbrel", job.round)
            .in_case(job.name())
            .with("resumed", millis(took))
            .with("transfer", millis(transfer))
            .with("excess", millis(took) - millis(RTT * 2 + transfer))
            .with("suspend", millis(suspend))
            .with("written", written as f64)
            .with("snapshot", snapshot as f64);
        Ok(if job.told { trial } else { trial.with("overhead", snapshot as f64 - written as f64) })
    }
}

/// Writes as much as is taken without a path, and no more than `most`. Returns how much that was.
async fn write_some(stream: &mut Stream, most: usize) -> Result<usize> {
    let mut written = 0;
    while written < most {
        let block = vec![7; BLOCK.min(most - written)];
        match timeout(FULL, stream.write(&block)).await {
            Ok(taken) => written += taken?,
            Err(_) => break,
        }
    }
    Ok(written)
}

/// What as many bytes take over a fresh connection from the second host.
fn transfer(
    net: &Net,
    arrivals: &mut Arrivals,
    from: &Endpoint,
    address: EndpointAddr,
    bytes: usize,
) -> Result<Duration> {
    let [_, there, _] = net.nodes();
    let connection = there.wait("connect", from.connect(address))??;
    let (_accepted, mut reads) = accepted(net, arrivals)?;
    let mut stream = there.wait("open a stream", connection.open_stream())??;
    let began = Instant::now();
    there.wait("write", stream.write_all(&vec![7; bytes]))??;
    let last = until(net, &mut reads, bytes)?;
    Ok(last.saturating_duration_since(began))
}

fn accepted(net: &Net, arrivals: &mut Arrivals) -> Result<(Connection, mpsc::UnboundedReceiver<Read>)> {
    let [.., server] = net.nodes::<3>();
    server.wait("accept", arrivals.recv())?.context("the server is gone")
}

/// Waits until so many bytes were read, and returns when that was.
fn until(net: &Net, reads: &mut mpsc::UnboundedReceiver<Read>, bytes: usize) -> Result<Instant> {
    let [.., server] = net.nodes::<3>();
    loop {
        let read = server.wait("read", reads.recv())?.context("the stream ended")?;
        if read.bytes >= bytes {
            ensure!(read.bytes == bytes, "{} bytes came instead of {bytes}", read.bytes);
            return Ok(read.at);
        }
    }
}

async fn accept_all(
    mut listener: Listener,
    told: mpsc::UnboundedSender<(Connection, mpsc::UnboundedReceiver<Read>)>,
) {
    while let Some(connection) = listener.accept().await {
        let (noted, reads) = mpsc::unbounded_channel();
        if told.send((connection.clone(), reads)).is_err() {
            return;
        }
        tokio::spawn(async move {
            // Its end shows at the other side.
            let _ = read_all(connection, noted).await;
        });
    }
}

async fn read_all(connection: Connection, noted: mpsc::UnboundedSender<Read>) -> Result<()> {
    let mut stream = connection.accept_stream().await?;
    let (mut block, mut bytes) = (vec![0; BLOCK], 0);
    loop {
        match stream.read(&mut block).await? {
            0 => return Ok(()),
            n => bytes += n,
        }
        noted.send(Read { bytes, at: Instant::now() })?;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn what_was_in_flight_arrives_from_elsewhere() {
        if !require!() {
            return;
        }
        let job = Job { carriers: Carriers::Auto, told: false, round: 0 };
        let trial = World::new(job.carriers).unwrap().trial(&job).unwrap();
        assert!(trial.values["resumed"] >= 50.0, "{trial:?}");
        assert!(trial.values["overhead"] >= 0.0, "{trial:?}");
    }
}
