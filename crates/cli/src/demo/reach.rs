//! The part with a relay: a server that nobody can dial is reached through one, then directly once its router
//! passes a port on, and through the relay again when the router does so no more.
//!
//! ```text
//! whimbrel forward ───── whimbrel relay serve ───── whimbrel expose
//!                └────────────── router ─────────────────┘
//! ```

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tempfile::TempDir;
use tokio::sync::watch;

use super::client::{Kind, Seen, download};
use super::gate::Gate;
use super::links::{longest_pause, until, working};
use super::millis;
use super::stage::{FILE, Machine, address, make_file, subnet};
use super::web::Web;
use crate::aside;
use crate::status::PathReport;

const SIZE: u64 = 48 << 20;
/// The file is not sent faster than in so many seconds, until all was shown: then the rest comes at once.
const SECONDS: u64 = 24;
/// What each path has to carry to be seen.
const SHARE: u64 = 1 << 20;
/// A path that needs longer does not come up. Shorter than the download, so that a busy machine is told so.
const LIMIT: Duration = Duration::from_secs(15);
/// Between looks at the paths.
const LOOK: Duration = Duration::from_millis(5);

/// The last bytes of the addresses of relay, server, router and client.
const RELAY: u8 = 1;
const SERVER: u8 = 10;
const ROUTER: u8 = 50;
const CLIENT: u8 = 100;

/// How it went.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Reach {
    /// What had come through the relay before there was another way.
    pub(crate) relayed_bytes: u64,
    /// From the moment that the router passes the port on until a path through it works.
    pub(crate) direct_ms: f64,
    /// What then came directly.
    pub(crate) direct_bytes: u64,
    /// The longest time without a byte at the HTTP client, from when the direct way was taken away.
    pub(crate) pause_ms: f64,
    /// What came through the relay again.
    pub(crate) back_bytes: u64,
    pub(crate) equal: bool,
}

/// A relay, and a server that is reached through it alone.
struct Stage {
    relay: Machine,
    server: Machine,
    client: Machine,
    gate: Gate,
    web: Web,
    /// Where the server listens, which nobody is told.
    inside: SocketAddr,
    /// Where the forwarded port is.
    port: SocketAddr,
}

/// Downloads a file while the way changes.
pub(crate) async fn reach() -> Result<Reach> {
    let directory = tempfile::Builder::new()
        .prefix("whimbrel-demo-")
        .tempdir()
        .context("cannot make a directory for temporary files")?;
    let file = directory.path().join(FILE);
    let made = file.clone();
    let expected = aside::run(move || make_file(&made, SIZE)).await??;
    let web = Web::start(file, SIZE / SECONDS).await?;
    let stage = start(&directory, web).await?;
    let (sender, seen) = watch::channel(Seen { bytes: 0, at: Instant::now() });
    let result =
        tokio::try_join!(download(Kind::choose().await, stage.port, FILE, sender), change(&stage, seen));
    tokio::join!(stage.client.end(), stage.server.end());
    stage.relay.end().await;
    let ((_, sha256), reach) = result?;
    directory.close().context("cannot remove the temporary files")?;
    Ok(Reach { equal: sha256 == expected, ..reach })
}

async fn start(directory: &TempDir, web: Web) -> Result<Stage> {
    let (at, subnet, to) = (directory.path(), subnet()?, web.address.to_string());
    let serve = ["relay", "serve", "--json", "--port", "0", "--allow", "any"];
    let (relay, ready) = Machine::start(at, "relay", subnet, &[RELAY], &serve).await?;
    let through = ready.ticket.context("the relay gave no ticket")?;
    let gate = Gate::start(SocketAddr::new(address(subnet, ROUTER), 0)).await?;
    // Peers are told of the router and the relay, and not of where it is behind them.
    let outside = gate.outside.to_string();
    let expose = ["expose", "--ticket", "--json", "--to", &to, "--allow", "any", "--relay", &through];
    let expose = [&expose[..], &["--advertise", &outside, "--advertise", "public"]].concat();
    let (server, ready) = Machine::start(at, "server", subnet, &[SERVER], &expose).await?;
    let ticket = ready.ticket.context("the server gave no ticket")?;
    let port = ready.port.context("the server did not say its port")?;
    let inside = SocketAddr::new(address(subnet, SERVER), port);
    let forward = ["forward", &ticket, "--json", "--carrier", "tcp"];
    let (client, ready) = Machine::start(at, "client", subnet, &[CLIENT], &forward).await?;
    let port = ready.listening.context("the forward does not listen")?;
    Ok(Stage { relay, server, client, gate, web, inside, port })
}

/// Has the router pass the port on for a while, and looks what carries.
async fn change(stage: &Stage, mut seen: watch::Receiver<Seen>) -> Result<Reach> {
    let relayed_bytes = until(&mut seen, SHARE).await?.bytes;
    if working(&stage.client).await?.iter().any(|path| !path.relayed) {
        bail!("the server is reached without a relay, although nothing passes on to it");
    }
    let opened = Instant::now();
    stage.gate.open(stage.inside);
    wait(stage, "there is no direct path", |paths| paths.iter().any(|path| !path.relayed)).await?;
    let direct_ms = millis(opened.elapsed());
    let carried = wait(stage, "the direct path does not carry", |paths| directly(paths) >= SHARE).await?;
    let direct_bytes = directly(&carried);
    stage.gate.shut();
    let before = seen.borrow().bytes;
    let pause_ms = millis(longest_pause(&mut seen, before + SHARE).await?);
    wait(stage, "there is no way back", |paths| !paths.is_empty() && paths.iter().all(|path| path.relayed))
        .await?;
    // What was under way on the direct path has come by now.
    let from = seen.borrow().bytes;
    let back_bytes = until(&mut seen, from + SHARE).await?.bytes - from;
    stage.web.hurry();
    Ok(Reach { relayed_bytes, direct_ms, direct_bytes, pause_ms, back_bytes, equal: false })
}

/// What came on direct paths.
fn directly(paths: &[PathReport]) -> u64 {
    paths.iter().filter(|path| !path.relayed).map(|path| path.bytes_received).sum()
}

/// Waits until the paths that work are as they should be.
async fn wait(
    stage: &Stage,
    problem: &str,
    is_so: impl Fn(&[PathReport]) -> bool,
) -> Result<Vec<PathReport>> {
    let begun = Instant::now();
    loop {
        let paths = working(&stage.client).await?;
        if is_so(&paths) {
            return Ok(paths);
        }
        if begun.elapsed() > LIMIT {
            bail!("{problem}");
        }
        tokio::time::sleep(LOOK).await;
    }
}
