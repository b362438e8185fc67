//! Connections of a user who has a gateway and a manager: over the kernel's Multipath TCP where the manager
//! answers so.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use crate::http_tunnels::tunnel;
use crate::multipath::{self, listed};
use crate::networks::World;
use crate::support::{LIMIT, Origin, body, get, has, read_head};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use whimbrel_access::Intents;
use whimbrel_lab::require;
use whimbrel_proxy::{ByAnswer, Destination, HttpProxy, Reaching, Upstream, UpstreamError};

/// A gateway that reaches nothing.
struct Gate;

impl Upstream for Gate {
    fn reach<'a>(&'a self, to: &'a Destination, _: &'a Intents) -> Reaching<'a> {
        let why = "asked at the gateway".to_owned();
        Box::pin(std::future::ready(Err(UpstreamError::NoWay { to: to.to_string(), why })))
    }
}

/// Two links, a manager with this policy that names a gateway, and a proxy that goes by its answers.
fn world(policy: &str) -> World {
    let settings = format!("gateway = \"gate.home.ada@example.org\"\n[policy]\nname = \"{policy}\"");
    World::made(
        &[(5, 20), (5, 20)],
        &settings,
        |_| {},
        |managed, settings| {
            let anywhere = "10.9.9.9:80".parse().unwrap();
            let client = managed.manager(&anywhere).unwrap();
            HttpProxy::new(Arc::new(ByAnswer::new(client, Intents::default(), Arc::new(Gate))), settings)
        },
    )
}

/// The server's answer to a request in this tunnel.
fn ask(tunnel: &mut TcpStream) -> String {
    tunnel.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n").unwrap();
    let mut answer = read_head(tunnel).unwrap();
    let mut body = [0; 5];
    tunnel.read_exact(&mut body).unwrap();
    answer.push_str(std::str::from_utf8(&body).unwrap());
    answer
}

#[test]
fn tunnels_and_objects_go_over_multipath_tcp_where_the_manager_answers_so_and_over_tcp_where_it_does_not() {
    if !require!() {
        return;
    }
    for (policy, is_multipath) in [("mptcp", true), ("eaf", false)] {
        let world = world(policy);
        if !multipath::is_allowed(&world, "connections over Multipath TCP by the manager's answer") {
            return;
        }
        // The server speaks both: what its kernel lists is what the proxy opened.
        let origin = Origin::on(multipath::listener(&world), |_, _, stream| {
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").is_ok()
        });
        let is_listed = |kind: &str| listed(&world, kind, origin.address.port());
        let mut tunnel = tunnel(&world, origin.address);
        assert!(ask(&mut tunnel).ends_with("hello"));
        assert_eq!(is_listed("-M").len(), usize::from(is_multipath), "{policy}: {:?}", is_listed("-M"));
        assert!(!is_listed("-t").is_empty(), "{policy}");
        // The connection of an object is kept.
        let answer = world.talk(&get(&origin.url("/"), ""));
        assert!(has(&answer, "content-length: 5") && body(&answer) == "hello", "{answer}");
        assert_eq!(is_listed("-M").len(), 2 * usize::from(is_multipath), "{policy}: {:?}", is_listed("-M"));
        if is_multipath {
            let end = Instant::now() + LIMIT;
            let is_over = |link: &str| is_listed("-t").iter().filter(|one| one.contains(link)).count() == 2;
            while !["10.0.0.1:", "10.0.1.1:"].into_iter().all(is_over) {
                assert!(Instant::now() < end, "not over both links: {:?}", is_listed("-t"));
                // Both sides know by what comes back that the other speaks it.
                assert!(ask(&mut tunnel).ends_with("hello"));
                std::thread::sleep(Duration::from_millis(20));
            }
        }
    }
}
