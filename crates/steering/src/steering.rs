//! Asking for connections, and doing what the manager says.

mod run;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;
use whimbrel_access::Intents;
use whimbrel_base::ConnectionId;
use whimbrel_multiaccess::Client;
use whimbrel_transport::{Connection, Endpoint, PathControl};

use crate::news::News;
use crate::standing::{self, Standing};
use crate::table::Table;
use crate::usage::Usage;
use run::Run;

/// A manager on this host says so soon which paths it sees. Without one, the first connection waits no
/// longer.
const FIRST_WORD: Duration = Duration::from_secs(2);

/// Has the manager choose the networks of an endpoint's connections, until it is dropped. Then they go on by
/// their own policy. It holds the endpoint.
#[must_use = "the manager's word counts until this is dropped"]
pub struct Steering {
    inner: Arc<Inner>,
    tasks: Vec<AbortHandle>,
}

/// What the handle and the task share.
struct Inner {
    endpoint: Endpoint,
    client: Client,
    /// Of connections of which nothing else is said.
    intents: Intents,
    /// What connections do without a manager.
    own: Usage,
    table: Table,
    /// What the endpoint was told of Wi-Fi: of local addresses, in dBm.
    signals: Mutex<BTreeMap<IpAddr, i8>>,
    /// There is something to ask.
    nudge: Notify,
    /// The handle was dropped: nothing more is chosen. Held while something is.
    is_over: Mutex<bool>,
    tell: Box<dyn Fn(News) + Send + Sync>,
    is_alone_told: AtomicBool,
    is_refusal_told: AtomicBool,
}

impl fmt::Debug for Steering {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steering").field("intents", &self.inner.intents).finish_non_exhaustive()
    }
}

impl Drop for Steering {
    fn drop(&mut self) {
        self.tasks.iter().for_each(AbortHandle::abort);
        self.inner.release();
    }
}

impl Steering {
    /// Has this manager choose for the connections that the endpoint dials, also for those that it has
    /// dialled already, with these intents. `tell` is told what people may want to know. Returns when the
    /// manager has said what the first connection is to use, or after two seconds. Must run inside a tokio
    /// runtime. Cancel-safe.
    pub async fn start(
        endpoint: &Endpoint,
        manager: Client,
        intents: Intents,
        tell: impl Fn(News) + Send + Sync + 'static,
    ) -> Self {
        let (policy, mode) = endpoint.paths();
        let inner = Arc::new(Inner {
            endpoint: endpoint.clone(),
            client: manager.clone(),
            intents,
            own: Usage { policy, mode },
            table: Table::default(),
            signals: Mutex::default(),
            nudge: Notify::new(),
            is_over: Mutex::new(false),
            tell: Box::new(tell),
            is_alone_told: AtomicBool::new(false),
            is_refusal_told: AtomicBool::new(false),
        });
        let (told, mut standing) = watch::channel(Standing::Unknown);
        let following = tokio::spawn(FutureExt::boxed(standing::follow(manager, told))).abort_handle();
        let mut steering = Self { inner: Arc::clone(&inner), tasks: vec![following] };
        let is_known = |standing: &Standing| !matches!(standing, Standing::Unknown);
        let _ = tokio::time::timeout(FIRST_WORD, standing.wait_for(is_known)).await;
        let mut run = Run::new(inner, standing);
        run.begin().await;
        steering.tasks.push(tokio::spawn(FutureExt::boxed(run.go_on())).abort_handle());
        steering
    }

    /// Says what is known of the traffic of one connection, instead of what was said of all.
    pub fn intend(&self, connection: &Connection, intents: Intents) {
        let name = connection.name().map(ToString::to_string);
        self.inner.table.intend(connection.id(), connection.peer_id(), name, intents, Instant::now());
        self.inner.nudge.notify_one();
    }
}

