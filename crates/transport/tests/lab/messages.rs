//! Messages of each class over each carrier, on links that lose packets, while both ends move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, Net};
use crate::lab_support::paths::active;
use crate::lab_support::{heavy, ms};
use whimbrel_lab::{Direction, LinkSpec, Rate, require};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Class, Connection, FlowOptions, ListenOptions, PathInfo, SendOptions, Tag,
};

/// Messages of each class, each way.
const COUNT: u32 = 150;
const PAUSE: Duration = ms(30);
/// No message is longer than this in coming; a link that loses a tenth has TCP pause for seconds.
const PATIENCE: Duration = Duration::from_secs(90);
/// What was not lost comes within this, once everything reliable is there.
const LAST: Duration = ms(500);
/// Most are small; the last does not fit a datagram.
const SIZES: [usize; 4] = [8, 100, 300, 2000];

/// Numbers of the messages that came, by class in the order of [`Class::ALL`], as they came.
type Came = [Vec<u32>; 4];

/// What a message carries: its number, and bytes that tell it from all others of its number.
fn content(class: usize, number: u32) -> Vec<u8> {
    let mut data = vec![(number as u8) ^ ((class as u8) << 6); SIZES[number as usize % SIZES.len()]];
    data[..4].copy_from_slice(&number.to_be_bytes());
    data
}

/// Sends messages of all classes.
async fn send(connection: Connection) {
    let mut flows = Vec::new();
    for class in Class::ALL {
        flows.push(connection.open_flow(FlowOptions::new(class)).await.unwrap());
    }
    let mut tick = tokio::time::interval(PAUSE);
    for number in 0..COUNT {
        tick.tick().await;
        for (class, flow) in flows.iter().enumerate() {
            let options =
                SendOptions { tag: Some(Tag(number.into())), silent: true, ..SendOptions::default() };
            flow.send(content(class, number), options).await.unwrap();
        }
    }
}

/// Receives until everything reliable is there and nothing else follows. Counts what came in order.
async fn receive(connection: Connection, in_order: Arc<AtomicU32>) -> Came {
    let mut came = Came::default();
    loop {
        let is_whole = came[..2].iter().all(|numbers| numbers.len() == COUNT as usize);
        let patience = if is_whole { LAST } else { PATIENCE };
        let Ok(message) = tokio::time::timeout(patience, connection.recv_message()).await else {
            let lengths = came.each_ref().map(Vec::len);
            assert!(is_whole, "nothing comes any more after {lengths:?} of {COUNT} each");
            return came;
        };
        let message = message.unwrap();
        let class = Class::ALL.iter().position(|class| *class == message.class).unwrap();
        let number = u32::from_be_bytes(message.data[..4].try_into().unwrap());
        assert!(message.data == content(class, number), "{:?} {number} was changed", message.class);
        assert_eq!(message.tag, Some(Tag(number.into())));
        came[class].push(number);
        assert!(came[class].len() <= COUNT as usize, "{:?}: more came than were sent", message.class);
        if class == 0 {
            in_order.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The promises of the classes, where at least so many of each unreliable one come.
fn check(came: &Came, least: usize) {
    let all: Vec<u32> = (0..COUNT).collect();
    let [ordered, reliable, newer, loose] = came;
    assert_eq!(*ordered, all, "reliable and sequenced: each once, in order");
    assert_eq!(sorted(reliable), all, "reliable: each once");
    assert!(newer.windows(2).all(|pair| pair[0] < pair[1]), "only newer ones: {newer:?}");
    assert!(sorted(loose).windows(2).all(|pair| pair[0] < pair[1]), "at most once: {loose:?}");
    for numbers in [newer, loose] {
        assert!(numbers.len() >= least, "hardly any came: {numbers:?}");
    }
}

fn sorted(numbers: &[u32]) -> Vec<u32> {
    let mut numbers = numbers.to_vec();
    numbers.sort_unstable();
    numbers
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "it never came: {what}");
        std::thread::sleep(ms(5));
    }
}

/// Whether one of the paths that work is so.
fn goes_on(connection: &Connection, is_so: impl Fn(&PathInfo) -> bool) -> bool {
    let paths = connection.stats().paths;
    active(&paths).any(is_so)
}

/// All classes both ways in one connection; after a third of the messages its client moves, after two thirds
/// its server.
fn world(carriers: Carriers, loss: f64) {
    let net = Net::with(Family::V4, LinkSpec::default().delay(ms(5)).rate(Rate::mbit(20)).seed(7));
    let server = net.server.endpoint();
    let options = ListenOptions::unnamed().allow(Allow::Any);
    let mut listener = net.server.wait(server.listen(options)).unwrap();
    let client = net.client.endpoint_with(|builder| builder.carriers(carriers));
    let connection = net.client.wait(client.connect(server.addr())).unwrap();
    let accepted = net.server.wait(listener.accept()).unwrap();
    // From here on: what a first handshake makes of it is looked at elsewhere.
    net.link.set_loss(Direction::Both, loss);

    let [there, back] = [Arc::<AtomicU32>::default(), Arc::<AtomicU32>::default()];
    let senders = [
        net.client.runtime.spawn(send(connection.clone())),
        net.server.runtime.spawn(send(accepted.clone())),
    ];
    let readers = [
        net.server.runtime.spawn(receive(accepted.clone(), there.clone())),
        net.client.runtime.spawn(receive(connection.clone(), back)),
    ];
    let arrived = |part: u32| there.load(Ordering::Relaxed) >= COUNT * part / 3;
    until("a third of the messages", || arrived(1));
    let at = net.client.move_on();
    until("the client at its new address", || goes_on(&connection, |path| path.local.ip() == at));
    until("two thirds of the messages", || arrived(2));
    let at = net.server.move_on();
    until("the server at its new address", || goes_on(&connection, |path| path.remote.address().ip() == at));

    for sender in senders {
        net.client.wait_for(PATIENCE, sender).unwrap();
    }
    let came = readers.map(|reader| net.client.wait_for(PATIENCE * 2, reader).unwrap());
    let lengths = came.each_ref().map(|came| came.each_ref().map(Vec::len));
    println!("{carriers:?}, loss {loss}: {lengths:?} of {COUNT} each");
    // Where packets are lost TCP may pause for seconds, in which unreliable ones die.
    let least = if loss > 0.0 { 1 } else { COUNT as usize / 20 };
    came.iter().for_each(|came| check(came, least));
    let kinds: Vec<CarrierKind> = connection.stats().paths.iter().map(|path| path.carrier).collect();
    if let Carriers::Only(kind) = carriers {
        assert!(kinds.iter().all(|carrier| *carrier == kind), "{kinds:?}");
    }
}

#[test]
fn each_class_keeps_its_promise_over_each_carrier_on_each_link_while_both_ends_move() {
    if !require!() {
        return;
    }
    let _heavy = heavy();
    let all = [Carriers::Only(CarrierKind::Tcp), Carriers::Only(CarrierKind::Quic), Carriers::Auto];
    // Each carrier's links one after the other: nine at once are too much for two processors.
    std::thread::scope(|scope| {
        for carriers in all {
            scope.spawn(move || [0.0, 0.03, 0.1].into_iter().for_each(|loss| world(carriers, loss)));
        }
    });
}
