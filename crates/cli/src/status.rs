//! What the running commands of this user do: each answers on a socket in a directory that only this
//! user can look into.
//!
//! A client sends at most one line and ends its direction: nothing to ask for the state; `{"change":{…}}` to
//! change how paths are used; or, to a command that was started with `--address`,
//! `{"addresses":["127.0.0.3"]}` to move it. The answer is one [`Report`] in JSON, or `{"error":"…"}`.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinHandle;
use whimbrel::Endpoint;
use whimbrel_base::{EndpointId, UnixTime};
use whimbrel_transport::{AddressSet, ConnectionStats, ManualMonitor, PathState, Priority, Side};

use crate::multipath::Change;
use crate::network::Network;
use crate::sockets::{SocketReport, Sockets};
use crate::{identity, output, places};

const MAX_REQUEST: u64 = 4096;
const MAX_REPORT: u64 = 16 << 20;
const LIMIT: Duration = Duration::from_secs(2);

/// What a command is about.
#[derive(Clone, Debug)]
pub(crate) struct About {
    command: &'static str,
    name: Option<String>,
    sockets: Option<Arc<Sockets>>,
}

impl About {
    pub(crate) fn new(command: &'static str, name: Option<String>) -> Self {
        Self { command, name, sockets: None }
    }

    /// With the sockets that the command serves.
    pub(crate) fn counting(self, sockets: Arc<Sockets>) -> Self {
        Self { sockets: Some(sockets), ..self }
    }
}

/// A running command's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) command: String,
    pub(crate) pid: u32,
    /// Unix time in milliseconds.
    pub(crate) started_ms: u64,
    pub(crate) id: String,
    pub(crate) name: Option<String>,
    pub(crate) addresses: Vec<SocketAddr>,
    /// Local sockets, where the command serves some.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) sockets: Option<SocketReport>,
    pub(crate) connections: Vec<ConnectionReport>,
}

/// A connection's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ConnectionReport {
    pub(crate) id: String,
    pub(crate) peer: String,
    /// What it is for: the name that was dialled or is served, or `name service`.
    pub(crate) name: Option<String>,
    /// Whether the peer dialled.
    pub(crate) accepted: bool,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) bytes_resent: u64,
    /// Of these, bytes whose path was not lost: another would bring them sooner.
    pub(crate) bytes_twice: u64,
    /// `full`, `backup` or `single`.
    pub(crate) mode: String,
    pub(crate) scheduler: String,
    pub(crate) moves: u64,
    pub(crate) last_recovery_ms: Option<f64>,
    /// For how long no path has worked.
    pub(crate) unreachable_ms: Option<f64>,
    pub(crate) paths: Vec<PathReport>,
}

/// A path's state.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct PathReport {
    pub(crate) id: u64,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// Of the local address, where known.
    pub(crate) interface: Option<String>,
    pub(crate) state: String,
    /// `tcp`, `mptcp` or `quic`.
    pub(crate) carrier: String,
    /// `normal` or `backup`.
    pub(crate) priority: String,
    pub(crate) rtt_ms: f64,
    /// What it was seen to deliver.
    pub(crate) rate_mbit: Option<f64>,
    pub(crate) bytes_sent: u64,
    pub(crate) bytes_received: u64,
    pub(crate) in_flight: u64,
    pub(crate) age_ms: f64,
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

fn state(state: PathState) -> String {
    format!("{state:?}").to_lowercase()
}

/// Answers for one command.
struct Answerer {
    endpoint: Endpoint,
    service: Option<EndpointId>,
    manual: Option<ManualMonitor>,
    about: About,
    started: UnixTime,
}

