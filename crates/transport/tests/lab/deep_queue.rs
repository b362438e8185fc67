//! A sender's own queue on the way. What else the processors do is a queue, too, so this runs alone.

use whimbrel_lab::{LinkSpec, Queue, Rate, require};
use whimbrel_transport::{CarrierKind, Carriers};

use crate::lab_support::net::{Family, Net};
use crate::lab_support::traffic::{Server, Transfer, Way};
use crate::lab_support::{ms, secs};

const TOTAL: u64 = 12_000_000;

/// A deep queue on the way is not filled: what else uses the link does not wait for a second.
/// Acknowledgements come in bursts at this rate.
#[test]
fn a_deep_queue_is_not_filled() {
    if !require!() {
        return;
    }
    let spec = LinkSpec::default().delay(ms(12)).rate(Rate::mbit(100)).queue(Queue::Time(secs(1)));
    let net = Net::with(Family::V4, spec);
    let server = Server::start(&net.server, net.server.endpoint());
    let client = net.client.endpoint_with(|builder| builder.carriers(Carriers::Only(CarrierKind::Quic)));
    let connection = net.client.wait(client.connect(server.endpoint.addr())).unwrap();
    let transfer = Transfer::start(&net.client, &connection, &server, Way::Up, 4 * TOTAL);
    transfer.reach(&net.client, TOTAL);
    let mut seen = Vec::new();
    while transfer.meter.get() < 4 * TOTAL * 9 / 10 {
        seen.extend(connection.stats().paths[0].carrier_stats.as_ref().map(|stats| stats.srtt));
        std::thread::sleep(ms(5));
    }
    transfer.finish(&net.client);
    seen.sort_unstable();
    let median = seen[seen.len() / 2];
    eprintln!("round trips: {median:?} of {} samples, {:?} at most", seen.len(), seen.last());
    assert!(median < ms(150), "{median:?}");
}
