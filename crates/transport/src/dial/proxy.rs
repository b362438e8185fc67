//! TCP through an HTTP proxy (CONNECT, RFC 9110 §9.3.6), where a network lets nothing else out.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use whimbrel_base::address::AddressScope;
use whimbrel_base::relayed::Place;

use super::Candidate;
use crate::locator::{Locator, Proxied, canonical};
use whimbrel_base::order;

/// The longest head of an answer.
const MAX_HEAD: usize = 8192;
/// Places that a proxy is asked for in one race.
const MAX_PLACES: usize = 4;
/// What proxies let through if they let anything through.
const USUAL_PORT: u16 = 443;

/// An HTTP proxy, through which places that are reached from anywhere are dialled over TCP, beside directly.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpProxy {
    at: SocketAddr,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
    /// Networks of which it is not asked: an address, and how many of its bits count.
    without: Vec<(IpAddr, u8)>,
}

impl HttpProxy {
    /// The proxy that is reached there.
    pub fn new(at: SocketAddr) -> Self {
        Self { at, authorization: None, without: Vec::new() }
    }

    /// Shows this to the proxy in `Proxy-Authorization`, as `Basic dXNlcjpzZWNyZXQ=`. What is no visible
    /// ASCII is left out.
    #[must_use]
    pub fn authorized_by(mut self, value: &str) -> Self {
        self.authorization = Some(value.chars().filter(|c| c.is_ascii_graphic() || *c == ' ').collect());
        self
    }

    /// Does not ask it for addresses in these networks: an address, and how many of its leading bits count.
    #[must_use]
    pub fn without(mut self, networks: impl IntoIterator<Item = (IpAddr, u8)>) -> Self {
        self.without.extend(networks);
        self
    }

    /// The ways through the proxy to the same places, at most [`MAX_PLACES`], those at the usual port first.
    pub(crate) fn ways(&self, ways: &[Candidate], is_here: impl Fn(IpAddr) -> bool) -> Vec<Candidate> {
        let mut through: Vec<(bool, Candidate)> = Vec::new();
        for way in ways {
            let place = match way.remote {
                Locator::Direct(address) => Place::Direct(address),
                Locator::Relayed(relayed) => Place::Relayed(relayed),
                Locator::Proxied(_) => continue,
            };
            let at = way.remote.address();
            let remote = Locator::Proxied(Proxied { proxy: self.at, place });
            if is_here(at.ip()) || !self.serves(at) || through.iter().any(|(_, way)| way.remote == remote) {
                continue;
            }
            let local = way.local.clone().filter(|local| local.ip.is_ipv4() == self.at.is_ipv4());
            through.push((at.port() != USUAL_PORT, Candidate { local, remote }));
        }
        order::by_key(&mut through, |(is_unusual, _)| *is_unusual);
        through.into_iter().map(|(_, way)| way).take(MAX_PLACES).collect()
    }

    /// The way through the proxy to an address, if it is asked for that.
    pub(crate) fn way(&self, to: SocketAddr) -> Option<Proxied> {
        self.serves(to).then_some(Proxied { proxy: self.at, place: Place::Direct(canonical(to)) })
    }

    /// Whether it is the proxy that is reached there.
    pub(crate) fn is_at(&self, at: SocketAddr) -> bool {
        canonical(self.at) == canonical(at)
    }

    /// Whether it is asked for an address: not for its own, whoever says to be there.
    fn serves(&self, to: SocketAddr) -> bool {
        AddressScope::of(to.ip()) == AddressScope::Global
            && !self.is_at(to)
            && !self.without.iter().any(|network| is_in(to.ip(), *network))
    }

    /// Has the proxy, to which `socket` leads, connect it to a place.
    ///
    /// # Errors
    /// If it says no, or something else.
    pub(crate) async fn ask(&self, socket: &mut TcpStream, to: SocketAddr) -> io::Result<()> {
        let header = |value: &String| format!("Proxy-Authorization: {value}\r\n");
        let authorization = self.authorization.as_ref().map(header).unwrap_or_default();
        let request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n{authorization}\r\n");
        socket.write_all(request.as_bytes()).await?;
        let mut head = Vec::new();
        // Byte by byte: what follows the head is the peer's.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() == MAX_HEAD {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the HTTP proxy answers without end"));
            }
            head.push(socket.read_u8().await?);
        }
        judge(&head).inspect_err(
            |error| tracing::info!(proxy = %self.at, %to, %error, "the HTTP proxy does not connect"),
        )
    }
}

impl fmt::Debug for HttpProxy {
    /// Without what it is shown.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpProxy")
            .field("at", &self.at)
            .field("without", &self.without)
            .finish_non_exhaustive()
    }
}

/// Whether the head of an answer says that the connection stands.
fn judge(head: &[u8]) -> io::Result<()> {
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let line = String::from_utf8_lossy(line);
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    match status.and_then(|status| status.parse::<u16>().ok()) {
        Some(200..=299) => Ok(()),
        Some(407) => {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "the HTTP proxy wants a user and a password"))
        }
        Some(status) => {
            Err(io::Error::new(io::ErrorKind::ConnectionRefused, format!("the HTTP proxy says {status}")))
        }
        None => Err(io::Error::new(io::ErrorKind::InvalidData, "what answers there is no HTTP proxy")),
    }
}

