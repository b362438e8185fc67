//! Where a name service is, as people write it down.

use std::convert::Infallible;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use whimbrel_base::{EndpointAddr, EndpointId, Ticket, TicketError};

/// How long the system may take to resolve a host name.
const RESOLVE_LIMIT: Duration = Duration::from_secs(5);

/// The most hosts of one address.
const MAX_HOSTS: usize = 4;

/// A name service: its key, and where it may be. Written as a ticket, `whimbrel:ID/192.0.2.1:4480`, or as
/// `ID@names.example.org:4480`; there `host:port` may be repeated behind commas.
///
/// Host names are asked of the system's resolver at each fresh connection, never before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAddress {
    id: EndpointId,
    addrs: Vec<SocketAddr>,
    hosts: Vec<String>,
}

impl ServiceAddress {
    /// The service's key.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Where it may be, now.
    ///
    /// # Errors
    /// When only host names are known, and none can be resolved.
    pub async fn resolve(&self) -> io::Result<EndpointAddr> {
        let mut addrs = self.addrs.clone();
        let mut failed = None;
        for host in &self.hosts {
            match tokio::time::timeout(RESOLVE_LIMIT, tokio::net::lookup_host(host)).await {
                Ok(Ok(found)) => addrs.extend(found),
                Ok(Err(error)) => failed = Some(error),
                Err(_) => failed = Some(io::ErrorKind::TimedOut.into()),
            }
        }
        match failed {
            Some(error) if addrs.is_empty() => Err(error),
            _ => Ok(EndpointAddr::new(self.id, addrs)),
        }
    }

    /// Whether [`resolve`](Self::resolve) may say something else later.
    pub fn has_hosts(&self) -> bool {
        !self.hosts.is_empty()
    }
}

impl From<EndpointAddr> for ServiceAddress {
    fn from(addr: EndpointAddr) -> Self {
        Self { id: addr.id, addrs: addr.addrs, hosts: Vec::new() }
    }
}

/// The ticket's name is not needed to reach the service, and left out.
impl From<Ticket> for ServiceAddress {
    fn from(ticket: Ticket) -> Self {
        ticket.to_endpoint_addr().into()
    }
}

impl FromStr for ServiceAddress {
    type Err = ServiceAddressError;

    fn from_str(text: &str) -> Result<Self, ServiceAddressError> {
        if text.starts_with("whimbrel:") {
            return Ok(text.parse::<Ticket>()?.into());
        }
        let malformed = || ServiceAddressError::Malformed(text.to_owned());
        let (id, places) = text.split_once('@').ok_or_else(malformed)?;
        let id = id.parse().map_err(|_| malformed())?;
        let (mut addrs, mut hosts) = (Vec::new(), Vec::new());
        for place in places.split(',') {
            if let Ok(addr) = place.parse() {
                addrs.push(addr);
            } else if is_host_and_port(place) && hosts.len() < MAX_HOSTS {
                hosts.push(place.to_owned());
            } else {
                return Err(malformed());
            }
        }
        let addrs = EndpointAddr::new(id, addrs).addrs;
        Ok(Self { id, addrs, hosts })
    }
}

fn is_host_and_port(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else {
        return false;
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let fits = !host.is_empty() && host.len() <= 253 && host.chars().all(plain);
    fits && port.bytes().all(|b| b.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port != 0)
}

impl TryFrom<&str> for ServiceAddress {
    type Error = ServiceAddressError;

    fn try_from(text: &str) -> Result<Self, ServiceAddressError> {
        text.parse()
    }
}

impl TryFrom<String> for ServiceAddress {
    type Error = ServiceAddressError;

    fn try_from(text: String) -> Result<Self, ServiceAddressError> {
        text.parse()
    }
}

impl fmt::Display for ServiceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.hosts.is_empty() {
            return Ticket::new(self.id, self.addrs.iter().copied(), None).fmt(f);
        }
        let addrs = self.addrs.iter().map(ToString::to_string);
        let places: Vec<String> = addrs.chain(self.hosts.iter().cloned()).collect();
        write!(f, "{}@{}", self.id, places.join(","))
    }
}

/// Why a text does not say where a name service is.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ServiceAddressError {
    /// It is neither a ticket nor `ID@host:port`.
    #[error(
        "{0:?} does not say where a name service is; write its ticket (whimbrel:...), or its id and host as ID@names.example.org:4480"
    )]
    Malformed(String),
    /// It begins like a ticket and is none.
    #[error(transparent)]
    Ticket(#[from] TicketError),
}

/// Never happens; lets values that need no parsing be given where texts may be.
impl From<Infallible> for ServiceAddressError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use whimbrel_base::SecretKey;

    #[test]
    fn tickets_and_hosts_are_understood() {
        let id = SecretKey::from_bytes(&[7; 32]).id();
        for text in [
            format!("whimbrel:{id}/192.0.2.1:4480"),
            format!("{id}@names.example.org:4480"),
            format!("{id}@192.0.2.1:4480,names.example.org:4480"),
        ] {
            let address: ServiceAddress = text.parse().unwrap();
            assert_eq!((address.id(), address.to_string()), (id, text));
        }
        let six: ServiceAddress = format!("{id}@[2001:db8::1]:4480").parse().unwrap();
        assert_eq!(six.to_string(), format!("whimbrel:{id}/2001:db8::1p4480"));
    }

    #[test]
    fn anything_else_is_refused() {
        let id = SecretKey::from_bytes(&[7; 32]).id();
        for text in [
            String::new(),
            "names.example.org:4480".into(),
            format!("{id}"),
            format!("{id}@names.example.org"),
            format!("{id}@names.example.org:0"),
            format!("{id}@names.example.org:+1"),
            format!("{id}@a b:1"),
            format!("{id}@:1"),
            format!("{id}@a:1,a:1,a:1,a:1,a:1"),
            "whimbrel:nobody".into(),
        ] {
            assert!(text.parse::<ServiceAddress>().is_err(), "{text}");
        }
    }

    #[tokio::test]
    async fn hosts_are_resolved_late() {
        let id = SecretKey::from_bytes(&[7; 32]).id();
        let address: ServiceAddress = format!("{id}@localhost:4480").parse().unwrap();
        assert!(address.has_hosts());
        let resolved = address.resolve().await.unwrap();
        assert!(resolved.addrs.iter().all(|addr| addr.ip().is_loopback() && addr.port() == 4480));
    }
}
