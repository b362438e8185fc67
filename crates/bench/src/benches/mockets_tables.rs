//! Tables 1 and 2 of the paper that describes mockets: 2 MB from a client to a server, whose answer is
//! awaited.
//!
//! The paper measures a LAN of 10 Mbit/s, 802.11b in ad-hoc mode, and one to four hops of 802.11g on one
//! channel, which all nodes share. Here one link stands for each of these networks: its rate is what the
//! paper's sockets had there, or a little more, and each wireless hop adds 3 ms of delay each way and loses 1
//! % of the packets, which is what a link layer's own retransmissions leave.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use socket2::SockRef;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use whimbrel_lab::{LinkSpec, Rate};
use whimbrel_transport::{Allow, CarrierKind, Carriers, Endpoint, ListenOptions};

use super::{Plan, lanes, rotated};
use crate::lab::{LIMIT, Line};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};

const BYTES: usize = 2_000_000;
const BLOCK: usize = 16 * 1024;
/// A hop's, each way.
const HOP_DELAY: Duration = Duration::from_millis(3);
const HOP_LOSS: f64 = 0.01;
const LAN_DELAY: Duration = Duration::from_micros(300);
/// A trial keeps neither core busy.
const LANES: usize = 2;

/// One row of the tables.
#[derive(Debug, Clone, Copy)]
struct Row {
    name: &'static str,
    kbit: u64,
    hops: i32,
}

const ROWS: [Row; 6] = [
    Row { name: "LAN", kbit: 10_000, hops: 0 },
    Row { name: "wireless, 802.11b", kbit: 4_500, hops: 1 },
    Row { name: "wireless, 1 hop", kbit: 7_500, hops: 1 },
    Row { name: "wireless, 2 hops", kbit: 3_200, hops: 2 },
    Row { name: "wireless, 3 hops", kbit: 1_700, hops: 3 },
    Row { name: "wireless, 4 hops", kbit: 1_000, hops: 4 },
];

impl Row {
    fn loss(self) -> f64 {
        1.0 - (1.0 - HOP_LOSS).powi(self.hops)
    }

    fn link(self, seed: u64) -> LinkSpec {
        let delay = if self.hops == 0 { LAN_DELAY } else { HOP_DELAY * self.hops.unsigned_abs() };
        LinkSpec::default().delay(delay).rate(Rate::kbit(self.kbit)).loss(self.loss()).seed(seed)
    }
}

const SPEC: Spec = Spec {
    name: "mockets-tables",
    title: "2 MB and an answer over the networks of tables 1 and 2 of the mockets paper, emulated",
    metrics: &[Metric { key: "time", unit: "s" }, Metric { key: "rate", unit: "bytes/ms" }],
    targets: &[
        beside("LAN", "tcp cubic", 1.02),
        beside("LAN", "tcp bbr", 1.02),
        beside("wireless", "tcp cubic", 1.0),
        beside("wireless", "tcp bbr", 1.0),
    ],
    plot: Plot::Cases { metric: "rate", unit: "bytes/ms" },
};

const fn beside(case: &'static str, peer: &'static str, most: f64) -> Target {
    Target {
        case,
        of: "whimbrel",
        metric: "time",
        against: Some(peer),
        judged: Judged::Median,
        bound: Bound::AtMost(most),
        aim: 0.95,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    /// With any carrier, as an application has it by default.
    Whimbrel,
    /// On this carrier only.
    On(CarrierKind),
    Tcp(&'static str),
}

const SYSTEMS: [System; 4] =
    [System::Whimbrel, System::On(CarrierKind::Quic), System::Tcp("cubic"), System::Tcp("bbr")];

impl std::fmt::Display for System {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whimbrel => f.write_str("whimbrel"),
            Self::On(carrier) => write!(f, "whimbrel {carrier}"),
            Self::Tcp(control) => write!(f, "tcp {control}"),
        }
    }
}

#[derive(Debug, Clone, Copy)]
struct Job {
    row: Row,
    system: System,
    round: u32,
}

impl Job {
    fn name(&self) -> String {
        format!("{}, {}", self.row.name, self.system)
    }

