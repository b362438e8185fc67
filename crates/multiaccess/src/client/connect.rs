//! Connections by the manager's decisions: the first two variants of the paper's API (*Socket Intents*, §V-A
//! and §V-B).

use super::{Client, ClientError};
use crate::protocol::{Ask, Protocol, Report, SocketOptions, Tried, Way};
use socket2::{Domain, Socket, Type};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use tokio::net::{TcpSocket, TcpStream};
use whimbrel_access::{Granularity, Intents};
use whimbrel_base::{Name, is_whimbrel_host, name_of_host};

/// For one way, and for a look-up by the system.
const LIMIT: Duration = Duration::from_secs(10);
/// IPPROTO_MPTCP.
const MPTCP: i32 = 262;

/// A way to connect: where to, from where, and what is to be set on the socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The address to connect to.
    pub destination: SocketAddr,
    /// The address to bind to. `None`: the system's choice.
    pub source: Option<IpAddr>,
    /// The interface. `None`: the system's choice.
    pub interface: Option<String>,
    /// By what.
    pub protocol: Protocol,
    /// What is to be set on the socket.
    pub options: SocketOptions,
    /// Why it has its place, in words.
    pub why: String,
    /// It failed lately for somebody. Who connects by it tells the manager that it works, as
    /// [`Client::connect`] does.
    pub failed_lately: bool,
}

/// A connection, and by which way it was made.
#[derive(Debug)]
pub struct Connected {
    /// The connection.
    pub stream: TcpStream,
    /// The way.
    pub by: Candidate,
}

impl Candidate {
    /// The way that the system goes by itself.
    fn of_system(destination: SocketAddr) -> Self {
        Self {
            destination,
            source: None,
            interface: None,
            protocol: Protocol::Tcp,
            options: SocketOptions::default(),
            why: "the system's choice".to_owned(),
            failed_lately: false,
        }
    }

    /// The way to open a connection that a decision names. `None`: it is an open connection.
    pub fn of_way(way: Way) -> Option<Self> {
        Some(Self {
            destination: way.destination?,
            source: way.source,
            interface: Some(way.interface),
            protocol: way.protocol,
            options: way.options,
            why: way.why,
            failed_lately: way.failed_lately,
        })
    }

    /// What tells the manager that this way failed. `None`: it is the system's, of which nobody is told.
    pub fn failure(&self) -> Option<Report> {
        let failed = Tried { interface: self.interface.clone()?, destination: self.destination };
        Some(Report { failed: Some(failed), ..Report::default() })
    }

