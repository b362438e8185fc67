//! A gateway in the middle of a server and of devices, each of which reaches nothing but the gateway.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use anyhow::{Context, Result};
use whimbrel_lab::{DirectLink, Host, Lab, Link, LinkSpec};

use super::two_links::{CONGESTION_CONTROL, Site};

/// The most bytes that a kernel keeps of one connection until its program reads them.
const RECEIVE_BUFFER: &str = "/proc/sys/net/ipv4/tcp_rmem";
const PORTS: &str = "/proc/sys/net/ipv4/ip_local_port_range";
/// Nearly as many as there are, but none that a program listens at: a connection that was at it would keep it
/// from that for a minute after its end.
const ALL_PORTS: &str = "10240 65535";

/// What joins a host and the gateway.
enum Cable {
    Emulated(Link),
    /// As fast as the machine.
    Direct(DirectLink),
}

impl Cable {
    fn interface(&self, host: &Host) -> &whimbrel_lab::End {
        match self {
            Self::Emulated(link) => link.end(host),
            Self::Direct(link) => link.end(host),
        }
    }

    /// Gives a host its address, and the congestion control of what it sends to the other one.
    fn give(&self, host: &Host, own: Ipv4Addr, other: Ipv4Addr) -> whimbrel_lab::Result<()> {
        let end = self.interface(host);
        end.add_address(&format!("{own}/24"))?;
        host.add_route(end.name(), &format!("{other}/32"), &other.to_string())
    }
}

/// A host around the gateway, and where it finds that.
pub(crate) struct Spoke {
    pub(crate) site: Site,
    pub(crate) gateway: IpAddr,
    pub(crate) own: IpAddr,
    _cable: Cable,
}

/// The hosts. Fields are dropped in this order.
pub(crate) struct Hub {
    pub(crate) gateway: Site,
    pub(crate) server: Spoke,
    pub(crate) devices: Vec<Spoke>,
    _lab: Lab,
}

impl Hub {
    /// A server, a round trip from the gateway, and devices behind these links; behind a cable that is as
    /// fast as the machine where there is none.
    pub(crate) fn new(to_server: Duration, devices: &[(&str, Option<LinkSpec>)]) -> Result<Self> {
        let lab = Lab::new()?;
        let gateway = lab.host("gateway")?;
        gateway.set_congestion_control(CONGESTION_CONTROL);
        let mut spokes = Vec::new();
        let to_server = ("server", Some(LinkSpec::default().delay(to_server / 2)));
        for (number, (name, spec)) in (1..).zip([&to_server].into_iter().chain(devices)) {
            let host = lab.host(name)?;
            host.set_congestion_control(CONGESTION_CONTROL);
            let cable = match spec {
                Some(spec) => Cable::Emulated(lab.link(&host, &gateway, spec.clone())?),
                None => Cable::Direct(lab.direct_link(&host, &gateway, LinkSpec::default())?),
            };
            let [hub, own] = [1, 2].map(|at| Ipv4Addr::new(10, 0, number, at));
            cable.give(&host, own, hub)?;
            cable.give(&gateway, hub, own)?;
            spokes.push(Spoke {
                site: Site::new(host)?,
                gateway: hub.into(),
                own: own.into(),
                _cable: cable,
            });
        }
        let server = spokes.remove(0);
        for host in [&gateway, &server.site.host] {
            host.run(|| fs::write(PORTS, ALL_PORTS)).context("cannot widen the range of ports")?;
        }
        Ok(Self { gateway: Site::new(gateway)?, server, devices: spokes, _lab: lab })
    }

    /// Has the gateway's kernel keep no more than so many bytes of a connection until they are read.
    pub(crate) fn limit_receive_buffers(&self, most: usize) -> Result<()> {
        let text = format!("4096 {most} {most}");
        let write = || fs::write(RECEIVE_BUFFER, &text);
        self.gateway.host.run(write).context("cannot limit the gateway's buffers")
    }
}
