//! Telling and finding records by mDNS.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use mdns_sd::{IfKind, IfPredicate, Receiver, ServiceDaemon, ServiceEvent};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use whimbrel_base::{EndpointAddr, EndpointId, Name, SecretKey, SignedRecord, UnixTime};
use whimbrel_transport::{BoxFuture, Endpoint, InterfaceKind, ResolveError, Resolver, Watch, Watched};

use crate::announcement::Announcement;
use crate::encoding::{SERVICE, record};
use crate::table::Table;
use crate::telling::Telling;

/// How long neighbours may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// After the first answer, how long others may take that say otherwise: they are asked again after a second.
const OTHERS: Duration = Duration::from_millis(1500);
/// Before it is listened again, after more was told than could be taken in.
const PAUSE: Duration = Duration::from_secs(1);
/// How long it may take to say good-bye.
const GOOD_BYE: Duration = Duration::from_millis(500);

/// Says whether a record, whose signatures are right, may be used: whether its key may have that name. An
/// error says why not.
pub type Judge = Arc<dyn Fn(&SignedRecord) -> Result<(), String> + Send + Sync>;

/// Why neighbours cannot be looked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LanError {
    /// The system gives no sockets for multicast.
    #[error("cannot look for neighbours in the local network: {0}")]
    Mdns(#[from] mdns_sd::Error),
}

/// The endpoints of the local network, by name and by key.
///
/// Records that are published through it are told until it is dropped.
pub struct Neighbours {
    daemon: ServiceDaemon,
    telling: Telling,
    shared: Arc<Shared>,
    judge: Judge,
    /// Hears what is told.
    hearing: AbortHandle,
    watching: Mutex<Vec<AbortHandle>>,
}

struct Shared {
    table: Mutex<Table>,
    /// Grows with each change of the table.
    changes: watch::Sender<u64>,
}

impl std::fmt::Debug for Neighbours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Neighbours").finish_non_exhaustive()
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes in what is told, until the daemon ends. A listener that has fallen behind hears no more, and
    /// begins anew.
    async fn hear(self: Arc<Self>, daemon: ServiceDaemon, mut events: Receiver<ServiceEvent>) {
        loop {
            while let Ok(event) = events.recv_async().await {
                self.note(event);
            }
            tokio::time::sleep(PAUSE).await;
            match daemon.browse(SERVICE) {
                Ok(anew) => events = anew,
                Err(error) => return tracing::debug!(%error, "the local network is listened to no more"),
            }
        }
    }

    fn note(&self, event: ServiceEvent) {
        match event {
            ServiceEvent::ServiceResolved(service) => {
                let string = |key: &str| service.get_property_val(key).flatten();
                let Some(record) = record(string) else {
                    tracing::debug!(instance = service.fullname, "a neighbour tells no record");
                    return;
                };
                self.table().told(service.fullname.clone(), record);
            }
            ServiceEvent::ServiceRemoved(_, instance) => self.table().gone(&instance),
            _ => return,
        }
        self.changes.send_modify(|changes| *changes += 1);
    }

    /// Waits until `find` finds something, for a while: it looks again whenever the table has changed.
    async fn wait_for<T>(&self, find: impl Fn() -> Option<T>) -> Option<T> {
        let mut changes = self.changes.subscribe();
        let found = async {
            loop {
                if let Some(found) = find() {
                    return Some(found);
                }
                if changes.changed().await.is_err() {
                    return None;
                }
            }
        };
        tokio::time::timeout(PATIENCE, found).await.ok().flatten()
    }
}

impl Neighbours {
    /// Begins to listen, but on interfaces whose bytes cost something. `judge` says which records of names
    /// may be used; those that are looked for by key need no judgement. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`LanError`] when the system gives no sockets.
    pub fn start(judge: Judge) -> Result<Self, LanError> {
        Self::start_but(judge, |interface| InterfaceKind::of(interface).is_metered())
    }

