//! What a package manager does, through `proxy socks`: many small requests over a few connections that stay
//! open, parts of files that are there already in part, and questions whether an index has changed.
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};

use crate::common::{LIMIT, Process, World, tcp_server};

/// Connections that curl has at a time.
const CONNECTIONS: usize = 4;
const PACKAGES: usize = 48;
const SIZES: [usize; 6] = [1, 700, 4_096, 20_001, 65_536, 180_000];

/// The bytes of a package.
fn content(package: usize) -> Vec<u8> {
    let begin = (package * 7_919) as u32;
    (0..SIZES[package % SIZES.len()] as u32)
        .map(|n| (n.wrapping_add(begin).wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect()
}

/// What the repository's server has seen.
#[derive(Default)]
struct Seen {
    connections: usize,
    requests: usize,
}

/// A server of packages with ranges and validators, whose connections stay open. It answers nothing before
/// all connections that are to be used beside each other are there.
#[derive(Clone, Default)]
struct Repository(Arc<(Mutex<Seen>, Condvar)>);

impl Repository {
    fn start(&self) -> SocketAddr {
        let repository = self.clone();
        tcp_server(move |stream| repository.serve(stream))
    }

    fn serve(&self, mut stream: TcpStream) {
        let (seen, changed) = &*self.0;
        seen.lock().unwrap().connections += 1;
        changed.notify_all();
        while let Some(head) = read_head(&mut stream) {
            let mut seen = seen.lock().unwrap();
            seen.requests += 1;
            let is_early = |seen: &mut Seen| seen.connections < CONNECTIONS;
            let (seen, waited) = changed.wait_timeout_while(seen, LIMIT, is_early).unwrap();
            drop(seen);
            if waited.timed_out() || stream.write_all(&answer(&head)).is_err() {
                return;
            }
        }
    }
}

fn read_head(stream: &mut TcpStream) -> Option<String> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read(&mut byte).ok()? == 0 {
            return None;
        }
        head.push(byte[0]);
    }
    Some(String::from_utf8(head).unwrap())
}

fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let fields = head.lines().filter_map(|line| line.split_once(": "));
    fields.filter(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
}

/// As RFC 9110 has it for GET with one range.
fn answer(head: &str) -> Vec<u8> {
    let path = head.split(' ').nth(1).unwrap();
    let package: usize = path.strip_prefix("/pool/").unwrap().parse().unwrap();
    let (content, tag) = (content(package), format!("\"{package}\""));
    let same = format!("HTTP/1.1 304 Not Modified\r\nETag: {tag}\r\n\r\n");
    if field(head, "if-none-match") == Some(tag.as_str()) {
        return same.into_bytes();
    }
    let ranges = field(head, "range").filter(|_| field(head, "if-range").is_none_or(|wanted| wanted == tag));
    let (status, range, body) = match ranges.and_then(|text| text.strip_prefix("bytes=")?.split_once('-')) {
        None => ("200 OK", String::new(), &content[..]),
        Some((first, last)) => {
            let total = content.len();
            let first: usize = first.parse().unwrap();
            let end = last.parse::<usize>().map_or(total, |last| total.min(last + 1));
            match first < end {
                true => {
                    let range = format!("Content-Range: bytes {first}-{}/{total}\r\n", end - 1);
                    ("206 Partial Content", range, &content[first..end])
                }
                false => {
                    let range = format!("Content-Range: bytes */{total}\r\n");
                    ("416 Range Not Satisfiable", range, &content[..0])
                }
            }
        }
    };
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\nETag: {tag}\r\n{range}Content-Length: {length}\r\n\r\n");
    [head.as_bytes(), body].concat()
}

/// One request, and what has to come.
struct Transfer {
    package: usize,
    range: Option<String>,
    field: Option<String>,
    status: u16,
    body: Vec<u8>,
}

impl Transfer {
    fn new(package: usize, status: u16, body: Vec<u8>) -> Self {
        Self { package, range: None, field: None, status, body }
    }

    fn range(self, range: String) -> Self {
        Self { range: Some(range), ..self }
    }

    fn field(self, name: &str, tag: usize) -> Self {
        Self { field: Some(format!("{name}: \\\"{tag}\\\"")), ..self }
    }

