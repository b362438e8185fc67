//! Relays: the flags of commands that use one, and of commands that are one.

use std::fmt;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::Args;
use futures_util::FutureExt;
use whimbrel_base::{AddressScope, EndpointAddr, Name};
use whimbrel_names::{Registry, Rule, ServiceAddress};
use whimbrel_relay::{Directory, Keeper, Keeping, Limits, Prepared, Relay, pool};
use whimbrel_transport::{Allow, BoxFuture, Config, Watch};

use crate::network::Network;
use crate::options::{LIMITS, size};
use crate::roster::NamedRelays;
use crate::{output, routers};

pub(crate) use self::group::{GroupFlags, Grouped};
pub(crate) use self::vouched::Admitted;
use self::vouched::Named;

pub(crate) mod apart;
mod group;
mod vouched;

/// How long a relay that stops waits for its servers.
pub(crate) const DRAIN: Duration = Duration::from_secs(1);
/// The least bytes in a second that a relay gives an endpoint: a piece of 64 KiB passes at once, and who
/// comes after it waits half a second then.
const LEAST_SHARE: u64 = 128 << 10;
/// How long a command waits for its first reservation before it says that there is none.
const FIRST: Duration = Duration::from_secs(5);
/// How much longer one waits that is about to tell a ticket: what that names it names for good.
const FIRST_FOR_TICKET: Duration = Duration::from_secs(15);

/// An address, and a port if it is not the endpoint's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advertised(SocketAddr);

impl FromStr for Advertised {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        let address = match (text.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
            (Ok(address), _) if address.port() != 0 => address,
            (_, Ok(ip)) => SocketAddr::new(ip, 0),
            _ => {
                return Err("write it as an IP address, or one and a port, as in 203.0.113.5:4433".to_owned());
            }
        };
        if AddressScope::of(address.ip()) == AddressScope::Unusable {
            return Err(format!("nobody can connect to {}", address.ip()));
        }
        Ok(Self(address))
    }
}

/// Where else an endpoint is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Elsewhere {
    At(Advertised),
    /// At a port that the router passes on when it is asked to.
    Router,
    /// Nowhere: of this host's own addresses, only public ones are told.
    Public,
}

impl FromStr for Elsewhere {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "router" => Ok(Self::Router),
            "public" => Ok(Self::Public),
            _ => {
                text.parse().map(Self::At).map_err(|error| format!("{error}; or write `router` or `public`"))
            }
        }
    }
}

/// A relay, or a group of them.
#[derive(Clone, Debug)]
pub(crate) enum RelayTarget {
    /// At an address, with a key.
    At(ServiceAddress),
    /// Of which the name service knows where it is, or which they are.
    Named(Name),
}

/// As it is written: [`FromStr`] reads it again.
impl fmt::Display for RelayTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(address) => address.fmt(f),
            Self::Named(name) => name.fmt(f),
        }
    }
}

impl FromStr for RelayTarget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // Where a relay is has a port, and a name has none.
        if text.contains(':') {
            return text.parse().map(Self::At).map_err(|_| {
                "write a relay as its ticket (whimbrel:…), as ID@HOST:PORT, or by its name or its group's"
                    .to_owned()
            });
        }
        text.parse().map(Self::Named).map_err(|error: whimbrel_base::NameError| error.to_string())
    }
}

/// Where a command that lets peers in is reached, beside the addresses of its host.
#[derive(Args, Clone, Debug)]
pub(crate) struct ReachFlags {
    /// Be reached through this relay or group
    #[arg(long, value_name = "RELAY")]
    relay: Vec<RelayTarget>,
    /// Relays of a group at once, 1 to 4
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=4))]
    relays: u8,
    /// ADDR[:PORT] as well; `router`: a port of it; `public`: no private addresses
    #[arg(long, value_name = "WHERE")]
    advertise: Vec<Elsewhere>,
}

impl ReachFlags {
    pub(crate) fn advertised(&self) -> Vec<SocketAddr> {
        let by_hand = |elsewhere: &Elsewhere| match elsewhere {
            Elsewhere::At(advertised) => Some(advertised.0),
            Elsewhere::Router | Elsewhere::Public => None,
        };
        self.advertise.iter().filter_map(by_hand).collect()
    }

    /// The config of an endpoint that tells others where it is as these flags say.
    pub(crate) fn apply(&self, config: Config) -> Config {
        Config { private_addresses: !self.tells_public_alone(), ..config }
    }

    /// Whether nobody is to be told of this host's private addresses.
    fn tells_public_alone(&self) -> bool {
        self.advertise.contains(&Elsewhere::Public)
    }

