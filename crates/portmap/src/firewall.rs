//! A router's IPv6 firewall that is asked by UPnP: how it is found, and what it is told.
//!
//! igd-next, which asks for ports of IPv4, does not know this service, and leaves it to the kernel from which
//! address it asks. A router compares that address with the one that is to be let in.

mod said;

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::num::NonZeroU16;
use std::time::Duration;

use crab_nat::InternetProtocol;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::timeout;

#[cfg(feature = "fuzzing")]
pub(crate) use self::said::decode_anything;
use self::said::{Answer, Page, description, search};

/// For the answer to the first search, and to the second one: a router is one hop away.
const PATIENCE: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1000)];
/// For an answer over HTTP.
const TALK: Duration = Duration::from_secs(1);
/// The UDP port of searches.
const PORT: u16 = 1900;
/// Of a datagram that answers one.
const LONGEST: usize = 2048;
/// Of a description: those of routers have some 4 KB.
const LONGEST_ANSWER: usize = 128 * 1024;

/// Why a router's IPv6 firewall is not opened by UPnP.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FirewallError {
    /// It cannot be asked.
    #[error("it cannot be asked by UPnP: {0}")]
    Socket(#[from] io::Error),
    /// It does not answer.
    #[error("it does not answer to UPnP over IPv6")]
    Silent,
    /// It describes itself, without an IPv6 firewall.
    #[error("by UPnP it has no IPv6 firewall that can be asked")]
    NoService,
    /// What it answers cannot be read.
    #[error("it answers to UPnP what cannot be read")]
    Garbled,
    /// It refuses.
    #[error("it refuses by UPnP: {0}")]
    Refused(FirewallRefusal),
}

/// A router's reason to refuse: an error code of UPnP's WANIPv6FirewallControl:1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirewallRefusal(pub u16);

impl fmt::Display for FirewallRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            401 => "unknown action",
            402 => "invalid arguments",
            501 => "it failed",
            606 => "not authorized",
            701 => "no room for another pinhole",
            702 => "its firewall is switched off",
            703 => "its owner lets nobody open it",
            704 => "no such pinhole",
            705 => "that protocol is not let in",
            706..=708 => "it wants to know more exactly what to let in",
            code => return write!(f, "error code {code}"),
        };
        f.write_str(words)
    }
}

/// A router's firewall, and an address of this host behind it.
#[derive(Clone, Debug)]
pub(crate) struct Firewall {
    own: Ipv6Addr,
    control: Page,
}

/// A port that it lets in.
#[derive(Clone, Debug)]
pub(crate) struct LetIn {
    firewall: Firewall,
    number: u16,
}

impl Firewall {
    /// Finds that of a router, for an address of this host. Takes 2.5 seconds at most. Cancel-safe.
    pub(crate) async fn find(own: Ipv6Addr, router: SocketAddrV6) -> Result<Self, FirewallError> {
        let page = described(own, router).await?;
        let answer = exchange(own, &page, &page.get()).await?;
        let control = answer.control(&page).ok_or(FirewallError::NoService)?;
        Ok(Self { own, control })
    }

    /// Has a port let in, for so long. If it is already, that goes on. Takes a second at most.
    pub(crate) async fn open(
        self,
        protocol: InternetProtocol,
        port: NonZeroU16,
        lifetime: Duration,
    ) -> Result<LetIn, FirewallError> {
        let question = self.control.add(self.own, protocol, port, lifetime);
        let answer = exchange(self.own, &self.control, &question).await?;
        let number = answer.pinhole().ok_or_else(|| refused(&answer))?;
        Ok(LetIn { firewall: self, number })
    }
}

impl LetIn {
    /// Tells the router that it is no longer needed. Takes a second at most.
    pub(crate) async fn close(self) -> Result<(), FirewallError> {
        let Firewall { own, control } = self.firewall;
        let answer = exchange(own, &control, &control.delete(self.number)).await?;
        if answer.is_done() { Ok(()) } else { Err(refused(&answer)) }
    }
}

fn refused(answer: &Answer) -> FirewallError {
    answer.refusal().map_or(FirewallError::Garbled, |code| FirewallError::Refused(FirewallRefusal(code)))
}

/// The page on which the router describes itself.
async fn described(own: Ipv6Addr, router: SocketAddrV6) -> Result<Page, FirewallError> {
    let socket = UdpSocket::bind(SocketAddrV6::new(own, 0, 0, 0)).await?;
    let question = search(*router.ip());
    let to = SocketAddrV6::new(*router.ip(), PORT, 0, router.scope_id());
    for patience in PATIENCE {
        socket.send_to(question.as_bytes(), to).await?;
        if let Ok(found) = timeout(patience, next_page(&socket, own, router)).await {
            return found;
        }
    }
    Err(FirewallError::Silent)
}

/// What the first datagram says that answers. Cancel-safe.
async fn next_page(socket: &UdpSocket, own: Ipv6Addr, router: SocketAddrV6) -> Result<Page, FirewallError> {
    let mut datagram = [0; LONGEST];
    loop {
        let (size, from) = socket.recv_from(&mut datagram).await?;
        if let IpAddr::V6(from) = from.ip()
            && let Some(page) = description(&datagram[..size], from, own, router)
        {
            return Ok(page);
        }
    }
}

/// What the router answers to a question of HTTP.
async fn exchange(own: Ipv6Addr, page: &Page, question: &str) -> Result<Answer, FirewallError> {
    timeout(TALK, talk(own, page.at(), question)).await.unwrap_or(Err(FirewallError::Silent))
}

async fn talk(own: Ipv6Addr, to: SocketAddrV6, question: &str) -> Result<Answer, FirewallError> {
    let socket = TcpSocket::new_v6()?;
    socket.bind(SocketAddr::V6(SocketAddrV6::new(own, 0, 0, 0)))?;
    let mut stream = socket.connect(SocketAddr::V6(to)).await?;
    stream.write_all(question.as_bytes()).await?;
    let mut heard: Vec<u8> = Vec::with_capacity(4096);
    loop {
        let is_over = stream.read_buf(&mut heard).await? == 0;
        match Answer::read(&heard, is_over) {
            Some(answer) => return Ok(answer),
            None if is_over || heard.len() > LONGEST_ANSWER => return Err(FirewallError::Garbled),
            None => {}
        }
    }
}
