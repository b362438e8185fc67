//! What becomes of one session that was handed over: a program of the user's list, or nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::AsFd as _;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::process::{Child, Command};
use tokio::time::Instant;
use whimbrel_base::{EndpointId, SecretKey};
use whimbrel_proxy::{Listed, NoSession, Outcome, SessionsAt, Takers};

use super::apps::{App, Apps};
use super::bounds::{Bounds, Busy};
use super::consent::{Answer, Consent};
use super::news::News;
use crate::commands::sessions::Names;
use crate::commands::take::{Asking, Begun, LAST, Place, Waiting, carry, ended, start};
use crate::{aside, failure, moving, own_group, rule};

/// For a program to connect.
const CONNECTS: Duration = Duration::from_secs(60);
/// What the service manager says to the agent, and to nothing that it starts.
const OF_THE_MANAGER: [&str; 6] =
    ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES"];

/// Starts programs for sessions.
pub(super) struct Launcher {
    pub(super) sessions: SessionsAt,
    pub(super) key: SecretKey,
    pub(super) apps: Arc<Apps>,
    /// Devices that may have programs started, beside the user's own.
    pub(super) from: Vec<EndpointId>,
    pub(super) bounds: Arc<Bounds>,
    pub(super) consent: Arc<Consent>,
    pub(super) news: News,
    /// The gateway, as people wrote it.
    pub(super) through: String,
}

/// Why a session stays where it is.
#[derive(Debug)]
pub(super) enum Left {
    Stranger,
    NoApp(String),
    Busy(Busy),
    Asks(String),
    Declined,
    Program(String),
    NotGiven(String),
    /// A command that is so called goes on in a terminal only.
    Terminal(String),
}

impl std::fmt::Display for Left {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Stranger => {
                f.write_str("it stays there: that device may not have programs started here (--from)")
            }
            Self::NoApp(file) => write!(f, "it stays there: no [[app]] of {file} matches"),
            Self::Busy(busy) => write!(f, "it stays there: {busy}"),
            Self::Asks(how) => write!(f, "it stays there, and nobody is here to be asked: {how}"),
            Self::Declined => f.write_str("it stays there, as you wish"),
            Self::Program(error) => write!(f, "it stays there: {error}"),
            Self::NotGiven(error) => write!(f, "it is not here: {error}"),
            Self::Terminal(command) if command == moving::WEB => {
                f.write_str("it stays there: `whimbrel take` asks for the rest of it, for a program of yours")
            }
            Self::Terminal(command) => write!(f, "it stays there: a {command} needs a terminal to go on in"),
        }
    }
}

impl Left {
    /// For programs.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::NoApp(_) => "no-app",
            Self::Busy(_) => "busy",
            Self::Asks(_) => "asks",
            Self::Declined => "declined",
            Self::Program(_) => "program",
            Self::NotGiven(_) => "not-given",
            Self::Terminal(_) => "terminal",
        }
    }

    pub(super) fn program(error: anyhow::Error) -> Self {
        Self::Program(failure::line(&error))
    }
}

/// How a session ended here, and its program if it did.
struct Ended {
    how: &'static str,
    text: String,
    status: Option<ExitStatus>,
}

impl Launcher {
    /// Serves a session until its program has ended, and says what happens. False if it was left where it is.
    pub(super) async fn serve(&self, session: &Listed) -> bool {
        let (holder, id) = (self.name(session.holder).await, session.holder.to_string());
        self.news.of("handed", session, &format!("handed over by {holder}"), json!({ "by": id }));
        match self.run(session, &holder).await {
            Ok(Ended { how, text, status }) => {
                let code = status.and_then(|status| status.code());
                self.news.of("ended", session, &text, json!({ "how": how, "code": code }));
                true
            }
            Err(left) => {
                self.news.of("left", session, &left.to_string(), json!({ "reason": left.reason() }));
                false
            }
        }
    }