    /// Begins to be reached through the relays, if there are any. Waits a little for the first reservation,
    /// so that what is told next has it, and longer if that is a ticket. Relays that serve those who have
    /// names are shown that of `name`. Says so if nobody elsewhere can reach this host.
    pub(crate) async fn start(
        &self,
        network: &Network,
        name: Option<&Name>,
        tells_ticket: bool,
        quiet: bool,
    ) -> Result<Option<Keeper>> {
        if self.advertise.contains(&Elsewhere::Router) {
            routers::ask(network, quiet).await;
        }
        if self.relay.is_empty() {
            if !self.is_reachable(network) {
                let why = if self.tells_public_alone() {
                    "this host has no public address, and is to tell no other: nobody can reach it"
                } else {
                    "this host has no public address: peers in other networks cannot reach it"
                };
                let what = "Use a relay (--relay), have the router pass the port on (--advertise router), or say \
                            where it does (--advertise ADDR)";
                output::note(quiet, format!("{why}. {what}"));
            }
            return Ok(None);
        }
        let mut relays: Vec<Arc<dyn Directory>> = Vec::new();
        for relay in &self.relay {
            match relay {
                RelayTarget::At(address) => relays.push(Arc::new(At(address.clone()))),
                RelayTarget::Named(name) => {
                    let (roster, problem) = NamedRelays::follow(network, name).await?;
                    if let Some(problem) = problem {
                        output::note(quiet, format!("cannot look up the relays of {name} yet: {problem}"));
                    }
                    let endpoint = network.endpoint.transport().clone();
                    relays.extend(pool::seats(endpoint, Arc::new(roster), self.relays.into()));
                }
            }
        }
        let (endpoint, prover) = (network.endpoint.transport().clone(), Named::of(network, name));
        let keeper = Keeper::start_with(endpoint, &network.key, relays, prover);
        let mut news = keeper.news();
        let is_held = |now: &Keeping| now.held > 0;
        if tokio::time::timeout(FIRST, news.wait_for(is_held)).await.is_err() {
            let why = news.current().problem.unwrap_or_else(|| "no answer yet".to_owned());
            output::note(quiet, format!("no relay can be used so far, trying on: {why}"));
            let later = news.wait_for(is_held);
            if tells_ticket && tokio::time::timeout(FIRST_FOR_TICKET, later).await.is_err() {
                let what = "the ticket names no relay; start this again once one can be used";
                output::note(quiet, what);
            }
        }
        tokio::spawn(FutureExt::boxed(tell_who_is_unserved(news, quiet)));
        Ok(Some(keeper))
    }

    fn is_reachable(&self, network: &Network) -> bool {
        let is_global = |address: &SocketAddr| AddressScope::of(address.ip()) == AddressScope::Global;
        // With addresses by hand, somebody knows what is meant.
        self.advertise.iter().any(|elsewhere| *elsewhere != Elsewhere::Public)
            || (network.manual.is_some() && !self.tells_public_alone())
            || network.endpoint.addr().addrs.iter().any(is_global)
    }
}

/// Says it, once, if a relay is kept through which nobody can come over TCP. Ends with what keeps it.
async fn tell_who_is_unserved(mut news: Watch<Keeping>, quiet: bool) {
    let unserved = |now: &Keeping| now.relays.iter().find_map(|kept| kept.unserved.clone());
    if let Some(now) = news.wait_for(|now| unserved(now).is_some()).await
        && let Some(why) = unserved(&now)
    {
        let what = "clients reach this host through the relay over QUIC at most, and not at all where UDP \
                    does not get out; if an HTTP proxy gets out, name it in HTTPS_PROXY";
        output::note(quiet, format!("{why}: {what}"));
    }
}

/// A relay at an address that was given.
struct At(ServiceAddress);

impl Directory for At {
    fn locate(&self) -> BoxFuture<'_, io::Result<EndpointAddr>> {
        Box::pin(self.0.resolve())
    }
}

/// How much a relay relays, and where it is.
#[derive(Args, Clone, Debug)]
pub(crate) struct RelayFlags {
    /// Where clients reach it, if elsewhere: ADDR[:PORT]
    #[arg(long, value_name = "WHERE")]
    advertise: Vec<Advertised>,
    /// Endpoints that may be reached through it at once
    #[arg(long, value_name = "N", default_value_t = Limits::default().reservations, help_heading = LIMITS)]
    reservations: usize,
    /// Connections that are passed on at once
    #[arg(long, value_name = "N", default_value_t = Limits::default().splices, help_heading = LIMITS)]
    relayed_connections: usize,
    /// New clients of one endpoint in a second
    #[arg(long, value_name = "N", default_value_t = 100, help_heading = LIMITS)]
    clients_per_second: u32,
    /// New clients from one address in a second
    #[arg(long, value_name = "N", default_value_t = 20, help_heading = LIMITS)]
    clients_per_address: u32,
    /// Bytes in a second for one endpoint, as 10M [default: no limit]
    #[arg(long, value_name = "SIZE", value_parser = share, help_heading = LIMITS)]
    bytes_per_second: Option<u64>,
}

/// What a relay may pass on for one endpoint in a second.
fn share(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    if bytes < LEAST_SHARE { Err("give each endpoint 128K at least".to_owned()) } else { Ok(bytes) }
}

