//! Connections to ordinary hosts for others, by rules against open proxies: what is checked is the address
//! that is connected to, so that no name leads where its owner may not.

mod address;
mod lookup;
mod quota;
mod rules;

pub use lookup::{Looking, Lookup, SystemLookup};
pub use quota::{Full, Place, Quota};
pub use rules::{BadPattern, Pattern, Rules};

use crate::whimbrel_hosts::not_here;
use crate::{Destination, UpstreamError, is_whimbrel_host};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// For everything, from the name to the connection.
const LIMIT: Duration = Duration::from_secs(10);
/// The next address is tried beside one that has not answered for so long (RFC 8305, §8).
const NEXT: Duration = Duration::from_millis(250);
/// Addresses of a name that are tried.
const MOST: usize = 8;

/// Connects to destinations that rules let through.
pub struct Guard {
    rules: Rules,
    lookup: Arc<dyn Lookup>,
    /// Addresses of this host that it does not know of itself.
    outside: Vec<IpAddr>,
}

impl Guard {
    /// By these rules, with the system's names.
    pub fn new(rules: Rules) -> Self {
        Self { rules, lookup: Arc::new(SystemLookup::default()), outside: Vec::new() }
    }

    /// Finds the addresses of names another way.
    #[must_use]
    pub fn with_lookup(self, lookup: Arc<dyn Lookup>) -> Self {
        Self { lookup, ..self }
    }

    /// Under these addresses this host is reached from outside, beside those that it has: they lead to
    /// itself.
    #[must_use]
    pub fn with_outside(self, outside: Vec<IpAddr>) -> Self {
        Self { outside, ..self }
    }

    /// Connects to a destination. Its name is looked up once, every address is checked, and one of those that
    /// were let through is connected to. Cancel-safe; has a limit of ten seconds.
    ///
    /// # Errors
    /// [`UpstreamError::Refused`] where the rules let nobody through, and what did not work.
    pub async fn connect(&self, to: &Destination) -> Result<TcpStream, UpstreamError> {
        let refused = |why| UpstreamError::Refused { to: to.to_string(), why };
        self.rules.port(to).map_err(refused)?;
        let work = async {
            let found = self.addresses(to).await?;
            let mut why = String::new();
            let let_through = found.into_iter().filter(|address| {
                let checked = self.rules.address(to, *address, self.is_own(*address));
                checked.map_err(|reason| why = reason).is_ok()
            });
            let allowed: Vec<IpAddr> = let_through.take(MOST).collect();
            if allowed.is_empty() {
                return Err(refused(why));
            }
            let addresses = allowed.into_iter().map(|ip| SocketAddr::new(ip, to.port()));
            dial(addresses).await.map_err(|source| unreachable(to, source))
        };
        let done = tokio::time::timeout(LIMIT, work).await;
        done.unwrap_or_else(|_| Err(unreachable(to, io::ErrorKind::TimedOut.into())))
    }

    async fn addresses(&self, to: &Destination) -> Result<Vec<IpAddr>, UpstreamError> {
        if let Some(address) = to.address() {
            return Ok(vec![address]);
        }
        if is_whimbrel_host(to.host()) {
            return Err(not_here(to));
        }
        let no_way = |why| UpstreamError::NoWay { to: to.to_string(), why };
        let found = self.lookup.lookup(to.host()).await;
        let found = found.map_err(|error| no_way(format!("its name is not found: {error}")))?;
        if found.is_empty() { Err(no_way("its name has no address".to_owned())) } else { Ok(found) }
    }

    /// Whether an address is this host's, where it does not say so by itself as loopback does.
    fn is_own(&self, address: IpAddr) -> bool {
        !address.is_loopback() && (self.outside.contains(&address) || is_of_this_host(address))
    }
}

fn unreachable(to: &Destination, source: io::Error) -> UpstreamError {
    UpstreamError::Unreachable { to: to.to_string(), source }
}

/// Whether packets to an address come back to this host: the system would then send them from that address.
/// No packet is sent. Asked each time, because addresses change.
fn is_of_this_host(address: IpAddr) -> bool {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        // The port of `discard`: nothing is sent.
        socket.connect((address, 9))?;
        socket.local_addr()
    };
    // What there is no route to is not connected to either.
    source().is_ok_and(|source: SocketAddr| source.ip() == address)
}

