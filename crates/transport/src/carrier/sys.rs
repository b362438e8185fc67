//! The few system calls that no kept crate wraps.
#![allow(unsafe_code)]

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use socket2::SockAddr;

use super::CarrierStats;
use crate::locator::Extent;
use crate::locked::asks_the_kernel;

/// Reads `TCP_INFO`. It tells of the way to whoever holds the connection's other end; `extent` says how much
/// of the path that is.
pub(crate) fn tcp_stats(socket: &impl AsFd, extent: Extent) -> io::Result<CarrierStats> {
    let info = tcp_info(socket)?;
    Ok(CarrierStats {
        extent,
        srtt: Duration::from_micros(u64::from(info.tcpi_rtt)),
        rttvar: Duration::from_micros(u64::from(info.tcpi_rttvar)),
        cwnd: u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss),
        unsent: u64::from(info.tcpi_notsent_bytes),
        delivery_rate: info.tcpi_delivery_rate,
        lost: u64::from(info.tcpi_total_retrans),
        since_ack: Some(millis(info.tcpi_last_ack_recv)),
        // Of what is behind a loss the kernel notes that it came with an acknowledgement, old as that may be.
        since_heard: Some(millis(info.tcpi_last_ack_recv.min(info.tcpi_last_data_recv))),
        timeouts: u32::from(info.tcpi_retransmits),
    })
}

fn millis(count: u32) -> Duration {
    Duration::from_millis(u64::from(count))
}

/// The round trip as the kernel sees it, which knows one as soon as a connection stands.
pub(crate) fn round_trip(socket: &impl AsFd) -> io::Result<Duration> {
    Ok(Duration::from_micros(u64::from(tcp_info(socket)?.tcpi_rtt)))
}

/// Whether the other end's kernel has yet to acknowledge something that was sent.
pub(crate) fn has_unacknowledged(socket: &impl AsFd) -> io::Result<bool> {
    Ok(tcp_info(socket)?.tcpi_unacked > 0)
}

/// Whether the other end's kernel has acknowledged all that was written to a TCP socket: a reset takes
/// nothing of it away then. Not if that cannot be told.
pub fn is_delivered(socket: &impl AsFd) -> bool {
    tcp_info(socket).is_ok_and(|info| info.tcpi_unacked == 0 && info.tcpi_notsent_bytes == 0)
}

fn tcp_info(socket: &impl AsFd) -> io::Result<libc::tcp_info> {
    asks_the_kernel();
    // SAFETY: tcp_info is plain old data, for which all zeroes is a valid value.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed; the kernel writes at most `length`
    // bytes to `info`, which is exactly that large.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(info) } else { Err(io::Error::last_os_error()) }
}

/// The beginning of `struct mptcp_info` (linux/mptcp.h).
#[repr(C)]
#[derive(Default)]
struct MptcpInfo {
    counters: [u8; 6],
    flags: u32,
}

const SOL_MPTCP: libc::c_int = 284;
const MPTCP_INFO: libc::c_int = 1;
/// The peer, or somebody on the way, did not speak MPTCP.
const MPTCP_INFO_FLAG_FALLBACK: u32 = 1;

/// Whether a connected socket is one of MPTCP, and has not fallen back to TCP.
pub(crate) fn is_mptcp(socket: &impl AsFd) -> bool {
    asks_the_kernel();
    let mut info = MptcpInfo::default();
    let mut length = size_of::<MptcpInfo>() as libc::socklen_t;
    // SAFETY: the descriptor is open while `socket` is borrowed; the kernel writes at most `length`
    // bytes to `info`, which is exactly that large.
    let result = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            SOL_MPTCP,
            MPTCP_INFO,
            (&raw mut info).cast(),
            &raw mut length,
        )
    };
    result == 0 && info.flags & MPTCP_INFO_FLAG_FALLBACK == 0
}

/// What a socket's queue of errors holds of one datagram that was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueuedError {
    /// Who says it: one of `SO_EE_ORIGIN_…`.
    pub(crate) origin: u8,
    /// Type and code of the ICMP message, if it is one.
    pub(crate) kind: u8,
    pub(crate) code: u8,
    /// Where the datagram went, as it is quoted.
    pub(crate) to: Option<SocketAddr>,
    /// How many bytes of what it carried are quoted, as far as there was room for them.
    pub(crate) quoted: usize,
}

