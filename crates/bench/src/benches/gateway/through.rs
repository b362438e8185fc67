//! The gateway, and HAProxy in its place.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Context, Result};
use whimbrel_lab::{Host, HostChild};

use super::programs::{Gateway, socks_address};
use crate::lab::haproxy::{self, Mode, Section};
use crate::lab::program::{self, Folder};
use crate::web::{Dialler, Way};

const HAPROXY_PORT: u16 = 8443;
/// Where HAProxy listens on the client's host.
const LOCAL_PORT: u16 = 8080;
/// As the subject encrypts.
const SUITE: &str = "ciphersuites TLS_AES_128_GCM_SHA256";

/// By what connections go through the gateway's host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum System {
    /// `whimbrel proxy socks` on the client's host, and `whimbrel gateway serve`.
    Whimbrel,
    /// HAProxy in TCP mode on both hosts, and TLS 1.3 between them.
    HaproxyTls,
    /// HAProxy in TCP mode on the gateway's host alone, which encrypts nothing.
    Haproxy,
}

impl System {
    pub(super) const ALL: [Self; 3] = [Self::Whimbrel, Self::HaproxyTls, Self::Haproxy];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Whimbrel => "whimbrel",
            Self::HaproxyTls => "haproxy tls",
            Self::Haproxy => "haproxy",
        }
    }
}

/// Where everything is.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) client: &'a Host,
    pub(super) gateway: &'a Host,
    /// As the client sees it.
    pub(super) gateway_ip: IpAddr,
    pub(super) server: SocketAddr,
}

enum Running {
    Whimbrel(Gateway),
    Haproxy { gateway: HostChild, _client: Option<HostChild> },
}

/// A way through the gateway's host.
pub(super) struct Through {
    pub(super) dialler: Dialler,
    running: Running,
    _folder: Folder,
}

impl Through {
    /// Starts it, with room for so many connections.
    pub(super) fn start(place: Place<'_>, system: System, connections: usize) -> Result<Self> {
        let folder = Folder::new("gateway-sessions")?;
        // Those that only look whether it listens are connections too.
        let room = connections + 100;
        let Place { client, gateway, gateway_ip, server } = place;
        let at = SocketAddr::new(gateway_ip, HAPROXY_PORT);
        let (at, way, running) = match system {
            System::Whimbrel => {
                let running = Gateway::start(&folder, [client, gateway], server, room, &[])?;
                (socks_address(), Way::Socks, Running::Whimbrel(running))
            }
            System::HaproxyTls => {
                let certificate = certificate(gateway, &folder)?;
                let mut inner = Section::new(Mode::Tcp, at, server);
                inner.more[0] = format!("ssl crt {} {SUITE}", certificate.display());
                let gateway = haproxy::start(gateway, &folder, &[inner], room)?;
                let local = (Ipv4Addr::LOCALHOST, LOCAL_PORT).into();
                let mut outer = Section::new(Mode::Tcp, local, at);
                outer.more[1] = format!("ssl verify none {SUITE}");
                let client = haproxy::start(client, &folder, &[outer], room)?;
                (local, Way::Plain, Running::Haproxy { gateway, _client: Some(client) })
            }
            System::Haproxy => {
                let gateway = haproxy::start(gateway, &folder, &[Section::new(Mode::Tcp, at, server)], room)?;
                (at, Way::Plain, Running::Haproxy { gateway, _client: None })
            }
        };
        Ok(Self { dialler: Dialler { at, way, server }, running, _folder: folder })
    }

    /// The process on the gateway's host.
    pub(super) fn gateway_pid(&mut self) -> u32 {
        match &mut self.running {
            Running::Whimbrel(gateway) => gateway.serving.child().id(),
            Running::Haproxy { gateway, .. } => gateway.child().id(),
        }
    }
}

/// A key and a certificate of it in one file.
fn certificate(host: &Host, folder: &Folder) -> Result<PathBuf> {
    let openssl = program::find("openssl", "openssl")?;
    let [key, certificate, both] = ["key.pem", "certificate.pem", "both.pem"].map(|name| folder.join(name));
    let [key_name, certificate_name] = [&key, &certificate].map(|path| path.to_string_lossy().into_owned());
    let arguments = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
    let names = ["-subj", "/CN=gateway", "-days", "2", "-keyout", &key_name, "-out", &certificate_name];
    program::run(host, &openssl, &[&arguments[..], &names[..]].concat())?;
    let parts = [certificate, key].map(|part| std::fs::read_to_string(part).context("openssl wrote nothing"));
    let [certificate, key] = parts;
    std::fs::write(&both, certificate? + &key?)?;
    Ok(both)
}