    /// The same, where `is_left_alone` says on which interfaces nothing is heard or told.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_but(
        judge: Judge,
        is_left_alone: impl Fn(&str) -> bool + Send + Sync + 'static,
    ) -> Result<Self, LanError> {
        let daemon = ServiceDaemon::new()?;
        let costs = IfPredicate::new(move |interface| is_left_alone(&interface.name));
        daemon.disable_interface(IfKind::Predicate(costs))?;
        let shared = Arc::new(Shared { table: Mutex::default(), changes: watch::Sender::new(0) });
        let events = daemon.browse(SERVICE)?;
        let hearing = FutureExt::boxed(shared.clone().hear(daemon.clone(), events));
        let hearing = tokio::spawn(hearing).abort_handle();
        let telling = Telling::new(daemon.clone());
        Ok(Self { daemon, telling, shared, judge, hearing, watching: Mutex::default() })
    }

    /// Has the network told where an endpoint is, whose key this is, until what is returned is dropped: under
    /// [`name_of_key`](crate::name_of_key) for those who look for its key, or under another name that is
    /// judged by nobody. Places behind relays are left out. Must run inside a tokio runtime.
    pub fn announce(&self, endpoint: Endpoint, key: SecretKey, name: Name) -> Announcement {
        Announcement::start(self.telling.clone(), endpoint, key, name)
    }

    /// Tells a record, in the place of what was told for the same name and key before; one that is revoked is
    /// told no more.
    ///
    /// # Errors
    /// [`LanError`] when the daemon cannot take it.
    pub fn tell(&self, record: &SignedRecord) -> Result<(), LanError> {
        let told = record.record();
        let done = match told.revoked {
            true => self.telling.withdraw(told.id, &told.name),
            false => self.telling.tell(record),
        };
        Ok(done?)
    }

    /// Tells no more what was told for this name and key, and says so.
    ///
    /// # Errors
    /// As [`tell`](Self::tell).
    pub fn withdraw(&self, id: EndpointId, name: &Name) -> Result<(), LanError> {
        Ok(self.telling.withdraw(id, name)?)
    }

    /// What the network tells of a name, the newest of each endpoint first, whether it may be used or not:
    /// waits a while for the first that tells, and then a moment for others. Cancel-safe.
    pub async fn claims(&self, name: &Name) -> Vec<SignedRecord> {
        let told = || self.shared.table().of_name(name, now());
        if self.shared.wait_for(|| (!told().is_empty()).then_some(())).await.is_some() {
            tokio::time::sleep(OTHERS).await;
        }
        told()
    }

    /// The newest record of an endpoint, under whatever name; waits a while for one. Cancel-safe.
    ///
    /// # Errors
    /// [`ResolveError::NotFound`].
    pub async fn record_of(&self, id: EndpointId) -> Result<SignedRecord, ResolveError> {
        let found = self.shared.wait_for(|| self.shared.table().of_endpoint(id, now())).await;
        found.ok_or(ResolveError::NotFound)
    }

    /// Says good-bye for all that was told, which others remember for minutes otherwise. Nothing is told or
    /// heard afterwards. Takes half a second at most.
    pub async fn close(&self) {
        if let Ok(ended) = self.daemon.shutdown() {
            let _ = tokio::time::timeout(GOOD_BYE, ended.recv_async()).await;
        }
    }

    /// The newest record of a name that may be used; an error if there are records and none may.
    fn judged(&self, name: &Name) -> Option<Result<SignedRecord, String>> {
        let mut refused = None;
        // A judge may take its time: nothing is locked meanwhile.
        let records = self.shared.table().of_name(name, now());
        for record in records {
            match (self.judge)(&record) {
                Ok(()) => return Some(Ok(record)),
                Err(why) => refused = Some(Err(why)),
            }
        }
        refused
    }
}

fn now() -> UnixTime {
    SystemTime::now().into()
}

impl Resolver for Neighbours {
    fn lookup<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<SignedRecord, ResolveError>> {
        Box::pin(async move {
            // One that must not be used does not hide another one that comes a little later.
            if let Some(record) = self.shared.wait_for(|| self.judged(name)?.ok()).await {
                return Ok(record);
            }
            match self.judged(name) {
                Some(Err(why)) => Err(ResolveError::Untrusted(why)),
                Some(Ok(record)) => Ok(record),
                None => Err(ResolveError::NotFound),
            }
        })
    }

    fn watch(&self, name: &Name) -> Watch<Option<SignedRecord>> {
        let watched = Arc::new(Watched::new(None::<SignedRecord>));
        let (watch, name) = (watched.watch(), name.clone());
        let (shared, judge) = (self.shared.clone(), self.judge.clone());
        let following = tokio::spawn(FutureExt::boxed(async move {
            let mut changes = shared.changes.subscribe();
            loop {
                let records = shared.table().of_name(&name, now());
                if let Some(newest) = records.into_iter().find(|record| judge(record).is_ok()) {
                    watched.update_if(|known| {
                        let is_news = known.as_ref() != Some(&newest);
                        if is_news {
                            *known = Some(newest);
                        }
                        is_news
                    });
                }
                tokio::select! {
                    () = watched.unwatched() => return,
                    changed = changes.changed() => if changed.is_err() { return },
                }
            }
        }));
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        watching.retain(|task| !task.is_finished());
        watching.push(following.abort_handle());
        watch
    }

    fn publish(&self, record: SignedRecord) -> BoxFuture<'_, Result<(), ResolveError>> {
        let told = self.tell(&record).map_err(|error| ResolveError::Unreachable(error.to_string()));
        Box::pin(std::future::ready(told))
    }

    fn find(&self, id: EndpointId) -> BoxFuture<'_, Result<EndpointAddr, ResolveError>> {
        Box::pin(async move {
            let record = self.record_of(id).await?;
            Ok(EndpointAddr { id, addrs: record.record().addrs.clone() })
        })
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.hearing.abort();
        let watching = self.watching.get_mut().unwrap_or_else(PoisonError::into_inner);
        watching.iter().for_each(AbortHandle::abort);
        // It says good-bye for what was told, in a thread of its own; it has, if it was closed.
        let _ = self.daemon.shutdown();
    }
}