    /// Its part of curl's configuration.
    fn config(&self, number: usize, proxy: &str, from: SocketAddr, folder: &Path) -> String {
        let mut text = format!("url = \"http://{from}/pool/{}\"\nproxy = \"{proxy}\"\n", self.package);
        let output = folder.join(number.to_string());
        writeln!(text, "output = \"{}\"\nsilent\nshow-error\nmax-time = 60", output.display()).unwrap();
        writeln!(text, "write-out = \"%{{http_code}} {number}\\n\"").unwrap();
        if let Some(range) = &self.range {
            writeln!(text, "range = \"{range}\"").unwrap();
        }
        if let Some(field) = &self.field {
            writeln!(text, "header = \"{field}\"").unwrap();
        }
        text
    }
}

/// What is asked for of each package: all of it, the rest of one that is there in part, a part in the middle,
/// one that has changed meanwhile, and whether it has changed at all.
fn transfers() -> Vec<Transfer> {
    let of = |package: usize| {
        let whole = content(package);
        let (half, last) = (whole.len() / 2, whole.len().div_ceil(2) + 9);
        let middle = whole[half..whole.len().min(last + 1)].to_vec();
        [
            Transfer::new(package, 200, whole.clone()),
            Transfer::new(package, 206, whole[half..].to_vec())
                .range(format!("{half}-"))
                .field("If-Range", package),
            Transfer::new(package, 206, middle).range(format!("{half}-{last}")),
            Transfer::new(package, 200, whole.clone()).range(format!("{half}-")).field("If-Range", 1_000),
            Transfer::new(package, 304, Vec::new()).field("If-None-Match", package),
            Transfer::new(package, 200, whole.clone()).field("If-None-Match", 1_000),
            Transfer::new(package, 416, Vec::new()).range(format!("{}-", whole.len())),
        ]
    };
    (0..PACKAGES).flat_map(of).collect()
}

/// Has curl do all of them, so many at a time, and checks each.
fn all_arrive_right(world: &World, proxy: &str) {
    let folder = world.path("packages");
    fs::create_dir_all(&folder).unwrap();
    let repository = Repository::default();
    let (from, transfers) = (repository.start(), transfers());
    let parts = transfers.iter().enumerate();
    let parts: Vec<String> = parts.map(|(n, one)| one.config(n, proxy, from, &folder)).collect();
    let config = folder.join("config");
    fs::write(&config, parts.join("next\n")).unwrap();
    let mut command = Command::new("curl");
    command.args(["-q", "--parallel", "--parallel-immediate", "--parallel-max", &CONNECTIONS.to_string()]);
    command.args(["-sS", "--config"]).arg(&config);
    for name in ["ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"] {
        command.env_remove(name);
    }
    let output = Process::start(&mut command).output(3 * LIMIT);
    let said = output.succeeded().stdout.lines().map(|line| line.split_once(' ').unwrap());
    let said: HashMap<usize, u16> =
        said.map(|(code, n)| (n.parse().unwrap(), code.parse().unwrap())).collect();
    assert_eq!(said.len(), transfers.len());
    for (number, one) in transfers.iter().enumerate() {
        let what = format!("{number}: package {}, {:?}, {:?}", one.package, one.range, one.field);
        assert_eq!(said[&number], one.status, "{what}");
        // Of an answer without a body there need not be a file.
        let got = fs::read(folder.join(number.to_string())).unwrap_or_default();
        assert!(got == one.body, "{what}: {} bytes instead of {}", got.len(), one.body.len());
    }
    let seen = repository.0.0.lock().unwrap();
    assert_eq!(seen.requests, transfers.len());
    assert!((CONNECTIONS..=transfers.len() / 4).contains(&seen.connections), "{}", seen.connections);
}

#[test]
fn what_a_package_manager_asks_for_over_a_few_connections_arrives_right_through_socks() {
    let world = World::new();
    let args = ["proxy", "socks", "--listen", "127.0.0.1:0", "--json"];
    let mut socks = world.start("bob", &args);
    let at = socks.next_json()["listening"].as_str().unwrap().to_owned();
    all_arrive_right(&world, &format!("socks5h://{at}"));
}

#[test]
fn what_a_package_manager_asks_for_arrives_right_through_socks_and_a_gateway() {
    let world = World::new();
    let bob = world.id("bob");
    let args = ["gateway", "serve", "--ticket", "--json", "--allow", &bob, "--to", "127.0.0.1", "--only"];
    let mut gateway = world.start("gate", &args);
    let ticket = gateway.next_json()["ticket"].as_str().unwrap().to_owned();
    let args = ["proxy", "socks", "--listen", "127.0.0.1:0", "--json", "--through", &ticket];
    let mut socks = world.start("bob", &args);
    let at = socks.next_json()["listening"].as_str().unwrap().to_owned();
    all_arrive_right(&world, &format!("socks5h://{at}"));
}