    async fn run(&self, session: &Listed, holder: &str) -> Result<Ended, Left> {
        if !self.may_start(session.holder).await {
            return Err(Left::Stranger);
        }
        let found = self.apps.find(&session.to);
        let (app, asks) = found.ok_or_else(|| Left::NoApp(self.apps.file().display().to_string()))?;
        let _place = self.bounds.take(Instant::now()).map_err(Left::Busy)?;
        if asks {
            self.ask(session, app, holder).await?;
            self.is_still_given(session).await?;
        }
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let waiting = Waiting::new(local, (app.how(), app.own_lines())).await.map_err(Left::program)?;
        let place = waiting.place().map_err(Left::program)?;
        let mut program = self.start(session, app, &place).map_err(Left::program)?;
        let asking = connects(waiting, &mut program).await.map_err(Left::program)?;
        let takers = self.takers().await;
        let mut is_here = false;
        let begun = |begun: Begun<'_>| {
            is_here = true;
            self.tell_begun(session, &begun);
        };
        let carried = carry(&self.sessions, session, takers, asking, begun).await;
        let status = match &carried {
            Ok(Outcome::Ended) => ended(&mut program).await.ok(),
            // It has a break to read, and is ended if it does not end.
            _ => tokio::time::timeout(LAST, ended(&mut program)).await.ok().and_then(Result::ok),
        };
        match carried {
            Err(error) if !is_here => Err(Left::NotGiven(failure::line(&error))),
            carried => Ok(Ended::new(app, carried, status)),
        }
    }

    fn start(&self, session: &Listed, app: &App, place: &Place) -> Result<Option<Child>> {
        let child = start(app.words(), place, prepare)?;
        let pid = child.as_ref().and_then(Child::id);
        let text = format!("{} was started", app.name());
        self.news.of("started", session, &text, json!({ "program": app.name(), "pid": pid }));
        Ok(child)
    }

    fn tell_begun(&self, session: &Listed, begun: &Begun<'_>) {
        let warning = begun.warning.map(|text| format!("; warning: {text}")).unwrap_or_default();
        let text = format!("goes on here, from byte {}{warning}", begun.from);
        self.news.of("taken", session, &text, json!({ "offset": begun.from, "warning": begun.warning }));
    }

    async fn ask(&self, session: &Listed, app: &App, holder: &str) -> Result<(), Left> {
        let id = session.id.to_string();
        let how = format!("whimbrel take {} --through {}", &id[..8], self.through);
        let question = format!("{holder} hands over a connection to {}: start {}?", session.to, app.name());
        match self.consent.ask(&question, &how).await {
            Answer::Yes => Ok(()),
            Answer::No => Err(Left::Declined),
            Answer::Nobody => Err(Left::Asks(how)),
        }
    }

    /// Looks again whether this device may take a session: an answer takes its time.
    async fn is_still_given(&self, session: &Listed) -> Result<(), Left> {
        let listed = self.sessions.list().await.map_err(|error| Left::NotGiven(error.to_string()))?;
        let is_there = listed.iter().any(|it| (it.id, it.moves) == (session.id, session.moves));
        if is_there { Ok(()) } else { Err(Left::NotGiven(NoSession.to_string())) }
    }

    /// Whether a device may have programs started here.
    async fn may_start(&self, device: EndpointId) -> bool {
        if self.from.contains(&device) {
            return true;
        }
        let key = self.key.clone();
        match look(move || own_group::other_devices(&key)).await.and_then(|known| known) {
            Ok(known) => known.contains(&device),
            Err(error) => {
                tracing::warn!(error = failure::line(&error), "this user's devices are not known");
                false
            }
        }
    }

    async fn takers(&self) -> Takers {
        let key = self.key.clone();
        look(move || rule::takers(&key)).await.unwrap_or_default()
    }

    /// What a device is called here.
    async fn name(&self, device: EndpointId) -> String {
        let key = self.key.clone();
        let named = look(move || Names::of_key(key).of_device(device)).await;
        named.ok().flatten().unwrap_or_else(|| device.short())
    }
}

impl Ended {
    fn new(app: &App, carried: Result<Outcome>, status: Option<ExitStatus>) -> Self {
        let name = app.name();
        let program = match status {
            Some(status) if status.success() => format!("{name} has ended"),
            Some(status) => format!("{name} failed: {status}"),
            None => format!("{name} did not end, and was ended"),
        };
        let (how, what) = match &carried {
            Ok(Outcome::Moved) => ("moved", "it goes on at another device".to_owned()),
            Ok(_) => ("ended", "it is over".to_owned()),
            Err(error) => ("broken", failure::line(error)),
        };
        Self { how, text: format!("{what}; {program}"), status }
    }
}

/// Looks at files, while which no other session waits.
async fn look<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    aside::run(run).await.context("the process is ending")
}

/// Waits until the program connects, and asks as it should.
pub(super) async fn connects(waiting: Waiting, program: &mut Option<Child>) -> Result<Asking> {
    tokio::select! {
        asking = waiting.program() => asking,
        status = ended(program) => anyhow::bail!("the program ended before it connected: {}", status?),
        () = tokio::time::sleep(CONNECTS) => {
            anyhow::bail!("the program did not connect in {} s", CONNECTS.as_secs())
        }
    }
}

/// A program reads nothing that is typed to the agent, and what it prints is none of the agent's results.
pub(super) fn prepare(command: &mut Command) -> Result<()> {
    let errors = std::io::stderr().as_fd().try_clone_to_owned().context("there is no standard error")?;
    // Ctrl-C is for the agent: a program that ended by it would end its session.
    command.stdin(Stdio::null()).stdout(Stdio::from(errors)).process_group(0);
    for name in OF_THE_MANAGER {
        command.env_remove(name);
    }
    Ok(())
}
