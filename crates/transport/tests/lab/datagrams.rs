//! Unreliable messages over QUIC on a link that loses packets.

use std::time::{Duration, Instant};

use crate::lab_support::net::{Family, Net};
use crate::lab_support::{ms, secs};
use whimbrel_lab::{LinkSpec, Rate, require};
use whimbrel_transport::{
    Allow, CarrierKind, Carriers, Class, Connection, FlowOptions, ListenOptions, MessageStats, SendOptions,
};

/// One way.
const DELAY: Duration = ms(150);
const COUNT: u32 = 900;

/// So little is on its way at once that it fits QUIC's first window.
const SIZE: usize = 200;

/// What came of small messages, 60 a second.
struct Came {
    /// How long each that arrived took, sorted.
    late: Vec<Duration>,
    sender: MessageStats,
}

impl Came {
    fn share(&self, of_thousand: usize) -> Duration {
        self.late[(self.late.len() * of_thousand / 1000).min(self.late.len() - 1)]
    }
}

/// Sends from the client, over a link that loses a tenth of all packets.
fn over_a_link_that_loses(class: Class) -> Came {
    let spec = LinkSpec::default().delay(DELAY).rate(Rate::mbit(20)).loss(0.1).seed(7);
    let net = Net::with(Family::V4, spec);
    let server = net.server.endpoint();
    let options = ListenOptions::unnamed().allow(Allow::Any);
    let mut listener = net.server.wait(server.listen(options)).unwrap();
    let quic = Carriers::Only(CarrierKind::Quic);
    let client = net.client.endpoint_with(|builder| builder.carriers(quic));
    let connection: Connection = net.client.wait(client.connect(server.addr())).unwrap();
    let accepted = net.server.wait(listener.accept()).unwrap();
    let begin = Instant::now();
    let reader = net.server.runtime.spawn(async move {
        let mut late = Vec::new();
        while let Ok(Ok(message)) = tokio::time::timeout(secs(4), accepted.recv_message()).await {
            let sent = u64::from_be_bytes(message.data[..8].try_into().unwrap());
            late.push(begin.elapsed().saturating_sub(Duration::from_micros(sent)));
        }
        late
    });
    net.client.wait(async {
        let flow = connection.open_flow(FlowOptions::new(class)).await.unwrap();
        let mut tick = tokio::time::interval(Duration::from_micros(16_667));
        for _ in 0..COUNT {
            tick.tick().await;
            let mut data = vec![7; SIZE];
            data[..8].copy_from_slice(&(begin.elapsed().as_micros() as u64).to_be_bytes());
            flow.send(data, SendOptions { silent: true, ..SendOptions::default() }).await.unwrap();
        }
    });
    let mut late = net.server.wait(reader).unwrap();
    late.sort_unstable();
    Came { late, sender: connection.stats().messages }
}

/// The promise of `docs/messages.md`; what is reliable, on the same link, shows what a lost packet costs
/// there.
#[test]
fn a_lost_packet_holds_no_unreliable_message_up_over_quic() {
    if !require!() {
        return;
    }
    let came = over_a_link_that_loses(Class::UNRELIABLE);
    println!(
        "unreliable: {} of {COUNT}, p50 {:?}, p99 {:?}",
        came.late.len(),
        came.share(500),
        came.share(990)
    );
    assert!(came.share(990) <= DELAY + ms(20), "{:?}", came.share(990));
    let arrived = came.late.len() as u32;
    assert!(arrived * 100 >= COUNT * 85 && arrived * 100 <= COUNT * 95, "a tenth was lost: {arrived}");
    assert_eq!(came.sender.bytes_resent, 0);
    let MessageStats { delivered, lost, expired, .. } = came.sender;
    assert!(
        delivered + lost + expired >= u64::from(COUNT) - 10,
        "all but the last have an outcome: {:?}",
        came.sender
    );
    assert!(delivered.abs_diff(arrived.into()) <= 10, "{delivered} called delivered, {arrived} were");

    let reliable = over_a_link_that_loses(Class::RELIABLE);
    println!(
        "reliable: {}, p50 {:?}, p99 {:?}",
        reliable.late.len(),
        reliable.share(500),
        reliable.share(990)
    );
    assert_eq!(reliable.late.len() as u32, COUNT);
    assert!(reliable.share(990) >= DELAY * 3, "it waits for what is sent again");
}
