//! What an owner is told before a name may become another's.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::*;
use whimbrel_names::{Limits, MemoryStore};
use whimbrel_transport::Resolver as _;

/// What this thread logs.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The warnings of a device that publishes at a service which holds user names for so long.
async fn warnings(net: Net, held: Duration) -> String {
    let limits = Limits { user_grace: held, ..Default::default() };
    let service = service_with(net, MemoryStore::new(), limits).await;
    let (anna, names) = named_host(net, 1, 1, &service).await;
    let log = Log::default();
    let writer = log.clone();
    let format = tracing_subscriber::fmt().with_ansi(false).with_max_level(tracing::Level::WARN);
    let logging = tracing::subscriber::set_default(format.with_writer(move || writer.clone()).finish());
    names.publish(record("anna@example.org", &anna, None)).await.unwrap();
    drop(logging);
    let logged = log.0.lock().unwrap().clone();
    String::from_utf8(logged).unwrap()
}

#[tokio::test]
async fn a_publisher_is_warned_a_week_before_its_users_name_is_held_no_longer() {
    let day = Duration::from_secs(86_400);
    let near = warnings(Net(191), 6 * day).await;
    assert!(near.contains("anna@example.org") && near.contains("less than a week"), "{near}");
    let far = warnings(Net(192), 8 * day).await;
    assert!(!far.contains("less than a week"), "{far}");
}
