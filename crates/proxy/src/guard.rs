//! Connections to ordinary hosts for others, by rules against open proxies: what is checked is the address
//! that is connected to, so that no name leads where its owner may not.

mod address;
mod lookup;
mod quota;
mod rules;

pub use lookup::{Looking, Lookup, SystemLookup, Turn};
pub use quota::{Full, Place, Quota};
pub use rules::{BadPattern, Pattern, Rules};

use self::address::Net;
use self::lookup::Turns;
use self::rules::Standing;
use crate::error::not_here;
use crate::{Destination, UpstreamError, is_whimbrel_host};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use whimbrel_base::EndpointId;
use whimbrel_multiaccess::{Prefix, own_networks};

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
    turns: Turns,
    /// Addresses of this host that it does not know of itself.
    outside: Vec<IpAddr>,
}

impl Guard {
    /// By these rules, with the system's names.
    pub fn new(rules: Rules) -> Self {
        let (lookup, turns) = (Arc::new(SystemLookup), Turns::default());
        Self { rules, lookup, turns, outside: Vec::new() }
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

    /// Connects a peer to a destination. The name is looked up once, every address is checked, and one of
    /// those that were let through is connected to. Cancel-safe; has a limit of ten seconds.
    ///
    /// # Errors
    /// [`UpstreamError::Refused`] where the rules let nobody through, and what did not work.
    pub async fn connect(&self, to: &Destination, peer: EndpointId) -> Result<TcpStream, UpstreamError> {
        let refused = |why| UpstreamError::Refused { to: to.to_string(), why };
        self.rules.port(to).map_err(refused)?;
        let work = async {
            let found = self.addresses(to, peer).await?;
            // Asked each time, because addresses change.
            let around = own_networks().await;
            let mut why = String::new();
            let let_through = found
                .into_iter()
                .filter(|address| self.check(to, *address, &around).map_err(|reason| why = reason).is_ok());
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

    async fn addresses(&self, to: &Destination, peer: EndpointId) -> Result<Vec<IpAddr>, UpstreamError> {
        if let Some(address) = to.address() {
            return Ok(vec![address]);
        }
        if is_whimbrel_host(to.host()) {
            return Err(not_here(to));
        }
        let no_way = |why| UpstreamError::NoWay { to: to.to_string(), why };
        let looking = async { self.lookup.lookup(to.host(), self.turns.take(peer).await?).await };
        let found = looking.await;
        let found = found.map_err(|error| no_way(format!("its name is not found: {error}")))?;
        if found.is_empty() { Err(no_way("its name has no address".to_owned())) } else { Ok(found) }
    }

    /// Whether an address may be connected to, and all that is in it. What it says if not.
    fn check(
        &self,
        to: &Destination,
        address: IpAddr,
        around: &io::Result<Vec<Prefix>>,
    ) -> Result<(), String> {
        self.rules.address(to, address, self.standing(address, around)?)?;
        for inside in address::inside(address).map(IpAddr::V4) {
            let judged = self.rules.place(to, inside, self.standing(inside, around)?);
            judged.map_err(|why| format!("{address} leads to {inside}: {why}"))?;
        }
        Ok(())
    }

    /// Where an address is, seen from this host, where it does not say so by itself as loopback does. What
    /// it says where that can't be told.
    fn standing(&self, address: IpAddr, around: &io::Result<Vec<Prefix>>) -> Result<Standing, String> {
        let unknown =
            |error: &io::Error| format!("it can't be told whether {address} is the gateway's: {error}");
        if address.is_loopback() {
            return Ok(Standing::Beyond);
        }
        if self.outside.contains(&address) || is_of_this_host(address).map_err(|error| unknown(&error))? {
            return Ok(Standing::Own);
        }
        let around = around.as_ref().map_err(unknown)?;
        // The narrowest, so that no more is lifted than was meant.
        let around = around.iter().filter(|network| network.length() > 0 && network.contains(address));
        let network = around.max_by_key(|network| network.length());
        Ok(network.map_or(Standing::Beyond, |network| Standing::Beside(Net::from(*network))))
    }
}

fn unreachable(to: &Destination, source: io::Error) -> UpstreamError {
    UpstreamError::Unreachable { to: to.to_string(), source }
}

/// Whether packets to an address come back to this host: the system would then send them from that address.
/// No packet is sent.
///
/// # Errors
/// When the system can't be asked, as without a free descriptor.
fn is_of_this_host(address: IpAddr) -> io::Result<bool> {
    let any: IpAddr = match address {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    // The port of `discard`: nothing is sent. What there is no route to is not connected to either.
    if socket.connect((address, 9)).is_err() {
        return Ok(false);
    }
    Ok(socket.local_addr()?.ip() == address)
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

    fn peer() -> EndpointId {
        whimbrel_base::SecretKey::from_bytes(&[1; 32]).id()
    }

    /// Answers with these, in turn.
    struct Answers(Vec<Vec<&'static str>>, AtomicUsize);

    impl Answers {
        fn new(answers: &[&[&'static str]]) -> Arc<Self> {
            Arc::new(Self(answers.iter().map(|answer| answer.to_vec()).collect(), AtomicUsize::new(0)))
        }

        fn asked(&self) -> usize {
            self.1.load(Ordering::Relaxed)
        }
    }

    impl Lookup for Answers {
        fn lookup<'a>(&'a self, _host: &'a str, _turn: Turn) -> Looking<'a> {
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

    /// Servers on one port of two addresses.
    async fn two_servers(first: &str, second: &str) -> (TcpListener, TcpListener, u16) {
        loop {
            let (listener, port) = server(first).await;
            // A free port of one address may be taken on another.
            match TcpListener::bind((second, port)).await {
                Ok(other) => return (listener, other, port),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::AddrInUse),
            }
        }
    }

    async fn has_been_called(listener: &TcpListener) -> bool {
        tokio::time::timeout(Duration::from_millis(50), listener.accept()).await.is_ok()
    }

    #[tokio::test]
    async fn a_name_that_changes_its_mind_leads_where_it_was_checked() {
        // An address of loopback stands for the public one, and is listed; the other is the one to protect.
        let (secret, public, port) = two_servers("127.9.0.1", "127.0.0.2").await;
        let names = Answers::new(&[&["127.0.0.2"], &["127.9.0.1"]]);
        let rules = Rules::new(vec!["127.0.0.2".parse().unwrap()], false);
        let guard = Guard::new(rules).with_lookup(names.clone());
        let to = Destination::new("rebinds.example.org", port).unwrap();
        let reached = guard.connect(&to, peer()).await.unwrap();
        assert_eq!(reached.peer_addr().unwrap().ip().to_string(), "127.0.0.2");
        assert_eq!(names.asked(), 1, "it is not looked up again to connect");
        assert!(has_been_called(&public).await);
        let second = guard.connect(&to, peer()).await.unwrap_err();
        assert!(second.to_string().contains("127.9.0.1 is the gateway itself"), "{second}");
        assert!(!has_been_called(&secret).await);
    }

    #[tokio::test]
    async fn of_several_addresses_those_inside_are_not_tried() {
        let (secret, _public, port) = two_servers("127.9.0.1", "127.0.0.2").await;
        let names = Answers::new(&[&["127.9.0.1", "::ffff:127.9.0.1", "127.0.0.2"]]);
        let guard = Guard::new(Rules::new(vec!["127.0.0.2".parse().unwrap()], false)).with_lookup(names);
        let to = Destination::new("mixed.example.org", port).unwrap();
        let reached = guard.connect(&to, peer()).await.unwrap();
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
            let error = guard.connect(&to, peer()).await.unwrap_err();
            assert!(matches!(error, UpstreamError::Refused { .. }), "{host}: {error}");
        }
        assert!(!has_been_called(&secret).await);
    }

    #[tokio::test]
    async fn an_address_of_this_host_is_refused_although_it_is_public() {
        assert!(is_of_this_host("127.0.0.1".parse().unwrap()).unwrap());
        assert!(!is_of_this_host("203.0.113.77".parse().unwrap()).unwrap());
        let outside = vec!["203.0.113.9".parse().unwrap()];
        let guard = Guard::new(Rules::default()).with_outside(outside);
        let error = guard.connect(&"203.0.113.9:80".parse().unwrap(), peer()).await.unwrap_err();
        assert_eq!(error.to_string(), "203.0.113.9:80 is refused: 203.0.113.9 is the gateway itself");
    }

    #[tokio::test]
    async fn a_list_of_translated_addresses_lets_nobody_reach_what_is_behind_them() {
        let translated = ["64:ff9b::/96", "::ffff:0:0/96", "::ffff:0:0:0/96", "2002::/16", "64:ff9b:1::/48"];
        let listed = |more: &[&str]| {
            let all = translated.iter().chain(more).map(|text| text.parse().unwrap()).collect();
            Guard::new(Rules::new(all, false)).with_outside(vec!["203.0.113.9".parse().unwrap()])
        };
        let around = Ok(vec![Prefix::new("198.51.100.1".parse().unwrap(), 24)]);
        let says = |guard: &Guard, address: &str| {
            let address: IpAddr = address.parse().unwrap();
            guard.check(&Destination::new(&address.to_string(), 80).unwrap(), address, &around)
        };
        for (address, what) in [
            ("64:ff9b::a9fe:a9fe", "169.254.169.254 is where clouds keep"),
            ("64:ff9b::a00:1", "10.0.0.1 is an address of a private network"),
            ("64:ff9b::7f00:1", "127.0.0.1 is the gateway itself"),
            ("64:ff9b::203.0.113.9", "203.0.113.9 is the gateway itself"),
            ("64:ff9b::198.51.100.7", "198.51.100.7 is in a network of the gateway's own"),
            ("::ffff:10.0.0.1", "10.0.0.1 is an address of a private network"),
            ("::ffff:0:169.254.169.254", "169.254.169.254 is where clouds keep"),
            ("2002:a9fe:a9fe::1", "169.254.169.254 is where clouds keep"),
            ("64:ff9b:1::a00:1", "at a place that only its network knows"),
        ] {
            let why = says(&listed(&[]), address).unwrap_err();
            assert!(why.contains(what), "{address}: {why}");
        }
        assert_eq!(says(&listed(&[]), "64:ff9b::192.0.2.5"), Ok(()));
        assert_eq!(says(&listed(&["10.0.0.0/8"]), "64:ff9b::a00:1"), Ok(()));
        assert_eq!(says(&listed(&["64:ff9b:1::a00:1"]), "64:ff9b:1::a00:1"), Ok(()));
    }

    #[tokio::test]
    async fn what_does_not_answer_is_told_as_what_it_is() {
        let (listener, port) = server("127.0.0.2").await;
        drop(listener);
        let rules = Rules::new(vec!["127.0.0.2".parse().unwrap()], false);
        let guard = Guard::new(rules).with_lookup(Answers::new(&[&[]]));
        let to = Destination::new("127.0.0.2", port).unwrap();
        let error = guard.connect(&to, peer()).await.unwrap_err();
        assert!(
            matches!(&error, UpstreamError::Unreachable { source, .. }
            if source.kind() == io::ErrorKind::ConnectionRefused),
            "{error}"
        );
        let name = guard
            .connect(&"web.home.ada.at.example.org.whimbrel:80".parse().unwrap(), peer())
            .await
            .unwrap_err();
        assert!(name.to_string().contains("stands for a name"), "{name}");
        let nowhere = guard.connect(&"nowhere.example.org:80".parse().unwrap(), peer()).await.unwrap_err();
        assert!(matches!(nowhere, UpstreamError::NoWay { .. }), "{nowhere}");
    }
}
