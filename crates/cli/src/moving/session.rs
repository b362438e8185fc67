//! What of a running command could go on at another device, and the word that lets one device have it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use futures_util::FutureExt;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use whimbrel::Endpoint;
use whimbrel_base::{ConnectionId, EndpointId, Name, SecretKey};
use whimbrel_transport::{Allow, Connection, ListenError, ListenOptions, Listener};

use super::giving::{Asked, wait};
use crate::network::name_of_nobody;
use crate::relaying::apart;
use crate::{aside, failure, own_group};

/// No word holds longer, in seconds.
const MOST: u64 = 3600;

/// Sessions of a command that could move, at most: the others stay.
const MOST_KNOWN: usize = 64;

/// What of a command could move: its connections, and answers of HTTPS. Cheap to clone; clones share
/// everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions(Arc<Mutex<Vec<Known>>>);

/// A session that is there.
#[derive(Debug)]
struct Known {
    id: ConnectionId,
    peer: String,
    began: Instant,
    /// Bytes that came, where no connection counts them.
    down: Option<Arc<AtomicU64>>,
    /// Hears of the device that comes for it.
    asked: mpsc::Sender<Asked>,
    /// Waits for the device that has the word.
    word: Option<JoinHandle<()>>,
}

/// What is told of a session that could move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Movable {
    /// 32 hexadecimal digits; those of its connection, if it has one of its own.
    pub(crate) id: String,
    /// What people call the peer.
    pub(crate) peer: String,
    /// For how long it has been here.
    pub(crate) age_ms: u64,
    /// Bytes that came, where no connection counts them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) down: Option<u64>,
}

/// That one device may have a session, once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Word {
    /// How the session's id begins.
    pub(crate) session: String,
    /// The device.
    pub(crate) to: EndpointId,
    /// What people call it.
    pub(crate) called: String,
    /// For how long.
    pub(crate) seconds: u64,
    /// The relays through which it may come.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) relays: Vec<String>,
}

/// Where that device finds the session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ticketed {
    pub(crate) session: String,
    pub(crate) ticket: String,
    /// Why the relays are not in the ticket, if they are not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) unrelayed: Option<String>,
}

impl Known {
    fn is(&self, wanted: &str) -> bool {
        !wanted.is_empty() && self.id.to_string().starts_with(wanted)
    }
}

impl Sessions {
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection that could move from now on, until what is returned is dropped.
    pub(crate) fn begin(&self, connection: &Connection, peer: &str) -> Session {
        self.begin_as(connection.id(), peer, None)
    }

    /// The same of something that has no connection to a peer, and of which so many bytes have come.
    pub(crate) fn begin_object(&self, peer: &str, down: Arc<AtomicU64>) -> Session {
        self.begin_as(ConnectionId::random(), peer, Some(down))
    }

    fn begin_as(&self, id: ConnectionId, peer: &str, down: Option<Arc<AtomicU64>>) -> Session {
        let (sender, asked) = mpsc::channel(1);
        let (peer, began) = (peer.to_owned(), Instant::now());
        let known = Known { id, peer, began, down, asked: sender, word: None };
        let mut all = self.lock();
        if all.len() < MOST_KNOWN {
            all.push(known);
        }
        drop(all);
        Session { sessions: self.clone(), id, asked }
    }

    /// What there is, the oldest first.
    pub(crate) fn report(&self) -> Vec<Movable> {
        let movable = |known: &Known| Movable {
            id: known.id.to_string(),
            peer: known.peer.clone(),
            age_ms: u64::try_from(known.began.elapsed().as_millis()).unwrap_or(u64::MAX),
            down: known.down.as_ref().map(|down| down.load(Ordering::Relaxed)),
        };
        self.lock().iter().map(movable).collect()
    }

