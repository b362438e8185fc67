//! `whimbrel proxy http` and `whimbrel run` as processes, with curl, over plain HTTP and TLS.
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::certificates::{self, NEW_KEY, openssl};
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
const LIMIT: Duration = Duration::from_secs(20);

/// A home directory without anything in it.
struct Home(tempfile::TempDir);

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Home {
    fn new() -> Self {
        let home = tempfile::Builder::new().prefix("wh-").tempdir().unwrap();
        std::fs::create_dir(home.path().join("run")).unwrap();
        Self(home)
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("HOME", self.0.path()).env("XDG_RUNTIME_DIR", self.0.path().join("run"));
        for name in
            ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "no_proxy", "NO_PROXY"]
        {
            command.env_remove(name);
        }
        for name in ["XDG_CONFIG_HOME", "RUST_LOG"] {
            command.env_remove(name);
        }
        command
    }

    fn whimbrel(&self, args: &[&str]) -> Output {
        self.command(PROGRAM).args(args).output().unwrap()
    }

    /// A proxy, and where it listens.
    fn proxy(&self, flags: &[&str]) -> (Running, String, String) {
        let args = [&["proxy", "http", "--listen", "127.0.0.1:0"], flags].concat();
        let mut command = self.command(PROGRAM);
        let mut child = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address =
            line.trim().rsplit([' ', '"']).find(|word| word.contains("127.0.0.1:")).unwrap().to_owned();
        (Running(child), address, line)
    }
}

/// A web server that says hello to everybody.
fn web() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut head = Vec::new();
            let mut byte = [0];
            while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                head.push(byte[0]);
            }
            let _ =
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nhello\n");
        }
    });
    address
}

fn text(output: &Output) -> (String, String) {
    let read = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (read(&output.stdout), read(&output.stderr))
}

/// A TLS server with a certificate of its own.
fn tls_server(folder: &Path) -> (Running, u16) {
    let file = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    let (key, certificate) = (file("key.pem"), file("cert.pem"));
    let own = [&NEW_KEY[..], &["-x509", "-days", "1", "-addext", "subjectAltName=DNS:localhost"]].concat();
    openssl(&[&own[..], &["-subj", "/CN=localhost", "-keyout", &key, "-out", &certificate]].concat());
    serve_tls(&key, &certificate, &[])
}

/// A TLS server whose certificate was signed by the authority in `servers.pem` of this folder.
fn verified_tls_server(folder: &Path, more: &[&str]) -> (Running, u16) {
    let made = certificates::for_localhost(folder);
    serve_tls(&made.key, &made.certificate, more)
}

fn serve_tls(key: &str, certificate: &str, more: &[&str]) -> (Running, u16) {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let server = Command::new("openssl")
        .args(["s_server", "-www", "-quiet", "-accept", &format!("127.0.0.1:{port}")])
        .args(["-key", key, "-cert", certificate])
        .args(more)
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + LIMIT;
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(Instant::now() < end, "the TLS server does not listen");
        std::thread::sleep(Duration::from_millis(20));
    }
    (Running(server), port)
}

#[test]
fn what_the_proxy_has_done_is_told_to_those_who_gather_figures() {
    let home = Home::new();
    let at = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (_proxy, address, _) = home.proxy(&["--metrics", &at]);
    let load = |url: &str| {
        let proxy = format!("http://{address}");
        let output = home.command("curl").args(["-sS", "--max-time", "20", "--proxy", &proxy, url]).output();
        text(&output.unwrap()).0
    };
    assert_eq!(load(&format!("http://{}/", web())), "hello\n");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    assert!(load(&format!("http://{closed}/")).contains("refused"));
    let figures =
        home.command("curl").args(["-sS", "--max-time", "20", &format!("http://{at}/metrics")]).output();
    let (figures, error) = text(&figures.unwrap());
    let says = |line: &str| figures.lines().any(|one| one == line);
    assert!(says("whimbrel_proxy_requests_total 2"), "{figures}{error}");
    assert!(says("whimbrel_proxy_failed_total 1"), "{figures}");
    assert!(says("whimbrel_proxy_tunnels_total 0"), "{figures}");
    assert!(says("# TYPE whimbrel_proxy_connections gauge"), "{figures}");
    // A place that is taken is told before anything begins.
    let again = home.whimbrel(&["proxy", "http", "--listen", "127.0.0.1:0", "--metrics", &at]);
    assert_eq!(again.status.code(), Some(2));
    assert!(text(&again).1.contains("cannot listen on --metrics"), "{again:?}");
}

