//! The few system calls that no kept crate wraps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

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
        since_ack: Some(Duration::from_millis(u64::from(info.tcpi_last_ack_recv))),
        timeouts: u32::from(info.tcpi_retransmits),
    })
}

/// Whether the other end's kernel has yet to acknowledge something that was sent.
pub(crate) fn has_unacknowledged(socket: &impl AsFd) -> io::Result<bool> {
    Ok(tcp_info(socket)?.tcpi_unacked > 0)
}

/// Whether the other end's kernel has acknowledged all that was written to a TCP socket: a reset takes nothing
/// of it away then. Not if that cannot be told.
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