/// Tries these in order, each beside those before that have not answered.
async fn dial(addresses: impl Iterator<Item = SocketAddr>) -> io::Result<TcpStream> {
    let mut left = addresses;
    let mut trying = JoinSet::new();
    let mut last: io::Error = io::ErrorKind::NotFound.into();
    loop {
        let more = left.next();
        let has_more = more.is_some();
        if let Some(address) = more {
            trying.spawn(async move { (TcpStream::connect(address).await, address) });
        }
        let joined = if has_more {
            tokio::time::timeout(NEXT, trying.join_next()).await
        } else {
            Ok(trying.join_next().await)
        };
        match joined {
            Ok(Some(Ok((Ok(stream), address)))) if stream.peer_addr().is_ok_and(|peer| peer == address) => {
                return Ok(stream);
            }
            // Gone again, or not the one that was checked.
            Ok(Some(Ok((Ok(_), _)))) => last = io::ErrorKind::ConnectionReset.into(),
            Ok(Some(Ok((Err(error), _)))) => last = error,
            Ok(Some(Err(error))) => last = io::Error::other(error),
            Ok(None) => return Err(last),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tokio::net::TcpListener;

    /// Answers with these, in turn.
    struct Turns(Vec<Vec<&'static str>>, AtomicUsize);

    impl Turns {
        fn new(answers: &[&[&'static str]]) -> Arc<Self> {
            Arc::new(Self(answers.iter().map(|answer| answer.to_vec()).collect(), AtomicUsize::new(0)))
        }

        fn asked(&self) -> usize {
            self.1.load(Ordering::Relaxed)
        }
    }

    impl Lookup for Turns {
        fn lookup<'a>(&'a self, _host: &'a str) -> Looking<'a> {
            let turn = self.1.fetch_add(1, Ordering::Relaxed);
            let answer =
                self.0[turn.min(self.0.len() - 1)].iter().map(|text| text.parse().unwrap()).collect();
            Box::pin(std::future::ready(Ok(answer)))
        }
    }

    async fn server(address: &str) -> (TcpListener, u16) {
        let listener = TcpListener::bind((address, 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    async fn has_been_called(listener: &TcpListener) -> bool {
        tokio::time::timeout(Duration::from_millis(50), listener.accept()).await.is_ok()
    }

    #[tokio::test]
    async fn a_name_that_changes_its_mind_leads_where_it_was_checked() {
        // An address of loopback stands for the public one, and is listed; the other is the one to protect.
        let (secret, port) = server("127.9.0.1").await;
        let public = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        let names = Turns::new(&[&["127.0.0.2"], &["127.9.0.1"]]);
        let rules = Rules::new(vec!["127.0.0.2".parse().unwrap()], false);
        let guard = Guard::new(rules).with_lookup(names.clone());
        let to = Destination::new("rebinds.example.org", port).unwrap();
        let reached = guard.connect(&to).await.unwrap();
        assert_eq!(reached.peer_addr().unwrap().ip().to_string(), "127.0.0.2");
        assert_eq!(names.asked(), 1, "it is not looked up again to connect");
        assert!(has_been_called(&public).await);
        let second = guard.connect(&to).await.unwrap_err();
        assert!(second.to_string().contains("127.9.0.1 is the gateway itself"), "{second}");
        assert!(!has_been_called(&secret).await);
    }

    #[tokio::test]
    async fn of_several_addresses_those_inside_are_not_tried() {
        let (secret, port) = server("127.9.0.1").await;
        let _public = TcpListener::bind(("127.0.0.2", port)).await.unwrap();
        let names = Turns::new(&[&["127.9.0.1", "::ffff:127.9.0.1", "127.0.0.2"]]);
        let guard = Guard::new(Rules::new(vec!["127.0.0.2".parse().unwrap()], false)).with_lookup(names);
        let to = Destination::new("mixed.example.org", port).unwrap();
        let reached = guard.connect(&to).await.unwrap();
        assert_eq!(reached.peer_addr().unwrap().ip().to_string(), "127.0.0.2");
        assert!(!has_been_called(&secret).await);
    }

    #[tokio::test]
    async fn every_way_to_write_this_host_is_refused() {
        let (secret, port) = server("0.0.0.0").await;
        let guard = Guard::new(Rules::default());
        for host in
            ["127.0.0.1", "127.1.2.3", "0.0.0.0", "::1", "::ffff:127.0.0.1", "::127.0.0.1", "localhost"]
        {
            let to = Destination::new(host, port).unwrap();
            let error = guard.connect(&to).await.unwrap_err();
            assert!(matches!(error, UpstreamError::Refused { .. }), "{host}: {error}");
        }
        assert!(!has_been_called(&secret).await);
    }

    #[tokio::test]
    async fn an_address_of_this_host_is_refused_although_it_is_public() {
        assert!(is_of_this_host("127.0.0.1".parse().unwrap()));
        assert!(!is_of_this_host("203.0.113.77".parse().unwrap()));
        let outside = vec!["203.0.113.9".parse().unwrap()];
        let guard = Guard::new(Rules::default()).with_outside(outside);
        let error = guard.connect(&"203.0.113.9:80".parse().unwrap()).await.unwrap_err();
        assert_eq!(error.to_string(), "203.0.113.9:80 is refused: 203.0.113.9 is the gateway itself");
    }

    #[tokio::test]
    async fn what_does_not_answer_is_told_as_what_it_is() {
        let (listener, port) = server("127.0.0.2").await;
        drop(listener);
        let rules = Rules::new(vec!["127.0.0.2".parse().unwrap()], false);
        let guard = Guard::new(rules).with_lookup(Turns::new(&[&[]]));
        let to = Destination::new("127.0.0.2", port).unwrap();
        let error = guard.connect(&to).await.unwrap_err();
        assert!(
            matches!(&error, UpstreamError::Unreachable { source, .. }
            if source.kind() == io::ErrorKind::ConnectionRefused),
            "{error}"
        );
        let name =
            guard.connect(&"web.home.ada.at.example.org.whimbrel:80".parse().unwrap()).await.unwrap_err();
        assert!(name.to_string().contains("stands for a name"), "{name}");
        let nowhere = guard.connect(&"nowhere.example.org:80".parse().unwrap()).await.unwrap_err();
        assert!(matches!(nowhere, UpstreamError::NoWay { .. }), "{nowhere}");
    }
}
