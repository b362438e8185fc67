//! A machine with a global IPv6 address behind a router's firewall: what `expose` and `doctor` say of it, and do.
#![allow(clippy::unwrap_used)]

#[path = "common/homes.rs"]
mod homes;

use std::io::Read as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Stdio;
use std::time::Duration;

use whimbrel_lab::{Lab, LinkSpec, PcpFirewall, require};

use homes::{serve, started, whimbrel};

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

    let doctor = whimbrel(&home, folder.path(), "home").args(["doctor", "--json"]).output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&doctor.stdout).unwrap();
    let all = report["findings"].as_array().unwrap();
    for check in ["IPv6 firewall over tcp", "IPv6 firewall over quic"] {
        let found = all.iter().find(|finding| finding["check"] == check).unwrap();
        let says = found["finding"].as_str().unwrap();
        assert!(found["state"] == "good" && says.contains(HOME), "{report}");
    }

    let place: SocketAddr = format!("[{HOME}]:4433").parse().unwrap();
    let dials = || laptop.run(|| TcpStream::connect_timeout(&place, Duration::from_secs(2)).is_ok());
    let expose =
        ["expose", "--ticket", "--to", "127.0.0.1:2222", "--allow", "any", "--port", "4433", "--json"];
    let expose = || whimbrel(&home, folder.path(), "home").args(expose);
    let (mut exposed, _) = started(expose());
    assert!(!dials(), "the firewall was not asked");
    exposed.kill().unwrap();
    let asking = expose().args(["--advertise", "router"]).with(|command| {
        command.stderr(Stdio::piped());
    });
    let (mut exposed, said) = started(asking);
    assert!(dials());
    let ticket = said["ticket"].as_str().unwrap();
    let heard = whimbrel(&laptop, folder.path(), "laptop").args(["pipe", ticket]).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&heard.stdout), "here", "{}", String::from_utf8_lossy(&heard.stderr));
    exposed.kill().unwrap();
    let mut told = String::new();
    exposed.child().stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(told.contains(&format!("the router's firewall lets peers in at [{HOME}]:4433")), "{told}");
}
