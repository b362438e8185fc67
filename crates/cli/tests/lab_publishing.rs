//! A browser's download from a server that moves, through a gateway: curl, python's HTTP server, and a real
//! network with round trips.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::time::Duration;

use crate::machines::{length, random, wait_for, whimbrel};
use sha2::{Digest as _, Sha256};
use whimbrel_lab::{HostChild, HostCommand, Lab, LinkSpec, Rate};

const SIZE: usize = 48 << 20;
/// The gateway, as clients see it.
const HTTP: &str = "203.0.113.1:80";

/// Starts a command, and returns its first line.
fn started(command: HostCommand) -> (HostChild, String) {
    let mut child = command
        .with(|command| {
            command.stdout(Stdio::piped()).stderr(Stdio::inherit());
        })
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.child().stdout.take().unwrap()).read_line(&mut line).unwrap();
    (child, line.trim_end().to_owned())
}

/// What a command says in JSON of a field, when it is ready.
fn said(line: &str, field: &str) -> String {
    let said: serde_json::Value =
        serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line:?}"));
    said[field].as_str().unwrap_or_else(|| panic!("no {field}: {line}")).to_owned()
}

#[test]
fn a_download_from_a_server_that_moves_is_one_connection_for_its_client() {
    if !whimbrel_lab::require!() {
        return;
    }
    let lab = Lab::new().unwrap();
    let [home, gateway, client] = ["home", "gateway", "client"].map(|name| lab.host(name).unwrap());
    let spec = LinkSpec::default().delay(Duration::from_millis(10)).rate(Rate::mbit(100));
    let link = lab.link(&home, &gateway, spec).unwrap();
    link.end(&gateway).add_address("10.0.0.1/24").unwrap();
    link.end(&home).add_address("10.0.0.10/24").unwrap();
    let outside = lab.link(&gateway, &client, LinkSpec::default()).unwrap();
    outside.end(&gateway).add_address("203.0.113.1/24").unwrap();
    outside.end(&client).add_address("203.0.113.80/24").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    fs::create_dir(path("site")).unwrap();
    let bytes = random(SIZE);
    fs::write(path("site/original"), &bytes).unwrap();
    let python = home.command("python3").args(["-u", "-m", "http.server", "8000", "--bind", "127.0.0.1"]);
    let (_site, _) = started(python.arg("--directory").arg(path("site")));
    let id = whimbrel(&home, &path("home")).args(["id"]).output().unwrap();
    let id = String::from_utf8(id.stdout).unwrap();
    let rule = format!("www.example.org={}", id.trim());
    let gate = ["gateway", "serve", "--ticket", "--allow", "any", "--json", "--publish", &rule];
    let gate = whimbrel(&gateway, &path("gate")).args(gate).args(["--public-http", HTTP]);
    let (_gate, line) = started(gate);
    let ticket = said(&line, "ticket");
    let public =
        ["expose", "--public", "http://www.example.org", "--gateway", &ticket, "--to", "127.0.0.1:8000"];
    let (_expose, line) = started(whimbrel(&home, &path("home")).args(public).args(["--json"]));
    assert!(line.contains("http://www.example.org"), "{line}");
    let copy = path("copy");
    let curl = client.command("curl").args(["-sS", "--fail", "--max-time", "100", "--resolve"]);
    let curl = curl.args(["www.example.org:80:203.0.113.1", "-w", "%{num_connects} %{http_code}\n", "-o"]);
    let curl = curl.arg(&copy).arg("http://www.example.org/original").with(|command| {
        command.stdout(Stdio::piped());
    });
    let mut curl = curl.spawn().unwrap();
    for at in 10..15_u8 {
        let part = SIZE / 6 * usize::from(at - 9);
        wait_for("the download grows", || {
            let has_ended = curl.child().try_wait().unwrap().is_some();
            let has_grown = length(&copy) >= part as u64;
            assert!(has_grown || !has_ended, "it ended before its server could move");
            has_grown.then_some(())
        });
        let end = link.end(&home);
        home.del_address(end.name(), &format!("10.0.0.{at}/24")).unwrap();
        end.add_address(&format!("10.0.0.{}/24", at + 1)).unwrap();
    }
    let mut told = String::new();
    BufReader::new(curl.child().stdout.take().unwrap()).read_line(&mut told).unwrap();
    assert!(curl.child().wait().unwrap().success(), "{told}");
    assert_eq!(told, "1 200\n", "one connection, one answer");
    assert_eq!(Sha256::digest(fs::read(&copy).unwrap()), Sha256::digest(&bytes));
}
