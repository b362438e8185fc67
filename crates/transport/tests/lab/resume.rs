//! How soon a connection goes on elsewhere whose host was cut off, and which was written down there.
//!
//! A round trip between any two takes 300 ms here, so that one too many shows, and a busy machine does not.

use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use whimbrel_base::SecretKey;
use whimbrel_lab::require;
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Config, Connection, Endpoint, ListenOptions, Listener,
};

use crate::lab_support::net::{Family, Node, Star};
use crate::lab_support::{heavy, ms};

const RTT: Duration = Duration::from_millis(300);
const SLACK: Duration = Duration::from_millis(100);
const DATA: usize = 1 << 20;
const WARM_UP: usize = 4 << 20;

fn endpoint(node: &Node, key: &SecretKey, carrier: CarrierKind) -> Endpoint {
    let carriers = Carriers::Only(carrier);
    let config = Config { carriers, stream_unsent: 2 * DATA as u64, ..Config::default() };
    node.endpoint_with(|builder| builder.secret_key(key.clone()).config(config))
}

/// Reads all that comes on a connection's first stream. Tells how much that was, and when.
async fn read(connection: Connection, told: UnboundedSender<(usize, Instant)>) {
    let mut stream = connection.accept_stream().await.unwrap();
    let (mut block, mut bytes) = (vec![0; 64 * 1024], 0);
    while let Ok(n @ 1..) = stream.read(&mut block).await {
        bytes += n;
        told.send((bytes, Instant::now())).unwrap();
    }
}

/// Waits until so many bytes were read, and tells when that was.
async fn until(reads: &mut UnboundedReceiver<(usize, Instant)>, bytes: usize) -> Instant {
    loop {
        let (n, at) = reads.recv().await.unwrap();
        if n >= bytes {
            return at;
        }
    }
}

/// What goes on elsewhere takes, beyond two round trips and what its bytes take over a fresh connection.
fn excess(carrier: CarrierKind) -> Duration {
    let star = Star::with(Family::V4, ["here", "there", "server"], RTT / 4);
    let [here, there, server] = &star.nodes[..] else { panic!("three hosts") };
    let key = SecretKey::generate();
    let [was, will] = [here, there].map(|node| endpoint(node, &key, carrier));
    let serving = endpoint(server, &SecretKey::generate(), carrier);
    let mut listener: Listener =
        server.wait(serving.listen(ListenOptions::unnamed().allow(Allow::Any))).unwrap();
    let connection = here.wait(was.connect(serving.addr())).unwrap();
    let accepted = server.wait(listener.accept()).unwrap();
    let (told, mut reads) = unbounded_channel();
    server.runtime.spawn(read(accepted.clone(), told));
    let mut says = here.wait(connection.open_stream()).unwrap();
    here.wait(says.write_all(&vec![7; WARM_UP])).unwrap();
    server.wait(until(&mut reads, WARM_UP));
    std::thread::sleep(RTT * 4);
    here.leave();
    let data = vec![7; DATA];
    let written = here.wait(async {
        let mut written = 0;
        while let Ok(taken) = tokio::time::timeout(ms(100), says.write(&data[written..])).await {
            written += taken.unwrap();
            if written == DATA {
                break;
            }
        }
        written
    });
    let asleep = here.wait(connection.suspend(ms(50))).unwrap();
    let began = Instant::now();
    let resumed = there.wait(will.resume(&asleep)).unwrap();
    let mut says = resumed.streams().pop().unwrap();
    there.wait(says.write_all(&[7])).unwrap();
    let took = server.wait(until(&mut reads, WARM_UP + written + 1)) - began;
    let mut fresh = [(); 3].map(|()| {
        let connection = there.wait(will.connect(serving.addr())).unwrap();
        let accepted = server.wait(listener.accept()).unwrap();
        let (told, mut reads) = unbounded_channel();
        server.runtime.spawn(read(accepted.clone(), told));
        let mut says = there.wait(connection.open_stream()).unwrap();
        let began = Instant::now();
        there.wait(says.write_all(&data[..written])).unwrap();
        server.wait(until(&mut reads, written)) - began
    });
    fresh.sort_unstable();
    // In slow start it varies by a sixth of a round trip.
    let transfer = fresh[1];
    let excess = took.saturating_sub(transfer + RTT * 2);
    eprintln!("{carrier}: {written} bytes in {took:?}, fresh {fresh:?}, excess {excess:?}");
    excess
}

#[test]
fn what_was_in_flight_goes_on_elsewhere_as_over_a_fresh_connection() {
    if !require!() {
        return;
    }
    let _heavy = heavy();
    for carrier in [CarrierKind::Quic, CarrierKind::Tcp] {
        let excess = excess(carrier);
        assert!(excess <= SLACK, "{carrier}: {excess:?}");
    }
}
