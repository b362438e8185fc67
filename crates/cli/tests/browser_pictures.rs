//! A page looks the same in real browsers whichever way it comes: pictures that Chromium and Firefox took of
//! it, without a screen, are compared pixel by pixel. `scripts/setup.sh browsers` installs both.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};

use crate::browser::{self, Browser, CHROMIUM, FIREFOX, Reaches, installed, wait_for};
use crate::certificates;
use crate::common::{LIMIT, Process, World, dead_port, tcp_server};
use crate::page::{self, Picture};

/// The most that is kept of what comes through a tap. A page has a tenth.
const KEPT: usize = 4 << 20;

/// Python's HTTP server for a page, over TLS if it has a certificate. It writes down what it is asked for,
/// and by which proxy.
const SERVER: &str = r#"
import functools, http.server, ssl, sys

port, folder, log, *pair = sys.argv[1:]
context = None
if pair:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(*pair)

class Handler(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    extensions_map = {
        **http.server.SimpleHTTPRequestHandler.extensions_map,
        ".pac": "application/x-ns-proxy-autoconfig",
        ".svg": "image/svg+xml",
    }

    def do_GET(self):
        with open(log, "a") as file:
            file.write(f"{self.path} {self.headers.get('Via', '-')}\n")
        super().do_GET()

    def log_message(self, *_):
        pass

class Server(http.server.ThreadingHTTPServer):
    def finish_request(self, request, client):
        if context:
            request = context.wrap_socket(request, server_side=True)
        super().finish_request(request, client)

Server(("127.0.0.1", int(port)), functools.partial(Handler, directory=folder)).serve_forever()
"#;

/// A server with the page.
struct Site {
    at: SocketAddr,
    folder: PathBuf,
    log: PathBuf,
    /// What the page's text has in it, and nothing else.
    token: String,
    _server: Process,
}

impl Site {
    fn new(world: &World, tls: Option<&certificates::Files>) -> Self {
        let (at, folder, log) = (dead_port(), world.path("site"), world.path("asked"));
        let token = world.dir.path().file_name().unwrap().to_str().unwrap().to_owned();
        fs::create_dir(&folder).unwrap();
        page::write(&folder, &token);
        let mut python = Command::new("python3");
        python.args(["-u", "-c", SERVER, &at.port().to_string()]).arg(&folder).arg(&log);
        if let Some(files) = tls {
            python.args([&files.certificate, &files.key]);
        }
        let server = Process::start(&mut python);
        wait_for("the server listens", || TcpStream::connect(at).ok());
        Self { at, folder, log, token, _server: server }
    }

    /// What is asked for from here on is looked at.
    fn forgets(&self) {
        fs::write(&self.log, "").unwrap();
    }

    /// All files of the page were asked for since, through an HTTP proxy of ours or not.
    #[track_caller]
    fn was_asked(&self, what: &str, through_http_proxy: bool) {
        let asked = fs::read_to_string(&self.log).unwrap();
        for file in page::FILES {
            let mut asking = asked.lines().filter_map(|line| line.strip_prefix(file)?.strip_prefix(' '));
            let via = asking.next().unwrap_or_else(|| panic!("{what}: {file} was not asked for: {asked}"));
            assert_eq!(via.contains("whimbrel"), through_http_proxy, "{what}: {file}: {asked}");
        }
    }
}

/// Stands before a proxy, and keeps what comes back from it.
struct Tap {
    at: String,
    came: Arc<Mutex<Vec<u8>>>,
}

impl Tap {
    fn before(proxy: &str) -> Self {
        let came = Arc::<Mutex<Vec<u8>>>::default();
        let (proxy, keeping) = (proxy.to_owned(), Arc::clone(&came));
        let at = tcp_server(move |client| {
            // A browser that has ended needs no more.
            let Ok(server) = TcpStream::connect(&proxy) else { return };
            let (mut asks, mut hears) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut asks, &mut hears);
                let _ = hears.shutdown(Shutdown::Write);
            });
            pass_back(server, client, &keeping);
        });
        Self { at: at.to_string(), came }
    }

    #[track_caller]
    fn has_passed(&self, what: &str, token: &str) {
        let came = self.came.lock().unwrap();
        let has_it = came.windows(token.len()).any(|part| part == token.as_bytes());
        assert!(has_it, "{what}: the page did not come through the proxy");
    }
}