#[test]
fn curl_loads_pages_over_http_and_tls_through_the_proxy() {
    let home = Home::new();
    let (_proxy, address, line) = home.proxy(&[]);
    assert_eq!(line, format!("HTTP proxy on {address}\n"));
    let curl = |args: &[&str]| {
        let proxy = format!("http://{address}");
        let output =
            home.command("curl").args(["-sS", "--max-time", "20", "--proxy", &proxy]).args(args).output();
        let (out, error) = text(&output.unwrap());
        assert!(error.is_empty(), "{error}");
        out
    };
    assert_eq!(curl(&[&format!("http://{}/", web())]), "hello\n");
    let (_server, port) = tls_server(home.0.path());
    let certificate = home.0.path().join("cert.pem");
    let page = curl(&["--cacert", certificate.to_str().unwrap(), &format!("https://localhost:{port}/")]);
    assert!(page.contains("Cipher"), "{page}");
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let refused = curl(&["-w", "%{http_code}", &format!("http://{closed}/")]);
    assert!(refused.contains("refused") && refused.ends_with("502"), "{refused}");
}

#[test]
fn https_ends_in_the_proxy_for_hosts_that_are_named_and_with_a_key_that_was_made_for_them() {
    let home = Home::new();
    let file = |name: &str| home.0.path().join(name).to_str().unwrap().to_owned();
    let made = home.whimbrel(&["proxy", "intercept-ca", "--out", &file("ca"), "--for", "localhost"]);
    let (out, error) = text(&made);
    assert!(made.status.success(), "{error}");
    for said in ["for localhost, until 2", "certutil -A", "certutil -D", &file("ca/intercept-ca.crt")] {
        assert!(out.contains(said), "{said}: {out}");
    }
    let (_server, port) = verified_tls_server(home.0.path(), &[]);
    let (ours, servers) = (file("ca/intercept-ca.crt"), file("servers.pem"));
    let curl = |address: &str, port: u16, authority: &str| {
        let (proxy, url) = (format!("http://{address}"), format!("https://localhost:{port}/"));
        let args = ["-sS", "-i", "--max-time", "20", "--proxy", &proxy, "--cacert", authority, &url];
        text(&home.command("curl").args(args).output().unwrap())
    };
    let folder = file("ca");
    let key = ["--intercept-ca", &folder, "--upstream-ca", &servers];
    let named = format!("localhost:{port}");
    let (_proxy, address, line) = home.proxy(&[&["--intercept", &named][..], &key].concat());
    assert_eq!(line, format!("HTTP proxy on {address}\n"));
    let (page, error) = curl(&address, port, &ours);
    assert!(
        page.contains("Cipher") && page.to_lowercase().contains("via: 1.0 whimbrel\r\n"),
        "{page}{error}"
    );
    // Another port, and no host at all: the server's own certificate.
    let (_other, other, _) = home.proxy(&[&["--intercept", "localhost"][..], &key].concat());
    let (_plain, plain, _) = home.proxy(&[]);
    for address in [other, plain] {
        let (page, error) = curl(&address, port, &servers);
        assert!(page.contains("Cipher") && !page.to_lowercase().contains("via:"), "{page}{error}");
    }
    // What this program does not speak is between the client and the server.
    let (_old, port) = verified_tls_server(home.0.path(), &["-tls1_2"]);
    let named = format!("localhost:{port}");
    let (_proxy, address, _) = home.proxy(&[&["--intercept", &named][..], &key].concat());
    let (page, error) = curl(&address, port, &servers);
    assert!(page.contains("Cipher") && !page.to_lowercase().contains("via:"), "{page}{error}");
}

