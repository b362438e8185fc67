//! What the running commands of this user do: each answers on a socket in a directory that only this
//! user can look into. Other programs may ask too: `docs/operations.md` has every request and answer.
//!
//! A client sends at most one line, which ends with a newline or the end of its direction: nothing to ask for
//! the state; `{"change":{…}}` to change how paths are used; `{"limit":{…}}` and `{"lift":{…}}` for limits of
//! rates; or, to a command that was started with `--address`, `{"addresses":["127.0.0.3"]}` to move it;
//! `{"take_over":{…}}` to [go on in its place](crate::takeover); `{"hand_over":{…}}` to let another device
//! have its [session](crate::moving). The answer is one [`Report`] in JSON, or `{"error":"…"}`. To
//! `{"events":{…}}` the answer is a line for each event, until the client leaves.

mod answer;
mod ask;
mod event;
mod monitor;
mod report;
mod subject;

use futures_util::FutureExt;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use tokio::net::UnixListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_relay::Keeping;
use whimbrel_transport::Watch;

pub(crate) use self::ask::{
    ask_all, change_paths, hand_over, lift_limit, report, set_addresses, set_limit, socket_of, take_over,
};
pub(crate) use self::event::{Event, What, Which};
pub(crate) use self::monitor::follow_all;
pub(crate) use self::report::{
    ConnectionReport, FlowReport, MessageCounts, MessageReport, PathReport, Report,
};

use self::answer::Answerer;
use self::subject::Subject;
use crate::estate::Asker;
use crate::limits::Limits;
use crate::moving::Sessions;
use crate::network::Network;
use crate::sockets::Sockets;
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
    relays: Option<Watch<Keeping>>,
    hands_over: bool,
    sessions: Sessions,
}

impl About {
    pub(crate) fn new(command: &'static str, name: Option<String>) -> Self {
        Self { command, name, sockets: None, relays: None, hands_over: false, sessions: Sessions::default() }
    }

    /// A newer instance may take over: the command hears of it by [`Reporter::asked`].
    pub(crate) fn handing_over(self) -> Self {
        Self { hands_over: true, ..self }
    }

    /// With the relays through which the command is reached.
    pub(crate) fn relayed(self, relays: Option<Watch<Keeping>>) -> Self {
        Self { relays, ..self }
    }

    /// With what could go on at another device.
    pub(crate) fn moving(self, sessions: &Sessions) -> Self {
        Self { sessions: sessions.clone(), ..self }
    }

    /// With the sockets that the command serves.
    pub(crate) fn counting(self, sockets: Arc<Sockets>) -> Self {
        Self { sockets: Some(sockets), ..self }
    }
}

/// Answers on this command's socket until it is dropped.
pub(crate) struct Reporter {
    file: Option<PathBuf>,
    /// Those that answer, and that keep limits; they end with this.
    _tasks: JoinSet<()>,
    successors: mpsc::Receiver<Asker>,
}

impl Reporter {
    /// Puts the command's limits in force and answers from then on. A command that cannot be asked still does
    /// its work.
    ///
    /// # Errors
    /// What is wrong in the file of limits.
    pub(crate) fn start(network: &Network, about: About, quiet: bool) -> Result<Self> {
        let service = network.service.as_ref().map(whimbrel_names::ServiceAddress::id);
        let (limits, mut tasks) =
            Limits::start(&network.endpoint, service, about.name.clone(), network.limits.clone())?;
        let (sender, successors) = mpsc::channel(1);
        let answerer = Answerer {
            successors: about.hands_over.then_some(sender),
            manual: network.manual.clone(),
            subject: Subject {
                endpoint: network.endpoint.clone(),
                key: network.key.clone(),
                service,
                about,
                limits,
                started: SystemTime::now().into(),
            },
        };
        match listen() {
            Ok((listener, file)) => {
                tasks.spawn(FutureExt::boxed(answer::serve(listener, answerer)));
                Ok(Self { file: Some(file), _tasks: tasks, successors })
            }
            Err(error) => {
                let line = crate::failure::line(&error);
                output::note(quiet, format!("`whimbrel status` will not show this command: {line}"));
                Ok(Self { file: None, _tasks: tasks, successors })
            }
        }
    }

    /// A newer instance that wants to take over. Cancel-safe.
    pub(crate) async fn asked(&mut self) -> Asker {
        match self.successors.recv().await {
            Some(asker) => asker,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
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
    let file = ask::socket_of(std::process::id());
    // A dead process that had our number may have left it.
    let _ = std::fs::remove_file(&file);
    let listener =
        UnixListener::bind(&file).with_context(|| format!("cannot listen on {}", file.display()))?;
    Ok((listener, file))
}

/// In /tmp, anybody may have made the directory first.
pub(crate) fn check(directory: &Path) -> Result<()> {
    let metadata = std::fs::symlink_metadata(directory)
        .with_context(|| format!("cannot read {}", directory.display()))?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !metadata.is_dir() || !ours || metadata.mode() & 0o077 != 0 {
        bail!("{} is not a directory of yours alone; remove it", directory.display());
    }
    Ok(())
}

/// Decodes whatever comes as a request, and as an answer and an event, which are returned; what is understood
/// can be said again.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) -> (Option<Report>, Option<Event>) {
    fn again<T: serde::Serialize + serde::de::DeserializeOwned>(understood: &T) -> serde_json::Result<()> {
        serde_json::from_slice::<T>(&serde_json::to_vec(understood)?).map(drop)
    }
    if let Ok(request) = serde_json::from_slice::<answer::Request>(bytes) {
        assert!(again(&request).is_ok(), "a request that came can be said");
    }
    let report = match answer::Answer::read(bytes) {
        Ok(answer::Answer::Report(report)) => {
            assert!(again(&report).is_ok(), "a report that came can be said");
            Some(*report)
        }
        Ok(answer::Answer::Refusal { .. }) | Err(_) => None,
    };
    let event = serde_json::from_slice::<Event>(bytes).ok();
    if let Some(event) = &event {
        assert!(again(event).is_ok(), "an event that came can be said");
    }
    (report, event)
}