    /// Lets one device come for the session: it is waited for at what is returned. A later word takes the
    /// place of an earlier one.
    ///
    /// # Errors
    /// For people: there is no such session, the device was removed, or nobody can be waited for.
    pub(crate) async fn give_word(
        &self,
        (endpoint, key): (&Endpoint, &SecretKey),
        word: &Word,
    ) -> Result<Ticketed, String> {
        if !(1..=MOST).contains(&word.seconds) {
            return Err("a word holds for a second at least, and an hour at most".to_owned());
        }
        if is_out(key.clone(), word.to).await {
            return Err("that was removed from your devices, or the list of them cannot be read".to_owned());
        }
        let (id, asked, before) = {
            let mut all = self.lock();
            let known = all.iter_mut().find(|known| known.is(&word.session));
            let known = known.ok_or("there is no such session here any more")?;
            (known.id, known.asked.clone(), known.word.take())
        };
        if let Some(before) = before {
            before.abort();
            // Its listener is gone then.
            let _ = before.await;
        }
        let (listener, name) = listen(endpoint, || only(word.to, key.clone())).await?;
        // In the same network it does without.
        let (keeper, unrelayed) = apart::keep(endpoint, &word.relays).await;
        let ticket = endpoint.ticket(name).to_string();
        let limit = Duration::from_secs(word.seconds);
        let waiting = wait((listener, keeper), (id.to_string(), word.called.clone()), asked);
        let waiting = async move {
            let _ = tokio::time::timeout(limit, waiting).await;
        };
        let waiting = tokio::spawn(FutureExt::boxed(waiting));
        match self.lock().iter_mut().find(|known| known.id == id) {
            // Another word may have been given at the same time: the last one holds.
            Some(known) => {
                if let Some(before) = known.word.replace(waiting) {
                    before.abort();
                }
            }
            None => {
                waiting.abort();
                return Err("the session has ended".to_owned());
            }
        }
        Ok(Ticketed { session: id.to_string(), ticket, unrelayed })
    }

    fn forget(&self, id: ConnectionId) {
        let mut all = self.lock();
        let ended = all.iter().position(|known| known.id == id).map(|at| all.remove(at));
        drop(all);
        end(ended);
    }
}

/// The command's side of what could move.
pub(crate) struct Session {
    sessions: Sessions,
    id: ConnectionId,
    asked: mpsc::Receiver<Asked>,
}

impl Session {
    /// The device that has the word, and has come. Cancel-safe.
    pub(crate) async fn asked(&mut self) -> Asked {
        match self.asked.recv().await {
            Some(asked) => asked,
            None => std::future::pending().await,
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.sessions.forget(self.id);
    }
}

/// Listens for those who are let in. What waits by ticket itself has a listener without a name already: the
/// word's then has a name that nobody else has, and that no name service hears of.
async fn listen(endpoint: &Endpoint, allow: impl Fn() -> Allow) -> Result<(Listener, Option<Name>), String> {
    let failed = |error: ListenError| format!("cannot wait for the other device: {error}");
    match endpoint.listen(ListenOptions::unnamed().allow(allow())).await {
        Ok(listener) => return Ok((listener, None)),
        Err(ListenError::InUse(_)) => {}
        Err(error) => return Err(failed(error)),
    }
    let name = name_of_nobody().ok_or("there is no randomness")?;
    let options = ListenOptions::named(&name).unpublished().allow(allow());
    let listener = endpoint.listen(options).await.map_err(failed)?;
    Ok((listener, Some(name)))
}

/// Lets this one device in, unless it was removed from the user's devices since.
fn only(to: EndpointId, key: SecretKey) -> Allow {
    Allow::check(move |peer| {
        let key = key.clone();
        async move { peer == to && !is_out(key, to).await }
    })
}

/// Whether a device was removed from the list of this key's user. One that cannot be read lets in nobody.
async fn is_out(key: SecretKey, device: EndpointId) -> bool {
    let looked = aside::run(move || own_group::is_out(&key, device)).await;
    looked.context("the process is ending").and_then(|read| read).unwrap_or_else(|error| {
        tracing::warn!(error = failure::line(&error), "this user's devices are not known");
        true
    })
}

/// Ends the wait for a device that was given a word.
fn end(known: Option<Known>) {
    if let Some(word) = known.and_then(|known| known.word) {
        word.abort();
    }
}
