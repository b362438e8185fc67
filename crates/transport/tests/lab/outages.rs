//! Messages through an outage of which nobody is told, and beside a flood.

use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, LIMIT, Net};
use crate::lab_support::{heavy, ms, secs};
use whimbrel_lab::{Direction, LinkSpec, Rate, require};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Class, Connection, Endpoint, FlowOptions, ListenOptions, Listener, Message,
    Outcome, SendOptions, Tag, Urgency,
};

/// How long nothing gets through, in seconds; a minute in `make eval-messages`.
const OUTAGE: &str = "WHIMBREL_OUTAGE_SECONDS";
const EVERY: Duration = ms(2);
const SIZE: usize = 4096;
const UPDATE: SendOptions =
    SendOptions { tag: Some(Tag(1)), lifetime: None, retransmissions: None, silent: false };

/// Both ends of a connection; fields are dropped in this order.
struct Pair {
    client: Connection,
    server: Connection,
    _endpoints: [Endpoint; 2],
    _listener: Listener,
    net: Net,
}

impl Pair {
    fn over(carrier: CarrierKind, spec: LinkSpec) -> Self {
        let net = Net::with(Family::V4, spec);
        let called = net.server.endpoint();
        let options = ListenOptions::unnamed().allow(Allow::Any);
        let mut listener = net.server.wait(called.listen(options)).unwrap();
        let caller = net.client.endpoint_with(|builder| builder.carriers(Carriers::Only(carrier)));
        let client = net.client.wait(caller.connect(called.addr())).unwrap();
        let server = net.server.wait(listener.accept()).unwrap();
        Self { client, server, _endpoints: [caller, called], _listener: listener, net }
    }

    fn next(&self) -> Message {
        self.net.server.wait(self.server.recv_message()).unwrap()
    }
}

fn update(number: u32) -> Vec<u8> {
    number.to_be_bytes().repeat(SIZE / 4)
}

fn number_of(message: &Message) -> u32 {
    u32::from_be_bytes(message.data[..4].try_into().unwrap())
}

/// Where the client is when the outage ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    Here,
    Elsewhere,
}

/// Waits until no path goes from the client's old address any more.
fn leave_the_old_path(pair: &Pair) {
    let old = pair.net.client.ip();
    pair.net.client.move_on();
    let began = Instant::now();
    while pair.client.stats().paths.iter().any(|path| path.local.ip() == old) {
        assert!(began.elapsed() < LIMIT, "the old path stays: {:?}", pair.client.stats().paths);
        std::thread::sleep(ms(5));
    }
}

/// Replaces an update again and again while nothing gets through. Returns the updates that came then, up to
/// the newest one, whose number is the other value.
fn after_a_silent_outage(carrier: CarrierKind, seconds: u64, then: Then) -> (Vec<u32>, u32) {
    let pair = Pair::over(carrier, LinkSpec::default().delay(ms(10)).rate(Rate::mbit(20)));
    let (net, client) = (&pair.net, &pair.client);
    let flow = net.client.wait(client.open_flow(FlowOptions::new(Class::RELIABLE_SEQUENCED))).unwrap();
    // Round trips are known, and nothing is under way.
    for number in 0..20 {
        let told = net.client.wait(flow.send(update(number), UPDATE)).unwrap();
        assert_eq!(number_of(&pair.next()), number);
        assert_eq!(net.client.wait(told), Outcome::Delivered);
    }
    let before = client.stats().messages;
    net.link.set_blackhole(Direction::Both, true);
    let count = u32::try_from(secs(seconds).as_millis() / EVERY.as_millis()).unwrap();
    let replacing = async {
        let mut tick = tokio::time::interval(EVERY);
        let mut last = None;
        for number in 0..count {
            tick.tick().await;
            last = Some(flow.replace(update(1000 + number), UPDATE).await.unwrap());
        }
        last
    };
    let newest = net.client.wait_for(secs(seconds) + LIMIT, replacing).unwrap();
    if then == Then::Elsewhere {
        leave_the_old_path(&pair);
    }
    net.link.set_blackhole(Direction::Both, false);
    let last = 1000 + count - 1;
    let mut came = Vec::new();
    while came.last() != Some(&last) {
        came.push(number_of(&pair.next()));
    }
    assert_eq!(net.client.wait(newest), Outcome::Delivered);
    let after = client.stats().messages;
    let wire = after.bytes_sent + after.bytes_resent - before.bytes_sent - before.bytes_resent;
    let (stale, offered) = (wire.saturating_sub(SIZE as u64), u64::from(count) * SIZE as u64);
    eprintln!("{carrier}, {then:?}: {stale} bytes of {offered} were sent, {} updates came", came.len());
    assert!(stale * 20 <= offered, "{carrier}: {stale} of {offered} stale bytes were sent");
    (came, last)
}

