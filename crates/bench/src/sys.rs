//! What the kernel and the allocator say of this process.
#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};

/// CPU time that all threads of this process have used.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// Bytes of memory that this process has resident.
pub(crate) fn resident() -> Result<u64> {
    resident_of(std::process::id())
}

/// Bytes of memory that a process has resident.
pub(crate) fn resident_of(pid: u32) -> Result<u64> {
    let statm = fs::read_to_string(format!("/proc/{pid}/statm")).context("the process is gone")?;
    let pages: u64 = statm.split(' ').nth(1).context("malformed statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// CPU time that all threads of a process have used, those that have ended among them, to a clock tick (10
/// ms).
pub(crate) fn cpu_time_of(pid: u32) -> Result<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).context("the process is gone")?;
    let ticks = ticks_in(&stat).context("malformed stat")?;
    let each = 1.0 / rustix::param::clock_ticks_per_second() as f64;
    Ok(Duration::from_secs_f64(ticks as f64 * each))
}

/// Finds the time in programs and the time in the kernel (proc_pid_stat(5)). The program's name before them
/// may have blanks and parentheses.
fn ticks_in(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(')')?;
    let mut times = fields.split_whitespace().skip(11).map(|field| field.parse::<u64>().ok());
    Some(times.next()?? + times.next()??)
}

/// How the kernel says that there is no slow-start threshold (`TCP_INFINITE_SSTHRESH`).
const NO_THRESHOLD: u32 = 0x7fff_ffff;

/// What the kernel knows of a connection that sends.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    /// Up to this congestion window, in packets, it doubles with each round trip.
    pub(crate) slow_start_threshold: u32,
    /// Packets that were sent again, ever.
    pub(crate) retransmitted: u32,
}

impl Sender {
    /// Whether nothing has ever had it leave slow start for good.
    pub(crate) fn has_no_threshold(&self) -> bool {
        self.slow_start_threshold >= NO_THRESHOLD
    }

    /// Asks by `TCP_INFO`.
    pub(crate) fn of(socket: &impl AsFd) -> Result<Self> {
        // SAFETY: tcp_info is plain old data, for which all zeroes is a valid value.
        let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
        let mut length = size_of::<libc::tcp_info>() as libc::socklen_t;
        // SAFETY: the descriptor is open while `socket` is borrowed; the kernel writes at most `length` bytes
        // to `info`, which is exactly that large.
        let result = unsafe {
            libc::getsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                (&raw mut info).cast(),
                &raw mut length,
            )
        };
        let error = std::io::Error::last_os_error;
        anyhow::ensure!(result == 0, "the kernel does not tell of a connection: {}", error());
        Ok(Self { slow_start_threshold: info.tcpi_snd_ssthresh, retransmitted: info.tcpi_total_retrans })
    }
}

/// How often the retransmission timer of any TCP connection in this thread's network ended.
pub(crate) fn retransmission_timeouts() -> Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/netstat").context("no /proc")?;
    timeouts_in(&text).context("the kernel does not count timeouts")
}

/// Finds `TCPTimeouts` in a table of pairs of lines: names, then numbers.
fn timeouts_in(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let at = lines.next()?.split(' ').position(|name| name == "TCPTimeouts")?;
    lines.next()?.split(' ').nth(at)?.parse().ok()
}

/// Bytes that this process has allocated and not freed, as far as the allocator can tell.
pub(crate) fn allocated() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: mallinfo2 has no preconditions, and may be called from any thread.
        let info = unsafe { libc::mallinfo2() };
        Some((info.uordblks + info.hblkhd) as u64)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Hands freed memory back to the kernel, so that [`resident`] counts what is in use.
pub(crate) fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim has no preconditions, and may be called from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Allows as many open files as the system lets us: root as many as the kernel can, others up to their limit.
pub(crate) fn raise_file_limit() -> Result<u64> {
    let possible = fs::read_to_string("/proc/sys/fs/nr_open").ok().and_then(|text| text.trim().parse().ok());
    if let Some(possible) = possible {
        let raised = Rlimit { current: Some(possible), maximum: Some(possible) };
        if setrlimit(Resource::Nofile, raised).is_ok() {
            return Ok(possible);
        }
    }
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).context("cannot raise the limit of open files")?;
    Ok(limit.maximum.unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_times_of_a_process_count_whatever_it_is_called() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194304 95 0 0 0 30 12 5 6 20 0 1 0 100 8192 200";
        assert_eq!(ticks_in(stat), Some(42));
        assert_eq!(ticks_in("7 (a) S 1"), None);
        assert!(cpu_time_of(std::process::id()).is_ok());
    }

    #[test]
    fn timeouts_are_found_by_their_name() {
        let text = "TcpExt: SyncookiesSent TCPTimeouts TCPLoss\nTcpExt: 3 17 5\nIpExt: A\nIpExt: 1\n";
        assert_eq!(timeouts_in(text), Some(17));
        assert_eq!(timeouts_in("IpExt: TCPTimeouts\nIpExt: 1\n"), None);
        assert!(retransmission_timeouts().is_ok());
    }
}
