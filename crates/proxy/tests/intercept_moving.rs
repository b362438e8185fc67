//! Answers of HTTPS that ends in the proxy go on at another device: real curl on both sides, and servers that
//! speak TLS.
#![allow(clippy::unwrap_used)]

use crate::secure::{self, Authority, Curled, Key, SecureOrigin, Served, client, curl_of};
use crate::support::{LIMIT, Serving, connect, field, has, proxy_of};
use sha2::{Digest as _, Sha256};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use whimbrel_multiaccess::Client;
use whimbrel_proxy::{
    HttpProxy, Managed, NoRest, NoWebRest, StaysHere, WebObject, WebOrigins, WebTransfer, read_request,
};

/// For what a busy machine has to do.
const LONG: Duration = Duration::from_secs(60);
const SIZE: usize = 24 << 20;
/// As `curl` says it.
const SLOWLY: [&str; 2] = ["--limit-rate", "6M"];

fn content(size: usize) -> Vec<u8> {
    (0..size as u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    Sha256::digest(bytes).to_vec()
}

/// A proxy that intercepts one port of this host, and its answers that could move.
struct Phone {
    key: Key,
    proxy: Serving,
    transfers: mpsc::Receiver<WebTransfer>,
    runtime: Runtime,
    folder: tempfile::TempDir,
}

impl Phone {
    fn new(port: u16, authority: &Path) -> Self {
        let key = Key::made_for(&["localhost"]);
        let interception = key.intercepts(&[&format!("localhost:{port}")], authority);
        let make = |upstream, settings| HttpProxy::intercepting(upstream, settings, interception);
        // The servers here let their clients wait, and are not to be asked again for that.
        let proxy = proxy_of(|settings| settings.stall = 2 * LONG, make);
        let transfers = proxy.proxy.transfers().unwrap();
        assert!(proxy.proxy.transfers().is_none(), "they are told once");
        let runtime = Runtime::new().unwrap();
        Self { key, proxy, transfers, runtime, folder: tempfile::tempdir().unwrap() }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("first")
    }

    /// Has curl load this.
    fn loads(&self, args: &[&str]) -> JoinHandle<Curled> {
        let own = ["-o".to_owned(), self.file().to_str().unwrap().to_owned()];
        let args: Vec<String> = own.into_iter().chain(args.iter().map(|word| (*word).to_owned())).collect();
        let (address, certificate) = (self.proxy.address, self.key.certificate());
        std::thread::spawn(move || {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            curl_of(address, &certificate, &args)
        })
    }

    /// The next answer that could move.
    fn transfer(&mut self) -> WebTransfer {
        let Self { runtime, transfers, .. } = self;
        let coming = async { tokio::time::timeout(LONG, transfers.recv()).await };
        runtime.block_on(coming).unwrap().unwrap()
    }

    /// What it is after so many bytes at least, once its program has all of them.
    fn halted(&self, transfer: &WebTransfer, bytes: u64) -> Result<WebObject, StaysHere> {
        reaches(transfer, bytes);
        self.runtime.block_on(async { transfer.halt().await.map(|halted| halted.object().clone()) })
    }
}

/// Waits for so many bytes of it at least.
fn reaches(transfer: &WebTransfer, bytes: u64) {
    let (passed, end) = (transfer.passed(), Instant::now() + LONG);
    while passed.load(Ordering::SeqCst) < bytes {
        assert!(Instant::now() < end, "it does not come");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The other device.
fn desk(authority: &Path) -> WebOrigins {
    let nobody = Client::at(Path::new("/nonexistent/access"));
    WebOrigins::new(Arc::new(Managed::new(nobody)), Some(authority)).unwrap()
}

const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n";

/// How a server gives its only object.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gives {
    Parts,
    /// All of it to whoever asks for a part.
    Whole,
    /// Another version to whoever asks for a part.
    Another,
    /// Nobody knows which version.
    Nameless,
    /// It says that it gives no parts.
    NoParts,
    /// Nobody knows how long it is.
    Endless,
}

/// A server of this object, which gives the second half once it may.
fn origin(authority: &Authority, content: Vec<u8>, gives: Gives, go: Arc<AtomicBool>) -> SecureOrigin {
    SecureOrigin::start(authority.config("localhost"), move |head, stream| {
        give(head, &content, gives, &go, stream)
    })
}

fn give(head: &str, content: &[u8], gives: Gives, go: &AtomicBool, stream: &mut Served) -> bool {
    let asked = field(head, "range").filter(|_| gives != Gives::Whole);
    let asked = asked.and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let tag = match (gives, asked) {
        (Gives::Nameless, _) => "",
        (Gives::Another, Some(_)) => "ETag: \"b\"\r\n",
        _ => "ETag: \"a\"\r\n",
    };
    let units = if gives == Gives::NoParts { "none" } else { "bytes" };
    let total = content.len();
    let (status, bytes) = match asked {
        Some((first, last)) => {
            let (first, last): (usize, usize) = (first.parse().unwrap(), last.parse().unwrap());
            (format!("206 Part\r\nContent-Range: bytes {first}-{last}/{total}"), first..last + 1)
        }
        None => ("200 OK".to_owned(), 0..total),
    };
    let length = match gives {
        Gives::Endless => "Connection: close\r\n".to_owned(),
        _ => format!("Content-Length: {}\r\n", bytes.len()),
    };
    let head =
        format!("HTTP/1.1 {status}\r\n{tag}Accept-Ranges: {units}\r\nContent-Type: film/x\r\n{length}\r\n");
    let (half, end) = (bytes.start + bytes.len() / 2, Instant::now() + LONG);
    let first =
        stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(&content[bytes.start..half]));
    if first.and_then(|()| stream.flush()).is_err() {
        return false;
    }
    while !go.load(Ordering::SeqCst) && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(10));
    }
    stream.write_all(&content[half..bytes.end]).is_ok() && gives != Gives::Endless
}

