//! Errors of the transport's public face; each says what to do.

use std::io;
use std::net::SocketAddr;

use whimbrel_base::{ConnectionId, EndpointId, Name, NameError, TicketError};
use whimbrel_proto::{CloseCode, DecodeError};

use crate::report::CloseReason;

/// An endpoint that could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BindError {
    /// The sockets could not be bound.
    #[error("cannot listen on {address}: {source}; choose another port or stop who uses it")]
    Socket {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The address monitor could not be started.
    #[error("cannot watch this host's addresses: {0}")]
    Monitor(io::Error),
    /// The key was not accepted by TLS.
    #[error("the key cannot be used: {0}")]
    Tls(#[from] crate::TlsError),
}

/// A path that a connection does not have (any more).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the connection has no path {0}; it may be gone")]
pub struct NoSuchPath(
    /// Its number.
    pub u64,
);

/// Why a text does not say whom to connect to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// It is neither a name nor anything else.
    #[error("{text:?} is no name ({source}), no ticket and no endpoint id")]
    Name {
        /// What was given.
        text: String,
        /// What is wrong with it as a name.
        source: NameError,
    },
    /// It begins like a ticket and is none.
    #[error(transparent)]
    Ticket(#[from] TicketError),
}

/// A connection that could not be put to sleep.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SuspendError {
    /// The peer has not accepted the connection yet.
    #[error("the peer has not accepted the connection yet; wait until it is connected")]
    NotEstablished,
    /// The connection is over.
    #[error("the connection is over: {0}")]
    Closed(CloseReason),
    /// The peer does not know of hand-overs to another key.
    #[error("the peer's version knows no hand-over to another key; suspend the connection for this key")]
    Unsupported,
    /// The peer may not know that this copy of the side has the connection.
    #[error("the peer was not reached since the connection was resumed here; wait until it has a path")]
    Unheard,
    /// What was given as the next owner can't be one.
    #[error("{0} cannot be the next owner: it is no key, or one of the connection's two ends")]
    NotAKey(EndpointId),
}

/// A connection that was not handed over to another endpoint, or not taken over from one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HandOverError {
    /// The connection cannot be handed over; it goes on here.
    #[error(transparent)]
    Suspend(#[from] SuspendError),
    /// What the other endpoint sent cannot be gone on with.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The connection between the two endpoints broke.
    #[error("the connection to the other endpoint broke: {0}")]
    Broken(#[from] io::Error),
    /// The other endpoint cannot go on, and says why. The connection goes on here.
    #[error("the other endpoint cannot go on: {0}")]
    Refused(String),
    /// The other endpoint says something else.
    #[error(
        "the other endpoint did not hand anything over on this stream; call both sides in the same order"
    )]
    Other,
    /// The peer does not take the new owner.
    #[error("the connection ended before its peer had taken the new owner: {0}")]
    NotTaken(CloseReason),
    /// It took too long. The connection goes on where it was, unless the peer has taken the new owner at the
    /// last moment: then it ends there with [`CloseCode::SUPERSEDED`].
    #[error("the hand-over was not done in time; is the peer in reach of the new owner?")]
    TimedOut,
}

/// A suspended connection that could not be woken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ResumeError {
    /// The bytes are something else.
    #[error("these bytes are not a suspended connection, or one of another version")]
    NotSuspended,
    /// The connection belongs to another identity.
    #[error("the connection belongs to {owner}, and this endpoint is {here}: resume it with that key")]
    OtherOwner {
        /// The identity that it belongs to.
        owner: EndpointId,
        /// The identity of this endpoint.
        here: EndpointId,
    },
    /// The bytes were changed or cut off.
    #[error("the suspended connection was changed or cut off since it was written")]
    Damaged,
    /// The engine cannot read its part.
    #[error("the suspended connection cannot be read: {0}")]
    Snapshot(#[source] DecodeError),
    /// This endpoint has the connection.
    #[error("connection {0} is in use at this endpoint already")]
    InUse(ConnectionId),
    /// There is no room for another connection.
    #[error("this endpoint has as many connections as it may have; close some, or raise the limit")]
    Full,
    /// The sockets cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The endpoint was closed.
    #[error("the endpoint is closed")]
    EndpointClosed,
}

/// A connection that could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// It is not clear to whom.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// The name is known to nobody, its record has expired, or its owner does not show it to this key.
    #[error("{0}: no such name is registered or shown to this key, or it was not heard of for too long")]
    NotFound(Name),
    /// The name stands for several peers, and one was asked for.
    #[error("{0} is a group: it stands for its members, and no single peer answers to it; name one of them")]
    Group(Name),
    /// Names cannot be resolved.
    #[error("cannot look up {name}: {source}")]
    Resolve {
        /// The name.
        name: Name,
        /// Why not.
        source: ResolveError,
    },
    /// A name was given, but the endpoint knows no name service.
    #[error("cannot look up {0}: no name service is configured; give one, or connect by ticket")]
    NoResolver(Name),
    /// Where a peer is could not be found out by its id.
    #[error("cannot find out where {id} is: {source}")]
    Find {
        /// Who.
        id: EndpointId,
        /// Why not.
        source: ResolveError,
    },
    /// No address is known.
    #[error("no address of {0} is known; it may be offline")]
    NoAddress(EndpointId),
    /// Nobody answered in time.
    #[error(
        "{peer} did not answer at {addresses} within the time limit; is it running, and is the way free?"
    )]
    TimedOut {
        /// Who.
        peer: EndpointId,
        /// Where it was tried.
        addresses: String,
    },
    /// The peer said no.
    #[error("{peer} refused the connection: {code}{}", with_reason(.reason))]
    Refused {
        /// Who.
        peer: EndpointId,
        /// Why.
        code: CloseCode,
        /// Why, in the peer's words.
        reason: String,
    },
    /// The endpoint was closed.
    #[error("this endpoint is closed")]
    EndpointClosed,
}

