//! The testbed: a client with a manager for each policy and two links, and the web server.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use socket2::{Domain, Socket, Type};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::JoinHandle;
use whimbrel_lab::{Direction, MptcpUse};
use whimbrel_multiaccess::protocol::PathReport;
use whimbrel_multiaccess::{Client, InterfaceSettings, Manager, Settings};
use whimbrel_proxy::{HttpProxy, HttpSettings, Managed};

use super::content::object_path;
use super::loader::Loader;
use super::scenario::{Recording, Scenario};
use super::server::{ASIDE, HOSTS, PORT, Server, address};
use super::servers::Servers;
use super::site::Site;
use super::system::System;
use crate::lab::{Access, TwoLinks};

/// The server's interface and its router.
const SERVER_INTERFACE: &str = "eth0";
const SERVER_ROUTER: &str = "10.0.9.1";
/// The longest that one page may take.
pub(super) const PAGE_LIMIT: Duration = Duration::from_secs(120);
/// So long a link is filled until the manager should know its rate.
const FILLED: Duration = Duration::from_millis(1500);
/// Fillings before the manager is given up.
const FILLINGS: usize = 8;
/// A rate is known when the manager's figure is so near.
const NEAR: f64 = 0.2;
/// So far is one part of a recorded link behind the other.
const PART: Duration = Duration::from_secs(17);
/// For the manager to say something, and for the server to answer.
const ANSWER: Duration = Duration::from_secs(20);
/// Exchanges on the connections that tell round-trip times: at first, and before each page.
const FIRST_PINGS: usize = 12;
const PINGS: usize = 2;

/// The networks, the server and the managers. Fields are dropped in this order.
pub(super) struct World {
    managers: HashMap<System, Managing>,
    /// A connection over each link that is open all the time, as other programs' are.
    pings: [TcpStream; 2],
    pub(super) server: Server,
    pub(super) sites: Arc<Vec<Site>>,
    folder: tempfile::TempDir,
    pub(super) net: TwoLinks,
    is_multipath: bool,
    /// Of the proxy, instead of its own.
    pub(super) first_step: Option<u64>,
    /// What the second link plays, if it is a recorded one.
    recording: Option<Recording>,
    /// Which part of it the next page meets: by all systems the same, or they were not compared.
    pub(super) part: u32,
}

struct Managing {
    _manager: Manager,
    socket: PathBuf,
}

