//! A Unix socket that lets so many clients in at a time, and tells others why they are turned away.

use futures_util::FutureExt;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

/// After an error of the system's, such as too many open files.
const PAUSE: Duration = Duration::from_millis(100);

/// The socket and its clients, who are gone when it is dropped.
pub(crate) struct Door {
    listener: UnixListener,
    most: usize,
    clients: JoinSet<()>,
    /// Those that are turned away take no room from those that are let in.
    refused: JoinSet<()>,
}

impl Door {
    /// A door for `most` clients at a time.
    pub(crate) fn new(listener: UnixListener, most: usize) -> Self {
        Self { listener, most, clients: JoinSet::new(), refused: JoinSet::new() }
    }

    /// Waits for the next one who wants to be let in. Cancel-safe.
    pub(crate) async fn next(&mut self) -> UnixStream {
        let stream = loop {
            match self.listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept clients");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        };
        while self.clients.try_join_next().is_some() {}
        while self.refused.try_join_next().is_some() {}
        stream
    }

    /// No more may be let in now.
    pub(crate) fn is_full(&self) -> bool {
        self.clients.len() >= self.most
    }

    /// Serves a client for as long as this takes.
    pub(crate) fn let_in(&mut self, serving: impl Future<Output = ()> + Send + 'static) {
        self.clients.spawn(FutureExt::boxed(serving));
    }

    /// Tells somebody why it is not let in, unless as many are being told already as may be let in.
    pub(crate) fn turn_away(&mut self, telling: impl Future<Output = ()> + Send + 'static) {
        if self.refused.len() < self.most {
            self.refused.spawn(FutureExt::boxed(telling));
        }
    }
}
