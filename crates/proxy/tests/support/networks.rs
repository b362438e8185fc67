//! A proxy on a host with two networks and a manager, and servers far away, all in the lab.
#![allow(clippy::unwrap_used, unreachable_pub)]

use crate::support::{LIMIT, Origin, field, get, has, read_head, rest, status};
use sha2::{Digest as _, Sha256};
use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use whimbrel_access::Intents;
use whimbrel_lab::{Host, Lab, Link, LinkSpec, Rate, Runtime};
use whimbrel_multiaccess::protocol::{Answer, PathReport, Protocol, SocketOptions};
use whimbrel_multiaccess::{Candidate, Client, Manager, Settings, Watcher};
use whimbrel_proxy::{HttpProxy, HttpSettings, Managed, Upstream};

pub const FAR: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 9, 9));

/// A host with two links to a server, a manager and a proxy.
pub struct World {
    pub proxy: SocketAddr,
    pub runtime: Runtime,
    _manager: Manager,
    folder: tempfile::TempDir,
    pub links: Vec<Link>,
    pub client: Host,
    pub server: Host,
    lab: Lab,
}

/// `10.0.0.1%link0:80` is `10.0.0.1:80`.
fn without_interface(address: &str) -> String {
    let (host, port) = address.rsplit_once(':').unwrap();
    format!("{}:{port}", host.split('%').next().unwrap())
}

/// A link between client and server, with its addresses and the client's default route.
fn connect(lab: &Lab, client: &Host, server: &Host, n: usize, (delay, rate): (u64, u64)) -> Link {
    let spec = LinkSpec::default().delay(Duration::from_millis(delay)).rate(Rate::mbit(rate));
    let name = format!("link{n}");
    let link = lab.link(client, server, spec.interface_names(&name, &name)).unwrap();
    link.end(client).add_address(&format!("10.0.{n}.1/24")).unwrap();
    link.end(server).add_address(&format!("10.0.{n}.2/24")).unwrap();
    link.end(client).add_default_route(&format!("10.0.{n}.2"), n as u32 + 1).unwrap();
    link
}

impl World {
    /// Each link has a delay each way in milliseconds, and a rate in Mbit/s.
    pub fn new(shapes: &[(u64, u64)], settings: &str) -> Self {
        Self::with(shapes, settings, |_| {})
    }

    /// The same with a proxy that is set otherwise.
    pub fn with(shapes: &[(u64, u64)], settings: &str, set: impl FnOnce(&mut HttpSettings)) -> Self {
        Self::made(shapes, settings, set, HttpProxy::new)
    }

    /// The same with a proxy that is made in another way.
    pub fn made(
        shapes: &[(u64, u64)],
        settings: &str,
        set: impl FnOnce(&mut HttpSettings),
        make: impl FnOnce(Arc<dyn Upstream>, HttpSettings) -> HttpProxy,
    ) -> Self {
        let lab = Lab::new().unwrap();
        let (client, server) = (lab.host("client").unwrap(), lab.host("server").unwrap());
        let links = shapes.iter().enumerate();
        let links = links.map(|(n, shape)| connect(&lab, &client, &server, n, *shape));
        let links: Vec<Link> = links.collect();
        links[0].end(&server).add_address(&format!("{FAR}/32")).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("access");
        let runtime = client.runtime(2).unwrap();
        let settings = Settings::from_toml(settings).unwrap();
        let start = async { Manager::start(settings, UnixListener::bind(&socket).unwrap()).await };
        let manager = runtime.block_on(start).unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let proxy = listener.local_addr().unwrap();
        let mut settings = HttpSettings::default();
        // The paper's, which the servers below know.
        settings.first_step = 8 << 10;
        settings.longest_first = 0;
        set(&mut settings);
        let upstream: Arc<dyn Upstream> = Arc::new(Managed::new(Client::at(&socket)));
        let serving = make(upstream, settings);
        runtime.spawn(async move { serving.serve(listener).await });
        Self { proxy, runtime, _manager: manager, folder, links, client, server, lab }
    }