/// Whether an address is in a network. Those of different families are in none of each other's.
fn is_in(ip: IpAddr, (network, bits): (IpAddr, u8)) -> bool {
    let shared = match (ip.to_canonical(), network.to_canonical()) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => return false,
    };
    shared >= u32::from(bits)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tokio::net::TcpListener;
    use whimbrel_base::{RelayToken, RelayedAddr};

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn way(remote: Locator) -> Candidate {
        Candidate { local: None, remote }
    }

    fn direct(text: &str) -> Locator {
        Locator::Direct(text.parse().unwrap())
    }

    fn proxy() -> HttpProxy {
        HttpProxy::new("10.0.0.1:3128".parse().unwrap())
    }

    #[test]
    fn places_that_anybody_reaches_are_asked_for_once_and_those_at_the_usual_port_first() {
        let relay =
            RelayedAddr { relay: "203.0.113.5:443".parse().unwrap(), token: RelayToken::from_bytes([7; 10]) };
        let all =
            ["203.0.113.1:4480", "203.0.113.1:4480", "10.0.0.9:443", "127.0.0.1:443", "203.0.113.2:443"];
        let mut ways: Vec<Candidate> = all.iter().map(|text| way(direct(text))).collect();
        ways.push(way(Locator::Relayed(relay)));
        let through = |proxy: &HttpProxy, ways: &[Candidate]| -> Vec<String> {
            proxy.ways(ways, |at| at == ip("203.0.113.9")).iter().map(|way| way.remote.to_string()).collect()
        };
        let by = |place: &str| format!("{place} by the HTTP proxy 10.0.0.1:3128");
        let expected = [by("203.0.113.2:443"), by(&relay.to_string()), by("203.0.113.1:4480")];
        assert_eq!(through(&proxy(), &ways), expected);
        // What goes through a proxy already, and this host.
        let again = proxy().ways(&ways, |_| false);
        assert_eq!(through(&proxy(), &again), [""; 0]);
        assert_eq!(through(&proxy(), &[way(direct("203.0.113.9:443"))]), [""; 0]);
        let without = proxy().without([(ip("203.0.113.0"), 24)]);
        assert_eq!(through(&without, &ways), [""; 0]);
        let without = proxy().without([(ip("203.0.113.2"), 32), (ip("203.0.113.5"), 32), (ip("::"), 0)]);
        assert_eq!(through(&without, &ways), [by("203.0.113.1:4480")]);
        // What is no path goes the same way.
        let plain = |text: &str| without.way(text.parse().unwrap()).map(|way| way.to_string());
        assert_eq!(plain("203.0.113.1:4480"), Some(by("203.0.113.1:4480")));
        assert_eq!(plain("[::ffff:203.0.113.1]:4480"), Some(by("203.0.113.1:4480")));
        for other in
            ["203.0.113.5:443", "10.0.0.9:443", "127.0.0.1:443", "[::1]:443", "[::ffff:10.0.0.9]:443"]
        {
            assert_eq!(plain(other), None, "{other}");
        }
    }

    #[test]
    fn a_proxy_is_not_asked_for_itself() {
        let proxy = HttpProxy::new("203.0.113.7:3128".parse().unwrap());
        for (at, is_asked) in [("203.0.113.7:3128", false), ("203.0.113.7:443", true)] {
            assert_eq!(proxy.ways(&[way(direct(at))], |_| false).len(), usize::from(is_asked), "{at}");
            assert_eq!(proxy.way(at.parse().unwrap()).is_some(), is_asked, "{at}");
        }
    }

    #[test]
    fn a_proxy_is_the_same_one_where_a_socket_of_both_families_names_it() {
        let is_at = |text: &str| proxy().is_at(text.parse().unwrap());
        assert!(is_at("10.0.0.1:3128") && is_at("[::ffff:10.0.0.1]:3128"));
        assert!(!is_at("10.0.0.1:3129") && !is_at("10.0.0.2:3128"));
    }

    #[test]
    fn the_status_of_an_answer_counts_and_nothing_else() {
        for head in ["HTTP/1.1 200 Connection established\r\n\r\n", "HTTP/1.0 200 OK\r\nVia: x\r\n\r\n"] {
            judge(head.as_bytes()).unwrap();
        }
        let wants = judge(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").unwrap_err();
        assert!(wants.to_string().contains("password"), "{wants}");
        for head in
            ["HTTP/1.1 403 Filtered\r\n\r\n", "HTTP/1.1\r\n\r\n", "SSH-2.0-OpenSSH\r\n\r\n", "\r\n\r\n"]
        {
            judge(head.as_bytes()).unwrap_err();
        }
    }

    #[tokio::test]
    async fn a_proxy_is_shown_what_it_wants_and_one_that_answers_without_end_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let to = "203.0.113.1:443".parse().unwrap();
        let answering = tokio::spawn(async move {
            let mut heard = Vec::new();
            for answer in [&b"HTTP/1.1 200 OK\r\n\r\nhello"[..], &[b'x'; 2 * MAX_HEAD]] {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut request = vec![0; 1024];
                let length = socket.read(&mut request).await.unwrap();
                heard.push(String::from_utf8_lossy(&request[..length]).into_owned());
                // A client that has enough of it goes.
                let _ = socket.write_all(answer).await;
            }
            heard
        });
        let proxy = HttpProxy::new(at).authorized_by("Basic eA==\r\nX: y");
        let mut socket = TcpStream::connect(at).await.unwrap();
        proxy.ask(&mut socket, to).await.unwrap();
        let mut rest = [0; 5];
        socket.read_exact(&mut rest).await.unwrap();
        assert_eq!(&rest, b"hello", "what follows the head is the peer's");
        let mut socket = TcpStream::connect(at).await.unwrap();
        let error = proxy.ask(&mut socket, to).await.unwrap_err();
        assert!(error.to_string().contains("without end"), "{error}");
        drop(socket);
        let asked = "CONNECT 203.0.113.1:443 HTTP/1.1\r\nHost: 203.0.113.1:443\r\n\
                     Proxy-Authorization: Basic eA==X: y\r\n\r\n";
        assert_eq!(answering.await.unwrap(), [asked, asked]);
    }
}
