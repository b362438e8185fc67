//! The few system calls that no kept crate wraps safely. All of the crate's unsafe code is here.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_short, c_ulong};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::Signal;
use rustix::thread::{LinkNameSpaceType, UnshareFlags};

// From <linux/if_tun.h>; these numbers are the same on every architecture Rust's Linux targets use with the
// generic ioctl encoding (_IOW('T', nr, int)).
const TUNSETIFF: c_ulong = 0x4004_54ca;
const TUNSETCARRIER: c_ulong = 0x4004_54e2;

/// Moves the calling thread into a network namespace of its own.
pub(crate) fn new_network_namespace() -> io::Result<()> {
    // SAFETY: only CLONE_FILES and CLONE_NEWUSER-like flags endanger memory or descriptors shared between
    // threads; CLONE_NEWNET touches neither.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNET) }?;
    Ok(())
}

/// The network namespace of the calling thread.
pub(crate) fn current_network_namespace() -> io::Result<File> {
    File::open("/proc/thread-self/ns/net")
}

/// Moves the calling thread into that network namespace.
pub(crate) fn enter_network_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Network))?;
    Ok(())
}

/// Makes a TAP device in the calling thread's network namespace. It vanishes with the returned descriptor.
pub(crate) fn open_tap(name: &str) -> io::Result<File> {
    let file =
        OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
    let mut request = interface_request(name)?;
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI) as c_short;
    // SAFETY: TUNSETIFF reads and writes one ifreq; `request` is one, initialised, and outlives the call.
    let answer = unsafe { libc::ioctl(file.as_raw_fd(), TUNSETIFF as _, &mut request) };
    check(answer)?;
    Ok(file)
}

/// Plugs in or pulls the cable of a TAP device.
pub(crate) fn set_tap_carrier(tap: &File, plugged: bool) -> io::Result<()> {
    let carrier = c_int::from(plugged);
    // SAFETY: TUNSETCARRIER reads one int, which outlives the call.
    check(unsafe { libc::ioctl(tap.as_fd().as_raw_fd(), TUNSETCARRIER as _, &carrier) })
}

/// Lets the calling thread run as soon as it has something to do, if the system allows that.
pub(crate) fn prefer_this_thread() -> io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: reads one sched_param, which outlives the call; pid 0 means the calling thread.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, &lowest) })
}

/// Makes the command's process die with the thread that starts it.
pub(crate) fn die_with_parent(command: &mut Command) {
    let ask = || Ok(rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; this is a single prctl system
    // call.
    unsafe { command.pre_exec(ask) };
}

fn interface_request(name: &str) -> io::Result<libc::ifreq> {
    // SAFETY: ifreq is plain old data, for which all zeros is a valid value.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let fits =
        (1..request.ifr_name.len()).contains(&name.len()) && !name.contains(['/', ' ', '\0', ':', '%']);
    if !fits {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "an interface name has 1 to 15 plain characters",
        ));
    }
    for (slot, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *slot = byte as _;
    }
    Ok(request)
}

fn check(answer: c_int) -> io::Result<()> {
    if answer < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
