//! Several paths at once over real links: what they bring together, and what happens when they come and go.
#![allow(clippy::unwrap_used)]

mod lab_support;

use std::time::Instant;

use lab_support::net::{Family, Multi};
use lab_support::traffic::{Server, Transfer, Way};
use lab_support::{heavy, ms, secs};
use whimbrel_lab::{LinkSpec, Rate, require};
use whimbrel_transport::{Builder, Connection, HandoverMode, PathInfo, PathState};

fn link(rate: u64, delay: u64) -> LinkSpec {
    LinkSpec::default().delay(ms(delay)).rate(Rate::mbit(rate))
}

/// A connection over two links, the server's mode being as it is by default.
struct Running {
    net: Multi,
    server: Server,
    connection: Connection,
}

fn running(net: Multi, change: impl FnOnce(Builder) -> Builder + Send) -> Running {
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint_with(change);
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    Running { net, server, connection }
}

fn in_mode(net: Multi, mode: HandoverMode) -> Running {
    running(net, |builder| builder.handover(mode))
}

impl Running {
    /// Waits until the paths are so.
    fn until(&self, what: &str, are_so: impl Fn(&[PathInfo]) -> bool + Send) {
        let began = Instant::now();
        loop {
            let paths = self.connection.stats().paths;
            if are_so(&paths) {
                return;
            }
            assert!(began.elapsed() < secs(20), "waited in vain: {what}; {paths:#?}");
            std::thread::sleep(ms(5));
        }
    }

    fn until_active(&self, count: usize) {
        self.until("paths", |paths| active(paths).count() == count);
    }

    fn transfer(&self, way: Way, bytes: u64) -> Transfer {
        Transfer::start(&self.net.client, &self.connection, &self.server, way, bytes)
    }
}

fn active(paths: &[PathInfo]) -> impl Iterator<Item = &PathInfo> {
    paths.iter().filter(|path| path.state == PathState::Active)
}

#[test]
fn in_mode_full_both_links_carry_data() {
    if !require!() {
        return;
    }
    let _alone = heavy();
    for way in [Way::Up, Way::Down] {
        let running = in_mode(Multi::new(Family::V4, &[link(20, 10), link(20, 10)]), HandoverMode::Full);
        running.until_active(2);
        let began = Instant::now();
        running.transfer(way, 12_000_000).finish(&running.net.client);
        let took = began.elapsed();
        let carried = |path: &PathInfo| path.bytes_sent.max(path.bytes_received);
        eprintln!(
            "{way:?}: {took:?}, {:?}",
            running.connection.stats().paths.iter().map(carried).collect::<Vec<_>>()
        );
        // One link alone takes 4.8 s.
        assert!(took < ms(3600), "{way:?}: {took:?}");
        assert!(running.connection.stats().paths.iter().all(|path| carried(path) > 3_000_000));
    }
}
