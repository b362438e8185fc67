//! Which networks there are, as the manager tells of them.

use futures_util::FutureExt;
use std::future::pending;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use whimbrel_multiaccess::Client;
use whimbrel_multiaccess::protocol::PathReport;

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

/// So many networks that went are remembered, the latest: a host has few, but may make names without end.
const REMEMBERED: usize = 64;

/// The networks, which are few.
#[derive(Debug, Default)]
struct Listed {
    networks: Vec<Network>,
    /// The names of those that were there and went, the latest last.
    gone: Vec<String>,
    arrivals: u64,
}

/// A network that is there.
#[derive(Debug)]
struct Network {
    name: String,
    /// Which arrival brought it.
    since: u64,
    /// What it carries was never measured, and to measure it costs no money.
    is_to_be_tried: bool,
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
                sender.send_if_modified(|listed| listed.take(&paths));
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

    /// Which arrival brought this network. `None` if it is away, or nobody has told of it yet.
    pub(super) fn arrival(&self, network: &str) -> Option<u64> {
        self.0.listed.borrow().since(network)
    }

    /// Waits until this network goes that was there by this [arrival](Self::arrival), also if it has come
    /// back by now, and if it went before this is waited for. Where nobody tells of it that is never.
    /// Cancel-safe.
    pub(super) async fn goes(&self, network: &str, arrival: Option<u64>) {
        let mut listed = self.0.listed.clone();
        let arrival = match arrival {
            Some(_) => Ok(arrival),
            None => {
                let told = listed.wait_for(|listed| listed.tells_of(network)).await;
                told.map(|listed| listed.since(network))
            }
        };
        let Ok(arrival) = arrival else { return pending().await };
        let has_gone = |listed: &Listed| arrival.is_none() || listed.since(network) != arrival;
        if listed.wait_for(has_gone).await.is_err() {
            pending::<()>().await;
        }
    }

    /// Whether nobody has measured yet what this network carries, while it is there and costs nothing: one
    /// that was taken away and made anew is another one for the manager.
    pub(super) fn is_to_be_tried(&self, network: &str) -> bool {
        self.0.listed.borrow().of(network).is_some_and(|network| network.is_to_be_tried)
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Listed {
    /// These are there now. Returns whether one came or went: what is known of one is no such news.
    fn take(&mut self, there: &[PathReport]) -> bool {
        let is_there = |known: &Network| there.iter().any(|path| path.interface == known.name);
        let (networks, gone): (Vec<_>, Vec<_>) = self.networks.drain(..).partition(is_there);
        let mut is_news = !gone.is_empty();
        self.networks = networks;
        self.gone.extend(gone.into_iter().map(|network| network.name));
        self.gone.drain(..self.gone.len().saturating_sub(REMEMBERED));
        for path in there {
            let is_to_be_tried = path.down_best.is_none() && !path.metered;
            if let Some(known) = self.networks.iter_mut().find(|known| known.name == path.interface) {
                known.is_to_be_tried = is_to_be_tried;
                continue;
            }
            self.gone.retain(|gone| *gone != path.interface);
            self.arrivals += 1;
            let (name, since) = (path.interface.clone(), self.arrivals);
            self.networks.push(Network { name, since, is_to_be_tried });
            is_news = true;
        }
        is_news
    }

    /// Which arrival brought this network.
    fn since(&self, network: &str) -> Option<u64> {
        self.of(network).map(|known| known.since)
    }

    /// Whether it is there, or was.
    fn tells_of(&self, network: &str) -> bool {
        self.of(network).is_some() || self.gone.iter().any(|gone| gone == network)
    }

    fn of(&self, network: &str) -> Option<&Network> {
        self.networks.iter().find(|known| known.name == network)
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

    fn report(network: &str) -> PathReport {
        PathReport { interface: network.to_owned(), ..PathReport::default() }
    }

    fn tell(sender: &watch::Sender<Listed>, there: &[&str]) -> bool {
        let there: Vec<PathReport> = there.iter().map(|network| report(network)).collect();
        sender.send_if_modified(|listed| listed.take(&there))
    }

    #[tokio::test]
    async fn a_network_is_to_be_tried_until_its_rate_is_known_again_after_it_was_away_and_never_for_money() {
        let (sender, present) = told();
        let known = PathReport { down_best: Some(1e6), ..report("usb0") };
        let say = |paths: &[PathReport]| sender.send_if_modified(|listed| listed.take(paths));
        assert!(!present.is_to_be_tried("usb0"), "it is not there");
        assert!(say(&[report("usb0")]));
        assert!(present.is_to_be_tried("usb0"));
        assert!(!say(std::slice::from_ref(&known)), "what is known of it is no news");
        assert!(!present.is_to_be_tried("usb0"));
        say(&[]);
        say(&[report("usb0")]);
        assert!(present.is_to_be_tried("usb0"));
        say(&[PathReport { metered: true, ..report("usb0") }]);
        assert!(!present.is_to_be_tried("usb0"));
    }

    #[tokio::test]
    async fn a_network_that_went_is_missed_though_it_came_back_before_anybody_looked() {
        let (sender, present) = told();
        assert!(tell(&sender, &["wlan0", "usb0"]) && !tell(&sender, &["usb0", "wlan0"]));
        let mut going = Box::pin(present.goes("usb0", None));
        let mut staying = Box::pin(present.goes("wlan0", None));
        // Both know by then which arrival they are about.
        assert!((&mut going).now_or_never().is_none());
        assert!((&mut staying).now_or_never().is_none());
        assert!(tell(&sender, &["wlan0"]) && tell(&sender, &["wlan0", "usb0"]));
        tokio::time::timeout(LIMIT, going).await.unwrap();
        assert!((&mut staying).now_or_never().is_none());
    }

    #[tokio::test]
    async fn a_network_that_went_before_it_was_watched_is_missed_at_once() {
        let (sender, present) = told();
        tell(&sender, &["usb0"]);
        let arrival = present.arrival("usb0");
        assert!(arrival.is_some());
        tell(&sender, &[]);
        // Who uses it from before, and who takes a connection that was left over.
        tokio::time::timeout(LIMIT, present.goes("usb0", arrival)).await.unwrap();
        tokio::time::timeout(LIMIT, present.goes("usb0", present.arrival("usb0"))).await.unwrap();
        tell(&sender, &["usb0"]);
        tokio::time::timeout(LIMIT, present.goes("usb0", arrival)).await.unwrap();
        assert!(present.goes("usb0", present.arrival("usb0")).now_or_never().is_none());
        assert!(
            present.goes("wlan0", present.arrival("wlan0")).now_or_never().is_none(),
            "nobody told of it"
        );
        for number in 0..2 * REMEMBERED {
            tell(&sender, &[&format!("veth{number}")]);
        }
        assert_eq!(sender.borrow().gone.len(), REMEMBERED);
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
        let mut going = Box::pin(present.goes("usb0", None));
        drop(sender);
        assert!((&mut going).now_or_never().is_none());
    }
}
