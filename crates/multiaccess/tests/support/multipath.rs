//! Connections of the kernel's Multipath TCP between the hosts of a world, and programs of other users.

use super::{LIMIT, World};
use serde_json::Value;
use socket2::{Domain, Socket, Type};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};
use whimbrel_lab::{Host, HostChild};

/// Where the server answers, beyond all links.
pub const FAR: &str = "10.9.9.9:7000";
/// IPPROTO_MPTCP.
const MPTCP: i32 = 262;

/// Whether this kernel lets a program manage paths.
pub fn is_supported(test: &str) -> bool {
    let there = Path::new("/proc/sys/net/mptcp/pm_type").exists();
    if !there {
        whimbrel_lab::skip(test, "the kernel has no userspace path manager of Multipath TCP");
    }
    there
}

fn socket() -> Socket {
    Socket::new(Domain::IPV4, Type::STREAM, Some(MPTCP.into())).unwrap()
}

/// Starts a server of Multipath TCP that sends back what comes, with the kernel's own path manager.
pub fn echo(world: &World) {
    let server = &world.server;
    server.allow_mptcp(7).unwrap();
    world.links[0].end(server).add_address("10.9.9.9/32").unwrap();
    let listener: TcpListener = server.run(|| {
        let socket = socket();
        socket.bind(&FAR.parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.listen(16).unwrap();
        socket.into()
    });
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            std::thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = stream.read(&mut buffer) {
                    if stream.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
            });
        }
    });
}

/// A connection of Multipath TCP to that server.
pub fn connect(client: &Host) -> TcpStream {
    let stream: TcpStream = client.run(|| {
        let socket = socket();
        socket.connect(&FAR.parse::<SocketAddr>().unwrap().into()).unwrap();
        socket.into()
    });
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// There and back: both sides know then that the other speaks Multipath TCP.
#[track_caller]
pub fn exchange(stream: &mut TcpStream) {
    stream.write_all(b"hello").unwrap();
    let mut back = [0; 5];
    stream.read_exact(&mut back).unwrap();
    assert_eq!(&back, b"hello");
}

/// The addresses of this host from which there are TCP connections to the server, those being made included.
pub fn sources(client: &Host) -> Vec<String> {
    let filter = ["-tnH", "state", "connected", "dst", "10.9.9.9"];
    let output = client.command("ss").args(filter).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // What is closed takes a while to be forgotten.
    let live = text.lines().filter(|line| line.starts_with("ESTAB") || line.starts_with("SYN-SENT"));
    let local = live.filter_map(|line| line.split_whitespace().nth(3));
    let mut found: Vec<String> =
        local.filter_map(|local| Some(local.split(['%', ':']).next()?.to_owned())).collect();
    found.sort();
    found
}

/// The addresses of this host from which there are subflows that stand by.
pub fn backups(client: &Host) -> Vec<String> {
    let filter = ["-tniHO", "state", "established", "dst", "10.9.9.9"];
    let output = client.command("ss").args(filter).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    // `b`: this side asked for a backup.
    let is_backup = |line: &&str| {
        let flags = line.split("tcp-ulp-mptcp flags:").nth(1).and_then(|rest| rest.split_whitespace().next());
        flags.is_some_and(|flags| flags.contains('b'))
    };
    let local = text.lines().filter(is_backup).filter_map(|line| line.split_whitespace().nth(2));
    let mut found: Vec<String> =
        local.filter_map(|local| Some(local.split(['%', ':']).next()?.to_owned())).collect();
    found.sort();
    found
}

/// Waits until the connections to the server come from these addresses.
#[track_caller]
pub fn wait_for_sources(client: &Host, expected: &[&str]) {
    let end = Instant::now() + LIMIT;
    loop {
        let found = sources(client);
        if found == expected {
            return;
        }
        assert!(Instant::now() < end, "subflows come from {found:?}, and not from {expected:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A program of a user that passes lines on to a socket and back. It has a connection to the server.
pub struct UserProgram {
    _child: HostChild,
    input: ChildStdin,
    lines: Receiver<String>,
    /// Where its connection begins.
    pub local: String,
}

const PROGRAM: &str = "\
import os, socket, sys, threading
user, path, host, port = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
os.setgroups([]); os.setgid(user); os.setuid(user)
c = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); c.settimeout(10); c.connect((host, port))
c.sendall(b'hello'); c.recv(5)
print('%s:%d' % c.getsockname(), flush=True)
s = socket.socket(socket.AF_UNIX); s.connect(path)
def hear():
    try:
        for line in s.makefile(): print(line, end='', flush=True)
    except OSError: pass
    os._exit(0)
threading.Thread(target=hear, daemon=True).start()
for line in sys.stdin:
    try: s.sendall(line.encode())
    except OSError: pass
";

impl UserProgram {
    pub fn start(client: &Host, user: u32, socket: &Path) -> Self {
        let (host, port) = FAR.split_once(':').unwrap();
        let user = user.to_string();
        let args = ["-c", PROGRAM, &user, socket.to_str().unwrap(), host, port];
        let command = client.command("python3").args(args).with(|command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).current_dir("/");
        });
        let mut child = command.spawn().unwrap();
        let input = child.child().stdin.take().unwrap();
        let output = child.child().stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let local = lines.recv_timeout(LIMIT).unwrap();
        Self { _child: child, input, lines, local }
    }

    pub fn say(&mut self, line: &Value) {
        self.input.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// What it is told next. `None`: nothing more, since the other side hung up.
    pub fn hear(&mut self) -> Option<Value> {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => Some(serde_json::from_str(&line).unwrap()),
            Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => None,
            Err(error) => panic!("nothing is said: {error}"),
        }
    }

    #[track_caller]
    pub fn ask(&mut self, line: &Value) -> Value {
        self.say(line);
        self.hear().unwrap()
    }
}
