//! What a decision of the multi-access manager costs over its socket, how many it makes a second, and what it
//! costs to measure.
//!
//! A host with 20 interfaces and 2 000 established TCP connections. The manager runs in this process, and so
//! do its clients: what the clients take is part of the figures of decisions. The CPU time of measuring is
//! that of the whole process while no client says anything (*rest*), and while one asks twice a second, which
//! makes the manager measure ten times a second as traffic does (*busy*).

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::json;
use tokio::net::UnixListener;
use whimbrel_lab::{DirectLink, Host, Lab, LinkSpec, Runtime};
use whimbrel_multiaccess::{Manager, Settings};

use super::Plan;
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::{stats, sys};

const INTERFACES: u8 = 20;
/// Before CPU time counts: connections and sockets are set up.
const CALM: Duration = Duration::from_secs(2);
const ASK: &str = "{\"id\":1,\"ask\":{\"intents\":{\"size-received\":300000},\"to\":\"10.9.9.9:443\"}}\n";
/// Questions that each of two clients has under way.
const PIPELINED: usize = 64;
const CLIENTS: usize = 2;
const LIMIT: Duration = Duration::from_secs(10);
/// Begins the answer to a question that was decided.
const DECIDED: &[u8] = b"{\"id\":1,\"decision\":{\"policy\":\"whimbrel\",\"ways\":[{";

const SPEC: Spec = Spec {
    name: "access-decision",
    title: "the multi-access manager: a decision over its socket; decisions a second; CPU time of measuring",
    metrics: &[
        Metric { key: "p50", unit: "us" },
        Metric { key: "p99", unit: "us" },
        Metric { key: "decisions", unit: "/s" },
        Metric { key: "rest", unit: "%" },
        Metric { key: "busy", unit: "%" },
    ],
    targets: &[
        target("p50", Bound::AtMost(60.0), 20.0),
        target("p99", Bound::AtMost(300.0), 300.0),
        target("decisions", Bound::AtLeast(50_000.0), 200_000.0),
        target("rest", Bound::AtMost(0.5), 0.5),
        target("busy", Bound::AtMost(3.0), 3.0),
    ],
    plot: Plot::Cases { metric: "p50", unit: "us" },
};

const fn target(metric: &'static str, bound: Bound, aim: f64) -> Target {
    Target { case: "", of: "whimbrel", metric, against: None, judged: Judged::Median, bound, aim }
}

