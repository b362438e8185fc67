//! Addresses given and taken, and interfaces switched off, by netlink requests of our own: they take
//! microseconds, where a call of `ip` takes milliseconds that nobody could tell from the recovery.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage, AddressScope};
use netlink_packet_route::link::{LinkFlags, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use rustix::net::netdevice::name_to_index;
use whimbrel_lab::Host;

const PREFIX: u8 = 24;

/// Changes one interface of one host. The kernel has done what was asked when a call returns.
pub(super) struct Interface {
    socket: Socket,
    index: u32,
    sequence: u32,
}

impl Interface {
    pub(super) fn open(host: &Host, name: &str) -> Result<Self> {
        let open = || -> std::io::Result<Self> {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            let index = name_to_index(&socket, name)?;
            Ok(Self { socket, index, sequence: 0 })
        };
        host.run(open).with_context(|| format!("cannot reach {name} through netlink"))
    }

    pub(super) fn add_address(&mut self, ip: Ipv4Addr) -> Result<()> {
        let message = RouteNetlinkMessage::NewAddress(self.address(ip));
        self.request(message, NLM_F_CREATE | NLM_F_REPLACE).with_context(|| format!("cannot add {ip}"))
    }

    pub(super) fn del_address(&mut self, ip: Ipv4Addr) -> Result<()> {
        let message = RouteNetlinkMessage::DelAddress(self.address(ip));
        self.request(message, 0).with_context(|| format!("cannot remove {ip}"))
    }

    /// Switches the interface off, and with it every route through it.
    pub(super) fn set_down(&mut self) -> Result<()> {
        let mut link = LinkMessage::default();
        link.header.index = self.index;
        link.header.change_mask = LinkFlags::Up;
        self.request(RouteNetlinkMessage::SetLink(link), 0).context("cannot switch the interface off")
    }

    /// Sends everything to a gateway. Returns the moment just before the kernel was asked.
    pub(super) fn add_default_route(&mut self, gateway: Ipv4Addr) -> Result<Instant> {
        let mut route = RouteMessage::default();
        route.header.address_family = AddressFamily::Inet;
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        // As `ip route` does it.
        route.header.protocol = RouteProtocol::Boot;
        route.header.scope = RouteScope::Universe;
        route.header.kind = RouteType::Unicast;
        route.attributes =
            vec![RouteAttribute::Gateway(RouteAddress::Inet(gateway)), RouteAttribute::Oif(self.index)];
        let asked = Instant::now();
        self.request(RouteNetlinkMessage::NewRoute(route), NLM_F_CREATE | NLM_F_REPLACE)
            .with_context(|| format!("cannot add the route through {gateway}"))?;
        Ok(asked)
    }

    fn address(&self, ip: Ipv4Addr) -> AddressMessage {
        let mut address = AddressMessage::default();
        address.header.family = AddressFamily::Inet;
        address.header.prefix_len = PREFIX;
        address.header.scope = AddressScope::Universe;
        address.header.index = self.index;
        address.attributes =
            vec![AddressAttribute::Address(IpAddr::V4(ip)), AddressAttribute::Local(IpAddr::V4(ip))];
        address
    }

    fn request(&mut self, message: RouteNetlinkMessage, flags: u16) -> Result<()> {
        self.sequence += 1;
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let (answer, _) = self.socket.recv_from_full()?;
        match NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer)?.payload {
            NetlinkPayload::Error(error) if error.code.is_none() => Ok(()),
            NetlinkPayload::Error(error) => Err(error.to_io().into()),
            _ => bail!("the kernel answered something else"),
        }
    }
}
