//! A download over HTTPS that ends in the phone's proxy goes on at the desk: real programs, a real server of
//! HTTPS that knows nothing of it, and commands as people type them.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;

use crate::certificates;
use crate::common::{LIMIT, Process, World, dead_port, length, wait_for};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const SIZE: usize = 12 << 20;

/// Python's server of HTTPS for one file, of which it has parts. Its second half comes once there is a file
/// `go`. What is posted has the same answer; `/nameless` has no version.
const SERVER: &str = r#"
import http.server, os, ssl, sys, time

port, folder = int(sys.argv[1]), sys.argv[2]
film = open(os.path.join(folder, "film"), "rb").read()

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        asked = self.headers.get("Range")
        first, last = 0, len(film) - 1
        if asked:
            first, last = (int(text) for text in asked.removeprefix("bytes=").split("-"))
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(film)}")
        if self.path != "/nameless":
            self.send_header("ETag", '"one"')
        self.send_header("Content-Length", str(last + 1 - first))
        self.end_headers()
        half = (first + last) // 2
        self.wfile.write(film[first:half])
        while not os.path.exists(os.path.join(folder, "go")):
            time.sleep(0.02)
        self.wfile.write(film[half:last + 1])

    def do_POST(self):
        self.do_GET()

server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(os.path.join(folder, "host.pem"), os.path.join(folder, "host.key"))
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
server.serve_forever()
"#;

/// A server, a gateway, and the phone's proxy in which its HTTPS ends.
struct Stage {
    world: World,
    file: Vec<u8>,
    url: String,
    /// The authority that signs for servers, and for the phone's proxy.
    authority: String,
    ours: String,
    proxy: String,
    phone: Process,
    server: Process,
    _gateway: Process,
}

impl Stage {
    fn new() -> Self {
        let world = World::new();
        let mut file = vec![0; SIZE];
        getrandom::fill(&mut file).unwrap();
        let site = world.path("site");
        fs::create_dir(&site).unwrap();
        fs::write(site.join("film"), &file).unwrap();
        let made = certificates::for_localhost(&site);
        let at = dead_port();
        let mut python = Command::new("python3");
        let server = Process::start(python.args(["-u", "-c", SERVER, &at.port().to_string()]).arg(&site));
        wait_for("the server listens", || TcpStream::connect(at).ok());
        let phone = world.id("phone");
        let serve = ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1", "--allow", &phone];
        let mut gateway = world.start("gate", &serve);
        let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
        let folder = world.path("ca").to_str().unwrap().to_owned();
        world.run("phone", &["proxy", "intercept-ca", "--out", &folder, "--for", "localhost"]).succeeded();
        let named = format!("localhost:{}", at.port());
        let proxy = ["proxy", "http", "--listen", "127.0.0.1:0", "--json", "--through", &ticket];
        let key = ["--intercept", &named, "--intercept-ca", &folder, "--upstream-ca", &made.authority];
        let mut phone = world.start("phone", &[&proxy[..], &key].concat());
        let proxy = phone.next_json()["listening"].as_str().unwrap().to_owned();
        let (url, ours) = (format!("https://{named}"), format!("{folder}/intercept-ca.crt"));
        let authority = made.authority;
        Self { world, file, url, authority, ours, proxy, phone, server, _gateway: gateway }
    }

    fn first(&self) -> PathBuf {
        self.world.path("first")
    }

    /// The phone's curl, which loads this and has some of it.
    fn curl(&self, path: &str, more: &[&str]) -> Process {
        let mut curl = Command::new("curl");
        curl.args(["-q", "-sS", "--noproxy", "", "--max-time", "300", "--limit-rate", "4M"]);
        curl.args(["--proxy", &format!("http://{}", self.proxy), "--cacert", &self.ours]).args(more);
        curl.arg("-o").arg(self.first()).arg(format!("{}{path}", self.url));
        let curl = Process::start(&mut curl);
        wait_for("the download grows", || (length(&self.first()) > 1 << 20).then_some(()));
        curl
    }

    /// What the phone has that could move.
    fn session(&self) -> Value {
        wait_for("the session is shown", || {
            let said = self.world.run("phone", &["sessions", "--json"]).succeeded().json();
            said["sessions"].as_array().unwrap().first().cloned()
        })
    }

    /// Lets the desk have it. Returns its id and the ticket.
    fn hand_off(&self) -> (String, String) {
        let id = self.session()["id"].as_str().unwrap().to_owned();
        let desk = self.world.id("desk");
        let said = self.world.run("phone", &["handoff", &id[..8], "--to", &desk, "--json"]);
        let said = said.succeeded().json();
        (id, said["ticket"].as_str().unwrap().to_owned())
    }

