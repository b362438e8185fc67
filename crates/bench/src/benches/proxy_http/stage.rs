//! A proxy at work, and how clients use it.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use whimbrel_lab::{Host, HostChild};

use crate::lab::haproxy::{self, Mode, Section};
use crate::lab::program::{self, Folder};
use crate::web::{Dialler, Way};

pub(super) const SERVER_PORT: u16 = 8000;
const WHIMBREL_PORT: u16 = 8118;
const TINYPROXY_PORT: u16 = 8888;
/// HAProxy's in its HTTP mode, and in its TCP mode.
const HTTP_PORT: u16 = 8100;
const TCP_PORT: u16 = 8101;
/// Connections that a proxy has room for.
const ROOM: usize = 500;

/// By what objects come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    Whimbrel,
    Haproxy,
    Tinyproxy,
    /// From the server itself: what all have to share.
    Direct,
}

impl System {
    pub(super) const ALL: [Self; 4] = [Self::Whimbrel, Self::Haproxy, Self::Tinyproxy, Self::Direct];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whimbrel => "whimbrel",
            Self::Haproxy => "haproxy",
            Self::Tinyproxy => "tinyproxy",
            Self::Direct => "no proxy",
        }
    }

    /// Where clients connect to for objects and for tunnels, and how they ask.
    fn ways(self, server: SocketAddr) -> [(SocketAddr, Way); 2] {
        match self {
            Self::Whimbrel => [Way::Proxy, Way::Tunnel].map(|way| (local(WHIMBREL_PORT), way)),
            Self::Haproxy => [HTTP_PORT, TCP_PORT].map(|port| (local(port), Way::Plain)),
            Self::Tinyproxy => [Way::Proxy, Way::Tunnel].map(|way| (local(TINYPROXY_PORT), way)),
            Self::Direct => [(server, Way::Plain); 2],
        }
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// A proxy that runs.
pub(super) struct Stage {
    system: System,
    server: SocketAddr,
    _proxy: Option<HostChild>,
    _folder: Folder,
}

impl Stage {
    pub(super) fn start(host: &Host, server: SocketAddr, system: System) -> Result<Self> {
        let folder = Folder::new("proxy-http")?;
        let proxy = match system {
            System::Whimbrel => Some(whimbrel(host, &folder)?),
            System::Haproxy => {
                let section = |mode, port| Section::new(mode, local(port), server);
                let sections = [section(Mode::Http, HTTP_PORT), section(Mode::Tcp, TCP_PORT)];
                Some(haproxy::start(host, &folder, &sections, ROOM)?)
            }
            System::Tinyproxy => Some(tinyproxy(host, &folder)?),
            System::Direct => None,
        };
        Ok(Self { system, server, _proxy: proxy, _folder: folder })
    }

    /// How clients come to the server.
    pub(super) fn dialler(&self, by_tunnel: bool) -> Dialler {
        let (at, way) = self.system.ways(self.server)[usize::from(by_tunnel)];
        Dialler { at, way, server: self.server }
    }
}

/// As it comes, and without a manager: loopback is one network.
fn whimbrel(host: &Host, folder: &Folder) -> Result<HostChild> {
    let listen = local(WHIMBREL_PORT).to_string();
    let (child, _) =
        program::say(host, &folder.join("home"), &["proxy", "http", "-q", "--json", "--listen", &listen])?;
    Ok(child)
}

fn tinyproxy(host: &Host, folder: &Folder) -> Result<HostChild> {
    let (program, file) = (program::find("tinyproxy", "tinyproxy")?, folder.join("tinyproxy.conf"));
    let text = format!(
        "Listen 127.0.0.1\nPort {TINYPROXY_PORT}\nMaxClients {ROOM}\nTimeout 600\nLogLevel Critical\n\
         ConnectPort {SERVER_PORT}\n"
    );
    std::fs::write(&file, text)?;
    let child = program::start(host, &program, &["-d", "-c", &file.to_string_lossy()])?;
    program::wait_for_port(host, local(TINYPROXY_PORT)).context("tinyproxy does not start")?;
    Ok(child)
}

/// What the peers say of themselves.
pub(super) fn versions(host: &Host) -> Result<Value> {
    let tinyproxy = program::run(host, &program::find("tinyproxy", "tinyproxy")?, &["-v"])?;
    Ok(json!({ "haproxy": haproxy::version(host)?, "tinyproxy": tinyproxy.trim() }))
}
