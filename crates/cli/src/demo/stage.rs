//! What the demo happens on: a file, a web server, and the `whimbrel` commands as processes.

use std::fs::File;
use std::io::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use whimbrel::Identity;

use super::web::Web;
use crate::{aside, identity, status};

pub(crate) const FILE: &str = "file.bin";
const NAME: &str = "web.server.demo@example.org";
const READY_LIMIT: Duration = Duration::from_secs(20);
const END_LIMIT: Duration = Duration::from_secs(3);

/// A `whimbrel` command that runs as if it were on a machine of its own.
pub(crate) struct Machine {
    child: Child,
    pub(super) socket: PathBuf,
    subnet: [u8; 2],
    /// The last byte of its address.
    place: u8,
}

/// Everything that takes part.
pub(crate) struct Stage {
    names: Machine,
    pub(crate) server: Machine,
    pub(crate) client: Machine,
    web: Web,
    /// Where the forwarded port is.
    pub(crate) port: SocketAddr,
    pub(crate) sha256: String,
    // Last: it is removed when everything that uses it has ended.
    directory: TempDir,
}

/// What a command prints once it is ready, as far as it matters here.
#[derive(Deserialize)]
pub(super) struct Ready {
    pub(super) ticket: Option<String>,
    pub(super) listening: Option<SocketAddr>,
    pub(super) port: Option<u16>,
}

/// The sum of what was sent again, and the connection that it was on.
pub(crate) struct Count {
    pub(crate) resent: u64,
    pub(crate) connection: Option<String>,
}

impl Stage {
    /// Makes a file of `size` bytes and starts everything. The file leaves the web server at `rate` bytes a
    /// second.
    pub(crate) async fn set(size: u64, rate: u64) -> Result<Self> {
        let directory = tempfile::Builder::new()
            .prefix("whimbrel-demo-")
            .tempdir()
            .context("cannot make a directory for temporary files")?;
        let at = directory.path();
        let file = at.join(FILE);
        let made = file.clone();
        let sha256 = aside::run(move || make_file(&made, size)).await??;
        let web = Web::start(file, rate).await?;
        let subnet = subnet()?;
        let store = at.join("names.redb");
        let client_id = Identity::in_file(at.join("client/identity"))?.key.id().to_string();

        let store = store.to_str().context("the directory for temporary files has a strange name")?;
        let serve = ["names", "serve", "--json", "--port", "0", "--store", store, "--allow", "any"];
        let (names, ready) = Machine::start(at, "names", subnet, &[1], &serve).await?;
        let service = ready.ticket.context("the name service gave no ticket")?;
        let to = web.address.to_string();
        let expose = ["expose", NAME, "--json", "--to", &to, "--allow", &client_id, "--names", &service];
        let (server, _) = Machine::start(at, "server", subnet, &[10], &expose).await?;
        let forward = ["forward", NAME, "--json", "--names", &service];
        let (client, ready) = Machine::start(at, "client", subnet, &[100], &forward).await?;
        let port = ready.listening.context("the forward does not listen")?;
        Ok(Self { names, server, client, web, port, sha256, directory })
    }

    /// How many requests the web server had.
    pub(crate) fn requests(&self) -> u64 {
        self.web.requests()
    }

    /// What both ends of the connection have sent again so far.
    pub(crate) async fn count(&self) -> Result<Count> {
        let (client, server) =
            tokio::try_join!(status::report(&self.client.socket), status::report(&self.server.socket))?;
        let used = client.connections.iter().find(|c| c.peer == server.id);
        let other = used.and_then(|used| server.connections.iter().find(|c| c.id == used.id));
        let resent = used.map_or(0, |c| c.bytes_resent) + other.map_or(0, |c| c.bytes_resent);
        Ok(Count { resent, connection: used.map(|c| c.id.clone()) })
    }

    /// Ends everything in order.
    pub(crate) async fn strike(self) -> Result<()> {
        tokio::join!(self.client.end(), self.server.end());
        self.names.end().await;
        self.directory.close().context("cannot remove the temporary files")
    }
}

