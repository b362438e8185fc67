//! What measuring costs `whimbrel access serve`, on a host with 20 interfaces and 2 000 established TCP
//! connections, which are spread over them: while nothing moves, and while two of them carry 10 Mbit/s each.
//!
//! That is the program itself; `access-decision` has the same of the manager in its own process, and asks it
//! things.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Deserialize;
use serde_json::json;
use whimbrel_access::MAX_PATHS;
use whimbrel_lab::{DirectLink, Host, HostChild, Lab, LinkSpec, Runtime};
use whimbrel_multiaccess::Client;
use whimbrel_multiaccess::protocol::PathReport;

use super::Plan;
use crate::lab::program::{self, Folder};
use crate::output::Output;
use crate::report::{Bound, Judged, Metric, Plot, Spec, Target, Trial};
use crate::sys;

const INTERFACES: u8 = 20;
const PORT: u16 = 7000;
/// Before CPU time counts: connections are set up, and the manager has found out that nothing moves, or that
/// something does.
const CALM: Duration = Duration::from_secs(4);
/// Interfaces that carry something.
const BUSY: usize = 2;
/// Bytes of each of them, and how often: 10 Mbit/s.
const LOT: usize = 62_500;
const LOT_EVERY: Duration = Duration::from_millis(50);
/// A lot is written in so many, each of which the kernel takes whatever is read.
const PIECES: usize = 5;
/// For the manager to say something, and for a lot to be there.
const LIMIT: Duration = Duration::from_secs(20);

