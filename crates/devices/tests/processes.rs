//! Six devices, each a process with a file of its own and a clock that is right, or wrong by a day: they
//! write while the network between them is cut, one is killed in the middle of that, and all have the same in
//! the end.
#![allow(clippy::unwrap_used)]

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::path::Path;
use std::process::{ChildStdin, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, SystemTime};

use whimbrel::{Allow, Endpoint, EndpointId, ListenOptions, Listener, SecretKey, Ticket, UnixTime};
use whimbrel_devices::{Op, Replica, Subject, answer, call};
use whimbrel_lab::{Host, HostChild, Lab, Link, LinkSpec, require};

const TEST: &str = "six_processes_that_were_apart_with_wrong_clocks_and_a_kill_have_the_same_in_the_end";
/// In the environment of a process: which device it is, and where the files are.
const NUMBER: &str = "WHIMBREL_TEST_DEVICE";
const FOLDER: &str = "WHIMBREL_TEST_FOLDER";
/// Before all that a device says: libtest says things too.
const MARK: &str = "@device ";

const DAY: u64 = 24 * 60 * 60;
/// How far each device's clock is ahead, by which it dates what it writes.
const AHEAD: [i64; 6] = [0, DAY as i64, -(DAY as i64), DAY as i64, -(DAY as i64), 0];
const DEVICES: usize = AHEAD.len();
/// Entries of a device at a time.
const ENTRIES: usize = 10;
/// For what must come at all.
const LIMIT: Duration = Duration::from_secs(120);
/// For a meeting across a cut that is there.
const CUT_LIMIT: Duration = Duration::from_secs(3);
/// The devices on each side of the cut, and the one that is killed.
const WEST: [usize; 3] = [0, 1, 2];
const EAST: [usize; 3] = [3, 4, 5];
const VICTIM: usize = 4;

fn key(number: usize) -> SecretKey {
    SecretKey::from_bytes(&[number as u8 + 1; 32])
}

fn friend(device: usize, number: usize) -> EndpointId {
    let mut bytes = [100 + device as u8; 32];
    bytes[..8].copy_from_slice(&(number as u64).to_be_bytes());
    SecretKey::from_bytes(&bytes).id()
}

fn address(number: usize) -> IpAddr {
    IpAddr::from([10, 8, number as u8 + 1, 2])
}

// --- What a process does that is a device.

/// Says something to the test.
fn tell(text: &str) {
    println!("\n{MARK}{text}");
}

/// The time by this device's clock.
fn clock(number: usize) -> UnixTime {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    UnixTime::from_secs(now.checked_add_signed(AHEAD[number]).unwrap())
}

/// Does as it is told, until its input ends.
fn be_device(number: usize, folder: &Path) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let replica = Replica::in_file(&folder.join(format!("{number}.redb")), key(0).id());
    let replica = Arc::new(replica.signing(key(number)));
    let bind = Endpoint::builder().identity(key(number)).ip(address(number)).bind();
    let endpoint = runtime.block_on(bind).unwrap();
    let listening = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any));
    let listener = runtime.block_on(listening).unwrap();
    runtime.spawn(serve(listener, replica.clone()));
    tell(&endpoint.ticket(None).to_string());
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["found"] => found(&replica),
            ["write", first, count] => {
                write(&replica, number, first.parse().unwrap(), count.parse().unwrap());
            }
            ["meet", seconds, ticket] => {
                let limit = Duration::from_secs(seconds.parse().unwrap());
                let meeting = meet(&endpoint, replica.clone(), ticket.parse().unwrap());
                let met = runtime.block_on(async { tokio::time::timeout(limit, meeting).await });
                tell(&met.unwrap_or_else(|_| "out of reach".to_owned()));
            }
            ["state"] => tell(&state(&replica)),
            ["compact"] => {
                assert!(replica.with(|log| log.compact(&key(0), UnixTime::default())).unwrap().unwrap());
                tell("stated");
            }
            ["waits"] => tell(&replica.look(|log| log.waited_for().len()).unwrap().to_string()),
            _ => panic!("{line}"),
        }
    }
}

/// Makes the group: all devices are trusted, and the first one's key is the user's.
fn found(replica: &Replica) {
    for number in 0..DEVICES {
        let name = format!("d{number}.ada@example.org").parse().unwrap();
        let add =
            |log: &mut whimbrel_devices::Log| log.add_device(&key(0), key(number).id(), name, true, clock(0));
        replica.with(add).unwrap().unwrap();
    }
    tell("found");
}

