//! What connections use that are dialled after somebody said so.
#![allow(clippy::unwrap_used)]

use std::net::IpAddr;
use std::time::Duration;

use whimbrel_transport::{
    Allow, Connection, Endpoint, HandoverMode, ListenOptions, LocalAddress, ManualMonitor, PathPolicy,
    PathState,
};

fn ip(last: u8) -> IpAddr {
    IpAddr::from([127, 0, 173, last])
}

/// The interfaces `a` and `b`, each with an address.
fn two() -> ManualMonitor {
    let monitor = ManualMonitor::new([]);
    let local = |last, name: &str| LocalAddress { ip: ip(last), interface: Some(name.into()) };
    monitor.set_local([local(1, "a"), local(2, "b")]);
    monitor
}

fn only(name: &str) -> PathPolicy {
    PathPolicy { interfaces: vec![name.parse().unwrap()], ..PathPolicy::default() }
}

fn locals(connection: &Connection) -> Vec<IpAddr> {
    let paths = connection.stats().paths.into_iter();
    paths.filter(|path| path.state == PathState::Active).map(|path| path.local.ip()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_dialled_later_use_what_was_said_and_others_stay_as_they_are() {
    let client = Endpoint::builder().monitor(two()).paths(only("a")).bind().await.unwrap();
    let server = Endpoint::builder().monitor(ManualMonitor::new([ip(9)])).bind().await.unwrap();
    let mut listener = server.listen(ListenOptions::unnamed().allow(Allow::Any)).await.unwrap();
    let mut accepted = Vec::new();
    tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            accepted.push(connection);
        }
    });
    let limit = Duration::from_secs(20);
    let connect =
        || async { tokio::time::timeout(limit, client.connect(server.addr())).await.unwrap().unwrap() };
    assert_eq!(client.paths(), (only("a"), HandoverMode::Full));
    let before = connect().await;
    client.set_paths(only("b"), HandoverMode::Backup);
    assert_eq!(client.paths(), (only("b"), HandoverMode::Backup));
    let after = connect().await;
    let used = |connection: &Connection| {
        let control = connection.path_control();
        (control.policy(), control.handover())
    };
    assert_eq!(used(&before), (only("a"), HandoverMode::Full));
    assert_eq!(used(&after), (only("b"), HandoverMode::Backup));
    assert!(locals(&before).iter().all(|local| *local == ip(1)), "{:?}", locals(&before));
    let paths = locals(&after);
    assert!(!paths.is_empty() && paths.iter().all(|local| *local == ip(2)), "{paths:?}");
}
