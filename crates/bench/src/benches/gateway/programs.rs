//! The programs of the subject.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use whimbrel_lab::{Host, HostChild};

use crate::lab::program::{self, Folder};

const SOCKS_PORT: u16 = 1080;
const HTTP_PORT: u16 = 8118;

/// Where `whimbrel proxy socks` listens.
pub(super) fn socks_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, SOCKS_PORT).into()
}

/// Where `whimbrel proxy http` listens.
pub(super) fn http_address() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, HTTP_PORT).into()
}

/// `whimbrel gateway serve` and `whimbrel proxy socks`, which leads through it.
pub(super) struct Gateway {
    pub(super) serving: HostChild,
    _proxy: HostChild,
}

impl Gateway {
    /// On these hosts, the client's first, with room for so many connections to this server, of which nobody
    /// else would be let through: it is in a private network. `flags` are given to both commands.
    pub(super) fn start(
        folder: &Folder,
        [client, gateway]: [&Host; 2],
        server: SocketAddr,
        room: usize,
        flags: &[&str],
    ) -> Result<Self> {
        let (server, room) = (server.to_string(), room.to_string());
        let serve = ["gateway", "serve", "-q", "--ticket", "--json", "--allow", "any", "--to", &server];
        let most = ["--most", &room, &room];
        let (serving, said) =
            program::say(gateway, &folder.join("gateway"), &[&serve[..], &most, flags].concat())?;
        let ticket = said["ticket"].as_str().context("the gateway gives no ticket")?.to_owned();
        let listen = socks_address().to_string();
        let proxy = ["proxy", "socks", "-q", "--json", "--through", &ticket, "--listen", &listen];
        let (_proxy, _) = program::say(client, &folder.join("client"), &[&proxy[..], flags].concat())?;
        Ok(Self { serving, _proxy })
    }
}

/// `whimbrel access serve` and `whimbrel proxy http`, which asks it.
pub(super) struct Managed {
    _manager: HostChild,
    _proxy: HostChild,
}

impl Managed {
    pub(super) fn start(folder: &Folder, client: &Host) -> Result<Self> {
        let home = folder.join("client");
        let (_manager, said) = program::say(client, &home, &["access", "serve", "-q", "--json"])?;
        let socket = said["socket"].as_str().context("the manager does not say where it is")?;
        let listen = http_address().to_string();
        let proxy = ["proxy", "http", "-q", "--json", "--manager", socket, "--listen", &listen];
        let (_proxy, said) = program::say(client, &home, &proxy)?;
        anyhow::ensure!(said["manager"] == true, "the proxy does not reach the manager");
        Ok(Self { _manager, _proxy })
    }
}