/// Adds friends, and calls each first one of ten what all devices call one. Says of each that it is on the
/// disk.
fn write(replica: &Replica, number: usize, first: usize, count: usize) {
    for entry in first..first + count {
        let friend = friend(number, entry);
        let add = Op::AddFriend { friend, name: None };
        replica.with(|log| log.write(&key(number), vec![add], clock(number))).unwrap().unwrap();
        if entry % ENTRIES == 0 {
            let name = format!("pal{entry}").parse().unwrap();
            let call = Op::Call { whom: Subject::Friend(friend), name };
            replica.with(|log| log.write(&key(number), vec![call], clock(number))).unwrap().unwrap();
        }
        tell(&format!("wrote {entry}"));
    }
    tell("done");
}

async fn meet(endpoint: &Endpoint, replica: Arc<Replica>, ticket: Ticket) -> String {
    let connection = match endpoint.connect(ticket).await {
        Ok(connection) => connection,
        Err(error) => return error.to_string(),
    };
    let Ok(stream) = connection.open_stream().await else { return "no stream".to_owned() };
    match call(replica, connection.peer_id(), stream).await {
        Ok(met) if met.agree => "agree".to_owned(),
        Ok(met) => format!("{met:?}"),
        Err(error) => error.to_string(),
    }
}

async fn serve(mut listener: Listener, replica: Arc<Replica>) {
    while let Some(connection) = listener.accept().await {
        let replica = replica.clone();
        tokio::spawn(async move {
            // What became of it the caller says.
            if let Ok(stream) = connection.accept_stream().await {
                let _ = answer(replica, connection.peer_id(), stream).await;
            }
        });
    }
}

/// How many friends there are, and one figure for all that is known.
fn state(replica: &Replica) -> String {
    let look = |log: &mut whimbrel_devices::Log| {
        let (group, mut hasher) = (log.group(), DefaultHasher::new());
        log.vector().digest().hash(&mut hasher);
        group.devices().for_each(|(id, device)| (id, device.name().to_string()).hash(&mut hasher));
        group.friends().for_each(|(id, _)| id.hash(&mut hasher));
        for (subject, label) in group.names() {
            (subject, label.as_str()).hash(&mut hasher);
        }
        format!("{} friends, {:016x}", group.friends().count(), hasher.finish())
    };
    replica.with(look).unwrap()
}

// --- What the test does with them.

/// A process that is a device.
struct Device {
    child: HostChild,
    input: ChildStdin,
    lines: Receiver<String>,
    ticket: String,
}

impl Device {
    fn start(host: &Host, number: usize, folder: &Path) -> Self {
        let program = std::env::current_exe().unwrap();
        let command = host.command(program.to_str().unwrap());
        let command = command.args([TEST, "--exact", "--nocapture", "--include-ignored"]);
        let command = command.env(NUMBER, number.to_string()).env(FOLDER, folder).with(|command| {
            command.stdin(Stdio::piped()).stdout(Stdio::piped());
        });
        let mut child = command.spawn().unwrap();
        let input = child.child().stdin.take().unwrap();
        let output = child.child().stdout.take().unwrap();
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let said = line.strip_prefix(MARK).map(str::to_owned);
                if said.is_some_and(|said| sender.send(said).is_err()) {
                    return;
                }
            }
        });
        let mut device = Self { child, input, lines, ticket: String::new() };
        device.ticket = device.says();
        device
    }

    fn ask(&mut self, words: &str) {
        writeln!(self.input, "{words}").unwrap();
    }

    #[track_caller]
    fn says(&self) -> String {
        self.lines.recv_timeout(LIMIT).unwrap()
    }

    #[track_caller]
    fn answers(&mut self, words: &str) -> String {
        self.ask(words);
        self.says()
    }

    #[track_caller]
    fn writes(&mut self, first: usize) {
        self.ask(&format!("write {first} {ENTRIES}"));
        while self.says() != "done" {}
    }
}

/// Two networks with a link between them.
struct World {
    devices: Vec<Device>,
    hosts: Vec<Host>,
    folder: tempfile::TempDir,
    routers: [Host; 2],
    between: Link,
    _links: Vec<Link>,
    _lab: Lab,
}

