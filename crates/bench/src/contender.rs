//! Systems that compete in the lab with two links: the subject in its modes, kernel MPTCP, TCP on one link,
//! and an application that hands over by itself.

mod http;
mod ideal;
mod signal;
pub(crate) mod sockets;
mod whimbrel;

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use whimbrel_lab::MptcpUse;
use whimbrel_transport::{Carriers, HandoverMode, SchedulerKind};

use self::signal::Signal;
use crate::flow::{self, Flow, Notes, Way};
use crate::lab::{CARRIER, TwoLinks};
use crate::system::Channel;

/// Where every server listens.
const PORT: u16 = 7000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Contender {
    /// The subject, with both links.
    Whimbrel(HandoverMode),
    /// The subject, with both links, and the same share of bytes for each.
    EqualShares,
    /// The subject, with one link only.
    OnePath(usize),
    /// The same, with whatever carriers it chooses by itself.
    AnyCarrier(usize),
    /// The kernel's MPTCP; the second link is a backup, or not.
    Mptcp { backup: bool },
    /// TCP on one link.
    Tcp(usize),
    /// An HTTP client over TCP that goes on over the other link with a Range header.
    Http,
    /// TCP on both links, of which only the bytes are counted, in whatever order they come.
    Ideal,
}

impl fmt::Display for Contender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whimbrel(mode) => write!(f, "whimbrel {mode}"),
            Self::EqualShares => f.write_str("whimbrel full, equal shares"),
            Self::OnePath(link) => write!(f, "one path, {}", ordinal(*link)),
            Self::AnyCarrier(link) => write!(f, "whimbrel auto, {}", ordinal(*link)),
            Self::Mptcp { backup: false } => f.write_str("mptcp full"),
            Self::Mptcp { backup: true } => f.write_str("mptcp backup"),
            Self::Tcp(link) => write!(f, "tcp, {}", ordinal(*link)),
            Self::Http => f.write_str("application"),
            Self::Ideal => f.write_str("ideal"),
        }
    }
}

fn ordinal(link: usize) -> &'static str {
    ["first link", "second link"][link]
}

impl Contender {
    pub(crate) const FULL: Self = Self::Whimbrel(HandoverMode::Full);
    pub(crate) const BACKUP: Self = Self::Whimbrel(HandoverMode::Backup);
    pub(crate) const SINGLE: Self = Self::Whimbrel(HandoverMode::Single);
    pub(crate) const MPTCP: Self = Self::Mptcp { backup: false };
    pub(crate) const MPTCP_BACKUP: Self = Self::Mptcp { backup: true };

    fn second_link(self) -> Option<MptcpUse> {
        match self {
            Self::Mptcp { backup: false } => Some(MptcpUse::Subflow),
            Self::Mptcp { backup: true } => Some(MptcpUse::Backup),
            _ => None,
        }
    }

    /// Tells it of a loss that the host has seen, if it does not see by itself.
    pub(crate) fn tell_loss(self, net: &TwoLinks, link: usize) -> Result<()> {
        if self.second_link().is_some() { net.tell_mptcp_of_loss(link) } else { Ok(()) }
    }

    /// Tells it that a link is back.
    pub(crate) fn tell_return(self, net: &TwoLinks, link: usize) -> Result<()> {
        self.second_link().map_or(Ok(()), |second| {
            net.tell_mptcp_of_return(link, if link == 0 { MptcpUse::Subflow } else { second })
        })
    }

    /// How the subject is set up, if this is the subject.
    fn setup(self) -> Result<whimbrel::Setup> {
        let setup = whimbrel::Setup { carriers: CARRIER.parse()?, ..whimbrel::Setup::default() };
        Ok(match self {
            Self::Whimbrel(mode) => whimbrel::Setup { mode, ..setup },
            Self::EqualShares => {
                let scheduler = SchedulerKind::RoundRobin;
                whimbrel::Setup { mode: HandoverMode::Full, scheduler, ..setup }
            }
            Self::OnePath(link) => whimbrel::Setup { link: Some(link), ..setup },
            Self::AnyCarrier(link) => whimbrel::Setup { link: Some(link), carriers: Carriers::Auto, ..setup },
            _ => bail!("{self} is a peer"),
        })
    }

