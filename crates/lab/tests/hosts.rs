//! Hosts: addresses, routes, interfaces, runtimes, programs, and nothing in common.
#![allow(clippy::unwrap_used)]

use std::net::{TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;
use whimbrel_lab::{Block, Direction, Host, Lab, LinkSpec, require};

#[test]
fn hosts_see_nothing_of_each_other_without_a_link() {
    if !require!() {
        return;
    }
    let lab = Lab::new().unwrap();
    let (a, b) = (lab.host("a").unwrap(), lab.host("b").unwrap());
    let _server = b.run(|| TcpListener::bind("127.0.0.1:7000")).unwrap();
    assert!(a.run(|| TcpStream::connect("127.0.0.1:7000")).is_err());
    assert!(b.run(|| TcpStream::connect("127.0.0.1:7000")).is_ok());
    assert!(a.run(|| TcpStream::connect("10.0.1.2:7000")).is_err());
    assert!(lab.link(&a, &a, LinkSpec::default()).is_err());
}

#[test]
fn hosts_have_tables_of_connections_of_their_own_where_that_is_asked_for() {
    if !require!() {
        return;
    }
    // Negative: it is the table that all share.
    let places = |host: &Host| -> i64 {
        let read = || std::fs::read_to_string("/proc/sys/net/ipv4/tcp_ehash_entries");
        host.run(read).unwrap().trim().parse().unwrap()
    };
    let host = Lab::new().unwrap().with_tables(1024).host("a").unwrap();
    assert_eq!(places(&host), 1024);
    let _server = host.run(|| TcpListener::bind("127.0.0.1:7000")).unwrap();
    assert!(host.run(|| TcpStream::connect("127.0.0.1:7000")).is_ok());
    assert!(places(&Lab::new().unwrap().host("b").unwrap()) < 0);
}

#[test]
fn ipv6_works_at_once() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default().delay(ms(2)));
    let socket = udp_client(&net.a, "fd00:1::1", udp_echo(&net.b, "[fd00:1::2]:0"));
    let time = round_trip(&socket, ms(1000)).unwrap();
    assert!(time < ms(50), "{time:?}");
}

#[test]
fn addresses_come_and_go() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default());
    let end = net.link.end(&net.a);
    let bind = |address: &str| net.a.run(|| UdpSocket::bind((address, 0)));
    assert!(bind("10.0.1.9").is_err());
    end.add_address("10.0.1.9/24").unwrap();
    end.add_address("fd00:1::9/64").unwrap();
    assert!(bind("10.0.1.9").is_ok() && bind("fd00:1::9").is_ok());
    let socket = udp_client(&net.a, "10.0.1.9", udp_echo(&net.b, "10.0.1.2:0"));
    assert!(round_trip(&socket, ms(1000)).is_some());
    end.del_address("10.0.1.9/24").unwrap();
    end.del_address("fd00:1::9/64").unwrap();
    assert!(bind("10.0.1.9").is_err() && bind("fd00:1::9").is_err());
    assert!(round_trip(&socket, ms(100)).is_none());
    let error = end.add_address("10.0.1.300/24").unwrap_err().to_string();
    assert!(error.contains("10.0.1.300"), "{error}");
}

#[test]
fn an_interface_goes_down_and_is_restored() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default());
    let name = net.link.end(&net.a).name();
    net.a.add_default_route(name, B, 100).unwrap();
    let v4 = udp_client(&net.a, A, udp_echo(&net.b, "10.0.1.2:0"));
    let v6 = udp_client(&net.a, "fd00:1::1", udp_echo(&net.b, "[fd00:1::2]:0"));
    assert!(round_trip(&v4, ms(1000)).is_some() && round_trip(&v6, ms(1000)).is_some());
    net.a.set_link(name, false).unwrap();
    assert!(round_trip(&v4, ms(100)).is_none());
    net.a.set_link(name, true).unwrap();
    assert!(round_trip(&v4, ms(2000)).is_some());
    let bind6 = || net.a.run(|| UdpSocket::bind(("fd00:1::1", 0)));
    assert!(bind6().is_err(), "the kernel forgets IPv6 addresses");
    net.a.restore(name).unwrap();
    bind6().unwrap();
    assert!(round_trip(&v6, ms(2000)).is_some());
    let routes = net.a.command("ip").args(["route"]).output().unwrap();
    assert!(String::from_utf8_lossy(&routes.stdout).contains("default via 10.0.1.2"));
}

