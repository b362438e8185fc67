//! Tickets: all that is needed to connect to an endpoint without asking a name service, in one line of text.
//!
//! ```text
//! whimbrel:bq4xkuz…o1y/192.0.2.1:4433/2001:db8::1p4433/key-6tk…4hy/laptop.user@example.org
//!          endpoint id  address        address          secret      name
//! ```
//!
//! A URI (RFC 3986, a scheme with a rootless path) of an endpoint id and then, each behind a `/`, up to
//! [`MAX_ADDRESSES`] addresses, at most one secret behind `key-`, and at most one name, which comes last.
//! IPv6 addresses have their port behind a `p` (RFC 5952 §6): there are no brackets, `?` or `&`, so a ticket
//! can be pasted into a shell, a mail or a chat as it is. `[2001:db8::1]:4433` is understood too.
//!
//! A ticket without a secret gives no rights: whoever has it can ask to be let in, as everybody can who knows
//! the endpoint's id. One with a [`TicketSecret`] lets its holder in, so keep it as you would a password. A
//! ticket is not signed: a wrong address in it leads nowhere, because
//! whoever answers must prove to hold the key that the endpoint id names. The name in it is what the ticket's
//! maker calls the endpoint, to be shown, or to be looked up when the addresses no longer work; it proves
//! nothing.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::address::{AddressScope, MAX_ADDRESSES, bounded, portable};
use crate::key::EndpointIdError;
use crate::{EndpointAddr, EndpointId, Name, NameError, z32};

/// The longest ticket, in characters.
pub const MAX_TICKET_CHARS: usize = 1100;

const SCHEME: &str = "whimbrel:";
const SECRET: &str = "key-";

/// Where to find an endpoint, to be handed over by hand: an id, addresses and perhaps a name.
///
/// ```
/// use whimbrel_base::{SecretKey, Ticket};
/// let id = SecretKey::from_bytes(&[7; 32]).id();
/// let ticket = Ticket::new(id, ["[2001:db8::1]:4433".parse().unwrap()], None);
/// assert_eq!(ticket.to_string(), format!("whimbrel:{id}/2001:db8::1p4433"));
/// assert_eq!(ticket.to_string().parse::<Ticket>().unwrap(), ticket);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    id: EndpointId,
    addrs: Vec<SocketAddr>,
    secret: Option<TicketSecret>,
    name: Option<Name>,
}

/// What lets the holder of a ticket in: 128 random bits that only the endpoint and those know whom the ticket
/// was given to. It is not sent: a proof of it is. [`Debug`] does not show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TicketSecret([u8; 16]);

impl TicketSecret {
    /// A new one, from the system's randomness.
    pub fn generate() -> Self {
        Self(crate::random_bytes())
    }

    /// One that was kept.
    pub fn from_bytes(bytes: &[u8; 16]) -> Self {
        Self(*bytes)
    }

    /// The bytes, to be kept secret.
    pub fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Debug for TicketSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TicketSecret(..)")
    }
}

impl Ticket {
    /// A ticket to the endpoint `id`. Addresses are made [portable]; those that nobody can connect to,
    /// repeated ones, and those beyond [`MAX_ADDRESSES`] are left out.
    pub fn new(id: EndpointId, addrs: impl IntoIterator<Item = SocketAddr>, name: Option<Name>) -> Self {
        let addrs = addrs.into_iter().map(portable).filter(usable);
        Self { id, addrs: bounded(addrs), secret: None, name }
    }

    /// The same ticket with a secret, for an endpoint that lets its holder in.
    #[must_use]
    pub fn with_secret(self, secret: TicketSecret) -> Self {
        Self { secret: Some(secret), ..self }
    }

    /// What lets its holder in, if it is such a ticket.
    pub fn secret(&self) -> Option<&TicketSecret> {
        self.secret.as_ref()
    }

    /// The endpoint.
    pub fn id(&self) -> EndpointId {
        self.id
    }

    /// Where it may be, best first.
    pub fn addrs(&self) -> &[SocketAddr] {
        &self.addrs
    }

    /// What the ticket's maker calls it.
    pub fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// The endpoint and its addresses.
    pub fn to_endpoint_addr(&self) -> EndpointAddr {
        EndpointAddr::new(self.id, self.addrs.iter().copied())
    }
}

fn usable(addr: &SocketAddr) -> bool {
    addr.port() != 0 && AddressScope::of(addr.ip()) != AddressScope::Unusable
}