/// Has the kernel queue what it hears of a UDP socket's datagrams (ICMP), whether it calls that fatal or not;
/// or throw away what is queued, and queue no more.
///
/// # Errors
/// Those of setsockopt(2), if the kernel does it for neither family.
pub(crate) fn queue_errors(socket: &impl AsFd, on: bool) -> io::Result<()> {
    // A socket of IPv6 may send to IPv4 too; one of IPv4 does not know the other option.
    let on = libc::c_int::from(on);
    let of_v6 = set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, on);
    set_option(socket, libc::IPPROTO_IP, libc::IP_RECVERR, on).or(of_v6)
}

/// Has the kernel keep those who come to a listener for TCP until they have said something, or said nothing
/// for a second: until then they take none of this process's memory.
///
/// # Errors
/// Those of setsockopt(2).
pub(crate) fn accept_who_speaks(listener: &impl AsFd) -> io::Result<()> {
    // A second is how long its answer to a SYN waits to be repeated: no time is shorter.
    set_option(listener, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT, 1)
}

/// Has the kernel pace a TCP socket: it spreads what it sends over the round trip, whichever congestion
/// control it has. The kernel does so for a socket that has a limit for its rate: this one is the highest
/// that an int says, 34 Gbit/s.
///
/// # Errors
/// Those of setsockopt(2).
pub(crate) fn spread_out(socket: &impl AsFd) -> io::Result<()> {
    // All ones are no limit.
    set_option(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, !1)
}

fn set_option(
    socket: &impl AsFd,
    level: libc::c_int,
    option: libc::c_int,
    value: libc::c_int,
) -> io::Result<()> {
    asks_the_kernel();
    // SAFETY: the descriptor is open while `socket` is borrowed; the kernel reads an int, which `value` is.
    let result = unsafe {
        libc::setsockopt(
            socket.as_fd().as_raw_fd(),
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Room for the control messages that stand beside a queued error, aligned as they are.
#[repr(C, align(8))]
struct Control([u8; 256]);

/// Takes the oldest error out of a socket's queue. `None` for one that is not of a datagram. The beginning of
/// what the datagram carried is written to `quoted`, as far as it is quoted.
///
/// # Errors
/// `WouldBlock` if there is none, and others of recvmsg(2).
pub(crate) fn take_queued_error(socket: &impl AsFd, quoted: &mut [u8]) -> io::Result<Option<QueuedError>> {
    asks_the_kernel();
    let mut control = Control([0; 256]);
    let mut payload = libc::iovec { iov_base: quoted.as_mut_ptr().cast(), iov_len: quoted.len() };
    let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
    // SAFETY: `init` leaves a name and its length as recvmsg(2) wrote them, which is an address or nothing.
    let ((error, quoted), to) = unsafe {
        SockAddr::try_init(|name, length| {
            // SAFETY: msghdr is plain old data, for which all zeroes is a valid value: no buffers.
            let mut message: libc::msghdr = std::mem::zeroed();
            message.msg_name = name.cast();
            message.msg_namelen = *length;
            message.msg_iov = &raw mut payload;
            message.msg_iovlen = 1;
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = size_of::<Control>() as _;
            // SAFETY: the descriptor is open while `socket` is borrowed; name, payload and control are as
            // large as the message says, and live until it has been read.
            let read = libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, flags);
            let read = usize::try_from(read).map_err(|_| io::Error::last_os_error())?;
            *length = message.msg_namelen;
            Ok((extended_error(&message), read))
        })?
    };
    Ok(error.map(|error| QueuedError {
        origin: error.ee_origin,
        kind: error.ee_type,
        code: error.ee_code,
        to: to.as_socket(),
        quoted,
    }))
}

/// The error among the control messages.
///
/// # Safety
/// recvmsg(2) has filled `message`, whose control messages are there still.
unsafe fn extended_error(message: &libc::msghdr) -> Option<libc::sock_extended_err> {
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return None;
    }
    // SAFETY: the caller says that the control messages are whole; each is followed by another one, or null.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while let Some(header) = at.as_ref() {
            match (header.cmsg_level, header.cmsg_type) {
                (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                    return Some(libc::CMSG_DATA(at).cast::<libc::sock_extended_err>().read_unaligned());
                }
                _ => at = libc::CMSG_NXTHDR(message, at),
            }
        }
    }
    None
}
