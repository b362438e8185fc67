//! A router that passes a port on to the server, once it is told to, and until it is told not to any more.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::FutureExt;
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

/// Connections at once. Those beyond wait to be accepted.
const MOST: usize = 64;
/// After one that could not be accepted.
const AGAIN: Duration = Duration::from_millis(20);

/// A running router. Stops when dropped.
pub(super) struct Gate {
    pub(super) outside: SocketAddr,
    /// Where it passes on to, while it does.
    passes: watch::Sender<Option<SocketAddr>>,
    task: JoinHandle<()>,
}

impl Gate {
    /// Listens at any port of this address, and passes nothing on yet: what comes meanwhile hears nothing.
    pub(super) async fn start(outside: SocketAddr) -> Result<Self> {
        let listener = TcpListener::bind(outside).await.context("cannot start the router")?;
        let outside = listener.local_addr().context("cannot start the router")?;
        let passes = watch::Sender::new(None);
        let task = tokio::spawn(FutureExt::boxed(accept(listener, passes.subscribe())));
        Ok(Self { outside, passes, task })
    }

    /// Passes on to there from now on.
    pub(super) fn open(&self, to: SocketAddr) {
        self.passes.send_replace(Some(to));
    }

    /// Breaks what it passes on, and lets nothing through any more.
    pub(super) fn shut(&self) {
        self.passes.send_replace(None);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn accept(listener: TcpListener, passes: watch::Receiver<Option<SocketAddr>>) {
    let mut running = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if running.len() < MOST => match accepted {
                Ok((socket, _)) => drop(running.spawn(FutureExt::boxed(pass(socket, passes.clone())))),
                // One that went away before it was taken, or no descriptors for a moment.
                Err(_) => tokio::time::sleep(AGAIN).await,
            },
            Some(_) = running.join_next() => {}
        }
    }
}

/// Holds a connection until the way is open, then passes it on until it is shut.
async fn pass(mut outer: TcpStream, mut passes: watch::Receiver<Option<SocketAddr>>) {
    let to = match passes.wait_for(Option::is_some).await {
        Ok(to) => *to,
        Err(_) => return,
    };
    let Some(to) = to else { return };
    let passing = async {
        if let Ok(mut inner) = TcpStream::connect(to).await {
            // Either side may end it in its own way.
            let _ = copy_bidirectional(&mut outer, &mut inner).await;
        }
    };
    tokio::select! {
        () = passing => {}
        _ = passes.wait_for(Option::is_none) => {}
    }
}