impl Inner {
    /// The right to choose, unless the handle was dropped: its task may be at work still.
    fn choosing(&self) -> Option<MutexGuard<'_, bool>> {
        let is_over = self.is_over.lock().unwrap_or_else(PoisonError::into_inner);
        (!*is_over).then_some(is_over)
    }

    /// Has a connection use networks like this, unless somebody else has said how.
    fn apply(&self, id: ConnectionId, usage: Usage) {
        let Some(choosing) = self.choosing() else { return };
        let is_left = !self.choose(id, usage);
        drop(choosing);
        if is_left {
            (self.tell)(News::SetOtherwise { connection: id });
        }
    }

    /// False if somebody else has just said how.
    fn choose(&self, id: ConnectionId, usage: Usage) -> bool {
        let applied = self.table.applied_to(id);
        let (Some(applied), Some(control)) = (applied, self.endpoint.path_control(id)) else { return true };
        match applied.usage {
            Some(last) if control.policy() != last.policy => {
                self.table.leave(id);
                return false;
            }
            Some(last) if last == usage => return true,
            // The mode is both sides': one that was set meanwhile stays until another is wanted.
            Some(last) => use_networks(&control, &usage, last.mode != usage.mode),
            None => use_networks(&control, &usage, control.handover() != usage.mode),
        }
        tracing::debug!(connection = %id, ?usage, "the networks of a connection are chosen");
        self.table.apply(id, usage);
        true
    }

    /// Has new connections use networks like this.
    fn apply_to_new(&self, usage: Usage) {
        if let Some(_choosing) = self.choosing() {
            self.endpoint.set_paths(usage.policy, usage.mode);
        }
    }

    /// This is known from now on of how the Wi-Fi of local addresses is received, in dBm. The endpoint hears
    /// of it if it is something else than before.
    fn tell_signals(&self, known: BTreeMap<IpAddr, i8>) {
        let Some(_choosing) = self.choosing() else { return };
        let mut told = self.signals();
        if *told != known {
            self.endpoint.set_signals(known.iter().map(|(ip, dbm)| (*ip, *dbm)));
            *told = known;
        }
    }

    /// What the endpoint was told of Wi-Fi.
    fn signals(&self) -> MutexGuard<'_, BTreeMap<IpAddr, i8>> {
        self.signals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All connections go on without a manager.
    fn go_on_alone(&self, why: &str) {
        for applied in self.table.applied() {
            let intents = applied.intents.unwrap_or(self.intents);
            self.apply(applied.id, Usage::without_manager(&intents, applied.usage.as_ref(), &self.own));
        }
        let (policy, mode) = self.endpoint.paths();
        let last = Usage { policy, mode };
        self.apply_to_new(Usage::without_manager(&self.intents, Some(&last), &self.own));
        if !self.is_alone_told.swap(true, Ordering::Relaxed) {
            (self.tell)(News::Alone { why: why.to_owned() });
        }
    }

    fn tell_refusal(&self, why: String) {
        if !self.is_refusal_told.swap(true, Ordering::Relaxed) {
            (self.tell)(News::Refused { why });
        }
    }

    /// Leaves everything as it would be without this.
    fn release(&self) {
        let Some(mut is_over) = self.choosing() else { return };
        *is_over = true;
        for applied in self.table.applied() {
            let control = self.endpoint.path_control(applied.id);
            if let (Some(control), Some(last)) = (control, applied.usage)
                && control.policy() == last.policy
            {
                use_networks(&control, &self.own, last.mode != self.own.mode);
            }
        }
        self.endpoint.set_paths(self.own.policy.clone(), self.own.mode);
        // The manager is gone, and so is what it told of Wi-Fi. Signals that others have set stay.
        if !self.signals().is_empty() {
            self.endpoint.set_signals([]);
        }
    }
}

fn use_networks(control: &PathControl, usage: &Usage, sets_mode: bool) {
    if control.policy() != usage.policy {
        control.set_policy(usage.policy.clone());
    }
    if sets_mode {
        control.set_handover(usage.mode);
    }
}
