//! Something that a router does for an endpoint as long as it is asked again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use whimbrel_transport::{AddressSet, Watch};

use crate::mapping::MapError;

/// Between attempts while no router does it.
const FIRST_PAUSE: Duration = Duration::from_secs(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(600);
/// A router that was restarted has forgotten all: it is asked again this often, however long it promises.
const AGAIN: Duration = Duration::from_secs(600);
const SOONEST: Duration = Duration::from_secs(15);
/// A new address is followed by its routes within this.
const SETTLE: Duration = Duration::from_millis(300);

/// What is asked for, with what was granted so far.
pub(crate) trait Favour: Send + 'static {
    /// Asks for it, or that it goes on, and tells those who watch what came of it. For how long it is
    /// granted. Cancel-safe: what was asked for and not answered is forgotten by the router in time.
    fn ask(&mut self) -> impl Future<Output = Result<Duration, MapError>> + Send;

    /// Tells those who watch that it is over, and the router that it is no longer needed.
    fn give_back(self) -> impl Future<Output = ()> + Send;
}

/// A task that has a favour done until it is stopped. Dropped, it leaves what was granted to the router.
#[derive(Debug)]
pub(crate) struct Keeper {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
}

impl Keeper {
    /// Begins to ask; again whenever the host's `addresses` change. Must run inside a tokio runtime.
    pub(crate) fn start(favour: impl Favour, addresses: Watch<Arc<AddressSet>>) -> Self {
        let (stop, stopped) = oneshot::channel();
        Self { stop: Some(stop), task: tokio::spawn(FutureExt::boxed(keep(favour, addresses, stopped))) }
    }

    /// Has the favour given back.
    pub(crate) fn stop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // One that has ended holds nothing.
            let _ = stop.send(());
        }
    }

    /// Waits until that is done. Cancel-safe, but not to be called again once it has returned.
    pub(crate) async fn ended(&mut self) {
        // One that panicked has said so.
        let _ = (&mut self.task).await;
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn keep(
    mut favour: impl Favour,
    mut addresses: Watch<Arc<AddressSet>>,
    mut stopped: oneshot::Receiver<()>,
) {
    let mut pause = FIRST_PAUSE;
    loop {
        let asked = tokio::select! {
            asked = favour.ask() => asked,
            _ = &mut stopped => break,
        };
        let next = match asked {
            Ok(lifetime) => {
                pause = FIRST_PAUSE;
                (lifetime / 2).clamp(SOONEST, AGAIN)
            }
            Err(error) => {
                tracing::debug!("no favour of a router: {error}");
                let longer = (pause * 2).min(LONGEST_PAUSE);
                std::mem::replace(&mut pause, longer)
            }
        };
        tokio::select! {
            () = sleep(next) => {}
            changed = addresses.changed() => {
                if changed.is_none() {
                    break;
                }
                sleep(SETTLE).await;
                pause = FIRST_PAUSE;
            }
            _ = &mut stopped => break,
        }
    }
    favour.give_back().await;
}
