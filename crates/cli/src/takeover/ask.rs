//! The newer instance's side.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use tokio::net::UnixStream;
use whimbrel_transport::{Config, Connection, OpenSockets, TlsSessions};

use super::Running;
use crate::estate::{Answer, Estate, Item, Question, VERSIONS, Wire, Woken};
use crate::failure::Failure;
use crate::network::{Network, Wish};
use crate::status::{self, Report};

/// The running instance first gathers what it has.
const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// How long it may take to say that it ends, when this one is ready.
const GO_LIMIT: Duration = Duration::from_secs(30);

/// What a running instance hands over, or what this process was about to.
pub(crate) struct Inherited {
    pub(crate) estate: Estate,
    /// The running instance, until it has let go.
    from: Option<Wire>,
}

impl Inherited {
    /// Asks the running instance, the one with this process number unless that is 0.
    ///
    /// # Errors
    /// When there is none, or several, or it does not hand over.
    pub(super) async fn from_running(running: &Running<'_>, pid: u32) -> Result<Self> {
        let report = find(status::ask_all().await?, running, pid)?;
        let failed = || format!("cannot take over from process {}", report.pid);
        let socket = UnixStream::connect(status::socket_of(report.pid)).await.with_context(failed)?;
        let mut wire = Wire::new(socket);
        let question = status::take_over(Question { versions: VERSIONS.to_vec() });
        let answer = async {
            wire.send_line(&question).await?;
            wire.receive_line().await
        };
        let answer = tokio::time::timeout(ANSWER_LIMIT, answer).await.context("no answer in time");
        let answer = answer.with_context(failed)?.with_context(failed)?;
        understand(&answer).with_context(failed)?;
        let estate = tokio::time::timeout(ANSWER_LIMIT, Estate::receive(&mut wire)).await;
        let estate = estate.context("it does not hand over everything in time").with_context(failed)?;
        Ok(Self { estate: estate.with_context(failed)?, from: Some(wire) })
    }

    /// What this process had before, and goes on with.
    pub(super) fn own(estate: Estate) -> Self {
        Self { estate, from: None }
    }

    /// Whether this process goes on with what it had: it has told its user everything before.
    pub(crate) fn is_own(&self) -> bool {
        self.from.is_none()
    }

    /// The endpoint's sockets and sessions, for the one that goes on with them.
    pub(crate) fn wish(inherited: &mut Option<Self>, config: Config) -> Wish {
        let Some(Self { estate, .. }) = inherited else { return Wish { config, ..Wish::default() } };
        let sessions = std::mem::replace(&mut estate.sessions, TlsSessions::from_bytes([]));
        let sockets: Option<OpenSockets> = estate.sockets.take();
        Wish { config, sockets, sessions: Some(sessions), ..Wish::default() }
    }

    /// What a relay goes on with: for the one that does. Nothing if there is none.
    pub(crate) fn take_relay(inherited: &mut Option<Self>) -> whimbrel_relay::Estate {
        inherited.as_mut().map(|inherited| std::mem::take(&mut inherited.estate.relay)).unwrap_or_default()
    }

    /// Reads the connections back, has the running instance end, and returns what begins then.
    ///
    /// # Errors
    /// When something cannot be used, or the running instance goes on instead: nothing has begun then.
    pub(crate) async fn ready(self, network: &Network) -> Result<Waking> {
        let Self { estate, from } = self;
        if !estate.relay.is_empty() {
            bail!("the running instance relays, and this one would not: start `whimbrel serve` in its place");
        }
        let asleep = network.endpoint.transport().wake(&estate.connections);
        let connections = asleep.context("cannot go on with the connections that were handed over")?;
        if let Some(mut wire) = from {
            let agreed = async {
                wire.say(&Item::Ready).await?;
                wire.receive().await
            };
            match tokio::time::timeout(GO_LIMIT, agreed).await {
                Ok(Ok((Item::Go, _))) => {}
                _ => bail!("the running instance goes on after all"),
            }
        }
        Ok(Waking { connections, estate })
    }
}

/// What this instance has from now on.
pub(crate) struct Waking {
    connections: whimbrel_transport::Waking,
    estate: Estate,
}

impl Waking {
    /// As [`begin`](Self::begin), for a command that knows the streams itself: those that are dropped end.
    ///
    /// # Errors
    /// When the endpoint cannot listen.
    pub(crate) fn begin_connections(self) -> Result<Vec<Connection>> {
        self.connections.begin().context("cannot go on with the connections")
    }

    /// Has the connections go on. Those who listen should do so already: clients come at once.
    ///
    /// # Errors
    /// When the endpoint cannot listen.
    pub(crate) fn begin(self) -> Result<(Vec<Connection>, Woken)> {
        let connections = self.connections.begin().context("cannot go on with the connections")?;
        let woken = Woken::of(&connections, self.estate);
        Ok((connections, woken))
    }
}

/// The one that is meant.
fn find(reports: Vec<Report>, running: &Running<'_>, pid: u32) -> Result<Report> {
    let id = running.id.to_string();
    let mut same: Vec<Report> = reports
        .into_iter()
        .filter(|report| {
            report.command == running.command
                && report.id == id
                && report.name.as_deref() == running.name
                && report.pid != std::process::id()
                && (pid == 0 || report.pid == pid)
        })
        .collect();
    let what = format!("`whimbrel {}`", running.command);
    let of = running.name.map(|name| format!(" for {name}")).unwrap_or_default();
    match (same.pop(), same.len()) {
        (Some(report), 0) => Ok(report),
        (Some(report), _) => {
            same.push(report);
            let pids: Vec<String> = same.iter().map(|report| report.pid.to_string()).collect();
            Err(Failure::usage(format!(
                "{} instances of {what}{of} run: say which one to take over from, as in --take-over={}",
                pids.len(),
                pids.join(" or ")
            )))
        }
        (None, _) => {
            let with = if pid == 0 { String::new() } else { format!(" as process {pid}") };
            let message = format!(
                "nothing to take over: no {what}{of} of this key runs{with}; `whimbrel status` shows what does. Start \
                 without --take-over"
            );
            Err(Failure::new(Failure::NOT_FOUND, message).into())
        }
    }
}

/// Checks the answer to the question.
fn understand(answer: &[u8]) -> Result<()> {
    if let Ok(Answer { hand_over }) = serde_json::from_slice(answer) {
        tracing::info!(version = hand_over.version, program = hand_over.program, "taking over");
        if VERSIONS.contains(&hand_over.version) {
            return Ok(());
        }
        bail!(
            "it hands over in version {}, which this program does not know; restart it instead",
            hand_over.version
        );
    }
    match serde_json::from_slice::<Value>(answer) {
        Ok(Value::Object(said)) if said.contains_key("error") => {
            bail!("{}", said["error"].as_str().unwrap_or("it refuses"))
        }
        // It told its state: it does not know the question.
        Ok(Value::Object(_)) => bail!("it runs an older program, which cannot hand over; restart it instead"),
        _ => bail!("it ended meanwhile"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn answers_are_understood_or_told_in_words() {
        understand(br#"{"hand_over":{"version":1,"program":"0.1.0","later":7}}"#).unwrap();
        let why = |answer: &[u8]| understand(answer).unwrap_err().to_string();
        assert!(why(br#"{"hand_over":{"version":7,"program":"9.9"}}"#).contains("version 7"));
        assert!(why(br#"{"error":"no"}"#).contains("no"));
        assert!(why(br#"{"command":"expose","pid":1}"#).contains("older program"));
        assert!(why(b"").contains("ended"));
    }
}