#[test]
fn what_curl_got_of_a_download_and_what_another_one_gets_there_are_the_file_over_http1_and_http2() {
    for (version, broken) in [("1.1", [18, 56]), ("2", [92, 56])] {
        let (servers, content) = (Authority::new(), content(SIZE));
        // Its second half comes once the first one is halted: it is not over before.
        let go = Arc::new(AtomicBool::new(false));
        let origin = origin(&servers, content.clone(), Gives::Parts, Arc::clone(&go));
        let mut phone = Phone::new(origin.port, &servers.file);
        let spoken = format!("--http{version}");
        let cookie = ["-H", "Cookie: who=ada", &spoken, "-w", "%{http_version}"];
        let url = origin.url("/film?token=x");
        let first = phone.loads(&[&SLOWLY[..], &cookie, &[url.as_str()]].concat());
        let transfer = phone.transfer();
        assert_eq!(transfer.place(), format!("https://localhost:{}/film", origin.port));
        reaches(&transfer, 2 << 20);
        let desk = desk(&servers.file);
        let second = phone.runtime.block_on(async {
            let halted = transfer.halt().await.unwrap();
            go.store(true, Ordering::SeqCst);
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}/", listener.local_addr().unwrap());
            let file = phone.folder.path().join("second");
            let to = file.clone();
            let curl = std::thread::spawn(move || {
                let mut curl = Command::new("curl");
                curl.args(["-q", "-sS", "--fail", "--noproxy", "*", "--max-time", "60", "-D", "-", "-o"]);
                curl.arg(to).arg(url).output().unwrap()
            });
            let (mut program, _) = listener.accept().await.unwrap();
            let request = read_request(&mut program).await.unwrap();
            let rest = desk.rest(halted.object().clone(), &request).await.unwrap();
            halted.leave();
            rest.give(&mut program).await.unwrap();
            drop(program);
            let curl = curl.join().unwrap();
            assert!(curl.status.success(), "{}", String::from_utf8_lossy(&curl.stderr));
            let head = String::from_utf8_lossy(&curl.stdout).to_lowercase();
            assert!(head.contains("content-type: film/x\r\n"), "{head}");
            std::fs::read(file).unwrap()
        });
        let ended = first.join().unwrap();
        assert!(ended.code.is_some_and(|code| broken.contains(&code)), "{:?}: {}", ended.code, ended.error);
        assert_eq!(ended.text(), version, "{}", ended.error);
        let first = std::fs::read(phone.file()).unwrap();
        assert!(first.len() >= 256 << 10 && !second.is_empty(), "{} and {}", first.len(), second.len());
        assert_eq!(first.len() + second.len(), SIZE, "bytes were lost, or came twice");
        assert_eq!(digest(&[&first[..], &second].concat()), digest(&content));
        let seen = origin.seen();
        let range = format!("range: bytes={}-{}", first.len(), SIZE - 1);
        let rest = seen.iter().find(|head| has(head, &range)).unwrap_or_else(|| panic!("{range}: {seen:?}"));
        assert!(rest.starts_with("GET /film?token=x HTTP/1.1\r\n"), "{rest}");
        assert!(has(rest, "if-range: \"a\"") && has(rest, "cookie: who=ada"), "{rest}");
        phone.runtime.block_on(async {
            let mut transfer = transfer;
            tokio::time::timeout(LONG, transfer.ended()).await.unwrap();
        });
    }
}

/// What becomes of a transfer that does not move: its program gets all of it.
fn goes_on_here(phone: &Phone, go: &AtomicBool, first: JoinHandle<Curled>, content: &[u8]) {
    go.store(true, Ordering::SeqCst);
    let ended = first.join().unwrap();
    assert_eq!(ended.code, Some(0), "{}", ended.error);
    let got = std::fs::read(phone.file()).unwrap();
    assert_eq!((got.len(), digest(&got)), (content.len(), digest(content)));
}