impl Answerer {
    fn report(&self) -> Report {
        let addresses = self.endpoint.watch_addresses().current();
        let connections = self.endpoint.connections().into_iter().map(|connection| {
            let (id, peer, stats) = (connection.id, connection.peer, connection.stats);
            let accepted = connection.side == Side::Server;
            let is_service = self.service == Some(peer) && !accepted;
            ConnectionReport {
                id: id.to_string(),
                peer: peer.to_string(),
                name: if is_service { Some("name service".to_owned()) } else { self.about.name.clone() },
                accepted,
                bytes_sent: stats.bytes_sent,
                bytes_received: stats.bytes_received,
                bytes_resent: stats.bytes_resent,
                bytes_twice: stats.bytes_reinjected,
                mode: stats.handover.to_string(),
                scheduler: stats.scheduler.to_string(),
                moves: stats.moves,
                last_recovery_ms: stats.last_recovery.map(millis),
                unreachable_ms: stats.unreachable.map(millis),
                paths: paths(&stats, &addresses),
            }
        });
        Report {
            command: self.about.command.to_owned(),
            pid: std::process::id(),
            started_ms: self.started.as_millis(),
            id: self.endpoint.id().to_string(),
            name: self.about.name.clone(),
            addresses: self.endpoint.addr().addrs,
            sockets: self.about.sockets.as_ref().map(|sockets| sockets.report()),
            connections: connections.collect(),
        }
    }

    async fn answer(&self, mut socket: UnixStream) -> io::Result<()> {
        let mut request = String::new();
        (&mut socket).take(MAX_REQUEST).read_to_string(&mut request).await?;
        if !request.trim().is_empty() {
            let request: Request = serde_json::from_str(&request)?;
            if let Err(error) = self.obey(request) {
                socket.write_all(&serde_json::to_vec(&Answer::Refusal { error })?).await?;
                return socket.shutdown().await;
            }
        }
        socket.write_all(&serde_json::to_vec(&self.report())?).await?;
        socket.shutdown().await
    }

    fn obey(&self, request: Request) -> Result<(), String> {
        if let Some(change) = request.change {
            change.make(&self.endpoint, self.service)?;
        }
        if let Some(addresses) = request.addresses {
            let monitor = self.manual.as_ref().ok_or("the command was not started with --address")?;
            monitor.set(addresses);
        }
        Ok(())
    }
}

fn paths(stats: &ConnectionStats, addresses: &AddressSet) -> Vec<PathReport> {
    let interface = |ip: IpAddr| {
        let address = addresses.addresses.iter().find(|address| address.ip == ip)?;
        address.interface.as_ref().map(ToString::to_string)
    };
    let report = |path: &whimbrel_transport::PathInfo| PathReport {
        id: path.id,
        local: path.local,
        remote: path.remote.address(),
        interface: interface(path.local.ip()),
        state: state(path.state),
        carrier: path.carrier.to_string(),
        priority: if path.priority == Priority::Backup { "backup" } else { "normal" }.to_owned(),
        rtt_ms: millis(path.srtt),
        rate_mbit: path.rate.map(|rate| (rate as f64 * 8.0 / 1e4).round() / 1e2),
        bytes_sent: path.bytes_sent,
        bytes_received: path.bytes_received,
        in_flight: path.in_flight,
        age_ms: millis(path.age),
    };
    stats.paths.iter().map(report).collect()
}

#[derive(Default, Serialize, Deserialize)]
struct Request {
    addresses: Option<Vec<IpAddr>>,
    change: Option<Change>,
}

/// What a command says to a request.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Answer {
    Report(Box<Report>),
    Refusal { error: String },
}

/// Answers on this command's socket until it is dropped.
pub(crate) struct Reporter {
    file: Option<PathBuf>,
    task: Option<JoinHandle<()>>,
}

impl Reporter {
    /// A command that cannot be asked still does its work.
    pub(crate) fn start(network: &Network, about: About, quiet: bool) -> Self {
        let answerer = Answerer {
            endpoint: network.endpoint.clone(),
            service: network.service.as_ref().map(whimbrel_names::ServiceAddress::id),
            manual: network.manual.clone(),
            about,
            started: SystemTime::now().into(),
        };
        match listen() {
            Ok((listener, file)) => {
                Self { file: Some(file), task: Some(tokio::spawn(serve(listener, answerer))) }
            }
            Err(error) => {
                let line = crate::failure::line(&error);
                output::note(quiet, format!("`whimbrel status` will not show this command: {line}"));
                Self { file: None, task: None }
            }
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
        }
        if let Some(file) = &self.file {
            // What is left over is cleaned away by the next `whimbrel status`.
            let _ = std::fs::remove_file(file);
        }
    }
}

