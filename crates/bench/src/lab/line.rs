//! Two hosts on one link.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::Result;
use whimbrel_lab::{Host, Lab, Link, LinkSpec};

use super::two_links::Site;

const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 1);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);

/// A client and a server. Fields are dropped in this order.
pub(crate) struct Line {
    pub(crate) client: Site,
    pub(crate) server: Site,
    pub(crate) link: Link,
    _lab: Lab,
}

impl Line {
    /// Forward is from the client to the server.
    pub(crate) fn new(spec: LinkSpec) -> Result<Self> {
        let lab = Lab::new()?;
        let (client, server) = (lab.host("client")?, lab.host("server")?);
        let link = lab.link(&client, &server, spec)?;
        let give = |host: &Host, address| link.end(host).add_address(&format!("{address}/24"));
        give(&client, CLIENT)?;
        give(&server, SERVER)?;
        Ok(Self { client: Site::new(client)?, server: Site::new(server)?, link, _lab: lab })
    }

    /// The server's address.
    pub(crate) fn address(&self) -> IpAddr {
        SERVER.into()
    }
}
