//! A relay that wants a proof of its servers.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::timeout;
use whimbrel_base::{EndpointId, SecretKey};
use whimbrel_relay::{Estate, Gate, Keeper, Keeping, Limits, Prover, Relay};
use whimbrel_transport::{Allow, BoxFuture, Endpoint, ManualMonitor};

use crate::loopback::{LIMIT, Served, at, ip};

const WORD: &[u8] = b"friend";

/// Lets those in who say the word, and one that need not.
struct Password {
    known: EndpointId,
    lasts: Duration,
}

impl Gate for Password {
    fn is_open_to(&self, server: EndpointId) -> bool {
        server == self.known
    }

    fn check(&self, _: EndpointId, proof: &[u8]) -> Result<Duration, String> {
        if proof == WORD { Ok(self.lasts) } else { Err("that is not the word".to_owned()) }
    }
}

/// Says what it was told, while it was.
#[derive(Default)]
struct Told {
    word: Mutex<Option<&'static [u8]>>,
    asked: AtomicUsize,
}

impl Prover for Told {
    fn prove(&self) -> BoxFuture<'_, io::Result<Vec<u8>>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let word = *self.word.lock().unwrap();
        let gone = || io::Error::other("the word was taken back");
        Box::pin(std::future::ready(word.map(<[u8]>::to_vec).ok_or_else(gone)))
    }
}

async fn relay(test: u8, known: EndpointId, lasts: Duration) -> Relay {
    let builder = Endpoint::builder().monitor(ManualMonitor::new([ip(test, 1)])).config(Relay::config());
    let endpoint = builder.bind().await.unwrap();
    let prepared =
        Relay::prepare(endpoint, Allow::Any, Limits::default(), Vec::new(), Estate::default()).unwrap();
    prepared.set_gate(Arc::new(Password { known, lasts }));
    prepared.listen().await.unwrap().go_on(&[])
}

/// A server that says this, and goes on asking for a reservation.
struct Server {
    keeper: Keeper,
    told: Arc<Told>,
    _endpoint: Endpoint,
}

impl Server {
    async fn start(test: u8, host: u8, key: SecretKey, relay: &Relay, word: Option<&'static [u8]>) -> Self {
        let monitor = ManualMonitor::new([ip(test, host)]);
        let endpoint = Endpoint::builder().secret_key(key.clone()).monitor(monitor).bind().await.unwrap();
        let told = Arc::new(Told { word: Mutex::new(word), ..Told::default() });
        let keeper = Keeper::start_with(endpoint.clone(), &key, vec![at(relay)], Some(told.clone()));
        Self { keeper, told, _endpoint: endpoint }
    }

    async fn wait(&self, done: impl FnMut(&Keeping) -> bool) -> Keeping {
        let mut news = self.keeper.news();
        timeout(LIMIT, news.wait_for(done)).await.expect("it does not come to that").unwrap()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_proves_what_is_wanted_gets_a_reservation_and_others_are_told_why_not() {
    let known = SecretKey::generate();
    let relay = relay(128, known.id(), Duration::from_secs(600)).await;
    let friend = Server::start(128, 2, SecretKey::generate(), &relay, Some(WORD)).await;
    friend.wait(|now| now.held == 1).await;
    let known = Server::start(128, 3, known, &relay, None).await;
    known.wait(|now| now.held == 1).await;
    assert_eq!(known.told.asked.load(Ordering::Relaxed), 0, "it need not prove anything");

    let forger = Server::start(128, 4, SecretKey::generate(), &relay, Some(&b"fiend"[..])).await;
    let told = forger.wait(|now| now.problem.is_some()).await.problem.unwrap();
    assert!(told.contains("that is not the word"), "{told}");
    let without = Server::start(128, 5, SecretKey::generate(), &relay, None).await;
    let told = without.wait(|now| now.problem.is_some()).await.problem.unwrap();
    assert!(told.contains("the word was taken back"), "{told}");
    // One that has nothing to show at all.
    let plain = Served::start(128, 6, vec![at(&relay)]).await;
    let mut news = plain.keeper.news();
    let told = timeout(LIMIT, news.wait_for(|now| now.problem.is_some())).await.unwrap().unwrap();
    let problem = told.problem.unwrap();
    assert!(problem.contains("this endpoint has none to show"), "{problem}");
    assert_eq!(relay.stats().reservations, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_proved_no_more_ends_in_time_and_others_go_on() {
    let relay = relay(129, SecretKey::generate().id(), Duration::from_secs(8)).await;
    let [leaving, staying] = [2, 3].map(|host| {
        let relay = &relay;
        async move { Server::start(129, host, SecretKey::generate(), relay, Some(WORD)).await }
    });
    let (leaving, staying) = (leaving.await, staying.await);
    leaving.wait(|now| now.held == 1).await;
    staying.wait(|now| now.held == 1).await;
    *leaving.told.word.lock().unwrap() = None;
    let told = leaving.wait(|now| now.held == 0).await.problem.unwrap_or_default();
    assert!(told.contains("no proof came in time") || told.contains("taken back"), "{told}");
    // It was asked again, and so is the other one, which has an answer.
    assert!(leaving.told.asked.load(Ordering::Relaxed) >= 2);
    let asked = async {
        while staying.told.asked.load(Ordering::Relaxed) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, asked).await.expect("it is not asked again");
    staying.wait(|now| now.held == 1).await;
    let released = async {
        while relay.stats().reservations != 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(LIMIT, released).await.expect("the reservation stays");
    *leaving.told.word.lock().unwrap() = Some(WORD);
    leaving.wait(|now| now.held == 1).await;
}
