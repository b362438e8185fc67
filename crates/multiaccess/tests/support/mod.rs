//! A manager in a host of the lab, and clients that speak its lines by hand.
#![allow(clippy::unwrap_used, unreachable_pub)]

pub mod multipath;

use serde_json::Value;
use std::io::{BufRead, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use tempfile::TempDir;
use tokio::net::UnixListener;
use whimbrel_lab::{Host, Lab, Link, LinkSpec, Rate, Runtime};
use whimbrel_multiaccess::{Manager, Settings};

/// For whatever must come at all.
pub const LIMIT: Duration = Duration::from_secs(10);

/// A manager that runs in a host.
pub struct Running {
    pub manager: Option<Manager>,
    pub runtime: Runtime,
    pub folder: TempDir,
}

impl Running {
    pub fn start(host: &Host, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = host.runtime(2).unwrap();
        let mut running = Self { manager: None, runtime, folder };
        running.again(settings);
        running
    }

    /// One that serves all users.
    pub fn start_for_host(host: &Host, settings: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let runtime = host.runtime(2).unwrap();
        let settings = Settings::from_toml(settings).unwrap();
        let socket = folder.path().join("access");
        let start = async { Manager::for_host(settings, UnixListener::bind(socket).unwrap()).await };
        let manager = Some(runtime.block_on(start).unwrap());
        Self { manager, runtime, folder }
    }

    /// Another manager in its place.
    pub fn again(&mut self, settings: &str) {
        self.manager = None;
        let socket = self.socket();
        let _ = std::fs::remove_file(&socket);
        let settings = Settings::from_toml(settings).unwrap();
        let start = async { Manager::start(settings, UnixListener::bind(socket).unwrap()).await };
        self.manager = Some(self.runtime.block_on(start).unwrap());
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("access")
    }

    pub fn client(&self) -> Client {
        Client::connect(&self.socket())
    }
}

/// A client.
pub struct Client {
    pub stream: UnixStream,
    lines: BufReader<UnixStream>,
}

impl Client {
    pub fn connect(socket: &Path) -> Self {
        let stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        stream.set_write_timeout(Some(LIMIT)).unwrap();
        Self { lines: BufReader::new(stream.try_clone().unwrap()), stream }
    }

    pub fn say(&mut self, line: &str) {
        self.stream.write_all(line.as_bytes()).unwrap();
        self.stream.write_all(b"\n").unwrap();
    }

    /// The next line; `None` at the end, also if the manager hung up with something of ours unread.
    pub fn hear(&mut self) -> Option<Value> {
        let mut line = String::new();
        let length = match self.lines.read_line(&mut line) {
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            other => other.unwrap(),
        };
        (length > 0).then(|| serde_json::from_str(&line).unwrap())
    }

    #[track_caller]
    pub fn ask(&mut self, line: &str) -> Value {
        self.say(line);
        self.hear().unwrap()
    }

    /// Waits for a line that this holds for.
    #[track_caller]
    pub fn until(&mut self, what: impl Fn(&Value) -> bool) -> Value {
        let end = std::time::Instant::now() + LIMIT;
        loop {
            let line = self.hear().unwrap();
            if what(&line) {
                return line;
            }
            assert!(std::time::Instant::now() < end, "the last line was {line}");
        }
    }
}

/// A client host with a link for each of these one-way delays, to one server.
pub struct World {
    pub client: Host,
    pub server: Host,
    pub links: Vec<Link>,
    pub names: Vec<String>,
    _lab: Lab,
}

/// The n-th link has the networks 10.0.n.0/24; the client is .1 and the server .2, with `10.9.9.9` beyond.
pub fn world(delays: &[(u64, u64)]) -> World {
    let lab = Lab::new().unwrap();
    let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
    let mut names = Vec::new();
    let links = delays.iter().enumerate().map(|(n, (delay, rate))| {
        let spec = LinkSpec::default().delay(Duration::from_millis(*delay)).rate(Rate::mbit(*rate));
        let name = format!("link{n}");
        let link = lab.link(&client, &server, spec.interface_names(&name, &name)).unwrap();
        names.push(name);
        link.end(&client).add_address(&format!("10.0.{n}.1/24")).unwrap();
        link.end(&server).add_address(&format!("10.0.{n}.2/24")).unwrap();
        link.end(&client).add_default_route(&format!("10.0.{n}.2"), n as u32 + 1).unwrap();
        link
    });
    let links = links.collect();
    World { client, server, links, names, _lab: lab }
}

/// The interfaces in a line about paths.
pub fn interfaces(line: &Value) -> Vec<String> {
    let paths = line["paths"].as_array().cloned().unwrap_or_default();
    paths.iter().map(|path| path["interface"].as_str().unwrap().to_owned()).collect()
}

/// Whether a figure is within this share of what is expected.
pub fn is_near(found: f64, expected: f64, share: f64) -> bool {
    (found - expected).abs() <= expected * share
}

/// Traffic that goes on until it is stopped.
pub struct Traffic {
    goes_on: Arc<AtomicBool>,
    client: JoinHandle<TcpStream>,
}

impl Traffic {
    /// Bytes there and back, one by one, so that nothing queues: whatever is waited for is a round trip.
    pub fn chatter(client: &Host, server: &Host, to: SocketAddr) -> Self {
        Self::start(
            (client, server, to),
            |mut stream| {
                let mut byte = [0];
                while stream.read(&mut byte).is_ok_and(|count| count > 0) && stream.write_all(&byte).is_ok() {
                }
            },
            |stream| {
                stream.write_all(&[1]).unwrap();
                stream.read_exact(&mut [0]).unwrap();
            },
        )
    }

    /// A download as fast as the link is.
    pub fn download(client: &Host, server: &Host, from: SocketAddr) -> Self {
        let mut buffer = vec![0; 65_536];
        Self::start(
            (client, server, from),
            |mut stream| {
                let chunk = [0; 16_384];
                while stream.write_all(&chunk).is_ok() {}
            },
            move |stream| assert!(stream.read(&mut buffer).unwrap() > 0, "the server ended"),
        )
    }

    /// An upload as fast as the link is.
    pub fn upload(client: &Host, server: &Host, to: SocketAddr) -> Self {
        let chunk = [0; 16_384];
        Self::start(
            (client, server, to),
            |mut stream| {
                let mut buffer = vec![0; 65_536];
                while stream.read(&mut buffer).is_ok_and(|count| count > 0) {}
            },
            move |stream| stream.write_all(&chunk).unwrap(),
        )
    }

    fn start(
        (client, server, to): (&Host, &Host, SocketAddr),
        serve: impl FnOnce(TcpStream) + Send + 'static,
        mut turn: impl FnMut(&mut TcpStream) + Send + 'static,
    ) -> Self {
        let listener = server.run(|| TcpListener::bind(to)).unwrap();
        std::thread::spawn(move || serve(listener.accept().unwrap().0));
        let mut stream = client.run(|| TcpStream::connect(to)).unwrap();
        let goes_on = Arc::new(AtomicBool::new(true));
        let going = Arc::clone(&goes_on);
        let client = std::thread::spawn(move || {
            while going.load(Ordering::Relaxed) {
                turn(&mut stream);
            }
            stream
        });
        Self { goes_on, client }
    }

    /// Ends the traffic. The connection stays open as long as the caller has it.
    pub fn stop(self) -> TcpStream {
        self.goes_on.store(false, Ordering::Relaxed);
        self.client.join().unwrap()
    }
}