pub(crate) fn run(plan: &Plan, connections: Option<usize>, output: &mut Output) -> Result<()> {
    let connections = connections.unwrap_or(if plan.quick { 200 } else { 2000 });
    let length = plan.length(10.0);
    sys::raise_file_limit()?;
    let mut trials = Vec::new();
    for round in 0..plan.rounds(3) {
        let trial = World::new(connections)?.trial(round, length)?;
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    let settings = json!({
        "interfaces": INTERFACES,
        "connections": connections,
        "pipelined": PIPELINED,
        "clients": CLIENTS,
        "policy": "whimbrel",
        "seconds": length.as_secs_f64(),
    });
    output.finish(&SPEC, settings, &trials)
}

/// Fields are dropped in this order.
struct World {
    _manager: Manager,
    runtime: Runtime,
    folder: tempfile::TempDir,
    _streams: Vec<TcpStream>,
    _links: Vec<DirectLink>,
    _hosts: [Host; 2],
    _lab: Lab,
}

impl World {
    fn new(connections: usize) -> Result<Self> {
        let lab = Lab::new()?;
        let (host, other) = (lab.host("host")?, lab.host("other")?);
        let mut links = Vec::new();
        for n in 0..INTERFACES {
            let link = lab.direct_link(&host, &other, LinkSpec::default())?;
            link.end(&host).add_address(&format!("10.1.{n}.1/24"))?;
            link.end(&other).add_address(&format!("10.1.{n}.2/24"))?;
            if n < 2 {
                link.end(&host).add_default_route(&format!("10.1.{n}.2"), u32::from(n) + 1)?;
            }
            links.push(link);
        }
        let at = SocketAddr::new(IpAddr::from([10, 1, 0, 2]), 7000);
        let listener = other.run(|| TcpListener::bind(at))?;
        let mut streams = Vec::new();
        for _ in 0..connections {
            let mut stream = host.run(|| TcpStream::connect(at))?;
            let (mut accepted, _) = listener.accept()?;
            // One round trip, so that the kernel knows how long one takes.
            stream.write_all(&[1])?;
            accepted.read_exact(&mut [0])?;
            streams.extend([stream, accepted]);
        }
        let folder = tempfile::tempdir()?;
        let runtime = host.runtime(2)?;
        let socket = folder.path().join("access");
        let manager = runtime.block_on(async {
            let listener = UnixListener::bind(&socket)?;
            Manager::start(Settings::default(), listener).await.context("the manager does not start")
        })?;
        Ok(Self {
            _manager: manager,
            runtime,
            folder,
            _streams: streams,
            _links: links,
            _hosts: [host, other],
            _lab: lab,
        })
    }

    fn trial(self, round: u32, length: Duration) -> Result<Trial> {
        let socket = self.folder.path().join("access");
        std::thread::sleep(CALM);
        let rest = cpu(|| {
            std::thread::sleep(length);
            Ok(())
        })?;
        let mut client = Client::connect(&socket)?;
        let busy = cpu(|| {
            let end = Instant::now() + length;
            while Instant::now() < end {
                client.ask()?;
                std::thread::sleep(Duration::from_millis(500));
            }
            Ok(())
        })?;
        let (mut times, end) = (Vec::new(), Instant::now() + length);
        while Instant::now() < end {
            let began = Instant::now();
            client.ask()?;
            times.push(began.elapsed().as_secs_f64() * 1e6);
        }
        let times = stats::sorted(&times);
        let quantile = |q| stats::quantile(&times, q).context("nothing was asked");
        let decisions = pipelined(&socket, length)?;
        drop(self.runtime);
        Ok(Trial::new("whimbrel", round)
            .with("p50", quantile(0.5)?)
            .with("p99", quantile(0.99)?)
            .with("decisions", decisions)
            .with("rest", rest)
            .with("busy", busy))
    }
}

/// The share of one core that this process takes meanwhile, in percent.
fn cpu(meanwhile: impl FnOnce() -> Result<()>) -> Result<f64> {
    let (began, used) = (Instant::now(), sys::cpu_time());
    meanwhile()?;
    let used = sys::cpu_time().saturating_sub(used);
    Ok(used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

struct Client {
    stream: UnixStream,
    lines: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Client {
    fn connect(socket: &Path) -> Result<Self> {
        let stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(LIMIT))?;
        Ok(Self { lines: BufReader::new(stream.try_clone()?), stream, line: Vec::new() })
    }

    fn ask(&mut self) -> Result<()> {
        self.stream.write_all(ASK.as_bytes())?;
        self.line.clear();
        self.lines.read_until(b'\n', &mut self.line)?;
        ensure!(self.line.starts_with(b"{\"id\":1,\"decision\""), "{}", String::from_utf8_lossy(&self.line));
        Ok(())
    }
}

/// Decisions a second for clients that do not wait for one answer before the next question.
fn pipelined(socket: &Path, length: Duration) -> Result<f64> {
    let began = Instant::now();
    let threads: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let client = Client::connect(socket)?;
            Ok(std::thread::spawn(move || ask_on(client, began + length)))
        })
        .collect::<Result<_>>()?;
    let mut total = 0;
    for thread in threads {
        total += thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    Ok(total as f64 / began.elapsed().as_secs_f64())
}

/// Keeps questions under way until then. Returns how many were answered.
fn ask_on(client: Client, end: Instant) -> Result<u64> {
    let Client { mut stream, .. } = client;
    let some = ASK.repeat(PIPELINED);
    let (mut buffer, mut under_way, mut answered, mut decided) = (vec![0; 256 << 10], 0, 0, 0);
    while Instant::now() < end || under_way > 0 {
        if under_way < PIPELINED && Instant::now() < end {
            let more = PIPELINED - under_way;
            stream.write_all(&some.as_bytes()[..more * ASK.len()])?;
            under_way += more;
        }
        let length = stream.read(&mut buffer)?;
        ensure!(length > 0, "the manager hung up");
        let text = &buffer[..length];
        let lines = text.iter().filter(|byte| **byte == b'\n').count();
        decided += text.windows(DECIDED.len()).filter(|part| *part == DECIDED).count();
        under_way -= lines;
        answered += lines;
    }
    // A few are parted by the ends of reads.
    ensure!(decided * 10 >= answered * 9, "{answered} answers, of which {decided} are decisions");
    Ok(answered as u64)
}
