//! Five devices around a router, 50 ms apart, with no service anywhere.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use whimbrel::{
    Allow, Connection, Endpoint, EndpointId, ListenOptions, Listener, SecretKey, Ticket, UnixTime,
};
use whimbrel_devices::{Log, Met, Op, Replica, Subject, answer, call};
use whimbrel_lab::{Host, Lab, LinkSpec, Runtime, require};

const DEVICES: usize = 5;
const ENTRIES: usize = 1000;
/// One way from a device to the router: a quarter of the round trip between two devices.
const QUARTER: Duration = Duration::from_micros(12_500);
const MAX_BYTES: u64 = 150 * 1024;

fn key(number: usize) -> SecretKey {
    SecretKey::from_bytes(&[number as u8 + 1; 32])
}

fn now() -> UnixTime {
    SystemTime::now().into()
}

/// A group of five trusted devices; the first has the user's key.
fn group() -> Log {
    let mut log = Log::new(key(0).id());
    for number in 0..DEVICES {
        let name = format!("d{number}.ada@example.org").parse().unwrap();
        log.add_device(&key(0), key(number).id(), name, true, now()).unwrap();
    }
    log
}

/// What a device did while it was alone: friends, their devices, and names for all, each signed by itself.
fn live_alone(log: &mut Log, number: usize, entries: usize) {
    for round in 0..entries {
        let mut bytes = [number as u8 + 50; 32];
        // As keys are: nothing in them is said twice.
        let friend = key(0).sign(&[number as u8, ((round / 4) >> 8) as u8, (round / 4) as u8]).to_bytes();
        bytes.copy_from_slice(&friend[..32]);
        let friend = EndpointId::from_bytes(&bytes);
        let name = |what: &str| format!("{what}-{number}-{round}").parse().unwrap();
        let op = match round % 4 {
            0 => Op::AddFriend { friend, name: None },
            1 => Op::Call { whom: Subject::Friend(friend), name: name("pal") },
            2 => Op::Call { whom: Subject::Device(key(number).id()), name: name("pc") },
            _ => Op::Call { whom: Subject::Friend(friend), name: name("friend") },
        };
        log.write(&key(number), vec![op], now()).unwrap();
    }
}

struct Device {
    /// To the devices that it has called: agents keep theirs.
    connections: Mutex<BTreeMap<usize, Connection>>,
    runtime: Runtime,
    endpoint: Endpoint,
    replica: Arc<Replica>,
}

struct World {
    _lab: Lab,
    _hosts: Vec<Host>,
    devices: Vec<Device>,
    tickets: Vec<Ticket>,
}

impl World {
    fn new(folder: &Path, logs: Vec<Log>) -> Self {
        let lab = Lab::new().unwrap();
        let router = lab.router("router").unwrap();
        let (mut hosts, mut devices, mut tickets) = (Vec::new(), Vec::new(), Vec::new());
        for (number, log) in logs.into_iter().enumerate() {
            let host = lab.host(&format!("d{number}")).unwrap();
            let link = lab.link(&host, &router, LinkSpec::default().delay(QUARTER)).unwrap();
            let net = number as u8 + 1;
            link.end(&host).add_address(&format!("10.7.{net}.2/24")).unwrap();
            link.end(&router).add_address(&format!("10.7.{net}.1/24")).unwrap();
            link.end(&host).add_default_route(&format!("10.7.{net}.1"), 100).unwrap();
            let runtime = host.runtime(1).unwrap();
            let ip = IpAddr::from([10, 7, net, 2]);
            let bind = Endpoint::builder().identity(key(number)).ip(ip).bind();
            let endpoint = runtime.block_on(bind).unwrap();
            let listening = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any));
            let listener = runtime.block_on(listening).unwrap();
            let file = folder.join(format!("{number}.redb"));
            let replica = Arc::new(Replica::in_file(&file, key(0).id()));
            replica.with(|known| *known = log).unwrap();
            runtime.spawn(serve(listener, replica.clone()));
            tickets.push(endpoint.ticket(None));
            devices.push(Device { connections: Mutex::default(), runtime, endpoint, replica });
            hosts.push(host);
        }
        Self { _lab: lab, _hosts: hosts, devices, tickets }
    }

    fn meet(&self, one: usize, other: usize) -> Met {
        let Device { connections, runtime, endpoint, replica } = &self.devices[one];
        runtime.block_on(async {
            let known = connections.lock().unwrap().get(&other).cloned();
            let connection = match known {
                Some(connection) => connection,
                None => endpoint.connect(self.tickets[other].clone()).await.unwrap(),
            };
            connections.lock().unwrap().insert(other, connection.clone());
            let stream = connection.open_stream().await.unwrap();
            call(replica.clone(), connection.peer_id(), stream).await.unwrap()
        })
    }
}

impl World {
    fn all_meet_the_first(&self) -> Vec<Met> {
        std::thread::scope(|scope| {
            let meetings: Vec<_> = (1..DEVICES).map(|one| scope.spawn(move || self.meet(one, 0))).collect();
            meetings.into_iter().map(|meeting| meeting.join().unwrap()).collect()
        })
    }
}

async fn serve(mut listener: Listener, replica: Arc<Replica>) {
    while let Some(connection) = listener.accept().await {
        let replica = replica.clone();
        tokio::spawn(async move {
            while let Ok(stream) = connection.accept_stream().await {
                let _ = answer(replica.clone(), connection.peer_id(), stream).await;
            }
        });
    }
}

#[test]
fn five_devices_1000_entries_apart_have_the_same_after_150_kib_at_most() {
    if !require!() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let common = group();
    let mut logs = vec![common.clone(); DEVICES];
    for (number, log) in logs.iter_mut().enumerate() {
        live_alone(log, number, ENTRIES / DEVICES);
    }
    let world = World::new(folder.path(), logs);
    let start = Instant::now();
    // All ask the first at once, twice: for what the others have brought it meanwhile.
    let mut met = world.all_meet_the_first();
    met.extend(world.all_meet_the_first());
    let took = start.elapsed();
    let bytes: u64 = met.iter().map(|met| met.sent + met.received).sum();
    let vectors: Vec<_> = world
        .devices
        .iter()
        .map(|device| device.replica.with(|log| log.vector().digest()).unwrap())
        .collect();
    assert!(vectors.iter().all(|digest| *digest == vectors[0]), "all have the same");
    // How long it takes is a figure, and no promise of a machine that does other things as well.
    println!("{ENTRIES} entries to {DEVICES} devices: {bytes} bytes, {took:?}");
    assert!(bytes <= MAX_BYTES, "{bytes} bytes");
    let each = Instant::now();
    drop(world.meet(1, 2));
    println!("a meeting without news: {:?}", each.elapsed());
}

#[test]
fn two_devices_1000_entries_apart_agree_in_one_meeting() {
    if !require!() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut logs = vec![group(); DEVICES];
    live_alone(&mut logs[3], 3, ENTRIES);
    let world = World::new(folder.path(), logs);
    let start = Instant::now();
    let met = world.meet(1, 3);
    let took = start.elapsed();
    println!("{ENTRIES} entries to one device: {} bytes, {took:?}", met.sent + met.received);
    assert!(met.agree && met.entries == ENTRIES, "{met:?}");
    assert!(met.sent + met.received <= MAX_BYTES, "{met:?}");
}
