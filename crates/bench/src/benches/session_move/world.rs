//! The paper's testbed: a server, a gateway, and two devices behind shaped links.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};
use tokio::task::JoinHandle;
use whimbrel_base::{EndpointAddr, EndpointId};
use whimbrel_lab::{Host, HostChild};
use whimbrel_proxy::{GatewayServer, Guard, Outcome, Quota, Rules, Served, SessionSettings};
use whimbrel_transport::{Allow, Connection, Endpoint, ListenOptions};

use super::device::Device;
use super::program::{Ends, Program, Record};
use super::scenario::{SERVER_RTT, Scenario};
use super::server::{Server, Work};
use crate::lab::program::{self, Folder};
use crate::lab::{Hub, Spoke};
use crate::sys::Sender;

/// Where the server is: the gateway's own network, which it lets through only if it is told to.
const SERVERS: &str = "10.0.1.0/24";
/// Devices, in the order of their links.
const PHONE: usize = 0;
const DESK: usize = 1;
const CROWD: usize = 2;
/// What the gateway keeps of a session, and its kernel, where the server's window is to be closed.
const LITTLE: usize = 64 * 1024;
/// The most sessions of one device, and of all.
const MOST: usize = 4000;
/// For whatever must come at all.
const LIMIT: Duration = Duration::from_secs(180);

/// Which gateway there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// In this process, as it comes.
    Own,
    /// The same, but it keeps little, so that the server waits with its window closed.
    Little,
    /// The program `whimbrel gateway serve`.
    Program,
}

/// A gateway that runs.
enum Gate {
    Own { _endpoint: Endpoint, task: JoinHandle<()> },
    Program { child: HostChild, _folder: Folder },
}

impl Drop for Gate {
    fn drop(&mut self) {
        if let Self::Own { task, .. } = self {
            task.abort();
        }
    }
}

/// Everything but programs, running. Fields are dropped in this order.
pub(super) struct World {
    pub(super) phone: Device,
    desk: Device,
    pub(super) server: Server,
    gate: Gate,
    /// The gateway's key and port.
    at: (EndpointId, u16),
    pub(super) hub: Hub,
}

/// What came of a move.
pub(super) struct Moved {
    /// From the beginning until the session was asked for.
    pub(super) asked: Duration,
    /// From then until the new program had its first byte.
    pub(super) first: Duration,
    /// When it was asked for, and when the gateway had granted it.
    pub(super) moments: [Instant; 2],
    /// The kernel's view of the server's connection, then.
    pub(super) sender: Sender,
    programs: [Program; 2],
}

/// What the new program got.
pub(super) struct Rest {
    pub(super) record: Record,
    /// The offset of its first byte.
    pub(super) offset: usize,
}

impl World {
    /// A server with so many bytes, and two devices that have spoken with the gateway.
    pub(super) fn new(scenario: &Scenario, kind: Kind, size: usize) -> Result<Self> {
        let devices =
            [("phone", Some(scenario.from.link())), ("desk", Some(scenario.to.link())), ("crowd", None)];
        let hub = Hub::new(SERVER_RTT, &devices)?;
        if kind == Kind::Little {
            hub.limit_receive_buffers(LITTLE)?;
        }
        let server = Server::start(&hub.server, size)?;
        let (gate, at) = match kind {
            Kind::Program => start_program(&hub.gateway.host)?,
            Kind::Own | Kind::Little => hub.gateway.wait("a gateway", start_own(kind == Kind::Little))??,
        };
        let connect = |number: usize| -> Result<Device> {
            let spoke = &hub.devices[number];
            spoke.site.wait("connect", Device::connect(place(spoke, at)))?
        };
        let (phone, desk) = (connect(PHONE)?, connect(DESK)?);
        Ok(Self { phone, desk, server, gate, at, hub })
    }

    pub(super) fn phone_host(&self) -> &Spoke {
        &self.hub.devices[PHONE]
    }

    pub(super) fn desk_host(&self) -> &Spoke {
        &self.hub.devices[DESK]
    }

    /// The host of many devices, beside the gateway.
    pub(super) fn crowd_host(&self) -> &Spoke {
        &self.hub.devices[CROWD]
    }

    /// One of these.
    pub(super) fn one_of_crowd(&self) -> Result<Device> {
        let spoke = self.crowd_host();
        spoke.site.wait("connect", Device::connect(place(spoke, self.at)))?
    }

    /// The process of a gateway that is a program.
    pub(super) fn gateway_pid(&mut self) -> Result<u32> {
        match &mut self.gate {
            Gate::Program { child, .. } => Ok(child.child().id()),
            Gate::Own { .. } => anyhow::bail!("the gateway is this process"),
        }
    }