fn pass_back(mut server: TcpStream, mut client: TcpStream, keeping: &Mutex<Vec<u8>>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(n) = server.read(&mut buffer)
        && n > 0
    {
        {
            let mut kept = keeping.lock().unwrap();
            let room = KEPT.saturating_sub(kept.len()).min(n);
            kept.extend_from_slice(&buffer[..room]);
        }
        if client.write_all(&buffer[..n]).is_err() {
            return;
        }
    }
    let _ = client.shutdown(Shutdown::Write);
}

#[derive(Clone, Copy)]
enum Kind {
    Chromium,
    Firefox,
}

/// A browser that takes pictures.
struct Camera {
    kind: Kind,
    program: PathBuf,
}

impl Camera {
    fn found(kind: Kind) -> Option<Self> {
        let program = match kind {
            Kind::Chromium => installed(&CHROMIUM),
            Kind::Firefox => installed(&FIREFOX),
        };
        Some(Self { kind, program: program? })
    }

    /// Its profile in this home trusts a certificate, as `whimbrel proxy intercept-ca` says it is done.
    fn trust(&self, certutil: &Path, home: &Path, certificate: &str) {
        let folder = match self.kind {
            Kind::Chromium => home.join(".pki/nssdb"),
            Kind::Firefox => home.join("firefox"),
        };
        fs::create_dir_all(&folder).unwrap();
        let database = format!("sql:{}", folder.display());
        for args in [
            &["-N", "-d", &database, "--empty-password"][..],
            &["-A", "-d", &database, "-n", "a proxy", "-t", "C,,", "-i", certificate],
        ] {
            let done = Command::new(certutil).args(args).output().unwrap();
            assert!(done.status.success(), "{args:?}: {}", String::from_utf8_lossy(&done.stderr));
        }
    }

    /// Loads a page with an empty cache, and takes a picture of it.
    fn picture(&self, home: &Path, reaches: Reaches<'_>, url: &str) -> Picture {
        fs::create_dir_all(home).unwrap();
        let file = home.join("picture.png");
        let mut command = match self.kind {
            Kind::Chromium => {
                let mut command = browser::chromium(&self.program, home, reaches);
                command.args(["--hide-scrollbars", "--force-device-scale-factor=1"]);
                command.arg("--force-color-profile=srgb");
                command.arg(format!("--screenshot={}", file.display()));
                command
            }
            Kind::Firefox => {
                let profile = home.join("firefox");
                let scale = "user_pref(\"layout.css.devPixelsPerPx\", \"1.0\");\n";
                browser::firefox_profile(&profile, reaches, scale);
                let mut command = browser::firefox(&self.program, &profile);
                command.arg("--screenshot").arg(&file);
                command
            }
        };
        let (width, height) = page::WINDOW;
        let size = format!("--window-size={width},{height}");
        let (status, said) = Browser::new(command.arg(size).arg(url)).ended();
        assert!(file.is_file(), "{reaches:?}: no picture of {url}: {status}: {said}");
        Picture::read(&file)
    }
}

/// A proxy of Bob's, and where it listens.
fn proxy(world: &World, kind: &str, more: &[&str]) -> (String, Process) {
    let begin = ["proxy", kind, "--listen", "127.0.0.1:0", "--json"];
    let mut serving = world.start("bob", &[&begin[..], more].concat());
    let at = serving.next_json()["listening"].as_str().unwrap().to_owned();
    (at, serving)
}