#[test]
fn what_cannot_be_asked_for_again_stays_and_says_why() {
    for (gives, method, why) in [
        (Gives::Nameless, "GET", StaysHere::Version),
        (Gives::NoParts, "GET", StaysHere::Parts),
        (Gives::Endless, "GET", StaysHere::Length),
        (Gives::Parts, "POST", StaysHere::Method("POST".to_owned())),
    ] {
        let (servers, content, go) = (Authority::new(), content(2 << 20), Arc::new(AtomicBool::new(false)));
        let origin = origin(&servers, content.clone(), gives, Arc::clone(&go));
        let mut phone = Phone::new(origin.port, &servers.file);
        let first = phone.loads(&["--http1.1", "-X", method, &origin.url("/")]);
        let transfer = phone.transfer();
        assert_eq!(phone.halted(&transfer, 256 << 10).unwrap_err(), why);
        goes_on_here(&phone, &go, first, &content);
    }
}

#[test]
fn a_server_that_does_not_give_the_rest_of_the_same_is_noticed_before_anything_moves() {
    for gives in [Gives::Whole, Gives::Another, Gives::Parts] {
        let (servers, content, go) = (Authority::new(), content(2 << 20), Arc::new(AtomicBool::new(false)));
        let origin = origin(&servers, content.clone(), gives, Arc::clone(&go));
        let mut phone = Phone::new(origin.port, &servers.file);
        let first = phone.loads(&["--http1.1", &origin.url("/")]);
        let transfer = phone.transfer();
        // All of the first half: it is halted twice, and goes on each time.
        for _ in 0..2 {
            let object = phone.halted(&transfer, 1 << 20).unwrap();
            assert_eq!(object.at(), 1 << 20);
            let other = b"GET / HTTP/1.1\r\nRange: bytes=5-\r\n\r\n";
            let asked = if gives == Gives::Parts { &other[..] } else { GET };
            let desk = desk(&servers.file);
            let none =
                phone.runtime.block_on(async { desk.rest(object, asked).await.map(drop) }).unwrap_err();
            match gives {
                Gives::Whole => assert!(matches!(none, NoWebRest::Parts), "{none}"),
                Gives::Another => assert!(matches!(none, NoWebRest::Changed), "{none}"),
                _ => assert!(matches!(none, NoWebRest::Program(NoRest::Asked)), "{none}"),
            }
            assert!(none.answer().starts_with(b"HTTP/1.1 "), "{none}");
        }
        goes_on_here(&phone, &go, first, &content);
    }
}

#[test]
fn nothing_is_said_to_a_server_that_the_other_device_cannot_verify() {
    let (servers, content, go) = (Authority::new(), content(2 << 20), Arc::new(AtomicBool::new(false)));
    let origin = origin(&servers, content.clone(), Gives::Parts, Arc::clone(&go));
    let mut phone = Phone::new(origin.port, &servers.file);
    let first = phone.loads(&["--http1.1", &origin.url("/")]);
    let transfer = phone.transfer();
    let object = phone.halted(&transfer, 256 << 10).unwrap();
    let seen = origin.seen().len();
    let desk = desk(&Authority::new().file);
    let none = phone.runtime.block_on(async { desk.rest(object, GET).await.map(drop) }).unwrap_err();
    assert!(none.to_string().contains("its certificate is refused"), "{none}");
    assert_eq!(origin.seen().len(), seen);
    goes_on_here(&phone, &go, first, &content);
}

#[test]
fn an_answer_whose_program_does_not_read_stays_and_the_program_gets_every_byte() {
    let (servers, content, go) = (Authority::new(), content(SIZE), Arc::new(AtomicBool::new(true)));
    let origin = origin(&servers, content.clone(), Gives::Parts, go);
    let mut phone = Phone::new(origin.port, &servers.file);
    let (port, certificate) = (origin.port, phone.key.certificate());
    let mut program = client(connect(phone.proxy.address), ("localhost", port), &certificate);
    let request = format!("GET / HTTP/1.1\r\nHost: localhost:{port}\r\nConnection: close\r\n\r\n");
    program.write_all(request.as_bytes()).unwrap();
    assert!(secure::head_of(&mut program).unwrap().starts_with("HTTP/1.1 200 "));
    let transfer = phone.transfer();
    // It is read no further: what was written waits in the kernel.
    assert_eq!(phone.halted(&transfer, 256 << 10).unwrap_err(), StaysHere::NotRead);
    let mut got = vec![0; SIZE];
    program.sock.set_read_timeout(Some(LIMIT)).unwrap();
    program.read_exact(&mut got).unwrap();
    assert_eq!(digest(&got), digest(&content));
}