    /// Has a program of the phone ask for something, and takes its session to the desk so long after the
    /// beginning. Returns that moment once the program there has its first byte.
    pub(super) fn run(&self, work: Work, after: Duration) -> Result<(Instant, Moved)> {
        let (phone, desk) = (&self.phone_host().site, &self.desk_host().site);
        let begun = Instant::now();
        let first = phone.within(LIMIT, "open", async {
            let opened = self.phone.open(self.server.address, work).await?;
            self.phone.hand_off(opened.id, self.desk.id()).await?;
            anyhow::Ok(opened)
        })??;
        let ends = desk.wait("a program", Ends::new())??;
        std::thread::sleep(after.saturating_sub(begun.elapsed()));
        let sender = self.server.sender()?;
        let id = first.id;
        let (second, moments, at) = desk.within(LIMIT, "take", async {
            let asked = Instant::now();
            let mut program = self.desk.take(id, ends).await?;
            let granted = Instant::now();
            let first = program.reading.first().await?;
            anyhow::Ok((program, [asked, granted], first))
        })??;
        let moved = Moved {
            asked: moments[0] - begun,
            first: at - moments[0],
            moments,
            sender,
            programs: [first, second],
        };
        Ok((begun, moved))
    }

    /// Waits until both programs have ended, and sees to it that what they got is what the server has, over
    /// one connection.
    pub(super) fn finish(&self, moved: Moved) -> Result<Rest> {
        let [first, second] = moved.programs;
        let offset = usize::try_from(second.offset)?;
        let (second, outcome) =
            self.desk_host().site.within(LIMIT, "the end at the desk", second.ended())??;
        ensure!(outcome == Outcome::Ended, "the session went on elsewhere");
        let (first, outcome) =
            self.phone_host().site.within(LIMIT, "the end at the phone", first.ended())??;
        ensure!(outcome == Outcome::Moved, "the session ended at the phone");
        ensure!(first.bytes.len() == offset, "the phone got {} bytes, not {offset}", first.bytes.len());
        let mut joined = Sha256::new();
        joined.update(&first.bytes);
        joined.update(&second.bytes);
        let is_whole = joined.finalize() == Sha256::digest(&*self.server.content);
        ensure!(is_whole, "{} and {} bytes are not the file", first.bytes.len(), second.bytes.len());
        ensure!(self.server.connections() == 1, "the server saw {} connections", self.server.connections());
        Ok(Rest { record: second, offset })
    }
}

/// Where a device finds the gateway.
fn place(spoke: &Spoke, (id, port): (EndpointId, u16)) -> EndpointAddr {
    EndpointAddr::new(id, [SocketAddr::new(spoke.gateway, port)])
}

async fn start_own(keeps_little: bool) -> Result<(Gate, (EndpointId, u16))> {
    let endpoint = Endpoint::builder().bind().await?;
    let mut listener = endpoint.listen(ListenOptions::unnamed().allow(Allow::Any)).await?;
    let rules = Rules::new(vec![SERVERS.parse()?], false);
    let mut settings = SessionSettings::default();
    if keeps_little {
        settings.most_kept = LITTLE;
    }
    let server = GatewayServer::new(Guard::new(rules), Quota::new(MOST, MOST)).with_sessions(settings);
    let task = tokio::spawn(async move {
        while let Some(connection) = listener.accept().await {
            tokio::spawn(serve(server.clone(), connection));
        }
    });
    let at = (endpoint.id(), endpoint.port());
    Ok((Gate::Own { _endpoint: endpoint, task }, at))
}

async fn serve(server: GatewayServer, connection: Connection) {
    while let Ok(stream) = connection.accept_stream().await {
        let server = server.clone();
        tokio::spawn(async move {
            match server.serve(stream).await {
                Ok(Served::Joined(..)) => tracing::warn!("a connection is no session"),
                Ok(_) => {}
                Err(error) => tracing::debug!(%error, "a request was declined"),
            }
        });
    }
}

fn start_program(host: &Host) -> Result<(Gate, (EndpointId, u16))> {
    let folder = Folder::new("gateway")?;
    let most = MOST.to_string();
    let arguments = ["gateway", "serve", "-q", "--ticket", "--json", "--allow", "any", "--to", SERVERS];
    let (child, said) =
        program::say(host, &folder.join("home"), &[&arguments[..], &["--most", &most, &most]].concat())?;
    let id = said["id"].as_str().context("the gateway does not say who it is")?.parse()?;
    let port = said["port"].as_u64().context("the gateway does not say where it is")?;
    Ok((Gate::Program { child, _folder: folder }, (id, u16::try_from(port)?)))
}
