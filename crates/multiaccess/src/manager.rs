//! The multi-access manager: measures, and answers on a Unix socket (*Socket Intents*, §V-E).

use crate::door::Door;
use crate::measure::Measuring;
use crate::parting::{TOLD_WITHIN, part};
use crate::protocol::Answer;
use crate::session::Session;
use crate::shared::Shared;
use crate::wifi::{self, Radios};
use crate::{Settings, SettingsError, network_manager, steer};
use futures_util::FutureExt;
use std::io;
use std::sync::Arc;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// The most clients at a time.
pub const MAX_CLIENTS: usize = 256;
/// The user that may do everything anyway.
const ROOT: u32 = 0;

/// Why a manager does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The settings make no sense.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The kernel does not answer.
    #[error("the kernel does not tell of interfaces and connections: {0}")]
    Kernel(#[from] io::Error),
}

/// A running manager. It stops when this is dropped.
pub struct Manager {
    shared: Arc<Shared>,
    tasks: JoinSet<()>,
}

impl Manager {
    /// Measures once, and answers on this socket from then on. Must run inside a tokio runtime.
    ///
    /// Clients are let in if they run as the same user, or as root. Who can connect at all is a matter of the
    /// directory that the socket is in.
    ///
    /// # Errors
    /// When the settings make no sense, or the kernel does not answer.
    pub async fn start(settings: Settings, listener: UnixListener) -> Result<Self, StartError> {
        Self::serve(settings, listener, false, None).await
    }

    /// As [`Manager::start`], where `radios` tell of Wi-Fi and the kernel is not asked: for radios that the
    /// kernel knows nothing of, and for tests, which have none.
    ///
    /// # Errors
    /// As [`Manager::start`].
    pub async fn with_radios(
        settings: Settings,
        listener: UnixListener,
        radios: Radios,
    ) -> Result<Self, StartError> {
        Self::serve(settings, listener, false, Some(radios)).await
    }

    /// The same for all users of the host: clients of any user are let in. What one of them schedules,
    /// reports and measures changes no decision for others; it sees decisions for itself alone, and has
    /// connections of its own steered, and no others. Settings are a matter of the user that runs this, who
    /// should be root.
    ///
    /// # Errors
    /// As [`Manager::start`].
    pub async fn for_host(settings: Settings, listener: UnixListener) -> Result<Self, StartError> {
        Self::serve(settings, listener, true, None).await
    }

    async fn serve(
        settings: Settings,
        listener: UnixListener,
        serves_all: bool,
        radios: Option<Radios>,
    ) -> Result<Self, StartError> {
        settings.check()?;
        let shared = Shared::new(settings).map_err(SettingsError::Policy)?;
        let shared = Arc::new(shared);
        let measuring = Measuring::begin(&shared).await?;
        let mut tasks = JoinSet::new();
        tasks.spawn(FutureExt::boxed(measuring.run(Arc::clone(&shared))));
        tasks.spawn(FutureExt::boxed(accept(listener, Arc::clone(&shared), serves_all)));
        tasks.spawn(FutureExt::boxed(steer::run(Arc::clone(&shared))));
        match radios {
            Some(radios) => tasks.spawn(FutureExt::boxed(wifi::take(Arc::clone(&shared), radios))),
            None => tasks.spawn(FutureExt::boxed(wifi::run(Arc::clone(&shared)))),
        };
        if shared.settings.networkmanager {
            tasks.spawn(FutureExt::boxed(network_manager::run(Arc::clone(&shared))));
        }
        Ok(Self { shared, tasks })
    }

    /// The interfaces that there are paths by, at present.
    pub fn interfaces(&self) -> Vec<String> {
        self.shared.paths().report().into_iter().map(|path| path.interface).collect()
    }

    /// Waits for the end of a part of it, which is an error in this program: there is none otherwise.
    pub async fn failed(&mut self) {
        self.tasks.join_next().await;
    }
}

async fn accept(listener: UnixListener, shared: Arc<Shared>, serves_all: bool) {
    let mut door = Door::new(listener, MAX_CLIENTS);
    let mut number = 0;
    loop {
        let stream = door.next().await;
        number += 1;
        let admitted = admit(&stream, door.is_full(), serves_all).and_then(|user| match user {
            Some(user) => shared.enter(number, user).map_err(Some),
            None => Ok(()),
        });
        match admitted {
            Ok(()) => door.let_in(Session::new(stream, number, Arc::clone(&shared)).run()),
            Err(Some(why)) => door.turn_away(turn_away(stream, why)),
            Err(None) => {}
        }
    }
}

/// Whether a client is let in, and as whose if it is another user's. Else what it is told.
fn admit(stream: &UnixStream, is_full: bool, serves_all: bool) -> Result<Option<u32>, Option<String>> {
    let own = rustix::process::geteuid().as_raw();
    let peer = stream.peer_cred().map_err(|error| {
        tracing::warn!(%error, "cannot tell who a client is");
        None
    })?;
    let is_other = peer.uid() != own && peer.uid() != ROOT;
    if is_other && !serves_all {
        tracing::warn!(uid = peer.uid(), "a client of another user is turned away");
        return Err(Some(format!(
            "this manager answers user {own} and root, and you are user {}",
            peer.uid()
        )));
    }
    if is_full {
        return Err(Some(format!("this manager has {MAX_CLIENTS} clients already; connect later")));
    }
    Ok(is_other.then_some(peer.uid()))
}

async fn turn_away(mut stream: UnixStream, why: String) {
    let answer = Answer { error: Some(why), ..Answer::default() };
    let Ok(mut line) = serde_json::to_vec(&answer) else { return };
    line.push(b'\n');
    // A client that does not read misses the reason, and nothing else.
    let told = async {
        if stream.write_all(&line).await.is_ok() {
            part(&mut stream).await;
        }
    };
    let _ = tokio::time::timeout(TOLD_WITHIN, told).await;
}