impl World {
    fn new() -> Self {
        let lab = Lab::new().unwrap();
        let routers = ["west", "east"].map(|name| lab.router(name).unwrap());
        let between = lab.link(&routers[0], &routers[1], LinkSpec::default()).unwrap();
        for (router, other, last) in [(0, 1, 1), (1, 0, 2)] {
            let end = between.end(&routers[router]);
            end.add_address(&format!("10.8.100.{last}/24")).unwrap();
            let side = if other == 0 { WEST } else { EAST };
            for number in side {
                let way = format!("10.8.{}.0/24", number + 1);
                let gateway = format!("10.8.100.{}", other + 1);
                routers[router].add_route(end.name(), &way, &gateway).unwrap();
            }
        }
        let (mut hosts, mut links) = (Vec::new(), Vec::new());
        for number in 0..DEVICES {
            let router = &routers[usize::from(EAST.contains(&number))];
            let host = lab.host(&format!("d{number}")).unwrap();
            let link = lab.link(&host, router, LinkSpec::default()).unwrap();
            let net = format!("10.8.{}", number + 1);
            link.end(router).add_address(&format!("{net}.1/24")).unwrap();
            link.end(&host).add_address(&format!("{}/24", address(number))).unwrap();
            link.end(&host).add_default_route(&format!("{net}.1"), 1).unwrap();
            hosts.push(host);
            links.push(link);
        }
        let folder = tempfile::tempdir().unwrap();
        let start = |(number, host)| Device::start(host, number, folder.path());
        let devices = hosts.iter().enumerate().map(start).collect();
        Self { devices, hosts, folder, routers, between, _links: links, _lab: lab }
    }

    fn cut(&self, is_cut: bool) {
        for router in &self.routers {
            self.between.set_blackhole(self.between.from(router), is_cut);
        }
    }

    /// What comes of a meeting.
    fn met(&mut self, one: usize, other: usize, limit: Duration) -> String {
        let ticket = self.devices[other].ticket.clone();
        self.devices[one].answers(&format!("meet {} {ticket}", limit.as_secs()))
    }

    #[track_caller]
    fn meet(&mut self, one: usize, other: usize) {
        let met = self.met(one, other, LIMIT);
        assert_eq!(met, "agree", "{one} and {other}");
    }

    fn states(&mut self, of: &[usize]) -> Vec<String> {
        of.iter().map(|number| self.devices[*number].answers("state")).collect()
    }

    #[track_caller]
    fn are_equal(&mut self, of: &[usize]) -> String {
        let states = self.states(of);
        assert!(states.iter().all(|state| *state == states[0]), "{states:?}");
        states[0].clone()
    }

    /// Kills it as hard as can be while it writes, and starts it anew. Returns how many entries it had told
    /// of.
    fn kill_while_it_writes(&mut self, number: usize, first: usize) -> usize {
        let device = &mut self.devices[number];
        // More than it can have written by then, and no more friends than there may be.
        device.ask(&format!("write {first} 1000"));
        let mut told = String::new();
        for _ in 0..ENTRIES {
            told = device.says();
        }
        device.child.kill().unwrap();
        assert_eq!(told, format!("wrote {}", first + ENTRIES - 1));
        self.devices[number] = Device::start(&self.hosts[number], number, self.folder.path());
        ENTRIES
    }
}

/// The number of friends in a state.
fn friends(state: &str) -> usize {
    state.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn six_processes_that_were_apart_with_wrong_clocks_and_a_kill_have_the_same_in_the_end() {
    if let Some(number) = std::env::var_os(NUMBER) {
        let folder = std::env::var_os(FOLDER).unwrap();
        return be_device(number.to_str().unwrap().parse().unwrap(), Path::new(&folder));
    }
    if !require!() {
        return;
    }
    let mut world = World::new();
    assert_eq!(world.devices[0].answers("found"), "found");
    for number in 1..DEVICES {
        world.meet(number, 0);
    }
    world.devices.iter_mut().for_each(|device| device.writes(0));
    // Not all meet before the network is cut.
    world.meet(1, 0);
    world.meet(4, 2);
    world.cut(true);
    world.devices.iter_mut().for_each(|device| device.writes(ENTRIES));
    assert_ne!(world.met(3, 0, CUT_LIMIT), "agree", "the network is cut");
    assert_eq!(world.devices[0].answers("compact"), "stated");
    for [first, second, third] in [WEST, EAST] {
        for (one, other) in [(first, second), (second, third), (third, first), (second, first)] {
            world.meet(one, other);
        }
    }
    let (west, east) = (world.are_equal(&WEST), world.are_equal(&EAST));
    assert_ne!(west, east, "each side has what the other one lacks");
    assert_eq!(world.devices[1].answers("waits"), EAST.len().to_string(), "the west has signed");
    let told = world.kill_while_it_writes(VICTIM, 2 * ENTRIES);
    let kept = friends(&world.states(&[VICTIM])[0]) - friends(&east);
    assert!(kept >= told, "{kept} entries of at least {told} are on the disk");
    world.cut(false);
    // In a chain there, and back for what came from its end.
    for number in (1..DEVICES).chain((1..DEVICES - 1).rev()) {
        world.meet(number, number - 1);
    }
    let all: Vec<usize> = (0..DEVICES).collect();
    let state = world.are_equal(&all);
    assert_eq!(friends(&state), DEVICES * 2 * ENTRIES + kept, "{state}");
    for number in all {
        assert_eq!(world.devices[number].answers("waits"), "0", "the checkpoint of {number} is closed");
    }
}
