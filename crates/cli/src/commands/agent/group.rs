//! The user's group in step by itself: agents of the user's devices, and of friends who may, keep connections to each
//! other. Heartbeats say which version of the group a device has and whether it is up; differences are fetched.
//!
//! ```text
//! away         whether the user is here
//! policy       who is told what, and when
//! watching     the group as its file has it
//! pulse        heartbeats as they are said
//! listing      which devices the user has, as friends are told it
//! asking       when friends are asked for theirs
//! talk         one connection
//! mailbox      what devices leave for each other with the name service
//! whereabouts  where devices were reached last
//! ```

mod asking;
mod away;
mod listing;
mod mailbox;
mod policy;
mod pulse;
mod talk;
mod watching;
mod whereabouts;

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::path::Path;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;
use whimbrel_base::{EndpointId, SecretKey};
use whimbrel_devices::Replica;
use whimbrel_transport::{Allow, CloseCode, ConnectError, Connection, ListenOptions};

use self::asking::Older;
use self::away::State;
use self::listing::{Listed, Retold};
use self::policy::Told;
pub(super) use self::policy::called;
use self::pulse::Pulse;
use self::watching::Known;
use self::whereabouts::{Whereabouts, dialled};
use crate::commands::devices::Meetings;
use crate::network::{Network, Peer, connect, connect_to_listener};
use crate::own_group::OwnGroup;
use crate::presence::{self, Presence, Said, Shown};
use crate::{aside, failure, output};

/// Connections of other agents.
const MOST_GUESTS: usize = 128;
/// Of them of one device, which may run more than one agent.
const MOST_OF_ONE: usize = 4;
/// For a device to answer a call.
const CALL_LIMIT: Duration = Duration::from_secs(30);
/// A device that is not to be called any more is told so within this time.
const LEAVE: Duration = Duration::from_secs(3);
/// Between two looks whether other commands are to be told who is up.
const WRITE: Duration = Duration::from_secs(1);
/// Between two looks whether this machine was made another user's device.
const USER: Duration = Duration::from_secs(5);
/// What agents are asked for by their keys. None listens under it, so the listener without a name answers,
/// and no program of the same key that listens under a name alone.
const LISTENER: &str = "agent@whimbrel.invalid";
const READY: &str = "your devices and friends are kept in step here";

/// What the user wishes.
pub(super) struct Wished {
    /// Devices to call beside those that are found by their keys.
    pub(super) peers: Vec<Peer>,
    /// Whether anybody is told that this device is up.
    pub(super) visible: bool,
    /// Whether the user is not at it, at the beginning.
    pub(super) away: bool,
    /// Say on standard output that it is ready, as JSON or not: the agent does nothing else.
    pub(super) told: Option<bool>,
}

/// What all connections share.
struct Shared {
    network: Arc<Network>,
    replica: Arc<Replica>,
    known: watch::Receiver<Arc<Known>>,
    presence: Mutex<Presence>,
    /// Which devices friends have, as they show them.
    shown: Mutex<Shown>,
    older: Mutex<Older>,
    whereabouts: Mutex<Whereabouts>,
    /// How many connections there are with each device.
    talks: Mutex<HashMap<EndpointId, usize>>,
    /// Devices that this one meets, and those that meet it: none takes two places of either.
    met: Meetings,
    met_by: Meetings,
    visible: bool,
    state: watch::Receiver<State>,
}

impl Shared {
    fn known(&self) -> Arc<Known> {
        self.known.borrow().clone()
    }

    /// What a peer is told; `None` for strangers.
    fn told(&self, known: &Known, peer: EndpointId) -> Option<Told> {
        policy::told(&known.group, self.network.id(), peer, self.visible)
    }

    fn pulse(&self, known: &Known, told: Told) -> Pulse {
        let state = *self.state.borrow();
        Pulse { version: told.group.then_some(known.digest), presence: told.presence.then(|| state.said()) }
    }