impl RelayFlags {
    pub(crate) fn advertised(&self) -> Vec<SocketAddr> {
        self.advertise.iter().map(|advertised| advertised.0).collect()
    }

    /// Has an endpoint relay for those who are admitted, with what another relay has left, if it has.
    ///
    /// # Errors
    /// When that does not fit together.
    pub(crate) fn prepare(
        &self,
        network: &Network,
        admitted: Admitted,
        left: whimbrel_relay::Estate,
    ) -> Result<Prepared> {
        let mut limits = Limits::default();
        limits.reservations = self.reservations;
        limits.splices = self.relayed_connections;
        limits.flows = self.relayed_connections;
        limits.clients_per_second = self.clients_per_second.max(1).into();
        limits.clients_per_address = self.clients_per_address.max(1).into();
        limits.bytes_per_second = self.bytes_per_second.map(|bytes| bytes as f64);
        let endpoint = network.endpoint.transport().clone();
        let port = endpoint.port();
        let own_port = |address: SocketAddr| match address.port() {
            0 => SocketAddr::new(address.ip(), port),
            _ => address,
        };
        let addresses = self.advertised().into_iter().map(own_port).collect();
        let prepared = Relay::prepare(endpoint, admitted.allow, limits, addresses, left)?;
        if let Some(gate) = admitted.gate {
            prepared.set_gate(gate);
        }
        Ok(prepared)
    }
}

/// Those whom the rules of a relay name, where `registry` says who has which name. Without rules, those who
/// have any.
pub(crate) fn admit_by_names(rules: Vec<Rule>, registry: Registry) -> Admitted {
    let rules = Arc::new(rules);
    let allow = Allow::check(move |peer| {
        let (rules, registry) = (rules.clone(), registry.clone());
        async move {
            if rules.iter().any(|rule| matches!(rule, Rule::Any) || *rule == Rule::Key(peer)) {
                return true;
            }
            // To itself its record is shown, whoever its readers are.
            let found = registry.find(&peer, peer, SystemTime::now().into()).await;
            found.is_ok_and(|found| {
                let record = found.record.record();
                let is_of = |rule: &Rule| matches!(rule, Rule::Domain(domain) if domain.covers(&record.name));
                !record.revoked && (rules.is_empty() || rules.iter().any(is_of))
            })
        }
    });
    Admitted { allow, gate: None }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_address_may_leave_the_port_out() {
        let port = |text: &str| text.parse::<Advertised>().map(|advertised| advertised.0.port());
        assert_eq!(port("203.0.113.5"), Ok(0));
        assert_eq!(port("203.0.113.5:443"), Ok(443));
        assert_eq!(port("2001:db8::1"), Ok(0));
        assert_eq!(port("[2001:db8::1]"), Ok(0));
        assert_eq!(port("[2001:db8::1]:443"), Ok(443));
        for wrong in ["", "home.example.org", "0.0.0.0", "203.0.113.5:0", "224.0.0.1:1", "203.0.113.5:99999"]
        {
            assert!(port(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn what_is_advertised_is_an_address_or_one_of_two_words() {
        let parse = |text: &str| text.parse::<Elsewhere>();
        assert_eq!(parse("router"), Ok(Elsewhere::Router));
        assert_eq!(parse("public"), Ok(Elsewhere::Public));
        assert!(matches!(parse("203.0.113.5:443"), Ok(Elsewhere::At(_))));
        assert!(parse("private").unwrap_err().contains("`public`"));
        let flags = |advertise| ReachFlags { relay: Vec::new(), relays: 2, advertise };
        let tells = |advertise| flags(advertise).apply(Config::default()).private_addresses;
        assert!(tells(Vec::new()) && tells(vec![Elsewhere::Router]));
        assert!(!tells(vec![Elsewhere::Router, Elsewhere::Public]));
    }

    #[test]
    fn the_share_of_an_endpoint_is_a_size_that_carries_something() {
        assert_eq!((share("128K"), share("10M")), (Ok(128 << 10), Ok(10 << 20)));
        for wrong in ["0", "1000", "127K", "fast", ""] {
            assert!(share(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_relay_is_meant_by_address_or_by_name() {
        let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        let parse = |text: &str| text.parse::<RelayTarget>();
        for text in [format!("whimbrel:{id}/192.0.2.1:443"), format!("{id}@relay.example.org:443")] {
            assert!(matches!(parse(&text), Ok(RelayTarget::At(_))), "{text}");
        }
        for text in [format!("{id}@relay.example.org:443"), "fra.ops@example.org".to_owned()] {
            assert_eq!(parse(&text).unwrap().to_string(), text);
        }
        for text in ["fra.ops@example.org", "relays.ops@example.org"] {
            assert!(matches!(parse(text), Ok(RelayTarget::Named(name)) if name.as_str() == text), "{text}");
        }
        for wrong in ["", "relay.example.org", "relay.example.org:443", "whimbrel:nobody"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
