//! Blocking endpoints on loopback addresses, each of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, unreachable_pub)]

use std::net::IpAddr;

use whimbrel::blocking::{Endpoint, Listener, Stream};
use whimbrel::{Allow, ListenOptions, ManualMonitor};

pub fn ip(net: u8, host: u8) -> IpAddr {
    IpAddr::from([127, 0, net, host])
}

/// An endpoint that can be moved.
pub fn endpoint(net: u8, host: u8) -> (Endpoint, ManualMonitor) {
    log();
    let at = ManualMonitor::new([ip(net, host)]);
    (Endpoint::bind(whimbrel::Endpoint::builder().monitor(at.clone())).unwrap(), at)
}

pub struct Pair {
    pub client: Stream,
    pub server: Stream,
    _listener: Listener,
    pub client_at: ManualMonitor,
    _server_at: ManualMonitor,
}

/// Both ends of a stream.
pub fn pair(net: u8) -> Pair {
    let ((serving, server_at), (calling, client_at)) = (endpoint(net, 1), endpoint(net, 2));
    let listener = serving.listen(ListenOptions::unnamed().allow(Allow::Any)).unwrap();
    let client = calling.connect(listener.ticket()).unwrap();
    let (server, peer) = listener.accept().unwrap();
    assert_eq!((peer, client.peer_id()), (client.local_id(), server.local_id()));
    Pair { client, server, _listener: listener, client_at, _server_at: server_at }
}

/// `RUST_LOG=whimbrel=debug` shows what happens.
pub fn log() {
    let filter = tracing_subscriber::EnvFilter::from_default_env();
    let _ = tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().try_init();
}