    /// A socket with all options set and bound to the source, to be connected. Must run inside a tokio
    /// runtime.
    ///
    /// # Errors
    /// When the system refuses an option, such as an interface that is gone.
    pub fn socket(&self) -> io::Result<TcpSocket> {
        let domain = Domain::for_address(self.destination);
        let socket = match self.protocol {
            Protocol::Tcp => Socket::new(domain, Type::STREAM, None),
            // A kernel without MPTCP has TCP, on one of the paths.
            Protocol::Mptcp => Socket::new(domain, Type::STREAM, Some(MPTCP.into()))
                .or_else(|_| Socket::new(domain, Type::STREAM, None)),
            Protocol::Whimbrel => Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "a connection of Whimbrel is made by an endpoint, not by a socket",
            )),
        }?;
        socket.set_nonblocking(true)?;
        // A multipath connection is not to be held to one interface; its first path has the source.
        if let Some(interface) = &self.options.bind_to_device
            && self.protocol == Protocol::Tcp
        {
            socket.bind_device(Some(interface.as_bytes()))?;
        }
        if self.options.tcp_nodelay {
            socket.set_tcp_nodelay(true)?;
        }
        if let Some(dscp) = self.options.dscp {
            let class = u32::from(dscp & 0x3f) << 2;
            match self.destination {
                SocketAddr::V4(_) => socket.set_tos_v4(class)?,
                SocketAddr::V6(_) => socket.set_tclass_v6(class)?,
            }
        }
        if let Some(source) = self.source {
            socket.bind(&SocketAddr::new(source, 0).into())?;
        }
        Ok(TcpSocket::from_std_stream(socket.into()))
    }

    /// Connects this way.
    ///
    /// # Errors
    /// What the system says; after ten seconds that it took too long.
    pub async fn connect(&self) -> io::Result<TcpStream> {
        let connecting = self.socket()?.connect(self.destination);
        tokio::time::timeout(LIMIT, connecting).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl Client {
    /// Connects to a host, by the network that fits what is said of the traffic. Ways that do not answer
    /// within 250 ms are tried beside the next one.
    ///
    /// Without a manager this is the system's way.
    ///
    /// # Errors
    /// [`ClientError::ByWhimbrel`] for a name of Whimbrel, which neither DNS nor the system is asked about,
    /// [`ClientError::NoWay`] where the policy leaves none, [`ClientError::Connect`] where none works, and
    /// [`ClientError::Refused`] if the question makes no sense.
    pub async fn connect(&self, host: &str, port: u16, intents: Intents) -> Result<Connected, ClientError> {
        let candidates = self.resolve(host, port, intents).await?;
        let connected = self.connect_by_these_or_others(candidates, host, port, intents).await?;
        self.have_steered(&connected, &intents);
        Ok(connected)
    }

    /// Looks a host up, by each interface for itself. Returns the ways to connect, best first, for a
    /// connection that the program makes itself, as by Happy Eyeballs of its own.
    ///
    /// Without a manager these are the system's addresses.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn resolve(
        &self,
        host: &str,
        port: u16,
        intents: Intents,
    ) -> Result<Vec<Candidate>, ClientError> {
        check(host, port)?;
        if is_local(host) {
            return self.system(host, port).await;
        }
        let to = target(host, port);
        let granularity = Granularity::Connection;
        let ask = Ask { intents, granularity, to: Some(to.clone()), ..Ask::default() };
        match self.ask(ask).await {
            Ok(verdict) if verdict.local => self.system(host, port).await,
            Ok(verdict) => {
                let found: Vec<Candidate> = verdict.ways.into_iter().filter_map(Candidate::of_way).collect();
                if found.is_empty() {
                    return Err(ClientError::NoWay { to, why: verdict.problems.join("; ") });
                }
                Ok(found)
            }
            Err(error) => self.by_system(error, host, port).await,
        }
    }

    /// The system's addresses, if it is the manager that is not there.
    pub(super) async fn by_system(
        &self,
        error: ClientError,
        host: &str,
        port: u16,
    ) -> Result<Vec<Candidate>, ClientError> {
        if matches!(error, ClientError::Refused(_)) {
            return Err(error);
        }
        self.tell_once(&error);
        self.system(host, port).await
    }

    /// The system's addresses.
    pub(super) async fn system(&self, host: &str, port: u16) -> Result<Vec<Candidate>, ClientError> {
        let failed = |source| ClientError::Connect { to: target(host, port), source };
        let looking = tokio::time::timeout(LIMIT, tokio::net::lookup_host((host, port)));
        let found = looking.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
        let found: Vec<Candidate> = found.map(Candidate::of_system).collect();
        if found.is_empty() { Err(failed(io::ErrorKind::NotFound.into())) } else { Ok(found) }
    }
}

/// Whether this is this host, so that there is nothing to choose (RFC 6761, §6.3).
pub(super) fn is_local(host: &str) -> bool {
    match host.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => host
            .trim_end_matches('.')
            .rsplit('.')
            .next()
            .is_some_and(|last| last.eq_ignore_ascii_case("localhost")),
    }
}

/// Refuses a name of Whimbrel, as it is or as a host: neither DNS nor a socket leads there.
pub(super) fn check(host: &str, port: u16) -> Result<(), ClientError> {
    let plain = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
    let name = match (plain.contains('@'), is_whimbrel_host(&plain)) {
        (true, _) => plain.parse::<Name>().ok(),
        (false, true) => name_of_host(&plain),
        (false, false) => return Ok(()),
    };
    let to = target(host, port);
    Err(match name {
        Some(name) => ClientError::ByWhimbrel { to, endpoint: name.to_string() },
        None => ClientError::Refused(format!(
            "{to} is no name of Whimbrel; one is written as ssh.laptop.user@example.org"
        )),
    })
}

/// As it stands in questions.
pub(super) fn target(host: &str, port: u16) -> String {
    match host.parse() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    }
}
