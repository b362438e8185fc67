//! From whom files are taken, how much, and in which batches.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Result, anyhow, bail};
use whimbrel_base::{ConnectionId, EndpointId};
use whimbrel_names::KnownPeers;
use whimbrel_transport::Connection;

use super::asking::Asker;
use super::batch::Incoming;
use super::destination::Destination;
use super::message::{Batch, Offer};
use crate::access::Access;
use crate::output::bytes;
use crate::progress::Board;

/// Batches on their way at once.
const MAX_BATCHES: usize = 64;
/// Offers that were agreed to and have not arrived yet: their senders may come again without a question.
const MAX_AGREED: usize = 1024;

/// How much is taken, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) file: u64,
    pub(crate) total: u64,
}

/// Who says that something may come.
pub(crate) enum Consent {
    /// All that who is let in may send.
    Given,
    /// The person at the terminal is asked.
    Ask(Asker),
    /// Nobody can be asked: only who is named in `--allow` may send, not who is let in as anybody is.
    Named(Access),
    /// This file was agreed to at another device, and nothing else.
    Begun(String),
    /// The same of several files.
    BegunTogether(Batch),
}

/// What is taken, and where it goes. Shared by all transfers.
pub(crate) struct Inbox {
    pub(super) destination: Arc<Destination>,
    pub(super) board: Board,
    limits: Limits,
    consent: Consent,
    known: KnownPeers,
    /// Bytes that were taken, or room was kept for.
    taken: Mutex<u64>,
    /// By their connections, whose peers may become others.
    batches: Mutex<HashMap<(ConnectionId, u64), Arc<Incoming>>>,
    agreed: Mutex<HashSet<(EndpointId, String)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inbox {
    pub(crate) fn open(
        directory: &Path,
        overwrite: bool,
        limits: Limits,
        consent: Consent,
        known: KnownPeers,
        board: Board,
    ) -> Result<Self> {
        Ok(Self {
            destination: Arc::new(Destination::open(directory, overwrite)?),
            board,
            limits,
            consent,
            known,
            taken: Mutex::default(),
            batches: Mutex::default(),
            agreed: Mutex::default(),
        })
    }

    /// Whether the offer's size is one that is taken here, by itself and with all that came before.
    pub(super) fn check_size(&self, name: &str, size: u64, is_file: bool) -> Result<()> {
        let Limits { file, total } = self.limits;
        if is_file && size > file {
            bail!("{name} has {}, and at most {} a file are taken (--max-size)", bytes(size), bytes(file));
        }
        let left = total.saturating_sub(*lock(&self.taken));
        if size > left {
            bail!(
                "{name} has {}, and at most {} more are taken (--max-total {})",
                bytes(size),
                bytes(left),
                bytes(total)
            );
        }
        Ok(())
    }

    /// Keeps room for bytes that come.
    pub(super) fn reserve(self: &Arc<Self>, name: &str) -> Room {
        Room { inbox: self.clone(), name: name.to_owned(), size: 0, kept: 0, used: 0 }
    }

    /// Waits until it is agreed that this may come. Returns with whom: the connection may go to another key
    /// later.
    pub(super) async fn agree(&self, connection: &Connection, offer: &Offer) -> Result<EndpointId> {
        let peer = connection.peer_id();
        let asker = match &self.consent {
            Consent::Given => return Ok(peer),
            Consent::Named(access) if access.names(peer) => return Ok(peer),
            Consent::Begun(name) if offer.batch.is_none() && *name == offer.name => return Ok(peer),
            Consent::BegunTogether(batch) if offer.batch.as_ref() == Some(batch) => return Ok(peer),
            Consent::BegunTogether(_) => bail!("only files that were begun elsewhere are received here"),
            Consent::Begun(name) => bail!("only {name:?}, which was begun elsewhere, is received here"),
            Consent::Named(_) => bail!(
                "the receiver can't be asked; it takes files from those whom `--allow ID` names, or with --yes"
            ),
            Consent::Ask(asker) => asker,
        };
        let question = question(&self.who(peer), offer);
        let key = (peer, question.clone());
        if lock(&self.agreed).contains(&key) {
            return Ok(peer);
        }
        asker.ask(connection, &question).await?;
        let mut agreed = lock(&self.agreed);
        if agreed.len() >= MAX_AGREED {
            agreed.clear();
        }
        agreed.insert(key);
        Ok(peer)
    }

    /// Forgets what was agreed to with this peer: it has arrived.
    pub(super) fn arrived(&self, peer: EndpointId, offer: &Offer) {
        lock(&self.agreed).remove(&(peer, question(&self.who(peer), offer)));
    }

    /// The most that is taken of a file.
    pub(crate) fn most(&self) -> u64 {
        self.limits.file
    }

    /// A peer's id, and the name that it is known under.
    pub(crate) fn who(&self, peer: EndpointId) -> String {
        let pins = self.known.pins().unwrap_or_default();
        let name = pins.endpoints().find(|(_, known)| known.id == peer).map(|(name, _)| name);
        let name = name.or_else(|| pins.owners().find(|(_, known)| known.key == peer).map(|(name, _)| name));
        name.map_or_else(|| peer.to_string(), |name| format!("{name} ({peer})"))
    }

    /// Adds a batch that was agreed to.
    pub(super) fn begin(self: &Arc<Self>, on: ConnectionId, id: u64, batch: Incoming) -> Result<Running> {
        let mut batches = lock(&self.batches);
        if batches.contains_key(&(on, id)) {
            bail!("the batch {id} is on its way already");
        }
        if batches.len() >= MAX_BATCHES {
            bail!("too many others send just now; try again later");
        }
        let batch = Arc::new(batch);
        batches.insert((on, id), batch.clone());
        Ok(Running { inbox: self.clone(), key: (on, id), batch })
    }

    /// The batch that a file says it belongs to.
    pub(super) fn batch(&self, on: ConnectionId, id: u64) -> Result<Arc<Incoming>> {
        lock(&self.batches).get(&(on, id)).cloned().ok_or_else(|| anyhow!("there is no such batch"))
    }
}

/// What the person at the terminal is asked. Names are as the sender writes them: escaped.
fn question(who: &str, offer: &Offer) -> String {
    let size = if offer.open_ended { "of unknown size".to_owned() } else { bytes(offer.size) };
    let Some(batch) = &offer.batch else {
        return format!("{who} sends {:?} ({size}). Take it?", offer.name);
    };
    let shown = batch.shown.iter().map(|name| format!("{name:?}")).collect::<Vec<_>>().join(", ");
    let more = match batch.names.saturating_sub(batch.shown.len() as u64) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("{who} sends {} files ({size}): {shown}{more}. Take them?", batch.entries)
}

/// A batch while its first stream lasts.
pub(super) struct Running {
    inbox: Arc<Inbox>,
    key: (ConnectionId, u64),
    pub(super) batch: Arc<Incoming>,
}

impl Drop for Running {
    fn drop(&mut self) {
        lock(&self.inbox.batches).remove(&self.key);
    }
}

/// Room for a file, within what is taken of one and of all. What is not used is given back.
pub(super) struct Room {
    inbox: Arc<Inbox>,
    name: String,
    /// Of the whole file, as far as known.
    size: u64,
    kept: u64,
    used: u64,
}

impl Room {
    /// Keeps room for `more` bytes, beside `present` ones that were there before.
    pub(super) fn keep(&mut self, present: u64, more: u64) -> Result<()> {
        let Limits { file, total } = self.inbox.limits;
        self.size = (self.size + more).max(present.saturating_add(more));
        if self.size > file {
            bail!("{} has more than the {} that are taken of a file (--max-size)", self.name, bytes(file));
        }
        let mut taken = lock(&self.inbox.taken);
        match taken.checked_add(more).filter(|sum| *sum <= total) {
            Some(sum) => *taken = sum,
            None => bail!("no more than {} are taken in all (--max-total); {} ends", bytes(total), self.name),
        }
        self.kept += more;
        Ok(())
    }

    /// Bytes that were written.
    pub(super) fn used(&mut self, bytes: u64) {
        self.used += bytes;
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        *lock(&self.inbox.taken) -= self.kept.saturating_sub(self.used);
    }
}