/// What the carrier was given before it was full cannot be taken back, and may come first where the old path
/// comes to life again before a new one is there: when that is, the kernel's and QUIC's repetitions decide.
/// From another address the old path has no part in it.
#[test]
fn after_a_blackhole_the_newest_update_comes_first_and_hardly_anything_stale_was_sent() {
    if !require!() {
        return;
    }
    let seconds = std::env::var(OUTAGE).map_or(8, |text| text.parse().unwrap());
    std::thread::scope(|scope| {
        for carrier in [CarrierKind::Tcp, CarrierKind::Quic] {
            scope.spawn(move || {
                let (came, _) = after_a_silent_outage(carrier, seconds, Then::Here);
                assert!(came.windows(2).all(|pair| pair[0] < pair[1]), "{carrier}: {came:?}");
            });
            scope.spawn(move || {
                let (came, newest) = after_a_silent_outage(carrier, seconds, Then::Elsewhere);
                assert_eq!(came, [newest], "{carrier}: what came after the outage");
            });
        }
    });
}

/// The most urgent as many as go, and beside them the least urgent.
fn beside_a_flood(carrier: CarrierKind) {
    const SKIPPED: usize = 300;
    const COUNTED: usize = 2000;
    let pair = Pair::over(carrier, LinkSpec::default().delay(ms(10)).rate(Rate::mbit(20)));
    let node = &pair.net.client;
    let open = |urgency| {
        let options = FlowOptions { urgency, queue: 1 << 20, ..FlowOptions::new(Class::RELIABLE_SEQUENCED) };
        node.wait(pair.client.open_flow(options)).unwrap()
    };
    let [urgent, patient] = [Urgency::FIRST, Urgency::LAST].map(open);
    let least = patient.id();
    for flow in [urgent, patient] {
        node.runtime.spawn(async move {
            let silent = SendOptions { silent: true, ..SendOptions::default() };
            // It ends with the connection.
            for number in 0_u32.. {
                if flow.send(update(number), silent).await.is_err() {
                    return;
                }
            }
        });
    }
    let came = pair.net.server.wait_for(LIMIT * 2, async {
        let (mut came, mut next) = (Vec::new(), [0, 0]);
        while came.len() < SKIPPED + COUNTED {
            let message = pair.server.recv_message().await.unwrap();
            let is_least = message.flow == least;
            assert_eq!(number_of(&message), next[usize::from(is_least)], "in order");
            next[usize::from(is_least)] += 1;
            came.push(is_least);
        }
        came
    });
    let came = &came[SKIPPED..];
    let least = came.iter().filter(|is_least| **is_least).count();
    // One long run: somebody was kept waiting. Many short ones: it is how turns are given.
    let runs = came.chunk_by(|one, next| one == next).filter(|run| run[0]).map(<[bool]>::len);
    let longest = runs.max().unwrap_or(0);
    eprintln!("{carrier}: {least} of {COUNTED} were of the least urgent, {longest} in a row at most");
    // Two in a hundred of the rate, but for what one turn makes of it at either end.
    assert!(least * 50 + 200 >= COUNTED, "{carrier}: {least} of {COUNTED}");
    assert!(least * 4 <= COUNTED, "{carrier}: {least} of {COUNTED}, {longest} in a row: no urgency");
    pair.client.abort(whimbrel_transport::CloseCode::NONE, "enough");
}

#[test]
fn on_a_slow_link_a_flood_of_urgent_messages_leaves_the_least_urgent_their_part() {
    if !require!() {
        return;
    }
    let _heavy = heavy();
    std::thread::scope(|scope| {
        for carrier in [CarrierKind::Tcp, CarrierKind::Quic] {
            scope.spawn(move || beside_a_flood(carrier));
        }
    });
}
