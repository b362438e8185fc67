//! The part with two links: a download over both at once, of which one is taken away and brought back.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use tempfile::TempDir;
use tokio::sync::watch;

use super::client::{Kind, Seen, download};
use super::millis;
use super::stage::{FILE, Machine, make_file, subnet};
use super::web::Web;
use crate::aside;
use crate::status::{self, PathReport};

/// The last bytes of the client's two addresses.
const BOTH: [u8; 2] = [100, 200];
/// Who needs longer does not recover.
const LIMIT: Duration = Duration::from_secs(10);
/// Between looks at the paths.
const LOOK: Duration = Duration::from_millis(5);

/// How it went.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Links {
    /// Bytes that each link brought while both were there.
    pub(crate) shares: [u64; 2],
    /// The longest time without a byte at the HTTP client, from when a link was taken away.
    pub(crate) pause_ms: f64,
    /// From the moment that it is there again until a path over it works.
    pub(crate) back_ms: f64,
    pub(crate) equal: bool,
}

/// Downloads `size` bytes in about `seconds`.
pub(crate) async fn links(size: u64, seconds: u64) -> Result<Links> {
    let directory = tempfile::Builder::new()
        .prefix("whimbrel-demo-")
        .tempdir()
        .context("cannot make a directory for temporary files")?;
    let file = directory.path().join(FILE);
    let made = file.clone();
    let expected = aside::run(move || make_file(&made, size)).await??;
    let web = Web::start(file, size / seconds).await?;
    let (server, client, port) = start(&directory, &web).await?;
    let (sender, seen) = watch::channel(Seen { bytes: 0, at: Instant::now() });
    let result = tokio::try_join!(
        download(Kind::choose().await, port, FILE, sender),
        through_loss(&client, seen, size),
    );
    tokio::join!(client.end(), server.end());
    let ((_, sha256), links) = result?;
    directory.close().context("cannot remove the temporary files")?;
    Ok(Links { equal: sha256 == expected, ..links })
}

/// A server with one address, and a client with two, which uses both.
async fn start(directory: &TempDir, web: &Web) -> Result<(Machine, Machine, std::net::SocketAddr)> {
    let (at, subnet, to) = (directory.path(), subnet()?, web.address.to_string());
    let expose = ["expose", "--ticket", "--json", "--to", &to, "--allow", "any"];
    let (server, ready) = Machine::start(at, "server", subnet, &[10], &expose).await?;
    let ticket = ready.ticket.context("the server gave no ticket")?;
    let forward = ["forward", &ticket, "--json", "--mode", "full"];
    let (client, ready) = Machine::start(at, "client", subnet, &BOTH, &forward).await?;
    let port = ready.listening.context("the forward does not listen")?;
    Ok((server, client, port))
}

/// Takes the busier link away after a third of the download, and brings it back after two thirds.
async fn through_loss(client: &Machine, mut seen: watch::Receiver<Seen>, size: u64) -> Result<Links> {
    until(&mut seen, size / 3).await?;
    let paths = working(client).await?;
    let of = |place| paths.iter().find(|p| client.is_at(p.local.ip(), place)).map_or(0, |p| p.bytes_received);
    let shares = BOTH.map(of);
    // The one that does more is missed more.
    let left = if shares[0] < shares[1] { BOTH[0] } else { BOTH[1] };
    client.be_at(&[left]).await?;
    let pause = longest_pause(&mut seen, size / 3 * 2).await?;
    let back = Instant::now();
    client.be_at(&BOTH).await?;
    while working(client).await?.len() < BOTH.len() {
        if back.elapsed() > LIMIT {
            bail!("the link that was brought back is not used");
        }
        tokio::time::sleep(LOOK).await;
    }
    Ok(Links { shares, pause_ms: millis(pause), back_ms: millis(back.elapsed()), equal: false })
}

pub(super) async fn until(seen: &mut watch::Receiver<Seen>, bytes: u64) -> Result<Seen> {
    match tokio::time::timeout(LIMIT, seen.wait_for(|seen| seen.bytes >= bytes)).await {
        Ok(Ok(seen)) => Ok(*seen),
        Ok(Err(_)) => bail!("the download ended too soon"),
        Err(_) => bail!("the download does not go on"),
    }
}

pub(super) async fn longest_pause(seen: &mut watch::Receiver<Seen>, bytes: u64) -> Result<Duration> {
    let (mut last, mut longest) = (Instant::now(), Duration::ZERO);
    let mut have = seen.borrow().bytes;
    while have < bytes {
        let news = until(seen, have + 1).await?;
        longest = longest.max(news.at.saturating_duration_since(last));
        (have, last) = (news.bytes, news.at.max(last));
    }
    Ok(longest)
}

/// The paths that work.
pub(super) async fn working(client: &Machine) -> Result<Vec<PathReport>> {
    let report = status::report(&client.socket).await?;
    let paths = report.connections.into_iter().flat_map(|connection| connection.paths);
    Ok(paths.filter(|path| path.state == "active").collect())
}