fn listen() -> Result<(UnixListener, PathBuf)> {
    let directory = places::runtime();
    identity::private_directory(&directory)?;
    check(&directory)?;
    let file = directory.join(format!("{}.sock", std::process::id()));
    // A dead process that had our number may have left it.
    let _ = std::fs::remove_file(&file);
    let listener =
        UnixListener::bind(&file).with_context(|| format!("cannot listen on {}", file.display()))?;
    Ok((listener, file))
}

/// In /tmp, anybody may have made the directory first.
fn check(directory: &Path) -> Result<()> {
    let metadata = std::fs::symlink_metadata(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !ours || metadata.mode() & 0o077 != 0 {
        bail!("{} is not a directory of yours alone; remove it", directory.display());
    }
    Ok(())
}

async fn serve(listener: UnixListener, answerer: Answerer) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                if let Ok(Err(error)) = tokio::time::timeout(LIMIT, answerer.answer(socket)).await {
                    tracing::debug!(%error, "cannot answer a status question");
                }
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

/// Asks all running commands of this user. Removes the sockets that dead ones left.
pub(crate) async fn ask_all() -> Result<Vec<Report>> {
    let directory = places::runtime();
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", directory.display())),
    };
    check(&directory)?;
    let mut reports = Vec::new();
    for entry in entries.flatten() {
        let file = entry.path();
        if file.extension().is_none_or(|extension| extension != "sock") {
            continue;
        }
        match ask(&file, &[]).await {
            Ok(report) => reports.push(report),
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
                // Nobody listens any more; another `status` may have removed it too.
                let _ = std::fs::remove_file(&file);
            }
            Err(error) => tracing::info!(file = %file.display(), %error, "a command does not answer"),
        }
    }
    reports.sort_by_key(|report| report.started_ms);
    Ok(reports)
}

/// Decodes whatever comes as a request and as an answer; what is understood can be said again, and shown.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    fn again<T: Serialize + serde::de::DeserializeOwned>(understood: &T) -> serde_json::Result<()> {
        serde_json::from_slice::<T>(&serde_json::to_vec(understood)?).map(drop)
    }
    if let Ok(request) = serde_json::from_slice::<Request>(bytes) {
        assert!(again(&request).is_ok(), "a request that came can be said");
    }
    match serde_json::from_slice::<Answer>(bytes) {
        Ok(Answer::Report(report)) => {
            assert!(again(&report).is_ok(), "a report that came can be said");
            drop(crate::commands::status::describe(&report));
        }
        Ok(Answer::Refusal { error }) => drop(error),
        Err(_) => {}
    }
}

/// Asks one command.
async fn ask(file: &Path, request: &[u8]) -> io::Result<Report> {
    let exchange = async {
        let mut socket = UnixStream::connect(file).await?;
        socket.write_all(request).await?;
        socket.shutdown().await?;
        let mut answer = Vec::new();
        socket.take(MAX_REPORT).read_to_end(&mut answer).await?;
        match serde_json::from_slice(&answer)? {
            Answer::Report(report) => Ok(*report),
            Answer::Refusal { error } => Err(io::Error::other(error)),
        }
    };
    tokio::time::timeout(LIMIT, exchange).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
}

/// Asks the command with this socket.
pub(crate) async fn report(file: &Path) -> Result<Report> {
    ask(file, &[]).await.with_context(|| format!("no answer on {}", file.display()))
}

/// Moves the command with this socket.
pub(crate) async fn set_addresses(file: &Path, addresses: &[IpAddr]) -> Result<Report> {
    let request = Request { addresses: Some(addresses.to_vec()), ..Request::default() };
    let request = serde_json::to_vec(&request)?;
    ask(file, &request).await.with_context(|| format!("cannot move the command of {}", file.display()))
}

/// Changes how a running command uses its paths.
pub(crate) async fn change_paths(report: &Report, change: Change) -> Result<Report> {
    let request = serde_json::to_vec(&Request { change: Some(change), ..Request::default() })?;
    let file = places::runtime().join(format!("{}.sock", report.pid));
    // What the command says is the answer; that it could not be asked needs saying where.
    ask(&file, &request).await.map_err(|error| match error.get_ref() {
        Some(said) if error.kind() == ErrorKind::Other => anyhow!("{said}"),
        _ => anyhow::Error::new(error).context(format!("no answer on {}", file.display())),
    })
}
