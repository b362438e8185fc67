//! A small request beside a running download, both through one `whimbrel forward`.
//!
//! A client and a server on one link with a queue of 100 ms. A download runs for as long as the trial;
//! meanwhile a request of 100 bytes after the other is answered, each over a TCP connection of its own, from
//! its `connect` to the last byte of its answer. The peer is the same without the tunnel: a TCP connection
//! beside a TCP download.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use whimbrel_lab::{Host, Lab, LinkSpec, Queue, Rate};

use super::{Plan, rotated};
use crate::lab::LIMIT;
use crate::lab::program::{Folder, Tunnel};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::stats::{quantile, sorted};

const RATES_MBIT: [u64; 2] = [20, 5];
const RTT: Duration = Duration::from_millis(2);
const QUEUE: Duration = Duration::from_millis(100);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
const HTTP: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(SERVER), 80);
const FORWARDED: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 8080);
const WORKERS: usize = 2;
/// Of the download, before the first request.
const WARM_UP: Duration = Duration::from_secs(2);
/// Between an answer and the next request.
const PAUSE: Duration = Duration::from_millis(20);
const ANSWER: usize = 100;
const BLOCK: usize = 64 << 10;

const SPEC: Spec = Spec {
    name: "beside-bulk",
    title: "a request of 100 bytes beside a download through the same forward, RTT 2 ms, queue 100 ms",
    metrics: &[
        Metric { key: "p50", unit: "ms" },
        Metric { key: "p95", unit: "ms" },
        Metric { key: "bulk", unit: "Mbit/s" },
    ],
    targets: &[beside("p50"), beside("p95")],
    plot: Plot::Cases { metric: "p50", unit: "ms" },
};

const fn beside(metric: &'static str) -> Target {
    Target {
        case: "",
        of: "whimbrel",
        metric,
        against: Some("tcp"),
        judged: Judged::Median,
        bound: Bound::AtMost(1.3),
        aim: 1.0,
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum System {
    Whimbrel,
    Tcp,
}

pub(crate) fn run(plan: &Plan, output: &mut Output) -> Result<()> {
    let requests = if plan.quick { 20 } else { 100 };
    let mut trials = Vec::new();
    for mbit in RATES_MBIT {
        for round in 0..plan.rounds(5) {
            for system in rotated(&[System::Whimbrel, System::Tcp], round) {
                let trial = trial(system, mbit, round, requests)
                    .with_context(|| format!("{system:?}, {mbit} Mbit/s"))?;
                output.trial(&SPEC, &trial);
                trials.push(trial);
            }
        }
    }
    let settings = json!({
        "carrier": "auto",
        "mbit": RATES_MBIT,
        "rtt_ms": RTT.as_millis(),
        "queue_ms": QUEUE.as_millis(),
        "requests": requests,
        "pause_ms": PAUSE.as_millis(),
    });
    output.finish(&SPEC, settings, &trials)
}

fn trial(system: System, mbit: u64, round: u32, requests: usize) -> Result<Trial> {
    let lab = Lab::new()?;
    let (client, server) = (lab.host("client")?, lab.host("server")?);
    let spec = LinkSpec::default().delay(RTT / 2).rate(Rate::mbit(mbit)).queue(Queue::Time(QUEUE));
    let link = lab.link(&client, &server, spec)?;
    link.end(&client).add_address(&format!("{CLIENT}/24"))?;
    link.end(&server).add_address(&format!("{SERVER}/24"))?;
    let folder = Folder::new(&format!("beside-{mbit}-{round}"))?;
    let serving = server.runtime(WORKERS)?;
    let listener = serving.block_on(TcpListener::bind(HTTP))?;
    serving.spawn(serve(listener));
    let (_tunnel, to, label) = match system {
        System::Whimbrel => {
            let tunnel = Tunnel::start(&folder, [&client, &server], FORWARDED, HTTP, &[])?;
            (Some(tunnel), FORWARDED, "whimbrel")
        }
        System::Tcp => (None, HTTP, "tcp"),
    };
    let (times, rate) = measure(&client, to, requests)?;
    let of = |q| quantile(&times, q).context("no request was answered");
    Ok(Trial::new(label, round)
        .in_case(format!("{mbit} Mbit/s"))
        .with("p50", of(0.5)?)
        .with("p95", of(0.95)?)
        .with("bulk", rate))
}

/// The requests' times in milliseconds, ascending, and the download's rate meanwhile in Mbit/s.
fn measure(client: &Host, to: SocketAddr, requests: usize) -> Result<(Vec<f64>, f64)> {
    let runtime = client.runtime(WORKERS)?;
    let arrived = Arc::new(AtomicU64::new(0));
    let download = runtime.spawn(download(to, arrived.clone()));
    let result = runtime.block_on(async {
        tokio::time::sleep(WARM_UP).await;
        let (before, began) = (arrived.load(Ordering::Relaxed), Instant::now());
        let mut times = Vec::with_capacity(requests);
        for _ in 0..requests {
            let asked = Instant::now();
            tokio::time::timeout(LIMIT, request(to)).await.context("no answer")??;
            times.push(asked.elapsed().as_secs_f64() * 1000.0);
            tokio::time::sleep(PAUSE).await;
        }
        let bytes = arrived.load(Ordering::Relaxed) - before;
        ensure!(bytes > 0, "the download stands still");
        anyhow::Ok((sorted(&times), bytes as f64 * 8.0 / 1e6 / began.elapsed().as_secs_f64()))
    });
    download.abort();
    result
}

async fn request(to: SocketAddr) -> Result<()> {
    let mut socket = TcpStream::connect(to).await?;
    socket.set_nodelay(true)?;
    // A hundred bytes, as the answer.
    socket
        .write_all(format!("GET /small HTTP/1.1\r\nHost: x\r\nX-Padding: {:053}\r\n\r\n", 0).as_bytes())
        .await?;
    let mut answer = Vec::with_capacity(ANSWER);
    socket.read_to_end(&mut answer).await?;
    ensure!(answer.len() == ANSWER, "an answer of {} bytes", answer.len());
    Ok(())
}

async fn download(from: SocketAddr, arrived: Arc<AtomicU64>) -> Result<()> {
    let mut socket = TcpStream::connect(from).await?;
    socket.write_all(b"GET /bulk HTTP/1.1\r\nHost: x\r\n\r\n").await?;
    let mut buffer = vec![0; BLOCK];
    loop {
        let n = socket.read(&mut buffer).await?;
        ensure!(n > 0, "the download ended");
        arrived.fetch_add(n as u64, Ordering::Relaxed);
    }
}

/// An HTTP server that knows one endless file and one small one.
async fn serve(listener: TcpListener) {
    while let Ok((socket, _)) = listener.accept().await {
        tokio::spawn(async move {
            // The client's end shows what went wrong.
            let _ = answer(socket).await;
        });
    }
}

async fn answer(socket: TcpStream) -> Result<()> {
    socket.set_nodelay(true)?;
    let mut socket = BufReader::new(socket);
    let mut asked = String::new();
    socket.read_line(&mut asked).await?;
    let mut line = String::from("header");
    while !line.trim().is_empty() {
        line.clear();
        socket.read_line(&mut line).await?;
    }
    if asked.contains("/bulk") {
        let block = vec![0x5a; BLOCK];
        loop {
            socket.write_all(&block).await?;
        }
    }
    let head = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: ";
    let text = format!("{head}{}\r\n\r\n", ANSWER - head.len() - 6);
    socket.write_all(format!("{text:x<ANSWER$}").as_bytes()).await?;
    Ok(socket.shutdown().await?)
}