/// The page comes through each proxy, through a gateway and as a PAC file says, and looks as directly.
fn looks_the_same_each_way(camera: &Camera) {
    let (world, _names) = World::with_names();
    let (bob, site) = (world.id("bob"), Site::new(&world, None));
    let here = format!("http://{}/page.html", site.at);
    let direct = camera.picture(&world.path("directly"), Reaches::Directly, &here);
    direct.shows_the_page();
    let look = |what: &str, tap: &Tap, reaches: Reaches<'_>, url: &str, through_http_proxy: bool| {
        site.forgets();
        let picture = camera.picture(&world.path(what), reaches, url);
        site.was_asked(what, through_http_proxy);
        tap.has_passed(what, &site.token);
        picture.is_as(what, &direct);
    };

    let (http, _http) = proxy(&world, "http", &[]);
    let tap = Tap::before(&http);
    look("http", &tap, Reaches::Http(&tap.at), &here, true);

    let (socks, _socks) = proxy(&world, "socks", &[]);
    let tap = Tap::before(&socks);
    look("socks", &tap, Reaches::Socks(&tap.at), &here, false);

    let gate = ["gateway", "serve", "--ticket", "--json", "--to", "127.0.0.1", "--only", "--allow", &bob];
    let mut gateway = world.start("gate", &gate);
    let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
    for (kind, through_http_proxy) in [("http", true), ("socks", false)] {
        let (at, _serving) = proxy(&world, kind, &["--through", &ticket]);
        let tap = Tap::before(&at);
        let reaches = if through_http_proxy { Reaches::Http(&tap.at) } else { Reaches::Socks(&tap.at) };
        look(&format!("gateway-{kind}"), &tap, reaches, &here, through_http_proxy);
    }

    let (name, to) = ("web.home.ada@example.org", site.at.to_string());
    let mut exposed = world.start("ada", &["expose", name, "--to", &to, "--allow", &bob, "--json"]);
    exposed.next_json();
    let (http, _names_as_hosts) = proxy(&world, "http", &["--host", name]);
    let tap = Tap::before(&http);
    let pac = world.run("bob", &["proxy", "pac", "--only-names", "--http", &tap.at]);
    fs::write(site.folder.join("proxy.pac"), &pac.succeeded().stdout).unwrap();
    let (pac, name) = (format!("http://{}/proxy.pac", site.at), "web.home.ada.at.example.org.whimbrel");
    look("pac", &tap, Reaches::Pac(&pac), &format!("http://{name}/page.html"), true);
}

/// The page comes over TLS that ends in the proxy, and looks as it does directly.
fn looks_the_same_where_https_ends_in_the_proxy(camera: &Camera) {
    let Some(certutil) = installed(&["certutil"]) else { return };
    let world = World::new();
    let plain = World::new();
    let directly = Site::new(&plain, None);
    let here = format!("http://{}/page.html", directly.at);
    let direct = camera.picture(&plain.path("directly"), Reaches::Directly, &here);
    direct.shows_the_page();

    let files = certificates::for_localhost(world.dir.path());
    let site = Site::new(&world, Some(&files));
    let (folder, host) = (world.path("ca"), format!("localhost:{}", site.at.port()));
    let folder = folder.to_str().unwrap();
    world.run("bob", &["proxy", "intercept-ca", "--out", folder, "--for", "localhost"]).succeeded();
    let key = ["--intercept-ca", folder, "--upstream-ca", &files.authority];
    let (http, proxy) = proxy(&world, "http", &[&["--intercept", &host][..], &key].concat());
    let home = world.path("intercepted");
    camera.trust(&certutil, &home, &format!("{folder}/intercept-ca.crt"));
    site.forgets();
    let picture = camera.picture(&home, Reaches::Http(&http), &format!("https://{host}/page.html"));
    site.was_asked("intercepted", true);
    picture.is_as("intercepted", &direct);
    proxy.signal(rustix::process::Signal::TERM);
    proxy.output(LIMIT);
}

#[test]
fn a_page_looks_the_same_in_chromium_through_each_proxy_a_pac_file_and_a_gateway_as_directly() {
    if let Some(camera) = Camera::found(Kind::Chromium) {
        looks_the_same_each_way(&camera);
    }
}

#[test]
fn a_page_looks_the_same_in_firefox_through_each_proxy_a_pac_file_and_a_gateway_as_directly() {
    if let Some(camera) = Camera::found(Kind::Firefox) {
        looks_the_same_each_way(&camera);
    }
}

#[test]
fn a_page_looks_the_same_in_chromium_where_its_https_ends_in_the_proxy() {
    if let Some(camera) = Camera::found(Kind::Chromium) {
        looks_the_same_where_https_ends_in_the_proxy(&camera);
    }
}

#[test]
fn a_page_looks_the_same_in_firefox_where_its_https_ends_in_the_proxy() {
    if let Some(camera) = Camera::found(Kind::Firefox) {
        looks_the_same_where_https_ends_in_the_proxy(&camera);
    }
}
