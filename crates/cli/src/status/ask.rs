//! A client's side of the commands' sockets.

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::answer::{Answer, Request};
use super::{LIMIT, MAX_REPORT, Report, check};
use crate::estate::Question;
use crate::limits::{Rule, Who};
use crate::moving::{Ticketed, Word};
use crate::multipath::Change;
use crate::places;
use whimbrel_base::order;

/// For a command to wait for another device: it finds its relays (5 s at most), and these answer (10 s).
const WORD_LIMIT: Duration = Duration::from_secs(20);

/// The sockets of all commands of this user, dead ones included.
pub(super) fn sockets() -> Result<Vec<PathBuf>> {
    let directory = places::runtime();
    let entries = match std::fs::read_dir(&directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot read {}", directory.display())),
    };
    check(&directory)?;
    let files = entries.flatten().map(|entry| entry.path());
    Ok(files.filter(|file| file.extension().is_some_and(|extension| extension == "sock")).collect())
}

/// Asks all running commands of this user, at the same time. Removes the sockets that dead ones left.
pub(crate) async fn ask_all() -> Result<Vec<Report>> {
    let mut asking: JoinSet<_> =
        sockets()?.into_iter().map(|file| async move { (ask(&file, &[]).await, file) }).collect();
    let mut reports = Vec::new();
    while let Some(asked) = asking.join_next().await {
        match asked? {
            (Ok(report), _) => reports.push(report),
            (Err(error), file) if error.kind() == ErrorKind::ConnectionRefused => {
                // Nobody listens any more; another `status` may have removed it too.
                let _ = std::fs::remove_file(&file);
            }
            (Err(error), file) => {
                tracing::info!(file = %file.display(), %error, "a command does not answer");
            }
        }
    }
    order::by_key(&mut reports, |report| (report.started_ms, report.pid));
    Ok(reports)
}

/// Asks one command.
async fn ask(file: &Path, request: &[u8]) -> io::Result<Report> {
    match Answer::read(&exchange(file, request, LIMIT).await?)? {
        Answer::Report(report) => Ok(*report),
        Answer::Refusal { error } => Err(io::Error::other(error)),
    }
}

/// What one command says to a request.
async fn exchange(file: &Path, request: &[u8], limit: Duration) -> io::Result<Vec<u8>> {
    let exchange = async {
        let mut socket = UnixStream::connect(file).await?;
        socket.write_all(request).await?;
        socket.shutdown().await?;
        let mut answer = Vec::new();
        socket.take(MAX_REPORT).read_to_end(&mut answer).await?;
        Ok(answer)
    };
    tokio::time::timeout(limit, exchange).await.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()))
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
    ask_for(report, Request { change: Some(change), ..Request::default() }).await
}

/// Limits what a running command sends.
pub(crate) async fn set_limit(report: &Report, rule: Rule) -> Result<Report> {
    ask_for(report, Request { limit: Some(rule), ..Request::default() }).await
}

/// Lifts a limit that was set so.
pub(crate) async fn lift_limit(report: &Report, who: Who) -> Result<Report> {
    ask_for(report, Request { lift: Some(who), ..Request::default() }).await
}

/// Lets a device have the session of a running command, and says where that finds it.
pub(crate) async fn hand_over(report: &Report, word: Word) -> Result<Ticketed> {
    let file = socket_of(report.pid);
    let request = serde_json::to_vec(&Request { hand_over: Some(word), ..Request::default() })?;
    let asked = exchange(&file, &request, WORD_LIMIT).await;
    let answer = asked.with_context(|| format!("no answer on {}", file.display()))?;
    let value: serde_json::Value =
        serde_json::from_slice(&answer).context("the command says something else")?;
    match value.get("error").and_then(serde_json::Value::as_str) {
        Some(error) => Err(anyhow!("{error}")),
        // An older command answers with its state.
        None => serde_json::from_value(value).context("the command is of an older version; start it again"),
    }
}

/// The socket of the command with this process number.
pub(crate) fn socket_of(pid: u32) -> PathBuf {
    places::runtime().join(format!("{pid}.sock"))
}

/// The request to take over from a running command.
pub(crate) fn take_over(question: Question) -> impl serde::Serialize {
    Request { take_over: Some(question), ..Request::default() }
}

async fn ask_for(report: &Report, request: Request) -> Result<Report> {
    let request = serde_json::to_vec(&request)?;
    let file = socket_of(report.pid);
    // What the command says is the answer; that it could not be asked needs saying where.
    ask(&file, &request).await.map_err(|error| match error.get_ref() {
        Some(said) if error.kind() == ErrorKind::Other => anyhow!("{said}"),
        _ => anyhow::Error::new(error).context(format!("no answer on {}", file.display())),
    })
}