#[test]
fn https_is_intercepted_for_its_user_alone_and_with_a_key_that_nobody_else_can_read() {
    let home = Home::new();
    let ca = home.0.path().join("ca").to_str().unwrap().to_owned();
    let refused = |args: &[&str], says: &str| {
        let output = home.whimbrel(args);
        let (_, error) = text(&output);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
        assert!(error.contains(says), "{args:?}: {error}");
    };
    let listen = ["proxy", "http", "--listen", "127.0.0.1:0"];
    let with = |more: &[&'static str]| [&listen[..], more].concat();
    refused(&with(&["--intercept", "example.org"]), "--intercept-ca");
    refused(&[&with(&["--intercept-ca"])[..], &[&ca[..]]].concat(), "--intercept");
    refused(&[&with(&["--intercept", "192.0.2.1", "--intercept-ca"])[..], &[&ca[..]]].concat(), "never");
    let usual = [&with(&["--intercept", "example.org", "--intercept-ca"])[..], &[&ca[..]]].concat();
    refused(&usual, "whimbrel proxy intercept-ca");
    let make = ["proxy", "intercept-ca", "--out", &ca, "--json", "--for", "example.org"];
    let made = home.whimbrel(&make);
    let said: serde_json::Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(said["for"], serde_json::json!(["example.org"]));
    let key = said["key"].as_str().unwrap();
    refused(&make, "is there already");
    refused(&["proxy", "intercept-ca", "--out", &ca], "--for");
    for elsewhere in ["0.0.0.0:0", "[::]:0"] {
        let open = ["proxy", "http", "--allow-anyone", "--listen", elsewhere, "--intercept", "example.org"];
        refused(&[&open[..], &["--intercept-ca", &ca]].concat(), "this user alone");
    }
    let (help, _) = text(&home.whimbrel(&["run", "--help"]));
    assert!(help.contains("--first-step") && !help.contains("--intercept"), "{help}");
    let empty = home.0.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    let upstream = ["--upstream-ca", empty.to_str().unwrap()];
    refused(&[&usual[..], &upstream].concat(), "there is no certificate in it");
    let servers = said["certificate"].as_str().unwrap();
    let other = ["--intercept", "other.example", "--intercept-ca", &ca, "--upstream-ca", servers];
    let (mut proxy, _, _) = home.proxy(&other);
    let mut warning = String::new();
    BufReader::new(proxy.0.stderr.take().unwrap()).read_line(&mut warning).unwrap();
    assert!(warning.contains("WARNING: other.example stays as it is"), "{warning}");
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o640)).unwrap();
    refused(&usual, "can be used by others");
}

#[test]
fn it_says_where_it_listens_who_chooses_and_whether_others_can_use_it() {
    let home = Home::new();
    let (mut proxy, address, line) = home.proxy(&["--json"]);
    let said: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(
        said,
        serde_json::json!({ "listening": address, "manager": false, "through": null, "hosts": [] })
    );
    kill_process(Pid::from_raw(proxy.0.id() as i32).unwrap(), Signal::TERM).unwrap();
    assert_eq!(proxy.0.wait().unwrap().code(), Some(0));
    let mut notes = String::new();
    proxy.0.stderr.take().unwrap().read_to_string(&mut notes).unwrap();
    assert_eq!(notes.matches("the system chooses the network").count(), 1, "{notes}");
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = taken.local_addr().unwrap().to_string();
    let (_, error) = text(&home.whimbrel(&["proxy", "http", "--listen", &at]));
    assert!(error.contains("choose another port with --listen"), "{error}");
}

#[test]
fn it_serves_others_only_if_that_is_said() {
    let home = Home::new();
    for elsewhere in ["0.0.0.0:0", "[::]:0"] {
        let args = ["proxy", "http", "--listen", elsewhere, "--until-eof"];
        let begin = |more: &[&str]| home.command(PROGRAM).args(args).args(more).stdin(Stdio::null()).output();
        let refused = begin(&[]).unwrap();
        let (_, error) = text(&refused);
        assert_eq!(refused.status.code(), Some(2), "{error}");
        assert!(error.contains("--allow-anyone") && error.lines().count() == 1, "{error}");
        let open = begin(&["--allow-anyone", "--quiet"]).unwrap();
        let (_, error) = text(&open);
        assert_eq!(open.status.code(), Some(0), "{error}");
        assert!(error.starts_with("WARNING: whoever reaches"), "{error}");
    }
    let output = home.whimbrel(&["proxy", "http", "--listen", "127.0.0.1:0", "--first-step", "9MiB"]);
    let (_, error) = text(&output);
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert!(error.contains("at most 8MiB"), "{error}");
}

#[test]
fn a_program_that_is_run_uses_the_proxy_and_ends_as_it_would_alone() {
    let home = Home::new();
    let url = format!("http://{}/", web());
    let output = home.whimbrel(&["run", "--", "curl", "-sS", "-v", &url]);
    let (out, error) = text(&output);
    assert!(
        out == "hello\n" && error.contains("Via: 1.1 whimbrel-") || error.contains("via: 1.1 whimbrel-"),
        "{error}"
    );
    let shell = |script: &str| home.whimbrel(&["run", "-q", "--", "sh", "-c", script]);
    let variables = "echo $http_proxy $https_proxy $HTTP_PROXY $HTTPS_PROXY";
    let (out, _) = text(&shell(variables));
    let words: Vec<&str> = out.split_whitespace().collect();
    assert!(words.len() == 4 && words.iter().all(|word| *word == words[0]), "{out}");
    assert!(words[0].starts_with("http://127.0.0.1:"), "{out}");
    assert_eq!(shell("exit 7").status.code(), Some(7));
    assert_eq!(shell("kill -KILL $$").status.code(), Some(137));
    let (_, error) = text(&shell("exit 7"));
    assert_eq!(error, "");
    for (program, code) in [("/no/such/program", 127), ("/etc/passwd", 126)] {
        let output = home.whimbrel(&["run", program]);
        let (_, error) = text(&output);
        assert_eq!(output.status.code(), Some(code), "{error}");
        assert!(error.contains(&format!("whimbrel: cannot run {program}")), "{error}");
    }
    assert_eq!(home.whimbrel(&["run"]).status.code(), Some(2));
}