const SPEC: Spec = Spec {
    name: "manager-rest",
    title: "CPU time of `whimbrel access serve` with 20 interfaces and 2000 TCP connections, of one core",
    metrics: &[
        Metric { key: "rest", unit: "%" },
        Metric { key: "busy", unit: "%" },
        Metric { key: "memory", unit: "MiB" },
    ],
    targets: &[at_most("rest", 0.5, 0.2), at_most("busy", 3.0, 2.0)],
    plot: Plot::Cases { metric: "busy", unit: "% of a core" },
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

pub(crate) fn run(plan: &Plan, connections: Option<usize>, output: &mut Output) -> Result<()> {
    let connections = connections.unwrap_or(if plan.quick { 200 } else { 2000 });
    ensure!(connections >= usize::from(INTERFACES), "each of {INTERFACES} interfaces needs a connection");
    // The kernel tells CPU time to 10 ms.
    let length = plan.length(30.0);
    sys::raise_file_limit()?;
    let mut trials = Vec::new();
    for round in 0..plan.rounds(3) {
        let trial = World::new(connections)?.trial(round, length)?;
        output.trial(&SPEC, &trial);
        trials.push(trial);
    }
    let settings = json!({
        "carrier": "none",
        "interfaces": INTERFACES,
        "connections": connections,
        "busy_interfaces": BUSY,
        "busy_mbit_each": LOT as f64 * 8.0 / 1e6 / LOT_EVERY.as_secs_f64(),
        "policy": "whimbrel",
        "seconds": length.as_secs_f64(),
    });
    output.finish(&SPEC, settings, &trials)
}

/// A host with its manager, and another one at the end of all its cables. Fields are dropped in this order.
struct World {
    manager: HostChild,
    socket: PathBuf,
    runtime: Runtime,
    /// Both ends of each connection, the host's first.
    streams: Vec<[TcpStream; 2]>,
    /// Interfaces of which the manager tells.
    known: Vec<usize>,
    _links: Vec<DirectLink>,
    _hosts: [Host; 2],
    _lab: Lab,
    _folder: Folder,
}

impl World {
    fn new(connections: usize) -> Result<Self> {
        let lab = Lab::new()?;
        let (host, other) = (lab.host("host")?, lab.host("other")?);
        let (mut links, mut names) = (Vec::new(), Vec::new());
        for n in 0..INTERFACES {
            let link = lab.direct_link(&host, &other, LinkSpec::default())?;
            link.end(&host).add_address(&format!("10.1.{n}.1/24"))?;
            link.end(&other).add_address(&format!("10.1.{n}.2/24"))?;
            link.end(&host).add_default_route(&format!("10.1.{n}.2"), u32::from(n) + 1)?;
            names.push(link.end(&host).name().to_owned());
            links.push(link);
        }
        let streams = connected(&host, &other, connections)?;
        let folder = Folder::new("manager-rest")?;
        let (manager, said) =
            program::say(&host, &folder.join("home"), &["access", "serve", "-q", "--json"])?;
        let is_known =
            |name: &String| said["interfaces"].as_array().is_some_and(|all| all.iter().any(|n| n == name));
        let known: Vec<usize> = (0..names.len()).filter(|n| is_known(&names[*n])).collect();
        // It chooses among no more, and measures the others for when one of these goes.
        ensure!(
            known.len() == MAX_PATHS,
            "the manager knows {} interfaces: {}",
            known.len(),
            said["interfaces"]
        );
        let socket = said["socket"].as_str().context("the manager does not say where it is")?.into();
        let runtime = host.runtime(1)?;
        let hosts = [host, other];
        Ok(Self {
            manager,
            socket,
            runtime,
            streams,
            known,
            _links: links,
            _hosts: hosts,
            _lab: lab,
            _folder: folder,
        })
    }

    fn trial(mut self, round: u32, length: Duration) -> Result<Trial> {
        let pid = self.manager.child().id();
        std::thread::sleep(CALM);
        let rest = share(pid, length)?;
        let both = |[own, other]: &[TcpStream; 2]| -> Result<[TcpStream; 2]> {
            Ok([own.try_clone()?, other.try_clone()?])
        };
        // The first connections are on one interface each.
        let some = self.known.iter().take(BUSY).filter_map(|number| self.streams.get(*number));
        let some = some.map(both).collect::<Result<Vec<_>>>()?;
        let traffic = Traffic::start(some);
        std::thread::sleep(CALM);
        let busy = share(pid, length)?;
        let memory = sys::resident_of(pid)?;
        // It cost little because little is needed, and not because nothing was looked at.
        let seen = self.runtime.block_on(paths(&self.socket))?;
        let carrying = seen.iter().filter(|path| path.down_now.is_some_and(|rate| rate > 0.0)).count();
        ensure!(carrying >= BUSY, "the manager sees {carrying} interfaces that carry something: {seen:?}");
        traffic.stop()?;
        Ok(Trial::new("whimbrel", round)
            .with("rest", rest)
            .with("busy", busy)
            .with("memory", memory as f64 / f64::from(1 << 20)))
    }
}

/// Established connections, one interface after the other.
fn connected(host: &Host, other: &Host, count: usize) -> Result<Vec<[TcpStream; 2]>> {
    let listener = other.run(|| TcpListener::bind(("0.0.0.0", PORT)))?;
    host.run(|| {
        let one = |number: usize| -> Result<[TcpStream; 2]> {
            let interface = (number % usize::from(INTERFACES)) as u8;
            let to = SocketAddr::new(IpAddr::from([10, 1, interface, 2]), PORT);
            let mut own = TcpStream::connect_timeout(&to, LIMIT)?;
            let (mut accepted, _) = listener.accept()?;
            // One round trip, so that the kernel knows how long one takes.
            own.write_all(&[1])?;
            accepted.read_exact(&mut [0])?;
            [&own, &accepted].into_iter().try_for_each(|stream| {
                stream.set_read_timeout(Some(LIMIT)).and_then(|()| stream.set_write_timeout(Some(LIMIT)))
            })?;
            Ok([own, accepted])
        };
        (0..count).map(one).collect()
    })
}

/// The share of one core that a process takes for so long, in percent.
fn share(pid: u32, length: Duration) -> Result<f64> {
    let (began, before) = (Instant::now(), sys::cpu_time_of(pid)?);
    std::thread::sleep(length);
    let used = sys::cpu_time_of(pid)?.saturating_sub(before);
    Ok(used.as_secs_f64() / began.elapsed().as_secs_f64() * 100.0)
}

/// What the manager says of the host's interfaces.
async fn paths(socket: &Path) -> Result<Vec<PathReport>> {
    #[derive(Deserialize)]
    struct Line {
        paths: Option<Vec<PathReport>>,
    }
    let asking = async {
        let mut watcher = Client::at(socket).watch(false).await?;
        loop {
            let line: Line = serde_json::from_str(&watcher.next().await?)?;
            if let Some(paths) = line.paths {
                return anyhow::Ok(paths);
            }
        }
    };
    tokio::time::timeout(LIMIT, asking).await.context("the manager does not speak of paths")?
}

/// Connections to the host that carry something, each by a thread. They end when this is dropped.
struct Traffic {
    goes_on: Arc<AtomicBool>,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Traffic {
    /// Of these connections, each with the end that gets it first.
    fn start(connections: Vec<[TcpStream; 2]>) -> Self {
        let goes_on = Arc::new(AtomicBool::new(true));
        let begin = |connection: [TcpStream; 2]| {
            let goes_on = goes_on.clone();
            std::thread::spawn(move || carry(connection, &goes_on))
        };
        let threads = connections.into_iter().map(begin).collect();
        Self { goes_on, threads }
    }

    /// Ends it. It must have gone well until now.
    fn stop(mut self) -> Result<()> {
        self.goes_on.store(false, Ordering::Relaxed);
        for thread in std::mem::take(&mut self.threads) {
            thread.join().map_err(|_| anyhow!("traffic panicked"))?.context("a connection broke")?;
        }
        Ok(())
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.goes_on.store(false, Ordering::Relaxed);
    }
}

/// Sends a lot, and reads it, now and then.
fn carry([mut to, mut from]: [TcpStream; 2], goes_on: &AtomicBool) -> std::io::Result<()> {
    let (piece, mut come) = (vec![7; LOT / PIECES], vec![0; LOT / PIECES]);
    while goes_on.load(Ordering::Relaxed) {
        let began = Instant::now();
        for _ in 0..PIECES {
            from.write_all(&piece)?;
            to.read_exact(&mut come)?;
        }
        std::thread::sleep(LOT_EVERY.saturating_sub(began.elapsed()));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use whimbrel_lab::require;

    use super::*;

    #[test]
    fn connections_are_spread_and_traffic_is_carried_until_it_is_stopped() {
        if !require!() {
            return;
        }
        let lab = Lab::new().unwrap();
        let (host, other) = (lab.host("host").unwrap(), lab.host("other").unwrap());
        let links = [0, 1].map(|n| {
            let link = lab.direct_link(&host, &other, LinkSpec::default()).unwrap();
            link.end(&host).add_address(&format!("10.1.{n}.1/24")).unwrap();
            link.end(&other).add_address(&format!("10.1.{n}.2/24")).unwrap();
            link
        });
        let streams = connected(&host, &other, 2).unwrap();
        let peers: Vec<SocketAddr> = streams.iter().map(|[own, _]| own.peer_addr().unwrap()).collect();
        let expected = [0, 1].map(|n| SocketAddr::from(([10, 1, n, 2], PORT)));
        assert_eq!(peers, expected);
        let received = |interface: &str| -> u64 {
            let table = host.run(|| std::fs::read_to_string("/proc/thread-self/net/dev")).unwrap();
            let line = table.lines().find(|line| line.trim_start().starts_with(&format!("{interface}:")));
            line.unwrap().split_once(':').unwrap().1.split_whitespace().next().unwrap().parse().unwrap()
        };
        let names = links.each_ref().map(|link| link.end(&host).name().to_owned());
        let before = names.each_ref().map(|name| received(name));
        let traffic = Traffic::start(streams);
        let began = Instant::now();
        while names.iter().zip(before).any(|(name, before)| received(name) < before + 2 * LOT as u64) {
            assert!(began.elapsed() < LIMIT, "nothing comes");
            std::thread::sleep(Duration::from_millis(10));
        }
        traffic.stop().unwrap();
    }

    #[test]
    fn a_process_that_works_has_a_share() {
        let goes_on = Arc::new(AtomicBool::new(true));
        let seen = goes_on.clone();
        let working = std::thread::spawn(move || while seen.load(Ordering::Relaxed) {});
        let pid = std::process::id();
        let before = sys::cpu_time_of(pid).unwrap();
        let began = Instant::now();
        while sys::cpu_time_of(pid).unwrap() < before + Duration::from_millis(50) {
            assert!(began.elapsed() < LIMIT, "its time does not count");
            std::thread::sleep(Duration::from_millis(10));
        }
        goes_on.store(false, Ordering::Relaxed);
        working.join().unwrap();
        assert!(share(u32::MAX, Duration::ZERO).is_err());
    }
}