impl From<EndpointAddr> for Ticket {
    fn from(endpoint: EndpointAddr) -> Self {
        Self::new(endpoint.id, endpoint.addrs, None)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{SCHEME}{}", self.id)?;
        for addr in &self.addrs {
            match addr.ip() {
                IpAddr::V4(ip) => write!(f, "/{ip}:{}", addr.port())?,
                IpAddr::V6(ip) => write!(f, "/{ip}p{}", addr.port())?,
            }
        }
        if let Some(secret) = &self.secret {
            write!(f, "/{SECRET}{}", z32::encode(secret.as_bytes()))?;
        }
        match &self.name {
            Some(name) => write!(f, "/{name}"),
            None => Ok(()),
        }
    }
}

impl FromStr for Ticket {
    type Err = TicketError;

    fn from_str(text: &str) -> Result<Self, TicketError> {
        if text.len() > MAX_TICKET_CHARS {
            return Err(TicketError::TooLong(text.len()));
        }
        let text = text.strip_prefix(SCHEME).ok_or(TicketError::Scheme)?;
        let mut parts = text.split('/');
        let id = parts.next().unwrap_or_default().parse()?;
        let (mut addrs, mut secret, mut name) = (Vec::new(), None, None);
        for part in parts {
            if name.is_some() {
                return Err(TicketError::AfterName(part.to_owned()));
            }
            if part.contains('@') {
                name = Some(part.parse()?);
            } else if let Some(text) = part.strip_prefix(SECRET).filter(|_| secret.is_none()) {
                secret = Some(parse_secret(text).ok_or(TicketError::Secret)?);
            } else {
                let addr = parse_address(part).filter(usable);
                addrs.push(addr.ok_or_else(|| TicketError::Address(part.to_owned()))?);
            }
        }
        if addrs.len() > MAX_ADDRESSES {
            return Err(TicketError::TooManyAddresses(addrs.len()));
        }
        Ok(Self { secret, ..Self::new(id, addrs, name) })
    }
}

fn parse_secret(text: &str) -> Option<TicketSecret> {
    z32::decode(text).ok()?.try_into().ok().map(TicketSecret)
}

/// `192.0.2.1:4433`, `2001:db8::1p4433` or `[2001:db8::1]:4433`.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let Some((ip, port)) = text.split_once('p') else {
        return text.parse().ok();
    };
    // `u16::from_str` would take a sign.
    if !port.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let (ip, port) = (ip.parse().ok()?, port.parse().ok()?);
    Some(SocketAddrV6::new(ip, port, 0, 0).into())
}

