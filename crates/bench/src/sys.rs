//! What the kernel and the allocator say of this process.
#![allow(unsafe_code)]

use std::fs;
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
    let statm = fs::read_to_string("/proc/self/statm").context("no /proc")?;
    let pages: u64 = statm.split(' ').nth(1).context("malformed statm")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
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