    pub fn origin(
        &self,
        answer: impl Fn(&str, usize, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Origin {
        self.origin_at(FAR, answer)
    }

    /// A server at another address of the far host, 10.9.9.N.
    pub fn origin_at(
        &self,
        at: IpAddr,
        answer: impl Fn(&str, usize, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Origin {
        if at != FAR {
            self.links[0].end(&self.server).add_address(&format!("{at}/32")).unwrap();
        }
        let listener = self.server.run(|| TcpListener::bind((at, 0)).unwrap());
        Origin::on(listener, answer)
    }

    /// Makes a link anew that was removed: interfaces with the old names and addresses, and other numbers.
    /// All but the first can be.
    pub fn make_anew(&self, n: usize, shape: (u64, u64)) -> Link {
        connect(&self.lab, &self.client, &self.server, n, shape)
    }

    pub fn connect(&self) -> TcpStream {
        let stream = self.client.run(|| TcpStream::connect(self.proxy).unwrap());
        stream.set_read_timeout(Some(3 * LIMIT)).unwrap();
        stream
    }

    pub fn talk(&self, words: &str) -> String {
        let mut stream = self.connect();
        stream.write_all(words.as_bytes()).unwrap();
        rest(&mut stream)
    }

    /// The client's sides of its connections to this server in this state, as ss(8) names it.
    pub fn connections(&self, server: SocketAddr, state: &str) -> Vec<String> {
        let port = format!(":{}", server.port());
        let filter = ["-tnH", "state", state, "dport", "=", &port];
        let output = self.client.command("ss").args(filter).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        let local = text.lines().filter_map(|line| line.split_whitespace().nth(2));
        let mut found: Vec<String> = local.map(without_interface).collect();
        found.sort();
        found
    }

    /// A connection to the manager, for lines of one's own.
    pub fn manager(&self) -> UnixStream {
        UnixStream::connect(self.folder.path().join("access")).unwrap()
    }

    /// The manager tells of its decisions from now on.
    pub fn watch(&self) -> Watcher {
        let client = Client::at(&self.folder.path().join("access"));
        let watching = async move {
            let mut watcher = client.watch(true).await.unwrap();
            loop {
                // What it tells everybody who watches.
                let answer: Answer = serde_json::from_str(&watcher.next().await.unwrap()).unwrap();
                if answer.paths.is_some() {
                    return watcher;
                }
            }
        };
        self.runtime.block_on(async move { tokio::time::timeout(LIMIT, watching).await.unwrap() })
    }

    /// Waits until the manager sees each link so.
    pub fn until_seen(&self, what: &str, is_so: impl Fn(&PathReport) -> bool + Send) {
        let last = self.seen(LIMIT, is_so);
        assert!(last.is_none(), "the manager does not see that {what}, but {last:?}");
    }

    /// `None`: the manager sees each link so, within this time. Else what it told last.
    fn seen(&self, within: Duration, is_so: impl Fn(&PathReport) -> bool + Send) -> Option<String> {
        let client = Client::at(&self.folder.path().join("access"));
        let names: Vec<String> = (0..self.links.len()).map(|n| format!("link{n}")).collect();
        let mut last = String::new();
        let told = &mut last;
        let seen = async move {
            let mut watcher = client.watch(false).await.unwrap();
            loop {
                let line = watcher.next().await.unwrap();
                let answer: Answer = serde_json::from_str(&line).unwrap();
                *told = line;
                let paths = answer.paths.unwrap_or_default();
                let is_seen = |name: &String| paths.iter().any(|path| path.interface == *name && is_so(path));
                if names.iter().all(is_seen) {
                    return;
                }
            }
        };
        let seen = self.runtime.block_on(async move { tokio::time::timeout(within, seen).await });
        seen.is_err().then_some(last)
    }

    /// How long the manager foresees so many bytes to take from there, if they were asked for now.
    pub fn foreseen(&self, from: SocketAddr, bytes: u64) -> Duration {
        let client = Client::at(&self.folder.path().join("access"));
        let host = from.ip().to_string();
        let weighed = client.weigh(&host, from.port(), Intents::receive(bytes), Vec::new());
        let verdict = self.runtime.block_on(weighed).unwrap().unwrap();
        Duration::from_secs_f64(verdict.ways[0].completes_ms.unwrap() / 1000.0)
    }

    /// Fills each link for a while, so that the manager knows it. The connections stay open, as other
    /// programs' do.
    pub fn warm_up(&self, object: &Object) -> Vec<TcpStream> {
        let open = (0..self.links.len()).map(|n| self.fill(n, object)).collect();
        self.until_seen("each link has a round trip", |path| path.srtt_min_ms.is_some());
        object.by_source.lock().unwrap().clear();
        open
    }

    /// The same, until the manager has seen half of each link's rate, in Mbit/s: a busy machine carries less.
    pub fn warm_up_to(&self, rates: &[u64], object: &Object) -> Vec<TcpStream> {
        let known = |path: &PathReport| {
            let rate = rates.iter().enumerate().find(|(n, _)| path.interface == format!("link{n}"));
            let half = rate.map_or(0.0, |(_, rate)| *rate as f64 * 1e6 / 8.0 / 2.0);
            path.down_best.is_some_and(|best| best > half)
        };
        let mut open = self.warm_up(object);
        for _ in 0..5 {
            if self.seen(Duration::from_secs(1), known).is_none() {
                return open;
            }
            open = self.warm_up(object);
        }
        panic!("the manager does not know that the links carry {rates:?} Mbit/s");
    }

    /// Fills a link for a while with some megabytes of this object. The connection stays open.
    pub fn fill(&self, n: usize, object: &Object) -> TcpStream {
        let interface = format!("link{n}");
        let by = Candidate {
            destination: object.origin.address,
            source: Some(IpAddr::from([10, 0, n as u8, 1])),
            interface: Some(interface.clone()),
            protocol: Protocol::Tcp,
            options: SocketOptions { bind_to_device: Some(interface), ..SocketOptions::default() },
            failed_lately: false,
            why: String::new(),
        };
        let stream = self.runtime.block_on(async { by.connect().await.unwrap().into_std().unwrap() });
        stream.set_nonblocking(false).unwrap();
        let mut stream = stream;
        let open = stream.try_clone().unwrap();
        stream.write_all(get(&object.origin.url("/"), "Range: bytes=0-2999999\r\n").as_bytes()).unwrap();
        let head = read_head(&mut stream).unwrap();
        let length: u64 = field(&head, "content-length").unwrap().parse().unwrap();
        std::io::copy(&mut stream.take(length), &mut std::io::sink()).unwrap();
        open
    }
}

/// A server with one object, which does all with ranges that a good server does.
pub struct Object {
    pub origin: Origin,
    pub digest: Vec<u8>,
    pub size: usize,
    /// How many bytes went to which address.
    pub by_source: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

pub fn content(size: usize) -> Vec<u8> {
    (0..size as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

/// The bytes that a head asks for, out of so many.
pub fn range(head: &str, total: usize) -> Option<(usize, usize)> {
    let (first, last) = field(head, "range")?.strip_prefix("bytes=")?.split_once('-')?;
    Some((first.parse().ok()?, last.parse().map_or(total - 1, |last: usize| last.min(total - 1))))
}

impl Object {
    pub fn start(world: &World, size: usize) -> Self {
        let content = content(size);
        let digest = Sha256::digest(&content).to_vec();
        let by_source: Arc<Mutex<HashMap<IpAddr, usize>>> = Arc::default();
        let counting = Arc::clone(&by_source);
        let origin = world.origin(move |head, _, stream| {
            let asked = range(head, content.len());
            let (first, last) = asked.unwrap_or((0, content.len() - 1));
            let (status, part) = match asked {
                Some(_) => {
                    ("206 Partial Content", format!("Content-Range: bytes {first}-{last}/{}\r\n", content.len()))
                }
                None => ("200 OK", String::new()),
            };
            let head = format!(
                "HTTP/1.1 {status}\r\nETag: \"a\"\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n{part}\r\n",
                last + 1 - first,
            );
            if stream.write_all(head.as_bytes()).is_err() {
                return false;
            }
            let source = stream.peer_addr().unwrap().ip();
            for chunk in content[first..=last].chunks(64 << 10) {
                if stream.write_all(chunk).is_err() {
                    return false;
                }
                *counting.lock().unwrap().entry(source).or_default() += chunk.len();
            }
            true
        });
        Self { origin, digest, size, by_source }
    }

    /// Downloads it through the proxy, and calls this after each so many bytes.
    pub fn download(&self, world: &World, mut after: impl FnMut(usize)) -> Duration {
        let mut client = world.connect();
        let began = Instant::now();
        client.write_all(get(&self.origin.url("/"), "").as_bytes()).unwrap();
        let head = read_head(&mut client).unwrap();
        assert!(status(&head) == 200 && has(&head, &format!("content-length: {}", self.size)), "{head}");
        assert!(field(&head, "content-range").is_none() && has(&head, "etag: \"a\""), "{head}");
        let (mut hash, mut count, mut buffer) = (Sha256::new(), 0, vec![0; 64 << 10]);
        loop {
            match client.read(&mut buffer).unwrap() {
                0 => break,
                n => {
                    hash.update(&buffer[..n]);
                    count += n;
                    after(count);
                }
            }
        }
        assert_eq!(count, self.size);
        assert!(hash.finalize()[..] == self.digest[..], "other bytes");
        began.elapsed()
    }

    pub fn share(&self, n: u8) -> f64 {
        let by_source = self.by_source.lock().unwrap();
        *by_source.get(&IpAddr::from([10, 0, n, 1])).unwrap_or(&0) as f64 / self.size as f64
    }
}
