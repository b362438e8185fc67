//! Two phones behind one NAT gateway, and a relay on the Internet.

use std::time::Duration;

use anyhow::Result;
use whimbrel_lab::{Host, Lab, LinkSpec, NatGateway, NatKind, Rate};

use super::{FIRST, Node};

/// Of a phone's Wi-Fi.
const WIFI: Duration = Duration::from_millis(2);
/// Between the gateway and the Internet.
const OUT: Duration = Duration::from_millis(1);
/// The Internet's and the relay's own links.
const FAST: Rate = Rate::mbit(1000);

/// Fields are dropped in this order.
pub(crate) struct Phones {
    pub(crate) phones: [Node; 2],
    pub(crate) relay: Node,
    _gateway: NatGateway,
    _lab: Lab,
}

impl Phones {
    /// A round trip from one phone to the other one takes so long through the relay; each phone's link has
    /// that rate.
    pub(crate) fn new(rtt: Duration, rate: Rate) -> Result<Self> {
        let lab = Lab::new()?;
        let (internet, ap) = (lab.router("internet")?, lab.router("ap")?);
        let spec = |delay, rate| LinkSpec::default().delay(delay).rate(rate);
        let out = lab.link(&ap, &internet, spec(OUT, FAST).interface_names("wan0", "to1"))?;
        out.end(&ap).add_address("10.0.1.10/24")?;
        out.end(&internet).add_address("10.0.1.1/24")?;
        out.end(&ap).add_default_route("10.0.1.1", 1)?;
        let gateway = lab.nat_gateway(&ap, "wan0")?;
        gateway.set_kind(NatKind::PortRestricted)?;
        // A host with an address in a network of its own, whose router is number 1 there.
        let place = |name: &str, router: &Host, network: u8, spec: LinkSpec| -> Result<Node> {
            let host = lab.host(name)?;
            let link = lab.link(&host, router, spec.interface_names("eth0", &format!("to{network}")))?;
            link.end(router).add_address(&format!("10.0.{network}.1/24"))?;
            Node::new(host, "eth0", network, FIRST)
        };
        let phones =
            [place("phone1", &ap, 101, spec(WIFI, rate))?, place("phone2", &ap, 102, spec(WIFI, rate))?];
        // A round trip passes each of these links four times.
        let far = (rtt / 4).saturating_sub(WIFI + OUT);
        let relay = place("relay", &internet, 50, spec(far, FAST))?;
        Ok(Self { phones, relay, _gateway: gateway, _lab: lab })
    }
}