    /// What a peer hears that asks which devices there are: nothing, unless it may know.
    fn list(&self, known: &Known, told: Told) -> Vec<Listed> {
        if !told.devices {
            return Vec::new();
        }
        let (now, own, state) = (presence::now(), self.network.id(), *self.state.borrow());
        let presence = self.presence().clone();
        listing::of(&known.group, |device| {
            if device == own {
                return Some(Retold { said: state.said(), ago: 0 });
            }
            let (said, ago) = presence.of(device, now)?.retold(now);
            Some(Retold { said, ago })
        })
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shown(&self) -> MutexGuard<'_, Shown> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn older(&self) -> MutexGuard<'_, Older> {
        self.older.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn whereabouts(&self) -> MutexGuard<'_, Whereabouts> {
        self.whereabouts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn talks(&self) -> MutexGuard<'_, HashMap<EndpointId, usize>> {
        self.talks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn hear(&self, peer: EndpointId, said: Option<Said>) {
        self.presence().hear(peer, said, presence::now());
    }
}

/// Keeps the group in step until the endpoint is closed; if this machine becomes another user's device
/// meanwhile, that user's group from then on. Does nothing where nobody could be found.
///
/// # Errors
/// When the group cannot be read at the beginning, or nobody can be listened for.
pub(super) async fn run(quiet: bool, network: &Arc<Network>, mut wished: Wished) -> Result<Infallible> {
    if !network.resolves() && wished.peers.is_empty() {
        return std::future::pending().await;
    }
    let mut own = OwnGroup::of(network.key.clone())?;
    presence::set_away(wished.away)?;
    let (tell, state) = watch::channel(State::new(wished.away));
    let mut following = pin!(away::follow(tell));
    loop {
        let file = own.file.clone();
        let joined = tokio::select! {
            ended = keep(quiet, network, &wished, (own, state.clone())) => return ended,
            joined = another(network.key.clone(), &file) => joined,
            never = &mut following => match never {},
        };
        output::note(quiet, "this machine is another user's device now, and keeps in step with that user's");
        own = joined;
        wished.told = None;
    }
}

/// Waits until the group of this machine is another one than that of a file.
async fn another(key: SecretKey, file: &Path) -> OwnGroup {
    loop {
        tokio::time::sleep(USER).await;
        let key = key.clone();
        let looked = aside::run(move || OwnGroup::of(key)).await;
        match looked.context("the process is ending").and_then(|read| read) {
            Ok(own) if own.file != file => return own,
            Ok(_) => {}
            // Another command may have it: it is looked at again soon enough.
            Err(error) => {
                tracing::debug!(error = failure::line(&error), "this machine's user is not known for now");
            }
        }
    }
}

/// Keeps one group in step.
async fn keep(
    quiet: bool,
    network: &Arc<Network>,
    wished: &Wished,
    (own, state): (OwnGroup, watch::Receiver<State>),
) -> Result<Infallible> {
    let first = watching::read(&own.replica).await?;
    let user = first.group.user();
    let reading = aside::run(move || (Whereabouts::read(user), Shown::read(user, presence::now())));
    let (mut written_down, mut written_shown) = reading.await.unwrap_or_default();
    let (tell, known) = watch::channel(Arc::new(first));
    let mut watching = pin!(watching::follow(own.file.clone(), own.replica.clone(), tell));
    let shared = Arc::new(Shared {
        network: network.clone(),
        replica: own.replica,
        known: known.clone(),
        presence: Mutex::default(),
        shown: Mutex::new(written_shown.clone()),
        older: Mutex::default(),
        whereabouts: Mutex::new(written_down.clone()),
        talks: Mutex::default(),
        met: Meetings::default(),
        met_by: Meetings::default(),
        visible: wished.visible,
        state,
    });
    let mut leaving = FutureExt::boxed(mailbox::follow(shared.clone(), known.clone()));
    let asked = shared.clone();
    let allow = Allow::check(move |peer| {
        let is_let_in = asked.told(&asked.known(), peer).is_some();
        async move { is_let_in }
    });
    let mut listener = network.endpoint.listen(ListenOptions::unnamed().allow(allow)).await?;
    if let Some(in_json) = wished.told {
        ready(quiet, network, in_json)?;
    }
    let mut called = Called::default();
    let mut guests = Guests::default();
    let mut changes = known;
    let mut writing = tokio::time::interval(WRITE);
    writing.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut written = Presence::default();
    called.follow(&shared, &wished.peers);
    loop {
        tokio::select! {
            never = &mut watching => match never {},
            never = &mut leaving => match never {},
            came = listener.accept(), if guests.tasks.len() < MOST_GUESTS => {
                guests.begin(&shared, came.context("the endpoint is closed")?);
            }
            Some(_) = guests.tasks.join_next(), if !guests.tasks.is_empty() => guests.forget_ended(),
            Ok(()) = changes.changed() => called.follow(&shared, &wished.peers),
            _ = writing.tick() => {
                write(&shared, user, &mut written).await;
                write_shown(&shared, user, &mut written_shown).await;
                write_down(&shared, user, &mut written_down).await;
            }
        }
    }
}

fn ready(quiet: bool, network: &Network, in_json: bool) -> Result<()> {
    let ticket = network.ticket(None, None).to_string();
    if in_json {
        return output::json(&serde_json::json!({ "event": "ready", "text": READY, "ticket": ticket }));
    }
    output::note(quiet, READY);
    output::line(ticket)
}

/// Tells other commands who is up, if that is another than was written.
async fn write(shared: &Shared, user: EndpointId, written: &mut Presence) {
    let now = {
        let known = shared.known();
        let mut presence = shared.presence();
        presence.keep(|device| {
            device.parse::<EndpointId>().is_ok_and(|device| policy::may_be_heard(&known.group, device))
        });
        presence.clone()
    };
    let write = move |new: Presence| new.write(user);
    keep_written(now, written, write, "other commands do not know which devices are up").await;
}

/// Writes down what friends show, if that is another than was written; nothing of who is no friend any more.
async fn write_shown(shared: &Shared, user: EndpointId, written: &mut Shown) {
    let (known, at) = (shared.known(), presence::now());
    let now = {
        let mut shown = shared.shown();
        shown.keep(|friend| known.group.friend(friend).is_some(), at);
        shown.clone()
    };
    let write = move |new: Shown| new.write(user);
    keep_written(now, written, write, "other commands do not know which devices friends have").await;
}

/// Writes down where devices were reached, if that is elsewhere than was written.
async fn write_down(shared: &Shared, user: EndpointId, written: &mut Whereabouts) {
    let now = shared.whereabouts().clone();
    let write = move |new: Whereabouts| new.write(user);
    keep_written(now, written, write, "where devices are is not written down").await;
}

/// Writes something if it is another than was written; if it cannot be, that is tried again next time.
async fn keep_written<T: Clone + PartialEq + Send + 'static>(
    now: T,
    written: &mut T,
    write: impl FnOnce(T) -> Result<()> + Send + 'static,
    otherwise: &str,
) {
    if now == *written {
        return;
    }
    let new = now.clone();
    if is_written(Box::new(move || write(new)), otherwise).await {
        *written = now;
    }
}

/// Writes something; `false` if it cannot be. This is compiled once, and not for each kind of thing.
async fn is_written(write: Box<dyn FnOnce() -> Result<()> + Send>, otherwise: &str) -> bool {
    let result = aside::run(write).await.context("the process is ending").and_then(|written| written);
    if let Err(error) = &result {
        tracing::warn!(error = failure::line(error), "{otherwise}");
    }
    result.is_ok()
}

/// Devices that are called, each by a task of its own.
#[derive(Default)]
struct Called {
    tasks: JoinSet<()>,
    by_peer: HashMap<String, AbortHandle>,
}

impl Called {
    /// Calls those that are to be called now, and no others.
    fn follow(&mut self, shared: &Arc<Shared>, peers: &[Peer]) {
        let known = shared.known();
        let by_ticket = |id: EndpointId| {
            peers.iter().any(|peer| matches!(peer, Peer::Ticket(ticket) if ticket.id() == id))
        };
        let found = shared
            .network
            .resolves()
            .then(|| policy::called(&known.group, shared.network.id(), shared.visible));
        if let Some(found) = &found {
            shared.whereabouts().keep(found);
        }
        let by_key = found.unwrap_or_default().into_iter().filter(|id| !by_ticket(*id)).map(Peer::Key);
        let wanted: HashMap<String, Peer> =
            by_key.chain(peers.iter().cloned()).map(|peer| (peer.as_argument(), peer)).collect();
        self.by_peer.retain(|peer, task| {
            let stays = wanted.contains_key(peer);
            if !stays {
                // It sees by itself that the peer is told nothing any more, and lets it know.
                let task = task.clone();
                let leaving = async move {
                    tokio::time::sleep(LEAVE).await;
                    task.abort();
                };
                self.tasks.spawn(FutureExt::boxed(leaving));
            }
            stays
        });
        // Those that were let go.
        while self.tasks.try_join_next().is_some() {}
        for (name, peer) in wanted {
            if !self.by_peer.contains_key(&name) {
                let task = self.tasks.spawn(FutureExt::boxed(call(shared.clone(), peer)));
                self.by_peer.insert(name, task);
            }
        }
    }
}

/// Calls a device for as long as this is polled, also when it is away for weeks.
async fn call(shared: Arc<Shared>, peer: Peer) {
    let mut failures = 0_u32;
    loop {
        match reach(&shared, &peer).await {
            Ok(connection) => {
                let began = Instant::now();
                let answered = talk::run(&shared, &connection, true).await;
                // One that ends each connection at once is called no more often than one that is away.
                if answered && began.elapsed() >= policy::PERIOD {
                    failures = 0;
                }
            }
            Err(error) => tracing::debug!(%peer, error = failure::line(&error), "it does not answer"),
        }
        failures = failures.saturating_add(1);
        tokio::time::sleep(policy::again(failures, chance())).await;
    }
}

/// Connects to a device; to one that is found by its key also where it was last, if nobody says where it is, or
/// another program of that key is there.
async fn reach(shared: &Shared, peer: &Peer) -> Result<Connection> {
    let found = dial(shared, peer).await;
    let Peer::Key(device) = peer else { return found.inspect_err(|error| heed(shared, error)) };
    let last = found.is_err().then(|| shared.whereabouts().of(*device)).flatten();
    let connection = match (found, last) {
        (Ok(connection), _) => connection,
        // Only if the agent does not answer there either is it taken to be the one that has refused.
        (Err(error), Some(ticket)) => dial(shared, &Peer::Ticket(ticket)).await.map_err(|second| {
            heed(shared, &error);
            heed(shared, &second);
            error
        })?,
        (Err(error), None) => {
            heed(shared, &error);
            return Err(error);
        }
    };
    let at = dialled(&connection);
    shared.whereabouts().reached(*device, at);
    Ok(connection)
}

async fn dial(shared: &Shared, peer: &Peer) -> Result<Connection> {
    let dialling = async {
        match peer {
            Peer::Key(device) => connect_to_listener(&shared.network, *device, LISTENER.parse()?).await,
            peer => connect(&shared.network, peer).await,
        }
    };
    tokio::time::timeout(CALL_LIMIT, dialling).await.context("not in time")?
}

/// One that does not let this device in any more shows it nothing.
fn heed(shared: &Shared, error: &anyhow::Error) {
    let why = error.downcast_ref::<ConnectError>();
    if let Some(ConnectError::Refused { peer, code: CloseCode::NOT_ALLOWED, .. }) = why {
        shared.shown().forget_from(*peer);
        shared.hear(*peer, None);
    }
}

/// Agents that called, the newest connection of each last.
#[derive(Default)]
struct Guests {
    tasks: JoinSet<()>,
    by_peer: HashMap<EndpointId, VecDeque<AbortHandle>>,
}

impl Guests {
    /// One has called. The oldest of too many connections is of no use any more.
    fn begin(&mut self, shared: &Arc<Shared>, connection: Connection) {
        let (peer, shared) = (connection.peer_id(), shared.clone());
        let talking = async move {
            talk::run(&shared, &connection, false).await;
        };
        let task = self.tasks.spawn(FutureExt::boxed(talking));
        let of_peer = self.by_peer.entry(peer).or_default();
        of_peer.push_back(task);
        if of_peer.len() > MOST_OF_ONE
            && let Some(oldest) = of_peer.pop_front()
        {
            oldest.abort();
        }
    }

    fn forget_ended(&mut self) {
        self.by_peer.retain(|_, tasks| {
            tasks.retain(|task| !task.is_finished());
            !tasks.is_empty()
        });
    }
}

/// A number by chance. Without randomness all devices come at once: that is no error.
fn chance() -> u16 {
    let mut bytes = [0; 2];
    let _ = getrandom::fill(&mut bytes);
    u16::from_be_bytes(bytes)
}

/// Decodes whatever comes as a heartbeat, and as a list of a friend's devices.
#[cfg(feature = "fuzzing")]
pub(super) fn decode_anything(bytes: &[u8]) {
    pulse::decode_anything(bytes);
    listing::decode_anything(bytes);
}
