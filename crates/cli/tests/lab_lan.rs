//! Two machines in one network, without the Internet and without a name service: `--lan`.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Output, Stdio};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, Socket, Type};
use whimbrel_lab::{DirectLink, Host, HostChild, HostCommand, Lab, LinkSpec, require};

const PROGRAM: &str = env!("CARGO_BIN_EXE_whimbrel");
const NAME: &str = "web.home.ada@example.org";
const INBOX: &str = "inbox.home.bob@example.org";

/// Two hosts and the cable between them. Each user has a home directory.
struct Network {
    one: Host,
    other: Host,
    folder: tempfile::TempDir,
    _cable: DirectLink,
    _lab: Lab,
}

impl Network {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let (one, other) = (lab.host("one").unwrap(), lab.host("other").unwrap());
        let spec = LinkSpec::default().interface_names("eth0", "eth0");
        let cable = lab.direct_link(&one, &other, spec).unwrap();
        cable.end(&one).add_address("192.168.7.1/24").unwrap();
        cable.end(&other).add_address("192.168.7.2/24").unwrap();
        Self { one, other, folder: tempfile::tempdir().unwrap(), _cable: cable, _lab: lab }
    }

    fn home(&self, user: &str) -> PathBuf {
        let home = self.folder.path().join(user);
        fs::create_dir_all(&home).unwrap();
        home
    }

    fn command(&self, host: &Host, user: &str, arguments: &[&str]) -> HostCommand {
        let home = self.home(user);
        host.command(PROGRAM)
            .args(arguments)
            .env("HOME", &home)
            .env("XDG_CONFIG_HOME", home.join("config"))
            .env("XDG_DATA_HOME", home.join("data"))
            .env("XDG_RUNTIME_DIR", &home)
            .with(|command| {
                command.env_remove("WHIMBREL_NAMES").env_remove("RUST_LOG").stdin(Stdio::null());
            })
    }

    /// Runs a command of the user on the first host.
    fn run(&self, user: &str, arguments: &[&str]) -> Output {
        self.command(&self.one, user, arguments).output().unwrap()
    }

    fn id(&self, host: &Host, user: &str) -> String {
        let output = self.command(host, user, &["id"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    /// Starts a command on the other host that goes on, and waits until it can be reached.
    fn started(&self, user: &str, arguments: &[&str]) -> Running {
        started(self.command(&self.other, user, arguments))
    }

    /// A service on the other host's loopback that says this to everybody.
    fn serve(&self, says: &'static str) -> String {
        let listener = self.other.run(|| TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            while let Ok((mut socket, _)) = listener.accept() {
                // A client that goes away is noticed by the test.
                let _ = socket.write_all(says.as_bytes());
            }
        });
        address
    }

    /// Hears what is said by mDNS, on the first host.
    fn ear(&self) -> UdpSocket {
        self.one.run(|| {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.set_reuse_port(true).unwrap();
            socket.bind(&std::net::SocketAddr::from((Ipv4Addr::UNSPECIFIED, 5353)).into()).unwrap();
            let socket = UdpSocket::from(socket);
            socket.join_multicast_v4(&Ipv4Addr::new(224, 0, 0, 251), &Ipv4Addr::new(192, 168, 7, 1)).unwrap();
            socket
        })
    }
}

/// A command that goes on, and what it said first.
struct Running {
    child: HostChild,
    told: serde_json::Value,
    _output: BufReader<ChildStdout>,
}

/// Starts a command, and waits for its first line, which is JSON.
fn started(command: HostCommand) -> Running {
    let piped = command.with(|command| {
        command.stdout(Stdio::piped());
    });
    let mut child = piped.spawn().unwrap();
    let mut output = BufReader::new(child.child().stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let told = serde_json::from_str(&line).unwrap_or_else(|_| panic!("no JSON: {line:?}"));
    Running { child, told, _output: output }
}

/// The packets that come within this time, or until one is as wanted.
fn hear(ear: &UdpSocket, limit: Duration, is_wanted: impl Fn(&[u8]) -> bool) -> Vec<Vec<u8>> {
    let (begun, mut heard) = (Instant::now(), Vec::new());
    let mut packet = [0; 9000];
    while let Some(left) = limit.checked_sub(begun.elapsed()).filter(|left| !left.is_zero()) {
        ear.set_read_timeout(Some(left)).unwrap();
        let Ok(length) = ear.recv(&mut packet) else { break };
        heard.push(packet[..length].to_vec());
        if is_wanted(&packet[..length]) {
            break;
        }
    }
    heard
}

fn holds(packet: &[u8], text: &str) -> bool {
    packet.windows(text.len()).any(|part| part == text.as_bytes())
}

fn said(output: &Output) -> (String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (text(&output.stdout), text(&output.stderr))
}

fn file_of(folder: &Path, name: &str) -> Vec<u8> {
    fs::read(folder.join(name)).unwrap_or_default()
}

#[test]
fn files_and_services_are_found_by_name_by_key_and_by_code_without_a_service() {
    if !require!() {
        return;
    }
    let network = Network::new();
    let ear = network.ear();
    let (laptop, here) = (network.id(&network.one, "laptop"), network.serve("here"));
    let incoming = network.home("bob").join("incoming");
    fs::create_dir_all(&incoming).unwrap();
    let holiday = network.home("laptop").join("holiday.tar");
    let bytes: Vec<u8> = (0..300_000_u64).map(|n| (n * n % 251) as u8).collect();
    fs::write(&holiday, &bytes).unwrap();
    let (holiday, incoming) = (holiday.to_str().unwrap(), incoming.to_str().unwrap());

    // By a name that everybody may look up.
    let receive = ["receive", "--as", INBOX, "--allow", "any", "--yes", "--dir", incoming, "--lan", "--json"];
    let _receiving = network.started("bob", &receive);
    let sent = network.run("laptop", &["send", holiday, "--to", INBOX, "--lan"]);
    assert!(sent.status.success(), "{:?}", said(&sent));
    assert!(said(&sent).1.contains("by nobody's word but its own in this network"), "{:?}", said(&sent));
    assert!(file_of(Path::new(incoming), "holiday.tar") == bytes, "wrong bytes");

    // By the key of one whose name is for some only.
    let expose = ["expose", NAME, "--to", &here, "--allow", &laptop, "--lan", "--json"];
    let exposed = network.started("ada", &expose);
    let home = exposed.told["id"].as_str().unwrap();
    let pipe = |peer: &str| network.run("laptop", &["pipe", peer, "--lan"]);
    let by_key = pipe(home);
    assert_eq!(said(&by_key).0, "here", "{:?}", said(&by_key));
    let by_name = pipe(NAME);
    assert_eq!(by_name.status.code(), Some(3), "{:?}", said(&by_name));
    let by_both = pipe(&format!("{NAME}={home}"));
    assert_eq!(said(&by_both).0, "here", "{:?}", said(&by_both));
    // From now on its name is known here, and leads to it.
    assert_eq!(said(&pipe(NAME)).0, "here");

    // By a code, which the sender's machine waits for by itself.
    let send = ["send", holiday, "--as", "again", "--lan", "--json"];
    let mut sending = started(network.command(&network.one, "laptop", &send));
    let receive = ["receive", sending.told["code"].as_str().unwrap(), "--yes", "--dir", incoming, "--lan"];
    let received = network.command(&network.other, "carol", &receive).output().unwrap();
    assert!(received.status.success(), "{:?}", said(&received));
    assert!(sending.child.wait().unwrap().success());
    assert!(file_of(Path::new(incoming), "again") == bytes, "wrong bytes");

    let heard = hear(&ear, Duration::from_millis(100), |_| false);
    assert!(heard.iter().any(|packet| holds(packet, INBOX)), "{} packets", heard.len());
    assert!(heard.iter().any(|packet| holds(packet, home)), "{} packets", heard.len());
    assert!(!heard.iter().any(|packet| holds(packet, NAME)), "the network was told of {NAME}");
}

/// What a command that ends prints last, in JSON.
#[track_caller]
fn told(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{:?}", said(output));
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {:?}", said(output)))
}

#[test]
fn machines_become_devices_and_users_become_friends_by_a_code_without_a_service() {
    if !require!() {
        return;
    }
    let network = Network::new();
    let invite =
        |user: &str, more: &[&str]| network.started(user, &[&["invite", "--lan", "--json"], more].concat());
    let join = |user: &str, inviting: &Running, more: &[&str]| {
        let code = inviting.told["code"].as_str().unwrap();
        network.run(user, &[&["join", code, "--lan", "--json"], more].concat())
    };
    let list = |host: &Host, user: &str, what: &str| {
        told(&network.command(host, user, &[what, "list", "--json"]).output().unwrap())
    };

    // The user's own new device, of which the list of devices knows then.
    let (laptop, of_ada) = ("laptop.ada@example.org", ["--as", "ada@example.org"]);
    let mut inviting = invite("ada", &["--device", laptop]);
    assert_eq!(told(&join("laptop", &inviting, &[]))["given"], laptop);
    assert!(inviting.child.wait().unwrap().success());
    assert_eq!(list(&network.other, "ada", "devices")["devices"][0]["name"], laptop);

    // Two users. What each is called is its own word, which lets nobody in.
    let [of_bob, of_eve] = [["--as", "bob@example.org"], ["--as", "eve@example.org"]];
    let mut inviting = invite("ada", &of_ada);
    let joined = join("bob", &inviting, &of_bob);
    assert_eq!(told(&joined)["user"], of_ada[1]);
    assert!(said(&joined).1.contains("by nobody's word but its own in this network"), "{:?}", said(&joined));
    assert!(inviting.child.wait().unwrap().success());
    for (host, user, friend) in [(&network.other, "ada", of_bob[1]), (&network.one, "bob", of_ada[1])] {
        assert_eq!(list(host, user, "friends")["friends"][0]["name"], friend);
    }
    let known = fs::read_to_string(network.home("bob").join("config/whimbrel/known_peers")).unwrap();
    let owner = known.lines().find(|line| line.contains(of_ada[1])).unwrap();
    assert!(owner.contains("first-use"), "{known}");

    // A peer that says a name which is known here as another's is no friend.
    let ada = network.id(&network.other, "ada");
    let mut inviting = invite("eve", &of_ada);
    let refused = join("bob", &inviting, &of_bob);
    let (output, problem) = said(&refused);
    assert_eq!((refused.status.code(), output.as_str()), (Some(6), ""), "{problem}");
    assert!(problem.contains(&format!("known here as {ada}")), "{problem}");
    assert!(!inviting.child.wait().unwrap().success());
    assert_eq!(list(&network.one, "bob", "friends")["friends"].as_array().unwrap().len(), 1);

    // Nor is it anybody else's own name: no code is made then.
    let refused = network.run("bob", &["invite", "--lan", "--json", of_ada[0], of_ada[1]]);
    let (output, problem) = said(&refused);
    assert_eq!((refused.status.code(), output.as_str()), (Some(5), ""), "{problem}");
    assert!(problem.contains(&ada) && problem.contains("not this machine's key"), "{problem}");

    // Where requests cannot be passed on, none is made, and nothing is noted as the user's own name.
    let request = ["friends", "request", of_bob[1], "--lan", of_eve[0], of_eve[1]];
    let refused = network.command(&network.other, "eve", &request).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{:?}", said(&refused));
    let known = fs::read_to_string(network.home("eve").join("config/whimbrel/known_peers")).unwrap();
    assert!(!known.contains(of_eve[1]), "{known}");
}

#[test]
fn a_name_that_is_known_is_not_taken_over_by_another_key_of_the_network() {
    if !require!() {
        return;
    }
    let network = Network::new();
    let (fake, real) = (network.serve("fake"), network.serve("real"));
    let ada = network.id(&network.other, "ada");
    network.id(&network.one, "laptop");
    let accepted = network.run("laptop", &["trust", "accept", &format!("ada@example.org={ada}")]);
    assert!(accepted.status.success(), "{:?}", said(&accepted));
    let expose = |user: &str, to: &str| {
        let expose = ["expose", NAME, "--to", to, "--allow", "any", "--lan", "--json"];
        network.started(user, &expose)
    };
    let impostor = expose("eve", &fake);
    let eve = impostor.told["id"].as_str().unwrap();
    let refused = network.run("laptop", &["pipe", NAME, "--lan"]);
    let (output, problem) = said(&refused);
    assert_eq!((refused.status.code(), output.as_str()), (Some(6), ""), "{problem}");
    assert_eq!(problem.lines().count(), 1, "{problem}");
    assert!(problem.contains(&format!("{eve} CLAIMS {NAME}")) && problem.contains(&ada), "{problem}");
    // The right one is found beside it.
    let _owner = expose("ada", &real);
    let found = network.run("laptop", &["pipe", NAME, "--lan"]);
    assert_eq!(said(&found).0, "real", "{:?}", said(&found));
}

#[test]
fn nothing_is_told_in_the_network_unless_that_is_asked_for() {
    if !require!() {
        return;
    }
    let network = Network::new();
    let ear = network.ear();
    let to = network.serve("here");
    let expose = ["expose", "--ticket", "--to", &to, "--allow", "any", "--json"];
    let mut silent = network.started("ada", &expose);
    let heard = hear(&ear, Duration::from_secs(2), |_| true);
    assert!(heard.is_empty(), "{heard:?}");
    silent.child.kill().unwrap();
    // A key of the configuration file asks as the flag does.
    let config = network.home("ada").join("config/whimbrel");
    fs::create_dir_all(&config).unwrap();
    fs::write(config.join("config.toml"), "lan = true\n").unwrap();
    let speaking = network.started("ada", &expose);
    let id = speaking.told["id"].as_str().unwrap();
    let heard = hear(&ear, Duration::from_secs(10), |packet| holds(packet, id));
    assert!(heard.iter().any(|packet| holds(packet, id)), "{} packets", heard.len());
}
