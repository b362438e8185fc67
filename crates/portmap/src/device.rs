//! A router that is asked by UPnP, whatever for: how it is found (UPnP Device Architecture 1.1 §1.3), and how
//! it is told (§3). Spoken from the address of this host that it is about: a router compares them.

mod refusal;
mod said;
mod xml;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, UdpSocket};
use tokio::time::{Instant, timeout, timeout_at};

pub use self::refusal::{UpnpError, UpnpRefusal};
pub(crate) use self::said::Answer;
#[cfg(feature = "fuzzing")]
pub(crate) use self::said::decode_anything;
use self::said::{Heard, Page, heard, search};

/// For the answer to the first search, and to the second one: a router is one hop away.
const PATIENCE: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(1000)];
/// For a page that describes a device.
const TALK: Duration = Duration::from_secs(1);
/// For all of a search.
const SEARCH: Duration = Duration::from_millis(2500);
/// The UDP port of searches, and the group of IPv4 that hears them.
const PORT: u16 = 1900;
const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 250);
/// Pages that one search has described: a router may be a printer and a disk as well.
const MOST_PAGES: usize = 3;
/// Of a datagram that answers a search.
const LONGEST: usize = 2048;
/// Of an answer over HTTP: descriptions of routers have some 4 KB.
const LONGEST_ANSWER: u64 = 128 * 1024;
/// Pieces that one comes in. What has come is looked at anew with each.
const MOST_PIECES: usize = 8192;

/// Looks for a service of a router.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Search {
    /// The address of this host that the router is to see.
    pub(crate) own: IpAddr,
    /// The router, at whichever port.
    pub(crate) router: SocketAddr,
    /// What is searched for: devices answer to what they are and have.
    pub(crate) targets: &'static [&'static str],
    /// The services that do.
    pub(crate) services: &'static [&'static str],
    /// What is missing where there is none of them.
    pub(crate) missing: &'static str,
}

/// A service of a router that is asked from one address of this host.
#[derive(Clone, Debug)]
pub(crate) struct Service {
    own: IpAddr,
    kind: &'static str,
    control: Page,
}

impl Search {
    /// Finds it. Takes 2.5 seconds at most. Cancel-safe.
    pub(crate) async fn find(self) -> Result<Service, UpnpError> {
        let to = match self.router {
            // Not all of them hear what is sent to themselves.
            SocketAddr::V4(_) => SocketAddr::new(GROUP.into(), PORT),
            SocketAddr::V6(mut router) => {
                router.set_port(PORT);
                router.into()
            }
        };
        self.find_by(to).await
    }

    /// Finds it by what comes back from there.
    async fn find_by(self, to: SocketAddr) -> Result<Service, UpnpError> {
        let mut why = UpnpError::Silent;
        let found = timeout(SEARCH, self.look(to, &mut why)).await;
        match found {
            Ok(Ok(Some(service))) => Ok(service),
            Ok(Err(error)) => Err(error.into()),
            Ok(Ok(None)) | Err(_) => Err(why),
        }
    }

    /// Finds it, or notes why it does not.
    async fn look(self, to: SocketAddr, why: &mut UpnpError) -> Result<Option<Service>, io::Error> {
        let socket = UdpSocket::bind(SocketAddr::new(self.own, 0)).await?;
        for patience in PATIENCE {
            for target in self.targets {
                socket.send_to(search(to, target).as_bytes(), to).await?;
            }
            let until = Instant::now() + patience;
            // A page that did not come is asked for again in the next round.
            let mut seen = Vec::new();
            while let Ok(answered) = timeout_at(until, self.next(&socket)).await {
                match answered? {
                    Heard::Router(page) if seen.len() < MOST_PAGES && !seen.contains(&page) => {
                        match self.service(&page).await {
                            Ok(service) => return Ok(Some(service)),
                            Err(error) => *why = error,
                        }
                        seen.push(page);
                    }
                    Heard::Stranger(ip) if matches!(*why, UpnpError::Silent) => {
                        *why = UpnpError::Stranger(ip);
                    }
                    _ => {}
                }
            }
        }
        Ok(None)
    }

    /// What the next datagram says. Cancel-safe.
    async fn next(&self, socket: &UdpSocket) -> io::Result<Heard> {
        let mut datagram = [0; LONGEST];
        let (size, from) = socket.recv_from(&mut datagram).await?;
        Ok(heard(&datagram[..size], from.ip(), self.own, self.router))
    }

    /// The service that a page describes.
    async fn service(&self, page: &Page) -> Result<Service, UpnpError> {
        let answer = exchange(self.own, page, &page.get(), TALK).await?;
        let (kind, control) =
            answer.control(page, self.services).ok_or(UpnpError::NoService(self.missing))?;
        Ok(Service { own: self.own, kind, control })
    }
}

impl Service {
    /// One that was found already.
    #[cfg(test)]
    pub(crate) fn at(own: IpAddr, kind: &'static str, url: &str) -> Option<Self> {
        Page::absolute(url).map(|control| Self { own, kind, control })
    }

    /// Which of those that were looked for.
    pub(crate) fn kind(&self) -> &'static str {
        self.kind
    }

    /// Asks the router to do something, and waits for its answer for so long.
    pub(crate) async fn ask(
        &self,
        action: &str,
        arguments: &[(&str, String)],
        limit: Duration,
    ) -> Result<Answer, UpnpError> {
        let question = self.question(action, arguments);
        let answer = exchange(self.own, &self.control, &question, limit).await?;
        match answer.refusal() {
            Some(code) => Err(UpnpError::Refused(UpnpRefusal(code))),
            None if answer.is_done() => Ok(answer),
            None => Err(UpnpError::Garbled),
        }
    }

    /// What it is asked.
    pub(crate) fn question(&self, action: &str, arguments: &[(&str, String)]) -> String {
        self.control.call(self.kind, action, arguments)
    }
}

/// What the router answers to a question of HTTP.
async fn exchange(own: IpAddr, page: &Page, question: &str, limit: Duration) -> Result<Answer, UpnpError> {
    timeout(limit, talk(own, page.at(), question)).await.unwrap_or(Err(UpnpError::Silent))
}

async fn talk(own: IpAddr, to: SocketAddr, question: &str) -> Result<Answer, UpnpError> {
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.bind(SocketAddr::new(own, 0))?;
    let mut stream = socket.connect(to).await?;
    stream.write_all(question.as_bytes()).await?;
    let mut stream = stream.take(LONGEST_ANSWER + 1);
    let mut heard: Vec<u8> = Vec::with_capacity(4096);
    for _ in 0..MOST_PIECES {
        let is_over = stream.read_buf(&mut heard).await? == 0;
        if stream.limit() == 0 {
            return Err(UpnpError::Garbled);
        }
        match Answer::read(&heard, is_over) {
            Some(answer) => return Ok(answer),
            None if is_over => break,
            None => {}
        }
    }
    Err(UpnpError::Garbled)
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
