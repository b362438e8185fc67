//! A client, a relay and a server in a row: neither end reaches the other but through the middle.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result};
use whimbrel_lab::{DirectLink, Host, Lab, Link, LinkSpec};

use super::two_links::Site;

const PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Nearly as many as there are, but none that a program listens at: a connection that was at it would keep it
/// from that for a minute after its end.
const ALL_PORTS: &str = "10240 65535";

/// What joins two hosts.
enum Cable {
    Emulated(Link),
    /// As fast as the machine.
    Direct(DirectLink),
}

impl Cable {
    fn give(&self, host: &Host, address: Ipv4Addr) -> whimbrel_lab::Result<()> {
        let address = format!("{address}/24");
        match self {
            Self::Emulated(link) => link.end(host).add_address(&address),
            Self::Direct(link) => link.end(host).add_address(&address),
        }
    }
}

/// The three hosts, or one in place of all. Fields are dropped in this order.
pub(crate) struct Chain {
    pub(crate) client: Site,
    pub(crate) relay: Site,
    pub(crate) server: Site,
    /// The client's own address.
    pub(crate) client_ip: IpAddr,
    /// Where the relay is, as the client and the server see it.
    pub(crate) relay_ips: [IpAddr; 2],
    /// Where the server is, as the relay sees it.
    pub(crate) server_ip: IpAddr,
    _cables: Vec<Cable>,
    _lab: Lab,
}

impl Chain {
    /// All on one host.
    pub(crate) fn loopback() -> Result<Self> {
        let lab = Lab::new()?;
        let host = lab.host("loopback")?;
        let at = |last| IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
        Self::of([host.clone(), host.clone(), host], [2, 1, 1, 3].map(at), Vec::new(), lab)
    }

    /// Joined by plain virtual cables.
    pub(crate) fn direct() -> Result<Self> {
        Self::joined(|lab, [one, other], _| {
            Ok(Cable::Direct(lab.direct_link(one, other, LinkSpec::default())?))
        })
    }

    /// A round trip to the relay takes so long for the client, and for the server.
    pub(crate) fn apart(round_trips: [Duration; 2]) -> Result<Self> {
        Self::joined(|lab, [one, other], number| {
            let spec = LinkSpec::default().delay(round_trips[number] / 2);
            Ok(Cable::Emulated(lab.link(one, other, spec)?))
        })
    }

    /// Has the client send all that is for elsewhere to the relay, which passes nothing on: it reaches the
    /// relay at the address that the server sees as well. Not for a chain of one host.
    #[cfg(feature = "peers")]
    pub(crate) fn lead_client_to_relay(&self) -> Result<()> {
        let (client, relay) = (&self.client.host, self.relay_ips[0].to_string());
        match self._cables.first().context("all is on one host")? {
            Cable::Emulated(link) => link.end(client).add_default_route(&relay, 1)?,
            Cable::Direct(link) => link.end(client).add_default_route(&relay, 1)?,
        }
        Ok(())
    }

    fn joined(join: impl Fn(&Lab, [&Host; 2], usize) -> Result<Cable>) -> Result<Self> {
        let lab = Lab::new()?;
        let (client, relay, server) = (lab.host("client")?, lab.host("relay")?, lab.host("server")?);
        let mut cables = Vec::new();
        for (number, end) in [&client, &server].into_iter().enumerate() {
            let cable = join(&lab, [end, &relay], number)?;
            cable.give(end, address(number, 1))?;
            cable.give(&relay, address(number, 2))?;
            cables.push(cable);
        }
        let ips = [address(0, 1), address(0, 2), address(1, 2), address(1, 1)].map(IpAddr::from);
        Self::of([client, relay, server], ips, cables, lab)
    }

    fn of(hosts: [Host; 3], ips: [IpAddr; 4], cables: Vec<Cable>, lab: Lab) -> Result<Self> {
        for host in &hosts {
            host.run(|| fs::write(PORTS, ALL_PORTS)).context("cannot widen the range of ports")?;
        }
        let [client, relay, server] = hosts;
        let [client_ip, relay_to_client, relay_to_server, server_ip] = ips;
        Ok(Self {
            client: Site::new(client)?,
            relay: Site::new(relay)?,
            server: Site::new(server)?,
            client_ip,
            relay_ips: [relay_to_client, relay_to_server],
            server_ip,
            _cables: cables,
            _lab: lab,
        })
    }
}

/// The client's link is number 0, the server's 1; each end is 1, the relay 2.
fn address(link: usize, at: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, if link == 0 { 1 } else { 2 }, at)
}