    /// Starts a server and a client, and connects them.
    pub(crate) fn start(self, net: &TwoLinks) -> Result<Session<'_>> {
        let notes = Arc::new(Notes::new());
        let handler = flow::server(notes.clone());
        let link = match self {
            Self::Whimbrel(_) | Self::EqualShares | Self::OnePath(_) | Self::AnyCarrier(_) => {
                Link::Whimbrel(whimbrel::start(net, self.setup()?, handler)?)
            }
            Self::Mptcp { .. } => {
                net.allow_mptcp(self.second_link().context("no MPTCP")?)
                    .context("the kernel has no usable MPTCP (net.mptcp.enabled)")?;
                Link::Socket(sockets::start(net, sockets::Kind::Mptcp, None, handler)?)
            }
            Self::Tcp(link) => Link::Socket(sockets::start(net, sockets::Kind::Tcp, Some(link), handler)?),
            Self::Http => Link::Http(http::Client::start(net)?),
            Self::Ideal => Link::Ideal(ideal::Client::start(net, handler)?),
        };
        Ok(Session { net, link, notes })
    }
}

/// What joins both ends.
enum Link {
    Whimbrel(whimbrel::Client),
    Socket(Channel),
    Http(http::Client),
    Ideal(ideal::Client),
}

/// A connected client.
pub(crate) struct Session<'a> {
    net: &'a TwoLinks,
    link: Link,
    pub(crate) notes: Arc<Notes>,
}

impl Session<'_> {
    /// Runs a flow until a moment, or to its end. False if the moment came first.
    pub(crate) fn run_until(&mut self, flow: Flow, moment: Instant) -> Result<bool> {
        let limit = moment.saturating_duration_since(Instant::now()) + Duration::from_secs(5);
        self.trace("before");
        let Self { net, link, notes } = self;
        let ended: io::Result<bool> = match link {
            Link::Whimbrel(client) => {
                let run = flow::until(moment, flow::ask(&mut client.channel, flow, notes));
                net.client.within(limit, "a flow", run)?
            }
            Link::Socket(channel) => {
                net.client.within(limit, "a flow", flow::until(moment, flow::ask(channel, flow, notes)))?
            }
            Link::Http(client) => {
                let bytes = downloaded(flow)?;
                net.client.within(limit, "a flow", flow::until(moment, client.download(bytes, notes)))?
            }
            Link::Ideal(client) => {
                let bytes = downloaded(flow)?;
                net.client.within(limit, "a flow", flow::until(moment, client.download(bytes, notes)))?
            }
        };
        self.trace("after");
        Ok(ended?)
    }

    /// Begins to watch for the server's knowledge that a path is gone.
    pub(crate) fn signal(&self, net: &TwoLinks) -> Result<Signal> {
        match &self.link {
            Link::Whimbrel(client) => client.accepted().map(Signal::paths),
            Link::Socket(_) => Signal::removals(net),
            Link::Http(_) | Link::Ideal(_) => bail!("nobody tells the server"),
        }
    }

    /// Runs a flow to its end; it may take so long. Returns how long it took.
    pub(crate) fn run(&mut self, flow: Flow, limit: Duration) -> Result<Duration> {
        let began = Instant::now();
        if !self.run_until(flow, began + limit)? {
            bail!("a flow did not end within {limit:?}, {} bytes came", self.notes.bytes());
        }
        Ok(began.elapsed())
    }

    /// Tells (at level debug) how the server's end of the subject's connection stands.
    pub(crate) fn trace(&self, when: &str) {
        if let Link::Whimbrel(client) = &self.link
            && let Ok(connection) = client.accepted()
        {
            tracing::debug!(when, stats = ?connection.stats());
        }
    }

    /// The client's connection, if it is the subject's.
    pub(crate) fn connection(&self) -> Option<&whimbrel_transport::Connection> {
        match &self.link {
            Link::Whimbrel(client) => Some(&client.connection),
            Link::Socket(_) | Link::Http(_) | Link::Ideal(_) => None,
        }
    }
}

/// The size of a file that comes down.
fn downloaded(flow: Flow) -> Result<u64> {
    match (flow.way, flow.pattern) {
        (Way::Down, flow::Pattern::Bulk { bytes }) => Ok(bytes),
        _ => bail!("this contender carries downloads of files only"),
    }
}