impl Machine {
    /// Starts a command with these addresses.
    pub(super) async fn start(
        directory: &Path,
        role: &str,
        subnet: [u8; 2],
        places: &[u8],
        args: &[&str],
    ) -> Result<(Self, Ready)> {
        let home = directory.join(role);
        identity::private_directory(&home)?;
        let log = home.join("log");
        let errors = File::create(&log).context("cannot write a log")?;
        let program = std::env::current_exe().context("cannot find this program")?;
        let identity = home.join("identity");
        let mut child = Command::new(program)
            .args(args)
            .arg("--identity")
            .arg(identity)
            .arg("--until-eof")
            .args(places.iter().map(|place| format!("--address={}", address(subnet, *place))))
            .env("HOME", &home)
            .env("XDG_CONFIG_HOME", &home)
            .env("XDG_DATA_HOME", &home)
            .env("XDG_RUNTIME_DIR", &home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors)
            // Ctrl-C is for us; we end what we started.
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start this program again")?;
        let output = child.stdout.take().context("a command has no output")?;
        let mut lines = BufReader::new(output).lines();
        let line = tokio::time::timeout(READY_LIMIT, lines.next_line()).await;
        let Ok(Ok(Some(line))) = line else {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            bail!("the {role} did not start: {}", said.lines().last().unwrap_or("it said nothing"));
        };
        let pid = child.id().context("a command ended at once")?;
        let socket = home.join("whimbrel").join(format!("{pid}.sock"));
        let ready = serde_json::from_slice(line.as_bytes());
        let ready = ready.context("a command says something else than it should")?;
        let place = places.first().copied().unwrap_or_default();
        Ok((Self { child, socket, subnet, place }, ready))
    }

    /// Loses its address.
    pub(crate) async fn leave(&self) -> Result<()> {
        status::set_addresses(&self.socket, &[]).await.map(drop)
    }

    /// Gets an address that it did not have before.
    pub(crate) async fn arrive(&mut self) -> Result<()> {
        self.place += 1;
        status::set_addresses(&self.socket, &[address(self.subnet, self.place)]).await.map(drop)
    }

    /// Has just these addresses from now on.
    pub(super) async fn be_at(&self, places: &[u8]) -> Result<()> {
        let addresses: Vec<IpAddr> = places.iter().map(|place| address(self.subnet, *place)).collect();
        status::set_addresses(&self.socket, &addresses).await.map(drop)
    }

    pub(super) fn is_at(&self, ip: IpAddr, place: u8) -> bool {
        ip == address(self.subnet, place)
    }

    /// Closes its standard input, at which it ends in order; after a while without asking.
    pub(super) async fn end(mut self) {
        drop(self.child.stdin.take());
        if tokio::time::timeout(END_LIMIT, self.child.wait()).await.is_err() {
            // It may have ended just now.
            let _ = self.child.kill().await;
        }
    }
}

/// Somewhere in 127.0.0.0/8, where other demos on this machine are not.
pub(super) fn subnet() -> Result<[u8; 2]> {
    let mut subnet = [0; 2];
    getrandom::fill(&mut subnet).context("the system has no randomness")?;
    Ok(subnet)
}

pub(super) fn address([b, c]: [u8; 2], d: u8) -> IpAddr {
    // 127.0.x.y is where other programs' addresses are.
    IpAddr::from([127, b | 1, c, d])
}

/// Fills a file with bytes that no compression makes shorter, and tells their sum.
pub(super) fn make_file(path: &Path, size: u64) -> Result<String> {
    let failed = || format!("cannot write {} MiB to {}", size >> 20, path.display());
    let mut file = File::create(path).with_context(failed)?;
    let mut hasher = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    let mut left = size;
    while left > 0 {
        getrandom::fill(&mut buffer).context("the system has no randomness")?;
        let n = usize::try_from(left).unwrap_or(buffer.len()).min(buffer.len());
        hasher.update(&buffer[..n]);
        file.write_all(&buffer[..n]).with_context(failed)?;
        left -= n as u64;
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