    fn run(&self) -> Result<Trial> {
        let line = Line::new(self.row.link(u64::from(self.round) + 1))?;
        let time = match self.system {
            System::Whimbrel => whimbrel(&line, Carriers::Auto)?,
            System::On(carrier) => whimbrel(&line, Carriers::Only(carrier))?,
            System::Tcp(control) => tcp(&line, control)?,
        };
        let time = time.as_secs_f64();
        let trial = Trial::new(self.system, self.round).in_case(self.row.name);
        Ok(trial.with("time", time).with("rate", BYTES as f64 / time / 1000.0))
    }
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let rows = if plan.quick { &ROWS[..2] } else { &ROWS[..] };
    let mut jobs = Vec::new();
    for round in 0..plan.rounds(9) {
        for row in rows {
            jobs.extend(rotated(&SYSTEMS, round).map(|system| Job { row: *row, system, round }));
        }
    }
    let done = lanes::run(&jobs, LANES, &SPEC, output, Job::name, |job| Ok((vec![job.run()?], ())))?;
    let rows: Vec<_> = ROWS
        .iter()
        .map(|row| json!({ "network": row.name, "kbit": row.kbit, "hops": row.hops, "loss": row.loss() }))
        .collect();
    let settings = json!({
        "bytes": BYTES,
        "networks": rows,
        "hop_delay_ms": HOP_DELAY.as_millis(),
        "loss": "random, each way, of each packet",
        "queue_ms": 100,
        "carrier": ["whimbrel: auto", "whimbrel quic: quic"],
        "congestion_control": "quic: BBR of quinn; tcp: as named, without encryption",
        "time": "from the first write on a connection that is there, until the answer is read",
        "lanes": LANES,
        "failures": done.failures,
    });
    output.finish(&SPEC, settings, &done.trials)
}

fn tcp(line: &Line, control: &str) -> Result<Duration> {
    let address = SocketAddr::new(line.address(), 0);
    let listener = line.server.host.run(|| TcpListener::bind(address))?;
    let server = listener.local_addr()?;
    let answering = std::thread::spawn(move || -> Result<()> {
        let (mut socket, _) = listener.accept()?;
        socket.set_read_timeout(Some(LIMIT))?;
        let (mut block, mut bytes) = (vec![0; BLOCK], 0);
        while bytes < BYTES {
            let n = socket.read(&mut block)?;
            ensure!(n > 0, "the client ended early");
            bytes += n;
        }
        Ok(socket.write_all(&[1])?)
    });
    let mut socket = line.client.host.run(|| TcpStream::connect(server))?;
    SockRef::from(&socket)
        .set_tcp_congestion(control.as_bytes())
        .with_context(|| format!("the kernel has no congestion control `{control}`"))?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(LIMIT))?;
    socket.set_write_timeout(Some(LIMIT))?;
    let (data, mut answer) = (vec![7; BYTES], [0]);
    let began = Instant::now();
    socket.write_all(&data)?;
    socket.read_exact(&mut answer)?;
    let time = began.elapsed();
    answering.join().ok().context("the server panicked")??;
    Ok(time)
}

fn whimbrel(line: &Line, carriers: Carriers) -> Result<Duration> {
    let bound = line.server.wait("listen", async {
        let endpoint = Endpoint::builder().bind().await?;
        let listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
        anyhow::Ok((endpoint, listener))
    });
    let (server, mut listener) = bound??;
    let answering = line.server.runtime.spawn(async move {
        let connection = listener.accept().await.context("nobody came")?;
        let mut stream = connection.accept_stream().await?;
        let (mut block, mut bytes) = (vec![0; BLOCK], 0);
        while bytes < BYTES {
            let n = stream.read(&mut block).await?;
            ensure!(n > 0, "the client ended early");
            bytes += n;
        }
        stream.write_all(&[1]).await?;
        // The client ends it.
        connection.closed().await;
        Ok(())
    });
    let address = server.addr();
    let time = line.client.wait("2 MB", async move {
        let client = Endpoint::builder().carriers(carriers).bind().await?;
        let connection = client.connect(address).await?;
        let mut stream = connection.open_stream().await?;
        let (data, mut answer) = (vec![7; BYTES], [0]);
        let began = Instant::now();
        stream.write_all(&data).await?;
        stream.read_exact(&mut answer).await?;
        let time = began.elapsed();
        connection.close(whimbrel_transport::CloseCode::NONE, "", LIMIT).await?;
        anyhow::Ok(time)
    })??;
    line.server.wait("the server's end", answering)???;
    Ok(time)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_further_hop_is_slower_and_loses_more() {
        let hops: Vec<&Row> = ROWS.iter().filter(|row| row.name.contains("hop")).collect();
        assert_eq!(hops.len(), 4);
        assert!(hops.windows(2).all(|two| two[0].kbit > two[1].kbit && two[0].loss() < two[1].loss()));
        assert!(ROWS[0].loss() == 0.0 && (ROWS[1].loss() - HOP_LOSS).abs() < 1e-9);
    }

    #[test]
    fn every_peer_is_a_system_that_is_measured() {
        let known = SYSTEMS.map(|system| system.to_string());
        let named = SPEC.targets.iter().flat_map(|target| [Some(target.of), target.against]);
        assert!(named.flatten().all(|label| known.iter().any(|system| system == label)));
    }
}