/// As text, wherever it is.
impl Serialize for Ticket {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Ticket {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// Why a text is not a ticket.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TicketError {
    /// It does not begin with `whimbrel:`.
    #[error("a ticket begins with \"{SCHEME}\"; copy the whole line")]
    Scheme,
    /// It is too long.
    #[error("a ticket has at most {MAX_TICKET_CHARS} characters, this has {0}; copy only the ticket")]
    TooLong(usize),
    /// The endpoint id is wrong.
    #[error("the endpoint id in the ticket is wrong: {0}")]
    Id(#[from] EndpointIdError),
    /// A part is no address.
    #[error(
        "{0:?} in the ticket is no address; write it as 192.0.2.1:4433 or 2001:db8::1p4433, or copy the whole ticket again"
    )]
    Address(String),
    /// What lets its holder in is damaged.
    #[error("the secret in the ticket is damaged; copy the whole ticket again")]
    Secret,
    /// There are too many addresses.
    #[error("a ticket has at most {MAX_ADDRESSES} addresses, this has {0}; leave some out")]
    TooManyAddresses(usize),
    /// The name is wrong.
    #[error("the name in the ticket is wrong: {0}")]
    Name(#[from] NameError),
    /// Something follows the name.
    #[error("{0:?} follows the name in the ticket, but the name comes last; copy the whole ticket again")]
    AfterName(String),
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::SecretKey;
    use proptest::prelude::*;

    fn id() -> EndpointId {
        SecretKey::from_bytes(&[7; 32]).id()
    }

    #[test]
    fn a_secret_is_in_the_text_and_nowhere_else() {
        let secret = TicketSecret::generate();
        let name: Name = "laptop.user@example.org".parse().unwrap();
        let ticket = Ticket::new(id(), ["192.0.2.1:4433".parse().unwrap()], Some(name)).with_secret(secret);
        let text = ticket.to_string();
        assert_eq!(text.parse::<Ticket>().unwrap(), ticket);
        assert_eq!(text.parse::<Ticket>().unwrap().secret(), Some(&secret));
        let spoken = text.split('/').find_map(|part| part.strip_prefix(SECRET)).unwrap();
        assert!(!format!("{ticket:?}").contains(spoken), "{ticket:?}");
        for damaged in ["", "y", &spoken[1..], &format!("{spoken}y"), &spoken.to_uppercase()] {
            let rest = format!("{}/{SECRET}{damaged}", id());
            assert_eq!(format!("{SCHEME}{rest}").parse::<Ticket>(), Err(TicketError::Secret), "{rest}");
        }
        let twice = format!("{SCHEME}{}/{SECRET}{spoken}/{SECRET}{spoken}", id());
        assert!(matches!(twice.parse::<Ticket>(), Err(TicketError::Address(_))));
    }

    fn parse(rest: &str) -> Result<Ticket, TicketError> {
        format!("whimbrel:{}{rest}", id()).parse()
    }

    #[test]
    fn text_form() {
        let ticket = Ticket::new(
            id(),
            ["192.0.2.1:4433", "[2001:db8::1]:5", "[fe80::1%3]:6", "0.0.0.0:7", "192.0.2.1:0"]
                .map(|addr| addr.parse().unwrap()),
            Some("laptop.user@example.org".parse().unwrap()),
        );
        let text = ticket.to_string();
        let rest = "/192.0.2.1:4433/2001:db8::1p5/fe80::1p6/laptop.user@example.org";
        assert_eq!(text, format!("whimbrel:{}{rest}", id()));
        assert_eq!(text.parse(), Ok(ticket.clone()));
        let json = serde_json::to_string(&ticket).unwrap();
        assert_eq!(serde_json::from_str::<Ticket>(&json).unwrap(), ticket);
    }

    /// A ticket is pasted into shells without quotes.
    #[test]
    fn nothing_that_a_shell_would_take_for_its_own() {
        let addrs = (1..=16).map(|n| SocketAddr::from(([0x2001, n, n, n, n, n, n, n], 65535)));
        let name = format!("{}@{}", "a".repeat(63), "b".repeat(63));
        let text = Ticket::new(id(), addrs, Some(name.parse().unwrap())).to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":/@.-".contains(&byte)));
    }

    /// Sixteen longest addresses and a longest name.
    #[test]
    fn the_longest_ticket_fits() {
        let addrs = (1..=16).map(|n| {
            SocketAddr::from(([0x2001, 0x1000 + n, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff], 65535))
        });
        let name: Name = format!("a@{}", "b.".repeat(125) + "b").parse().unwrap();
        let text = Ticket::new(id(), addrs, Some(name)).to_string();
        assert!(text.len() <= MAX_TICKET_CHARS, "{}", text.len());
        assert!(text.parse::<Ticket>().is_ok());
    }

    #[test]
    fn what_is_wrong_is_said() {
        assert_eq!("http://x".parse::<Ticket>(), Err(TicketError::Scheme));
        assert_eq!("whimbrel:".parse::<Ticket>(), Err(TicketError::Id(EndpointIdError::Length(0))));
        for part in
            ["", "x", "192.0.2.1", "192.0.2.1:0", "192.0.2.1p5", "::1p", "::1p+5", "::p5", "1.2.3.4:99999"]
        {
            assert_eq!(parse(&format!("/{part}")), Err(TicketError::Address(part.into())));
        }
        assert_eq!(parse("/a@b@c"), Err(TicketError::Name(NameError::TwoAts)));
        assert_eq!(parse("/a@b/1.2.3.4:5"), Err(TicketError::AfterName("1.2.3.4:5".into())));
        assert_eq!(parse(&"/1.2.3.4:5".repeat(17)), Err(TicketError::TooManyAddresses(17)));
        assert_eq!(parse(&"/".repeat(1100)), Err(TicketError::TooLong(1161)));
        assert_eq!(parse("/[2001:db8::1]:5"), parse("/2001:db8::1p5"));
        assert!(parse("").is_ok());
    }

    proptest! {
        #[test]
        fn round_trip(
            key: [u8; 32],
            addrs in proptest::collection::vec(any::<SocketAddr>(), 0..20),
            named: bool,
        ) {
            let name = named.then(|| "ssh.laptop.user@example.org".parse().unwrap());
            let ticket = Ticket::new(EndpointId::from_bytes(&key), addrs, name);
            prop_assert_eq!(ticket.to_string().parse::<Ticket>(), Ok(ticket));
        }

        #[test]
        fn parsing_never_panics(rest in "\\PC{0,60}|[0-9a-fp:/@.]{0,60}") {
            if let Ok(ticket) = parse(&rest) {
                prop_assert_eq!(ticket.to_string().parse::<Ticket>(), Ok(ticket));
            }
        }
    }
}
