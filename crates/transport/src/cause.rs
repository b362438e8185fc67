//! Why paths end.

use std::fmt;
use std::io;
use std::net::IpAddr;

use quinn::ConnectionError;
use whimbrel_proto::PathEnd;

use crate::carrier::PathError;
use crate::monitor::AddressSet;

/// Why a path ended. A hint from below, for people and for applications that decide by it: what happened is
/// what the kernel, the carrier or the peer told first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DownCause {
    /// The interface was switched off or is gone, or its cable or network is.
    LinkDown,
    /// The host no longer has the local address.
    AddressGone,
    /// The last route to the peer is gone.
    RouteGone,
    /// Somebody ended the carrier by a reset: the peer's host, or something on the way.
    Reset,
    /// A host or router on the way said that nobody is reached there (ICMP).
    Unreachable,
    /// Nothing came any more.
    Silent,
    /// This side gave it up: another one took its place, or it is not wanted.
    Retired,
    /// The peer said where it is now, and that is elsewhere.
    PeerMoved,
    /// The peer gave it up.
    PeerGaveUp,
    /// The peer ended the carrier in order.
    ClosedByPeer,
    /// The peer did not let it in.
    Refused,
    /// What came was not what the peer may say: the protocol, TLS or QUIC was broken.
    Broken,
    /// This host's system ended the carrier, or failed to serve it, for another reason.
    Failed,
}

impl DownCause {
    /// Why a host with these addresses has another one no more.
    pub(crate) fn of_address(set: &AddressSet, gone: IpAddr) -> Self {
        if set.without_link.contains(&gone) { Self::LinkDown } else { Self::AddressGone }
    }

    /// The word for it, as `whimbrel status --events --json` has it.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::LinkDown => "link-down",
            Self::AddressGone => "address-gone",
            Self::RouteGone => "route-gone",
            Self::Reset => "reset",
            Self::Unreachable => "unreachable",
            Self::Silent => "silent",
            Self::Retired => "retired",
            Self::PeerMoved => "peer-moved",
            Self::PeerGaveUp => "peer-gave-up",
            Self::ClosedByPeer => "closed-by-peer",
            Self::Refused => "refused",
            Self::Broken => "broken",
            Self::Failed => "failed",
        }
    }
}

impl fmt::Display for DownCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::LinkDown => "the interface is down",
            Self::AddressGone => "the local address is gone",
            Self::RouteGone => "there is no route any more",
            Self::Reset => "it was reset",
            Self::Unreachable => "the peer's host was said to be out of reach",
            Self::Silent => "nothing came any more",
            Self::Retired => "it is not needed any more",
            Self::PeerMoved => "the peer is elsewhere",
            Self::PeerGaveUp => "the peer gave it up",
            Self::ClosedByPeer => "the peer closed it",
            Self::Refused => "the peer refused it",
            Self::Broken => "the peer broke the protocol",
            Self::Failed => "the system ended it",
        })
    }
}

impl From<PathEnd> for DownCause {
    fn from(end: PathEnd) -> Self {
        match end {
            PathEnd::Silent => Self::Silent,
            PathEnd::ByPeer => Self::PeerGaveUp,
            PathEnd::Refused => Self::Refused,
            _ => Self::Retired,
        }
    }
}

impl From<&PathError> for DownCause {
    fn from(error: &PathError) -> Self {
        match error {
            PathError::Closed => Self::ClosedByPeer,
            PathError::Io(error) => of_socket(error),
            PathError::Quic(error) => of_quic(error),
            PathError::Tls(_) | PathError::Protocol => Self::Broken,
        }
    }
}

fn of_socket(error: &io::Error) -> DownCause {
    use io::ErrorKind;
    match error.kind() {
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::ConnectionRefused => {
            DownCause::Unreachable
        }
        ErrorKind::NetworkDown => DownCause::LinkDown,
        ErrorKind::AddrNotAvailable => DownCause::AddressGone,
        ErrorKind::TimedOut => DownCause::Silent,
        ErrorKind::UnexpectedEof => DownCause::ClosedByPeer,
        // The last two are of what was written to behind the peer's reset.
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe | ErrorKind::NotConnected => DownCause::Reset,
        _ => DownCause::Failed,
    }
}

fn of_quic(error: &ConnectionError) -> DownCause {
    match error {
        ConnectionError::ConnectionClosed(_) | ConnectionError::ApplicationClosed(_) => {
            DownCause::ClosedByPeer
        }
        ConnectionError::Reset => DownCause::Reset,
        ConnectionError::TimedOut => DownCause::Silent,
        ConnectionError::LocallyClosed => DownCause::Retired,
        ConnectionError::TransportError(_)
        | ConnectionError::VersionMismatch
        | ConnectionError::CidsExhausted => DownCause::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn what_a_socket_says_is_told_by_its_cause() {
        use crate::tls::TlsError;

        let cause = |code| DownCause::from(&PathError::Io(io::Error::from_raw_os_error(code)));
        let expected = [
            (libc::EHOSTUNREACH, DownCause::Unreachable),
            (libc::ENETUNREACH, DownCause::Unreachable),
            (libc::ECONNREFUSED, DownCause::Unreachable),
            (libc::ECONNRESET, DownCause::Reset),
            (libc::EPIPE, DownCause::Reset),
            (libc::ETIMEDOUT, DownCause::Silent),
            (libc::ENETDOWN, DownCause::LinkDown),
            // A socket that an administrator destroyed, a packet filter, and no memory: no reset of
            // anybody's.
            (libc::ECONNABORTED, DownCause::Failed),
            (libc::EPERM, DownCause::Failed),
            (libc::ENOBUFS, DownCause::Failed),
        ];
        for (code, expected) in expected {
            assert_eq!(cause(code), expected, "{}", io::Error::from_raw_os_error(code));
        }
        assert_eq!(DownCause::from(&PathError::Closed), DownCause::ClosedByPeer);
        assert_eq!(DownCause::from(&PathError::Protocol), DownCause::Broken);
        assert_eq!(DownCause::from(&PathError::Tls(TlsError::Internal("of a test"))), DownCause::Broken);
    }

    #[test]
    fn what_quic_and_the_engine_say_is_told_by_its_cause() {
        let quic = |error| DownCause::from(&PathError::Quic(error));
        assert_eq!(quic(ConnectionError::Reset), DownCause::Reset);
        assert_eq!(quic(ConnectionError::TimedOut), DownCause::Silent);
        assert_eq!(quic(ConnectionError::LocallyClosed), DownCause::Retired);
        assert_eq!(quic(ConnectionError::VersionMismatch), DownCause::Broken);
        let engine = [
            (PathEnd::Here, DownCause::Retired),
            (PathEnd::Retired, DownCause::Retired),
            (PathEnd::Silent, DownCause::Silent),
            (PathEnd::ByPeer, DownCause::PeerGaveUp),
            (PathEnd::Refused, DownCause::Refused),
        ];
        engine.into_iter().for_each(|(end, cause)| assert_eq!(DownCause::from(end), cause));
    }
}
