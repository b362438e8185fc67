//! What the handles and tasks of one open state share.

use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::task::{AbortHandle, JoinSet};

use super::ledger::Ledger;
use super::lock;
use super::store::Store;
use crate::endpoint::Endpoint;

/// The state's parts. Tasks hold it too, and end when [`shut`](Self::shut) is called.
pub(super) struct Hub {
    pub(super) endpoint: Endpoint,
    pub(super) store: Store,
    pub(super) ledger: Arc<Mutex<Ledger>>,
    /// Held while a peer or a flow is added: there is one of each.
    pub(super) adding: tokio::sync::Mutex<()>,
    /// One a connection.
    links: Mutex<JoinSet<()>>,
    /// One for each peer that is dialled.
    keepers: Mutex<BTreeMap<String, AbortHandle>>,
}

impl Hub {
    pub(super) fn new(endpoint: Endpoint, store: Store, ledger: Arc<Mutex<Ledger>>) -> Self {
        let (adding, links, keepers) = Default::default();
        Self { endpoint, store, ledger, adding, links, keepers }
    }

    /// Runs a connection's task.
    pub(super) fn run_link(&self, link: impl Future<Output = ()> + Send + 'static) {
        let mut links = lock(&self.links);
        while links.try_join_next().is_some() {}
        links.spawn(FutureExt::boxed(link));
    }

    /// Runs the task that dials a peer, instead of an older one.
    pub(super) fn run_keeper(&self, key: String, keeper: impl Future<Output = ()> + Send + 'static) {
        let task = tokio::spawn(FutureExt::boxed(keeper)).abort_handle();
        if let Some(older) = lock(&self.keepers).insert(key, task) {
            older.abort();
        }
    }

    /// A peer is not dialled any more.
    pub(super) fn end_keeper(&self, key: &str) {
        if let Some(keeper) = lock(&self.keepers).remove(key) {
            keeper.abort();
        }
    }

    /// Ends all tasks, writes what waits, and lets go of the file. Blocks as long as that takes.
    pub(super) fn shut(&self) {
        lock(&self.links).abort_all();
        std::mem::take(&mut *lock(&self.keepers)).into_values().for_each(|keeper| keeper.abort());
        lock(&self.ledger).stop();
        self.store.close();
    }
}

/// Held by the application's handles: when the last one is dropped, the state is closed.
pub(super) struct Open(pub(super) Arc<Hub>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.shut();
    }
}
