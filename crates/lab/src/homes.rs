//! Two homes behind NAT gateways, and public hosts on the Internet between them.

use std::time::Duration;

use crate::{Block, Host, Lab, Link, LinkSpec, NatGateway, Rate, Result};

/// What each link delays, but for those that are said to be longer.
const NEAR: Duration = Duration::from_millis(3);
/// What the link between a carrier's gateway and the Internet delays.
const CARRIER: Duration = Duration::from_millis(1);
/// Each link's rate.
const RATE: Rate = Rate::mbit(100);
/// Of a gateway that both homes share.
const SHARED: u8 = 3;
/// Between a home's number and that of the network inside of it.
const INSIDE: u8 = 100;
/// The first public host's network.
const PUBLIC: u8 = 50;

/// What is between a home's gateway and the Internet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carriers {
    /// Nothing.
    #[default]
    None,
    /// Another gateway for those homes that are marked.
    Own([bool; 2]),
    /// One gateway for both homes, at 10.0.3.10.
    Shared,
}

/// How homes are connected.
#[derive(Debug, Clone, Copy)]
pub struct HomesPlan {
    /// How many public hosts there are.
    pub public: u8,
    /// What the link between a home's gateway and the Internet delays.
    pub far: Duration,
    /// IPv6, with a stateful firewall at each home, in place of IPv4 and NAT.
    pub is_ipv6: bool,
    /// What is between the homes' gateways and the Internet.
    pub carriers: Carriers,
    /// Every link's [grain](LinkSpec::grain).
    pub grain: Duration,
}

impl Default for HomesPlan {
    fn default() -> Self {
        Self { public: 1, far: NEAR, is_ipv6: false, carriers: Carriers::None, grain: Duration::ZERO }
    }
}

impl HomesPlan {
    /// A host's address in one of the networks, and the prefix's length.
    fn on_link(&self, network: u8, host: u8) -> String {
        let length = if self.is_ipv6 { 64 } else { 24 };
        format!("{}/{length}", self.bare(network, host))
    }

    fn bare(&self, network: u8, host: u8) -> String {
        if self.is_ipv6 { format!("fd00:{network:x}::{host:x}") } else { format!("10.0.{network}.{host}") }
    }

    fn network(&self, network: u8) -> String {
        if self.is_ipv6 { format!("fd00:{network:x}::/64") } else { format!("10.0.{network}.0/24") }
    }
}

/// A host that is to have addresses in a network of its own, whose router is number 1 in it.
#[derive(Clone)]
pub struct Place {
    /// The host. It has no address yet.
    pub host: Host,
    /// Its interface's name.
    pub interface: &'static str,
    /// The number of its network: 10.0.NUMBER.0/24, or fd00:NUMBER::/64.
    pub network: u8,
    /// What joins it to its router.
    pub link: Link,
}

/// Two homes, each behind a gateway of its own, and public hosts. Round trips between a home and a public
/// host take 18 ms, unless the plan says that homes are farther away.
pub struct Homes {
    /// The hosts inside of the homes.
    pub inside: [Place; 2],
    /// Hosts that can be dialled from anywhere.
    pub public: Vec<Place>,
    /// The homes' gateways, at 10.0.1.10 and 10.0.2.10. With IPv6 there are none: nothing is translated.
    pub gateways: Vec<NatGateway>,
    /// Those of the homes' carriers, if they have any: the first home's, the second one's, or that of both.
    pub carriers: Vec<NatGateway>,
    _lab: Lab,
}

impl Homes {
    /// Builds all of it.
    pub fn build(plan: HomesPlan) -> Result<Self> {
        let lab = Lab::new()?;
        let internet = lab.router("internet")?;
        let streets = Streets { lab: &lab, internet: &internet, plan };
        let (mut carriers, mut gateways) = (Vec::new(), Vec::new());
        let mut shared = None;
        if plan.carriers == Carriers::Shared {
            let (router, nat) = streets.gateway("carrier", &internet, SHARED, CARRIER)?;
            carriers.extend(nat);
            shared = Some(router);
        }
        let mut inside = Vec::new();
        for (name, number) in [("client", 1_u8), ("server", 2)] {
            let mut to = shared.clone().unwrap_or_else(|| internet.clone());
            if matches!(plan.carriers, Carriers::Own(own) if own[usize::from(number) - 1]) {
                let (router, nat) =
                    streets.gateway(&format!("{name}-carrier"), &internet, number + SHARED, CARRIER)?;
                carriers.extend(nat);
                to = router;
            }
            let (router, nat) = streets.gateway(&format!("{name}-gw"), &to, number, plan.far)?;
            gateways.extend(nat);
            inside.push(streets.home(name, &router, number)?);
        }
        let mut public = Vec::new();
        for number in 0..plan.public {
            let (host, network) = (lab.host(&format!("relay{number}"))?, PUBLIC + number);
            let link = streets.outside(&host, &internet, network, NEAR)?;
            public.push(Place { host, interface: "wan0", network, link });
        }
        let inside = [inside.remove(0), inside.remove(0)];
        Ok(Self { inside, public, gateways, carriers, _lab: lab })
    }
}

/// What is built upon.
struct Streets<'a> {
    lab: &'a Lab,
    internet: &'a Host,
    plan: HomesPlan,
}

impl Streets<'_> {
    fn spec(&self, delay: Duration) -> LinkSpec {
        LinkSpec::default().delay(delay).rate(RATE).grain(self.plan.grain)
    }

    /// A host's way out to `to`, over the link of that network, in which `to` is number 1.
    fn outside(&self, host: &Host, to: &Host, network: u8, delay: Duration) -> Result<Link> {
        let spec = self.spec(delay).interface_names("wan0", &format!("to{network}"));
        let link = self.lab.link(host, to, spec)?;
        link.end(to).add_address(&self.plan.on_link(network, 1))?;
        Ok(link)
    }

    /// A router whose number on that link is 10, and which hides what is behind it if it can.
    fn gateway(
        &self,
        name: &str,
        to: &Host,
        network: u8,
        delay: Duration,
    ) -> Result<(Host, Option<NatGateway>)> {
        let router = self.lab.router(name)?;
        self.outside(&router, to, network, delay)?;
        router.add_address("wan0", &self.plan.on_link(network, 10))?;
        router.add_default_route("wan0", &self.plan.bare(network, 1), 1)?;
        let nat = if self.plan.is_ipv6 { None } else { Some(self.lab.nat_gateway(&router, "wan0")?) };
        Ok((router, nat))
    }

    /// The host behind a home's router.
    fn home(&self, name: &str, router: &Host, number: u8) -> Result<Place> {
        let (host, network) = (self.lab.host(name)?, number + INSIDE);
        let link = self.lab.link(&host, router, self.spec(NEAR).interface_names("eth0", "lan0"))?;
        link.end(router).add_address(&self.plan.on_link(network, 1))?;
        if self.plan.is_ipv6 {
            let (there, through) = (self.plan.network(network), self.plan.bare(number, 10));
            self.internet.add_route(&format!("to{number}"), &there, &through)?;
            router.block(Block::UnaskedFrom("wan0"))?;
        }
        Ok(Place { host, interface: "eth0", network, link })
    }
}
