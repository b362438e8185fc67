//! A proxy on loopback, servers written by hand, and clients that say exactly what they are told to.
#![allow(clippy::unwrap_used, unreachable_pub)]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use whimbrel_multiaccess::Client;
use whimbrel_proxy::{HttpProxy, HttpSettings, Managed, Upstream};

/// For whatever must come at all.
pub const LIMIT: Duration = Duration::from_secs(20);

/// Waits until it is so.
#[track_caller]
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !is_so() {
        assert!(Instant::now() < end, "it does not come to this: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A proxy that serves.
pub struct Serving {
    pub address: SocketAddr,
    pub proxy: HttpProxy,
    _runtime: tokio::runtime::Runtime,
}

/// A proxy without a manager.
pub fn proxy(set: impl FnOnce(&mut HttpSettings)) -> Serving {
    proxy_of(set, HttpProxy::new)
}

/// The same, made in another way.
pub fn proxy_of(
    set: impl FnOnce(&mut HttpSettings),
    make: impl FnOnce(Arc<dyn Upstream>, HttpSettings) -> HttpProxy,
) -> Serving {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let mut settings = HttpSettings::default();
    // As if the servers of these tests were somewhere else.
    settings.turns_here = true;
    set(&mut settings);
    let nobody = Client::at(std::path::Path::new("/nonexistent/access"));
    let upstream: Arc<dyn Upstream> = Arc::new(Managed::new(nobody));
    let proxy = make(upstream, settings);
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let serving = proxy.clone();
    runtime.spawn(async move { serving.serve(listener).await });
    Serving { address, proxy, _runtime: runtime }
}

/// A server that answers as it is told to, and remembers what it was asked.
pub struct Origin {
    pub address: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Origin {
    /// `answer` gets the head of a request and its number, and says whether the connection goes on.
    pub fn start(answer: impl Fn(&str, usize, &mut TcpStream) -> bool + Send + Sync + 'static) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").unwrap(), answer)
    }

    pub fn on(
        listener: TcpListener,
        answer: impl Fn(&str, usize, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (answer, seeing) = (Arc::new(answer), Arc::clone(&seen));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seeing));
                std::thread::spawn(move || {
                    stream.set_read_timeout(Some(LIMIT)).unwrap();
                    while let Some(head) = read_head(&mut stream) {
                        let n = {
                            let mut seen = seen.lock().unwrap();
                            seen.push(head.clone());
                            seen.len() - 1
                        };
                        if !answer(&head, n, &mut stream) {
                            return;
                        }
                    }
                });
            }
        });
        Self { address, seen }
    }

    /// Gives everybody this.
    pub fn saying(answer: &'static str) -> Self {
        Self::start(move |_, _, stream| {
            stream.write_all(answer.as_bytes()).unwrap();
            answer.contains("Content-Length") || answer.contains("hunked")
        })
    }

    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

/// Reads up to the end of a head, and no further.
pub fn read_head(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

pub fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_write_timeout(Some(LIMIT)).unwrap();
    stream
}

/// Says something and returns all that comes until the connection ends.
pub fn talk(to: SocketAddr, words: &str) -> String {
    let mut stream = connect(to);
    stream.write_all(words.as_bytes()).unwrap();
    rest(&mut stream)
}

/// All that comes until the connection ends, however it does.
pub fn rest(stream: &mut TcpStream) -> String {
    let mut all = Vec::new();
    match stream.read_to_end(&mut all) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => {
            panic!("{error} after {}", String::from_utf8_lossy(&all))
        }
        _ => String::from_utf8_lossy(&all).into_owned(),
    }
}

/// A request for a page, after which the connection ends.
pub fn get(url: &str, more: &str) -> String {
    let host = url.split('/').nth(2).unwrap();
    format!("GET {url} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n")
}

/// The body of an answer that has its length or goes on to the end.
pub fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no head in {answer:?}")).1
}

pub fn status(answer: &str) -> u16 {
    answer.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or_else(|| panic!("{answer:?}"))
}

pub fn has(answer: &str, field: &str) -> bool {
    answer.split("\r\n").any(|line| line.eq_ignore_ascii_case(field))
}

pub fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.split("\r\n\r\n").next()?.split("\r\n").skip(1);
    let mut found = lines.filter_map(|line| line.split_once(':'));
    found.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
}

/// The memory of this process, in bytes.
pub fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}