    /// Has the desk take it, for a curl that writes there.
    fn take(&self, (id, ticket): &(String, String), trusting: &str) -> Process {
        // The flags that each command of a test gets go to the shell, which has no use for them.
        let second = self.second().display().to_string();
        let script = format!("curl -q -sS --fail --noproxy '*' -o '{second}' \"$0\" 2>'{second}.log'");
        let args = ["take", &id[..8], "--from", ticket, "--as", "http", "--", "sh", "-c", &script, "{url}"];
        Process::start(self.world.command("desk", &args).env("SSL_CERT_FILE", trusting))
    }

    fn second(&self) -> PathBuf {
        self.world.path("second")
    }

    /// Has the server send the second half of what it is asked for.
    fn go(&self) {
        fs::write(self.world.path("site/go"), "").unwrap();
    }

    /// The phone's program gets all of it.
    fn goes_on_at_the_phone(&self, curl: Process) {
        self.phone.until_said("stays here", 1);
        self.go();
        curl.output(3 * LIMIT).succeeded();
        let whole = fs::read(self.first()).unwrap();
        assert_eq!((whole.len(), Sha256::digest(&whole)), (SIZE, Sha256::digest(&self.file)));
    }
}

#[test]
fn a_download_over_https_goes_on_at_the_desk_and_both_parts_are_the_file() {
    let stage = Stage::new();
    let mut curl = stage.curl("/film?token=secret", &[]);
    let session = stage.session();
    assert_eq!(session["command"], "proxy http", "{session}");
    assert_eq!(session["peer"], format!("{}/film", stage.url), "{session}");
    assert!(session["down"].as_u64() > Some(1 << 18), "{session}");
    let id = session["id"].as_str().unwrap();
    let said = stage.world.run("phone", &["handoff", &id[..8], "--to", &stage.world.id("desk")]);
    assert!(said.succeeded().stdout.trim_end().ends_with(" --as http"), "{}", said.stdout);
    assert!(said.stderr.contains("cookies and passwords"), "{}", said.stderr);
    let given = stage.hand_off();
    let taken = stage.take(&given, &stage.authority);
    stage.phone.until_said("went on at", 1);
    stage.go();
    let taken = taken.output(3 * LIMIT);
    assert!(taken.succeeded().stderr.contains("/film goes on here, from byte "), "{}", taken.stderr);
    assert!(!taken.stderr.contains("secret"), "{}", taken.stderr);
    let ended = curl.finish(LIMIT);
    // HTTP/2's stream ended with an error.
    assert!(matches!(ended.status.code(), Some(92 | 56 | 18)), "{:?}: {}", ended.status, ended.stderr);
    let (first, second) = (fs::read(stage.first()).unwrap(), fs::read(stage.second()).unwrap());
    assert!(!first.is_empty() && !second.is_empty());
    assert_eq!(first.len() + second.len(), SIZE, "bytes were lost, or came twice");
    assert_eq!(Sha256::digest([&first[..], &second].concat()), Sha256::digest(&stage.file));
    stage.server.signal(rustix::process::Signal::TERM);
    let asked = stage.server.output(LIMIT).stderr;
    assert_eq!(asked.lines().filter(|line| line.contains("\"GET /film?token=secret ")).count(), 2, "{asked}");
}

#[test]
fn what_cannot_be_asked_for_again_stays_at_the_phone_and_both_sides_are_told_why() {
    for (path, more, why) in [
        ("/nameless", &[][..], "does not say which version"),
        ("/film", &["--http1.1", "-X", "POST"][..], "this answers a POST"),
    ] {
        let stage = Stage::new();
        let curl = stage.curl(path, more);
        let given = stage.hand_off();
        stage.take(&given, &stage.authority).output(LIMIT).failed(5, &[why]);
        assert!(length(&stage.second()) == 0, "nothing was given to the desk's program");
        stage.goes_on_at_the_phone(curl);
    }
}

#[test]
fn a_desk_that_cannot_verify_the_server_or_takes_bytes_as_they_are_leaves_the_download_where_it_was() {
    let stage = Stage::new();
    let curl = stage.curl("/film", &[]);
    let (id, ticket) = stage.hand_off();
    stage.world.run("desk", &["take", &id[..8], "--from", &ticket]).failed(5, &["take it with --as http"]);
    stage.phone.until_said("stays here", 1);
    let given = stage.hand_off();
    stage.take(&given, &stage.ours).output(LIMIT).failed(5, &["stays there", "its certificate is refused"]);
    stage.goes_on_at_the_phone(curl);
    let as_film = ["take", &id[..8], "--from", &ticket, "--as", "http-time"];
    stage.world.run("desk", &as_film).failed(2, &["say --as http"]);
    let with_folder = ["take", &id[..8], "--from", &ticket, "--as", "http", "--dir", "."];
    stage.world.run("desk", &with_folder).failed(2, &["--dir is for files"]);
}