/// A proxy that serves one page. It ends when this is dropped.
pub(super) struct Proxying {
    pub(super) address: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Proxying {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl World {
    /// Starts everything for these ways to load, and waits until the managers know the links.
    pub(super) fn new(
        scenario: &Scenario,
        traces: &Path,
        sites: Arc<Vec<Site>>,
        systems: &[System],
        servers: Servers,
    ) -> Result<Self> {
        let recording = scenario.recording(traces)?;
        let mut world = Self::with(scenario.accesses(recording.as_ref()), sites, systems, servers)?;
        world.recording = recording;
        world.warm_up(scenario)?;
        Ok(world)
    }

    /// The same with any links, of whose rates the managers know nothing yet.
    pub(super) fn with(
        accesses: [Access; 2],
        sites: Arc<Vec<Site>>,
        systems: &[System],
        servers: Servers,
    ) -> Result<Self> {
        let net = TwoLinks::new(&accesses)?;
        let host = &net.server.host;
        if let Some(name) = servers.congestion_control() {
            host.set_congestion_control(name);
            // Again, so that the route has it.
            host.add_default_route(SERVER_INTERFACE, SERVER_ROUTER, 1)?;
        }
        for number in 0..u16::from(HOSTS) {
            host.add_address(SERVER_INTERFACE, &format!("{}/24", address(number)))?;
        }
        let is_multipath = net.allow_mptcp(MptcpUse::Subflow).is_ok();
        let documents = sites.iter().map(Site::html).collect();
        let server = Server::start(&net.server.host, &net.server.runtime, documents)?;
        let folder = tempfile::tempdir()?;
        let mut managers = HashMap::new();
        for system in systems {
            if let Some(policy) = system.policy() {
                let socket = folder.path().join(system.to_string().replace(' ', "-"));
                let interface = |link| InterfaceSettings {
                    name: net.interface(link).to_owned(),
                    ..InterfaceSettings::default()
                };
                let settings =
                    Settings { policy, interface: vec![interface(0), interface(1)], ..Settings::default() };
                let start = async { Manager::start(settings, UnixListener::bind(&socket)?).await };
                let start = async { start.await.context("the manager does not start") };
                let manager = net.client.wait("starting a manager", start)??;
                managers.insert(*system, Managing { _manager: manager, socket });
            }
        }
        let pings = [ping_connection(&net, 0)?, ping_connection(&net, 1)?];
        let (first_step, recording, part) = (None, None, 0);
        let mut world =
            Self { managers, pings, server, sites, folder, net, is_multipath, first_step, recording, part };
        world.ping(FIRST_PINGS)?;
        Ok(world)
    }

    /// Whether the kernel has Multipath TCP; without it the policies that want it use TCP.
    pub(super) fn is_multipath(&self) -> bool {
        self.is_multipath
    }

    /// A folder for what a browser needs.
    pub(super) fn folder(&self, name: &str) -> Result<PathBuf> {
        let folder = self.folder.path().join(name);
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// A fresh proxy, which has no open connections; without one where the system has none.
    pub(super) fn proxy(&self, system: System) -> Result<Option<Proxying>> {
        if system == System::NoProxy {
            return Ok(None);
        }
        let managing = self.managers.get(&system).context("this policy has no manager here")?;
        let upstream = Managed::new(Client::at(&managing.socket));
        let listening = async { TcpListener::bind("127.0.0.1:0").await };
        let listener = self.net.client.wait("the proxy's socket", listening)??;
        let address = listener.local_addr()?;
        let mut settings = HttpSettings::default();
        settings.first_step = self.first_step.unwrap_or(settings.first_step);
        let proxy = HttpProxy::new(Arc::new(upstream), settings);
        let task = self.net.client.runtime.spawn(async move { proxy.serve(listener).await });
        Ok(Some(Proxying { address, task }))
    }

    /// Loads a page with the small browser, and checks every byte.
    pub(super) fn load(&mut self, document: usize, system: System) -> Result<Duration> {
        self.make_ready()?;
        let proxy = self.proxy(system)?;
        let site = self.sites.get(document).context("there is no such page")?;
        let loader = Loader::new(site, document, proxy.as_ref().map(|proxy| proxy.address));
        self.net.client.within(2 * PAGE_LIMIT, "a page", loader.load(PAGE_LIMIT))?
    }

    /// Before each page: the round trips are told, what was sent is forgotten, and a recorded link goes on
    /// with the part that this page meets.
    pub(super) fn make_ready(&mut self) -> Result<()> {
        self.ping(PINGS)?;
        self.server.take_sent();
        if let (Some(recording), Some(link)) = (&self.recording, self.net.link(1)) {
            let Recording { up, down } = recording.starting_at(PART * self.part);
            link.set_trace(Direction::Forward, up);
            link.set_trace(Direction::Backward, down);
        }
        Ok(())
    }

    /// Small requests on the connections that tell the links' round-trip times.
    fn ping(&mut self, times: usize) -> Result<()> {
        for _ in 0..times {
            for (link, stream) in self.pings.iter_mut().enumerate() {
                get(stream, 100).with_context(|| format!("a small request over link {}", link + 1))?;
            }
        }
        Ok(())
    }

    /// Fills each link until all managers know how much it carries.
    fn warm_up(&mut self, scenario: &Scenario) -> Result<()> {
        let mut known = Vec::new();
        for _ in 0..FILLINGS {
            for (link, kbit) in scenario.kbits.iter().enumerate() {
                let bytes = *kbit as f64 * 125.0 * FILLED.as_secs_f64();
                get(&mut connect(&self.net, link)?, bytes as u64)?;
            }
            self.ping(PINGS)?;
            known = Vec::new();
            for (system, managing) in &self.managers {
                known.push((*system, self.rates(&managing.socket)?));
            }
            let is_near = |(link, rate): (usize, &f64)| match scenario.goodput(link) {
                Some(goodput) => (rate / goodput - 1.0).abs() < NEAR,
                // It changes: any figure is one.
                None => *rate > 0.0,
            };
            if known.iter().all(|(_, rates)| rates.iter().enumerate().all(is_near)) {
                return Ok(());
            }
        }
        bail!("the managers do not find out what the links carry ({:?} kbit/s): {known:?}", scenario.kbits);
    }

    /// What a manager thinks that each link carries, in bytes a second; 0 if it does not know.
    fn rates(&self, socket: &Path) -> Result<[f64; 2]> {
        #[derive(Deserialize)]
        struct Line {
            paths: Option<Vec<PathReport>>,
        }
        let watching = async {
            let mut watcher = Client::at(socket).watch(false).await?;
            let mut lines = 0;
            loop {
                let line: Line = serde_json::from_str(&watcher.next().await?)?;
                lines += 1;
                ensure!(lines < 100, "the manager does not speak of paths");
                if let Some(paths) = line.paths {
                    return anyhow::Ok(paths);
                }
            }
        };
        let paths = self.net.client.within(ANSWER, "the manager's paths", watching)??;
        Ok([0, 1].map(|link| {
            let path = paths.iter().find(|path| path.interface == self.net.interface(link));
            path.and_then(|path| path.down_best).unwrap_or(0.0)
        }))
    }
}

/// A connection over a link to the host that belongs to no page.
fn connect(net: &TwoLinks, link: usize) -> Result<TcpStream> {
    let to = SocketAddr::new(IpAddr::V4(address(ASIDE)), PORT);
    let from = SocketAddr::new(net.address(link), 0);
    let connecting = || -> std::io::Result<TcpStream> {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
        socket.bind_device(Some(net.interface(link).as_bytes()))?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), ANSWER)?;
        Ok(socket.into())
    };
    let stream = net.client.host.run(connecting).context("the web server does not answer")?;
    stream.set_read_timeout(Some(ANSWER))?;
    Ok(stream)
}

fn ping_connection(net: &TwoLinks, link: usize) -> Result<TcpStream> {
    let stream = connect(net, link)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Gets an object of that size and throws it away. Waits until all of it is there, or the limit is over.
fn get(stream: &mut TcpStream, bytes: u64) -> Result<()> {
    let request = format!("GET {} HTTP/1.1\r\nHost: {}\r\n\r\n", object_path(0, bytes), address(ASIDE));
    stream.write_all(request.as_bytes())?;
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        ensure!(head.len() < 4096, "the answer's head has no end");
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    let began = Instant::now();
    let got = std::io::copy(&mut stream.take(bytes), &mut std::io::sink())?;
    ensure!(got == bytes, "{got} of {bytes} bytes came in {:?}", began.elapsed());
    Ok(())
}
