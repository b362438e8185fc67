//! Two homes behind NAT gateways, and relays on the Internet between them.

use std::time::Duration;

use anyhow::Result;
use whimbrel_lab::{Carriers, Direction, HomesPlan, Link, NatGateway, NatKind, Place};

use super::{FIRST, Node};

/// The homes' hosts and the relays'. Fields are dropped in this order.
pub(crate) struct Homes {
    pub(crate) client: Node,
    pub(crate) server: Node,
    pub(crate) relays: Vec<Node>,
    net: whimbrel_lab::Homes,
}

impl Homes {
    /// A round trip from one home to the other one takes so long through a relay, half of it from a home to
    /// the relay. Links deliver in lots, up to twice `grain` late.
    pub(crate) fn apart(relays: u8, rtt: Duration, grain: Duration) -> Result<Self> {
        // Each home's own link and a relay's, 3 ms each, are passed four times as well.
        let far = (rtt / 4).saturating_sub(Duration::from_millis(6));
        Self::build(HomesPlan { public: relays, far, grain, ..HomesPlan::default() })
    }

    /// Those marked are behind a carrier's gateway besides their own one.
    pub(crate) fn behind(carriers: [bool; 2]) -> Result<Self> {
        Self::build(HomesPlan { carriers: Carriers::Own(carriers), ..HomesPlan::default() })
    }

    fn build(plan: HomesPlan) -> Result<Self> {
        let net = whimbrel_lab::Homes::build(plan)?;
        let node = |place: &Place| Node::new(place.host.clone(), place.interface, place.network, FIRST);
        let (client, server) = (node(&net.inside[0])?, node(&net.inside[1])?);
        let relays = net.public.iter().map(node).collect::<Result<_>>()?;
        Ok(Self { client, server, relays, net })
    }

    /// The client's home gateway, and the server's.
    pub(crate) fn gateways(&self) -> &[NatGateway] {
        &self.net.gateways
    }

    /// The carriers' gateways.
    pub(crate) fn carriers(&self) -> &[NatGateway] {
        &self.net.carriers
    }

    /// Makes all gateways be of that kind.
    pub(crate) fn set_kind(&self, kind: NatKind) -> Result<()> {
        for gateway in self.gateways().iter().chain(self.carriers()) {
            gateway.set_kind(kind)?;
        }
        Ok(())
    }

    /// What joins a relay to the Internet.
    pub(crate) fn link_of_relay(&self, number: usize) -> &Link {
        &self.net.public[number].link
    }

    /// What joins the server to its gateway.
    pub(crate) fn link_of_server(&self) -> &Link {
        &self.net.inside[1].link
    }

    /// Swallows all that a relay sends and is sent, or stops doing so; nobody is told.
    pub(crate) fn silence_relay(&self, number: usize, is_silent: bool) {
        self.link_of_relay(number).set_blackhole(Direction::Both, is_silent);
    }
}