#[test]
fn a_pulled_cable_shows_as_lost_carrier() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default());
    let socket = udp_client(&net.a, A, udp_echo(&net.b, "10.0.1.2:0"));
    let state = || {
        let output = net.a.command("ip").args(["link", "show", "eth0"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(!state().contains("NO-CARRIER"));
    net.link.set_carrier(&net.a, false).unwrap();
    assert!(state().contains("NO-CARRIER") && state().contains("UP"), "{}", state());
    assert!(round_trip(&socket, ms(100)).is_none());
    net.link.set_carrier(&net.a, true).unwrap();
    let deadline = Instant::now() + Duration::from_secs(5);
    while round_trip(&socket, ms(100)).is_none() {
        assert!(Instant::now() < deadline, "the cable is in again, but nothing passes");
    }
    assert!(!state().contains("NO-CARRIER"));
}

#[test]
fn a_removed_link_takes_its_interfaces_along() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default());
    assert!(net.a.run(|| UdpSocket::bind((A, 0))).is_ok());
    net.link.remove().unwrap();
    assert!(net.a.run(|| UdpSocket::bind((A, 0))).is_err());
    net.link.set_delay(Direction::Both, ms(1));
}

#[test]
fn chosen_packets_are_blocked() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default());
    let udp = udp_client(&net.a, A, udp_echo(&net.b, "10.0.1.2:0"));
    let server = tcp_echo(&net.b, "10.0.1.2:443");
    net.b.block(Block::Udp).unwrap();
    assert!(round_trip(&udp, ms(100)).is_none());
    let mut tcp = connect(&net.a, server).unwrap();
    assert!(echoes(&mut tcp, ms(1000)));
    net.b.block(Block::TcpPort(443)).unwrap();
    net.b.unblock(Block::Udp).unwrap();
    assert!(round_trip(&udp, ms(1000)).is_some());
    assert!(!echoes(&mut tcp, ms(100)));
    net.a.block(Block::Address(B.parse().unwrap())).unwrap();
    assert!(round_trip(&udp, ms(100)).is_none());
    net.a.block(Block::Icmp).unwrap();
}

#[test]
fn all_threads_of_a_runtime_are_inside() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default().delay(ms(2)));
    let (client, server) = (net.a.runtime(2).unwrap(), net.b.runtime(1).unwrap());
    let listener = server.block_on(tokio::net::TcpListener::bind("10.0.1.2:7000")).unwrap();
    let greeting = server.spawn(async move {
        let (mut stream, from) = listener.accept().await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, b"hello").await.unwrap();
        from.ip().to_string()
    });
    let heard = client.block_on(async {
        let mut stream = tokio::net::TcpStream::connect("10.0.1.2:7000").await.unwrap();
        let mut text = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut stream, &mut text).await.unwrap();
        text
    });
    assert_eq!(heard, "hello");
    assert_eq!(client.block_on(greeting).unwrap(), A);
    let blocking = client.spawn_blocking(|| UdpSocket::bind((A, 0)).is_ok());
    assert!(client.block_on(blocking).unwrap());
}

#[tokio::test]
async fn asynchronous_tests_may_use_the_lab() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default());
    let runtime = net.a.runtime(1).unwrap();
    let bound = runtime.spawn(tokio::net::UdpSocket::bind((A, 0))).await.unwrap();
    assert!(bound.is_ok());
}

#[test]
fn programs_run_inside_and_die_with_their_guard() {
    if !require!() {
        return;
    }
    let net = pair(LinkSpec::default());
    let output = net.a.command("ip").args(["-o", "-4", "address"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains(A));
    let mut child = net.a.command("sh").args(["-c", "sleep 100 & sleep 100"]).spawn().unwrap();
    let number = child.child().id();
    assert!(std::fs::exists(format!("/proc/{number}")).unwrap());
    drop(child);
    assert!(!std::fs::exists(format!("/proc/{number}")).unwrap());
    let orphan = net.a.command("sleep").arg("100").spawn().unwrap();
    std::mem::forget(orphan);
    assert!(net.a.command("no-such-program").spawn().is_err());
}

#[test]
fn nothing_remains_of_a_dropped_lab() {
    if !require!() {
        return;
    }
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with("lab-gone")).count()
    };
    let lab = Lab::new().unwrap();
    let a = lab.host("gone-a").unwrap();
    let b = lab.host("gone-b").unwrap();
    let link = lab.link(&a, &b, LinkSpec::default()).unwrap();
    assert_eq!(threads(), 2);
    drop((lab, a, b, link));
    let deadline = Instant::now() + Duration::from_secs(5);
    while threads() > 0 {
        assert!(Instant::now() < deadline);
        thread::sleep(ms(5));
    }
}
