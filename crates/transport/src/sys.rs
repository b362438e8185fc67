//! The few system calls that no kept crate wraps.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// What the kernel knows of a TCP connection (`TCP_INFO`, tcp(7)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TcpStats {
    /// Smoothed round-trip time.
    pub srtt: Duration,
    /// Its mean deviation.
    pub rttvar: Duration,
    /// Congestion window, in bytes.
    pub cwnd: u64,
    /// Bytes in the kernel's buffer that were not sent yet.
    pub unsent: u64,
    /// Segments sent again, in total.
    pub retransmits: u32,
    /// Time since the peer's kernel last acknowledged anything.
    pub since_ack: Duration,
    /// Retransmission timeouts since it last acknowledged anything new.
    pub timeouts: u32,
}

/// Reads `TCP_INFO`.
pub(crate) fn tcp_stats(socket: &impl AsFd) -> io::Result<TcpStats> {
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
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(TcpStats {
        srtt: Duration::from_micros(u64::from(info.tcpi_rtt)),
        rttvar: Duration::from_micros(u64::from(info.tcpi_rttvar)),
        cwnd: u64::from(info.tcpi_snd_cwnd) * u64::from(info.tcpi_snd_mss),
        unsent: u64::from(info.tcpi_notsent_bytes),
        retransmits: info.tcpi_total_retrans,
        since_ack: Duration::from_millis(u64::from(info.tcpi_last_ack_recv)),
        timeouts: u32::from(info.tcpi_retransmits),
    })
}
