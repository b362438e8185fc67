//! A machine with a global IPv6 address behind a router's firewall: what `expose` and `doctor` say of it, and
//! do.
#![allow(clippy::unwrap_used)]

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use whimbrel_lab::{Lab, LinkSpec, PcpFirewall, require};

use crate::homes::{serve, started, whimbrel};

const HOME: &str = "2001:db8:1::20";

#[test]
fn expose_and_doctor_say_that_the_firewall_lets_peers_in_and_they_come() {
    if !require!() {
        return;
    }
    let lab = Lab::new().unwrap();
    let (home, laptop) = (lab.host("home").unwrap(), lab.host("laptop").unwrap());
    let router = lab.router("router").unwrap();
    let inside = LinkSpec::default().interface_names("eth0", "lan0");
    let inside = lab.link(&home, &router, inside).unwrap();
    inside.end(&router).add_address("fe80::1/64").unwrap();
    inside.end(&router).add_address("2001:db8:1::1/64").unwrap();
    inside.end(&home).add_address(&format!("{HOME}/64")).unwrap();
    inside.end(&home).add_default_route("fe80::1", 1).unwrap();
    let outside = LinkSpec::default().interface_names("eth0", "wan0");
    let outside = lab.link(&laptop, &router, outside).unwrap();
    outside.end(&router).add_address("2001:db8:2::1/64").unwrap();
    outside.end(&laptop).add_address("2001:db8:2::20/64").unwrap();
    outside.end(&laptop).add_default_route("2001:db8:2::1", 1).unwrap();
    let _firewall = PcpFirewall::start(&router, "wan0", "lan0", "fe80::1".parse().unwrap()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    serve(home.run(|| TcpListener::bind("127.0.0.1:2222")).unwrap(), b"here".to_vec());

    // A router on a busy machine may answer too late; then it is asked again.
    let begun = Instant::now();
    let is_in_time = || begun.elapsed() < Duration::from_secs(90);
    loop {
        let doctor = whimbrel(&home, folder.path(), "home").args(["doctor", "--json"]).output().unwrap();
        let report: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
        let all = report["findings"].as_array().unwrap();
        let is_said = |check: &str| {
            let mut found = all.iter().filter(|finding| finding["check"] == check);
            found.any(|found| found["state"] == "good" && found["finding"].as_str().unwrap().contains(HOME))
        };
        if is_said("IPv6 firewall over tcp") && is_said("IPv6 firewall over quic") {
            break;
        }
        assert!(is_in_time(), "{report}");
    }

    let place: SocketAddr = format!("[{HOME}]:4433").parse().unwrap();
    let dials = || laptop.run(|| TcpStream::connect_timeout(&place, Duration::from_secs(2)).is_ok());
    let expose =
        ["expose", "--ticket", "--to", "127.0.0.1:2222", "--allow", "any", "--port", "4433", "--json"];
    let expose = || whimbrel(&home, folder.path(), "home").args(expose);
    let (mut exposed, _) = started(expose());
    assert!(!dials(), "the firewall was not asked");
    exposed.kill().unwrap();
    loop {
        let asking = expose().args(["--advertise", "router"]).with(|command| {
            command.stderr(Stdio::piped());
        });
        let (mut exposed, said) = started(asking);
        let dialled = dials();
        let ticket = said["ticket"].as_str().unwrap();
        let pipe = || whimbrel(&laptop, folder.path(), "laptop").args(["pipe", ticket]).output().unwrap();
        let heard = dialled.then(pipe);
        exposed.kill().unwrap();
        let mut told = String::new();
        exposed.child().stderr.take().unwrap().read_to_string(&mut told).unwrap();
        let says = format!("the router's firewall lets peers in at [{HOME}]:4433");
        if let Some(heard) = heard.filter(|_| told.contains(&says)) {
            assert_eq!(String::from_utf8_lossy(&heard.stdout), "here", "{heard:?}");
            break;
        }
        assert!(is_in_time(), "{told}");
    }
}
