//! Telling and finding records by mDNS.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use mdns_sd::{IfKind, IfPredicate, Receiver, ServiceDaemon, ServiceEvent, ServiceInfo};
use tokio::sync::watch;
use tokio::task::AbortHandle;
use whimbrel_base::{EndpointAddr, EndpointId, Name, SignedRecord, UnixTime};
use whimbrel_transport::{BoxFuture, InterfaceKind, ResolveError, Resolver, Watch, Watched};

use crate::encoding::{SERVICE, instance, record, strings};
use crate::table::Table;

/// How long neighbours may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);
/// The domain of host names.
const HOST: &str = "local.";

/// Says whether a record, whose signatures are right, may be used: whether its key may have that name. An error says
/// why not.
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

    /// Takes in what is told, until the daemon ends.
    async fn hear(self: Arc<Self>, events: Receiver<ServiceEvent>) {
        while let Ok(event) = events.recv_async().await {
            match event {
                ServiceEvent::ServiceResolved(service) => {
                    let string = |key: &str| service.get_property_val(key).flatten();
                    let Some(record) = record(string) else {
                        tracing::debug!(instance = service.fullname, "a neighbour tells no record");
                        continue;
                    };
                    self.table().told(service.fullname.clone(), record);
                }
                ServiceEvent::ServiceRemoved(_, instance) => self.table().gone(&instance),
                _ => continue,
            }
            self.changes.send_modify(|changes| *changes += 1);
        }
    }

    /// Waits until `find` finds something, for a while.
    async fn wait_for<T>(&self, find: impl Fn(&Table) -> Option<T>) -> Option<T> {
        let mut changes = self.changes.subscribe();
        let found = async {
            loop {
                if let Some(found) = find(&self.table()) {
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
    /// Begins to listen. `judge` says which records of names may be used; those that are looked for by key need no
    /// judgement. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// [`LanError`] when the system gives no sockets.
    pub fn start(judge: Judge) -> Result<Self, LanError> {
        let daemon = ServiceDaemon::new()?;
        let costs = IfPredicate::new(|interface| InterfaceKind::of(&interface.name).is_metered());
        daemon.disable_interface(IfKind::Predicate(costs))?;
        let shared = Arc::new(Shared { table: Mutex::default(), changes: watch::Sender::new(0) });
        let events = daemon.browse(SERVICE)?;
        let hearing = tokio::spawn(shared.clone().hear(events)).abort_handle();
        Ok(Self { daemon, shared, judge, hearing, watching: Mutex::default() })
    }

    /// Tells a record, in the place of what was told for the same name and key before; one that is revoked is told
    /// no more.
    fn tell(&self, record: &SignedRecord) -> Result<(), ResolveError> {
        let failed = |error: mdns_sd::Error| ResolveError::Unreachable(error.to_string());
        let told = record.record();
        let instance = instance(told.id, &told.name);
        if told.revoked {
            return self.daemon.unregister(&format!("{instance}.{SERVICE}")).map(drop).map_err(failed);
        }
        let addresses: Vec<IpAddr> = told.addrs.iter().map(|at| at.ip()).collect();
        let port = told.addrs.first().map_or(0, |at| at.port());
        let host = format!("{instance}.{HOST}");
        let info = ServiceInfo::new(SERVICE, &instance, &host, &addresses[..], port, strings(record));
        // Where it is, is in the record; mDNS wants addresses that are of the interface.
        self.daemon.register(info.map_err(failed)?.enable_addr_auto()).map_err(failed)
    }

    /// The newest record of a name that may be used; an error if there are records and none may.
    fn judged(&self, table: &Table, name: &Name) -> Option<Result<SignedRecord, String>> {
        let mut refused = None;
        for record in table.of_name(name, now()) {
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
            let usable = |table: &Table| self.judged(table, name)?.ok();
            if let Some(record) = self.shared.wait_for(usable).await {
                return Ok(record);
            }
            match self.judged(&self.shared.table(), name) {
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
        let following = tokio::spawn(async move {
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
        });
        let mut watching = self.watching.lock().unwrap_or_else(PoisonError::into_inner);
        watching.retain(|task| !task.is_finished());
        watching.push(following.abort_handle());
        watch
    }

    fn publish(&self, record: SignedRecord) -> BoxFuture<'_, Result<(), ResolveError>> {
        Box::pin(std::future::ready(self.tell(&record)))
    }

    fn find(&self, id: EndpointId) -> BoxFuture<'_, Result<EndpointAddr, ResolveError>> {
        Box::pin(async move {
            let found = self.shared.wait_for(|table| table.of_endpoint(id, now())).await;
            let record = found.ok_or(ResolveError::NotFound)?;
            Ok(EndpointAddr { id, addrs: record.record().addrs.clone() })
        })
    }
}

impl Drop for Neighbours {
    fn drop(&mut self) {
        self.hearing.abort();
        let watching = self.watching.get_mut().unwrap_or_else(PoisonError::into_inner);
        watching.iter().for_each(AbortHandle::abort);
        // It says good-bye for what was told, in a thread of its own.
        let _ = self.daemon.shutdown();
    }
}
