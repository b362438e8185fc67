//! Sockets for TCP and MPTCP, and what is set on them.

use std::io;
use std::time::Duration;

use socket2::{Domain, Protocol, SockRef, Socket, Type};
use tokio::net::TcpStream;

use super::pace::UNSENT_LIMIT;
use crate::carrier::CarrierKind;
use crate::carrier::sys::{is_mptcp, round_trip, spread_out};

/// The kernel gives a connection up that acknowledges nothing for this long.
const USER_TIMEOUT: Duration = Duration::from_secs(120);
/// On a path of such a round trip what leaves is spread over it. On a shorter one little is under way, and
/// the kernel's timers cost more than a loss: on loopback a third of the rate.
const LONG: Duration = Duration::from_millis(10);

/// A socket for `tcp`, or for `mptcp` where the kernel has it. It does not block.
pub(crate) fn stream_socket(domain: Domain, kind: CarrierKind) -> io::Result<Socket> {
    #[cfg(target_os = "linux")]
    if kind == CarrierKind::Mptcp {
        match Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::MPTCP)) {
            Ok(socket) => return Ok(socket),
            Err(error) => tracing::debug!(%error, "no MPTCP here, TCP does too"),
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = kind;
    #[cfg(target_os = "linux")]
    return Socket::new(domain, Type::STREAM.nonblocking(), Some(Protocol::TCP));
    #[cfg(not(target_os = "linux"))]
    {
        let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// What a socket that was asked to be `wanted` has become: MPTCP needs both kernels.
pub(crate) fn kind_of(socket: &TcpStream, wanted: CarrierKind) -> CarrierKind {
    if wanted == CarrierKind::Mptcp && is_mptcp(socket) { CarrierKind::Mptcp } else { CarrierKind::Tcp }
}

/// Whether sockets have all that is set on them from the listener that accepts them.
pub(crate) fn hands_on(kind: CarrierKind) -> bool {
    cfg!(target_os = "linux") && kind != CarrierKind::Mptcp
}

/// Sets what every path's socket needs. A listener hands it on to the sockets that it accepts, except that of
/// MPTCP, which keeps some of it to itself.
pub(crate) fn tune(socket: SockRef<'_>) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    #[cfg(target_os = "linux")]
    {
        tolerate(socket.set_tcp_notsent_lowat(UNSENT_LIMIT))?;
        tolerate(socket.set_tcp_user_timeout(Some(USER_TIMEOUT)))?;
    }
    Ok(())
}

/// Has the kernel spread what a connected socket sends over the round trip, where that is long. In slow start
/// cubic and Reno send two packets for each that is acknowledged, at the pace of the link: half of the window
/// waits in the link's queue, and a queue shorter than that loses some long before the pipe is full. Spread
/// out, little waits until the pipe is full, which HyStart (RFC 9406) sees then, or a round later. BBR does
/// it by itself.
pub(crate) fn spread(socket: &TcpStream) {
    if round_trip(socket).is_ok_and(|time| time >= LONG) {
        // Without it only more is lost.
        let _ = spread_out(socket);
    }
}

/// MPTCP does not know all options of TCP, and does without.
#[cfg(target_os = "linux")]
fn tolerate(result: io::Result<()>) -> io::Result<()> {
    let unknown = |error: &io::Error| {
        let known = [rustix::io::Errno::OPNOTSUPP, rustix::io::Errno::NOPROTOOPT];
        known.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
    };
    match result {
        Err(error) if !unknown(&error) => Err(error),
        _ => Ok(()),
    }
}