fn with_reason(reason: &str) -> String {
    if reason.is_empty() { String::new() } else { format!(" ({reason})") }
}

/// A listener that could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListenError {
    /// What was given as a name is none.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The options let nobody in.
    #[error("nobody would be let in; say who may connect, with ListenOptions::allow")]
    Nobody,
    /// The endpoint's key was made with it, and is gone with it: what is registered for it could never be
    /// changed again.
    #[error("cannot register {0} for a key that ends with this endpoint; give it one that lasts")]
    FleetingKey(Name),
    /// The sockets could not be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Another listener of this endpoint has the name.
    #[error("{0} is already listened for by this endpoint")]
    InUse(String),
    /// The name could not be published.
    #[error("cannot register {name}: {source}")]
    Publish {
        /// The name.
        name: Name,
        /// Why not.
        source: ResolveError,
    },
    /// More peers may connect than the name can be shown to.
    #[error(
        "more keys may connect to {0} than its record can name as readers; before you listen, say who may look it up, \
         with NameResolver::set_readers"
    )]
    TooManyReaders(Name),
    /// The endpoint knows no name service.
    #[error("cannot register {0}: no name service is configured; give one, or listen unpublished")]
    NoResolver(Name),
    /// The record could not be made.
    #[error("cannot make a record: {0}")]
    Record(#[from] whimbrel_base::RecordError),
    /// The endpoint was closed.
    #[error("this endpoint is closed")]
    EndpointClosed,
}

/// Why a name could not be looked up or published.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// Nobody has registered it, its record has expired, or its owner does not show it to this key.
    #[error("no such name is registered, or shown to this key")]
    NotFound,
    /// The name service cannot be reached.
    #[error("the name service does not answer: {0}")]
    Unreachable(String),
    /// The name service said no.
    #[error("the name service refused: {0}")]
    Refused(String),
    /// The record is not what it should be.
    #[error("the record is not valid: {0}")]
    Invalid(String),
    /// The record contradicts what is known of the name's owner.
    #[error("{0}")]
    Untrusted(String),
}

/// The connection is over, or cannot do what was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectionError {
    /// It was closed.
    #[error("the connection is closed: {0}")]
    Closed(CloseReason),
    /// It did not end in time.
    #[error("the peer did not confirm the end in time")]
    TimedOut,
}

impl From<ConnectionError> for io::Error {
    fn from(error: ConnectionError) -> Self {
        Self::new(io::ErrorKind::ConnectionAborted, error)
    }
}

impl From<BindError> for io::Error {
    fn from(error: BindError) -> Self {
        Self::new(bind_kind(&error), error)
    }
}

fn bind_kind(error: &BindError) -> io::ErrorKind {
    match error {
        BindError::Socket { source, .. } | BindError::Monitor(source) => source.kind(),
        BindError::Tls(_) => io::ErrorKind::InvalidInput,
    }
}

impl From<ConnectError> for io::Error {
    fn from(error: ConnectError) -> Self {
        let kind = match &error {
            ConnectError::Target(_) | ConnectError::NoResolver(_) | ConnectError::Group(_) => {
                io::ErrorKind::InvalidInput
            }
            ConnectError::NotFound(_) => io::ErrorKind::NotFound,
            ConnectError::Resolve { .. } | ConnectError::Find { .. } | ConnectError::NoAddress(_) => {
                io::ErrorKind::HostUnreachable
            }
            ConnectError::TimedOut { .. } => io::ErrorKind::TimedOut,
            ConnectError::Refused { .. } => io::ErrorKind::ConnectionRefused,
            ConnectError::EndpointClosed => io::ErrorKind::NotConnected,
        };
        Self::new(kind, error)
    }
}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> Self {
        use ListenError as E;
        let kind = match &error {
            E::Bind(error) => bind_kind(error),
            E::InUse(_) => io::ErrorKind::AddrInUse,
            E::Publish { .. } => io::ErrorKind::PermissionDenied,
            E::EndpointClosed => io::ErrorKind::NotConnected,
            E::Name(_)
            | E::Nobody
            | E::FleetingKey(_)
            | E::Record(_)
            | E::NoResolver(_)
            | E::TooManyReaders(_) => io::ErrorKind::InvalidInput,
        };
        Self::new(kind, error)
    }
}
