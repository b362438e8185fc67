//! Which networks there are, as the manager tells of them.

use futures_util::FutureExt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use whimbrel_multiaccess::Client;

/// A manager that is gone is looked for after this time: it may be started again.
const AGAIN: Duration = Duration::from_secs(1);

/// The place at which all objects find what is heard, as long as one of them needs it.
#[derive(Default)]
pub(super) struct Hearing(Mutex<Weak<Heard>>);

/// The networks of a host. They are heard of while this is there.
#[derive(Clone)]
pub(super) struct Present(Arc<Heard>);

struct Heard {
    listed: watch::Receiver<Listed>,
    task: AbortHandle,
}

/// The networks, which are few, and when in the order of arrivals each of them came.
#[derive(Debug, Default)]
struct Listed {
    networks: Vec<(String, u64)>,
    arrivals: u64,
}

impl Hearing {
    /// Hears of networks from now on, beside those who do already. Must run inside a tokio runtime.
    pub(super) fn present(&self, client: &Client) -> Present {
        // A task is started without the lock: of two at once the newer one is found by those after them.
        let known = self.lock().upgrade();
        let heard = known.unwrap_or_else(|| {
            let (sender, listed) = watch::channel(Listed::default());
            let task = tokio::spawn(FutureExt::boxed(hear(client.clone(), sender))).abort_handle();
            Arc::new(Heard { listed, task })
        });
        *self.lock() = Arc::downgrade(&heard);
        Present(heard)
    }

    fn lock(&self) -> MutexGuard<'_, Weak<Heard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes what the manager tells. While there is none, what was told last holds.
async fn hear(client: Client, sender: watch::Sender<Listed>) {
    loop {
        if let Ok(mut watcher) = client.watch(false).await {
            while let Ok(paths) = watcher.paths().await {
                let there: Vec<String> = paths.into_iter().map(|path| path.interface).collect();
                sender.send_if_modified(|listed| listed.take(&there));
            }
        }
        tokio::time::sleep(AGAIN).await;
    }
}

impl Present {
    /// Waits until this network is there. Where nobody tells of it that is never. Cancel-safe.
    pub(super) async fn comes(&self, network: &str) {
        let mut listed = self.0.listed.clone();
        let came = listed.wait_for(|listed| listed.since(network).is_some()).await.is_ok();
        if !came {
            pending::<()>().await;
        }
    }

    /// Waits until this network goes that is there, also if it has come back by now. Where nobody tells of it
    /// that is never. Cancel-safe.
    pub(super) async fn goes(&self, network: &str) {
        let mut listed = self.0.listed.clone();
        let is_there = |listed: &Listed| listed.since(network).is_some();
        let since = listed.wait_for(is_there).await.ok().and_then(|listed| listed.since(network));
        let gone = since.is_some() && listed.wait_for(|listed| listed.since(network) != since).await.is_ok();
        if !gone {
            pending::<()>().await;
        }
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listed {
    /// These are there now. Returns whether one came or went.
    fn take(&mut self, there: &[String]) -> bool {
        let before = self.networks.len();
        self.networks.retain(|(network, _)| there.contains(network));
        let mut is_news = self.networks.len() != before;
        for network in there {
            if self.since(network).is_none() {
                self.arrivals += 1;
                self.networks.push((network.clone(), self.arrivals));
                is_news = true;
            }
        }
        is_news
    }

    /// Which arrival brought this network.
    fn since(&self, network: &str) -> Option<u64> {
        self.networks.iter().find(|(known, _)| known == network).map(|(_, since)| *since)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn told() -> (watch::Sender<Listed>, Present) {
        let (sender, listed) = watch::channel(Listed::default());
        let task = tokio::spawn(async {}).abort_handle();
        (sender, Present(Arc::new(Heard { listed, task })))
    }

    fn tell(sender: &watch::Sender<Listed>, there: &[&str]) -> bool {
        let there: Vec<String> = there.iter().map(|network| (*network).to_owned()).collect();
        sender.send_if_modified(|listed| listed.take(&there))
    }

    #[tokio::test]
    async fn a_network_that_went_is_missed_though_it_came_back_before_anybody_looked() {
        let (sender, present) = told();
        assert!(tell(&sender, &["wlan0", "usb0"]) && !tell(&sender, &["usb0", "wlan0"]));
        let mut going = Box::pin(present.goes("usb0"));
        let mut staying = Box::pin(present.goes("wlan0"));
        // Both know by then which arrival they are about.
        assert!((&mut going).now_or_never().is_none());
        assert!((&mut staying).now_or_never().is_none());
        assert!(tell(&sender, &["wlan0"]) && tell(&sender, &["wlan0", "usb0"]));
        tokio::time::timeout(LIMIT, going).await.unwrap();
        assert!((&mut staying).now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_network_is_waited_for_until_it_is_told_of() {
        let (sender, present) = told();
        let mut coming = Box::pin(present.comes("usb0"));
        assert!((&mut coming).now_or_never().is_none());
        tell(&sender, &["wlan0"]);
        assert!((&mut coming).now_or_never().is_none());
        tell(&sender, &["wlan0", "usb0"]);
        tokio::time::timeout(LIMIT, coming).await.unwrap();
        // The manager is gone: that does not mean that a network is.
        let mut going = Box::pin(present.goes("usb0"));
        drop(sender);
        assert!((&mut going).now_or_never().is_none());
    }
}