#[test]
fn signals_are_passed_on_to_the_program() {
    let home = Home::new();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
        let script = format!("trap 'echo caught; exit 9' {name}; echo ready; while :; do sleep 0.05; done");
        let mut command = home.command(PROGRAM);
        command.args(["run", "-q", "--", "sh", "-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = Running(command.spawn().unwrap());
        let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "ready");
        kill_process(Pid::from_raw(child.0.id() as i32).unwrap(), signal).unwrap();
        assert_eq!(lines.next().unwrap().unwrap(), "caught", "{name}");
        let status = child.0.wait().unwrap();
        assert_eq!((status.code(), status.signal()), (Some(9), None), "{name}");
    }
}

#[test]
fn a_key_reaches_the_program_once_and_a_signal_of_others_reaches_it_too() {
    let home = Home::new();
    // Its input is not the terminal, which `script` makes.
    let program = "trap 'echo caught' INT; echo ready; while :; do sleep 0.05; done";
    let run = format!("{PROGRAM} run -q -- sh -c \"{program}\" </dev/null");
    let mut command = home.command("script");
    command.args(["-qec", &run, "/dev/null"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = Running(command.spawn().unwrap());
    let mut keys = child.0.stdin.take().unwrap();
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap().trim().trim_start_matches("^C").to_owned();
    assert_eq!(next(), "ready");
    let pid = process_of(home.0.path(), "run -q");
    keys.write_all(b"\x03").unwrap();
    assert_eq!(next(), "caught");
    // If the key had come twice, the shell would say so before it ends by this.
    std::thread::sleep(Duration::from_millis(500));
    kill_process(pid, Signal::INT).unwrap();
    assert_eq!(next(), "caught", "a signal of another process");
    std::thread::sleep(Duration::from_millis(500));
    kill_process(pid, Signal::TERM).unwrap();
    let rest: Vec<String> = lines.map_while(Result::ok).filter(|line| line.contains("caught")).collect();
    assert!(rest.is_empty(), "{rest:?}");
}

/// The process of `whimbrel` with these arguments, in whose environment this home is.
fn process_of(home: &Path, arguments: &str) -> Pid {
    let home = format!("HOME={}", home.display());
    let is_it = |pid: &str| {
        let read = |what| std::fs::read(format!("/proc/{pid}/{what}")).unwrap_or_default();
        let words = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace('\0', " ");
        let line = words(read("cmdline"));
        line.starts_with(PROGRAM) && line.contains(arguments) && words(read("environ")).contains(&home)
    };
    let end = Instant::now() + LIMIT;
    while Instant::now() < end {
        for entry in std::fs::read_dir("/proc").unwrap().flatten() {
            let name = entry.file_name().into_string().unwrap();
            if is_it(&name) {
                return Pid::from_raw(name.parse().unwrap()).unwrap();
            }
        }
    }
    panic!("there is no such process");
}

#[test]
fn what_does_not_use_the_proxy_is_said() {
    let home = Home::new();
    let (_, error) = text(&home.whimbrel(&["run", "true"]));
    assert!(error.contains("true asked nothing of its proxy"), "{error}");
    let (_, error) = text(&home.whimbrel(&["run", "ssh", "-V"]));
    assert!(error.contains("ssh does not read http_proxy"), "{error}");
    let mut kept = home.command(PROGRAM);
    kept.args(["run", "true"]).env("NO_PROXY", "example.org,*");
    let (_, error) = text(&kept.output().unwrap());
    assert!(error.contains("NO_PROXY has a `*`") && !error.contains("asked nothing"), "{error}");
    let mut command = home.command(PROGRAM);
    command.args(["run", "true"]).env("https_proxy", "http://proxy.example.org:3128");
    let (_, error) = text(&command.output().unwrap());
    assert!(
        error.contains("the proxy http://proxy.example.org:3128, which the environment names, is not asked")
    );
}
