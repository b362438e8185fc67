//! The service manager that started this program, if one did: what it is told (`sd_notify(3)`), and the
//! sockets that it hands over (`sd_listen_fds(3)`).

use futures_util::FutureExt;
use std::net::TcpListener;

use anyhow::{Context as _, Result};
use listenfd::ListenFd;
use sd_notify::NotifyState;
use tokio::task::AbortHandle;
use whimbrel::OpenSockets;

/// A command that does its work. When dropped, the service manager is told that the command is ending.
pub(crate) struct Ready {
    watchdog: Option<AbortHandle>,
    is_left: bool,
}

impl Ready {
    /// Tells the service manager that the command does its work from now on, and what that is. If it watches,
    /// gives it a sign of life in time, for as long as the runtime's timers run. Needs a runtime.
    pub(crate) fn tell(status: &str) -> Self {
        tell(&[NotifyState::Ready, NotifyState::Status(status)]);
        let watchdog = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()).map(|limit| {
            // Half the time, as systemd advises.
            let mut due = tokio::time::interval(limit / 2);
            let watching = tokio::spawn(FutureExt::boxed(async move {
                loop {
                    due.tick().await;
                    tell(&[NotifyState::Watchdog]);
                }
            }));
            watching.abort_handle()
        });
        Self { watchdog, is_left: false }
    }

    /// Tells the service manager that another instance is about to take over, and not that the command ends.
    pub(crate) fn leave(mut self) {
        self.is_left = true;
        reloading();
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        if let Some(watchdog) = &self.watchdog {
            watchdog.abort();
        }
        if !self.is_left {
            tell(&[NotifyState::Stopping]);
        }
    }
}

/// Whether a service manager is listening.
pub(crate) fn is_there() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Tells the service manager which process is the service from now on.
pub(crate) fn main_process_is(pid: u32) {
    tell(&[NotifyState::MainPid(pid)]);
}

/// Tells the service manager that the configuration is being read again, or another instance begins.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager cannot be told of the reload"),
    }
}

/// Tells the service manager that the configuration was read again, and what the command does.
pub(crate) fn ready_again(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// Does nothing where there is no service manager.
fn tell(what: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(what) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}

/// The listening TCP socket that the service manager opened for us, if it did.
///
/// # Errors
/// When it handed over something else, or more than one socket.
pub(crate) fn tcp_socket() -> Result<Option<TcpListener>> {
    let mut sockets = ListenFd::from_env();
    match sockets.len() {
        0 => Ok(None),
        1 => sockets
            .take_tcp_listener(0)
            .context("the socket of the service manager is no TCP socket that listens"),
        count => anyhow::bail!("the service manager handed over {count} sockets; one is needed"),
    }
}

/// The TCP and UDP sockets that the service manager opened for an endpoint, if it did.
///
/// # Errors
/// When it handed over something else, or not one of each kind at each address.
pub(crate) fn endpoint_sockets() -> Result<Option<OpenSockets>> {
    let mut sockets = ListenFd::from_env();
    let count = sockets.len();
    if count == 0 {
        return Ok(None);
    }
    let (mut tcp, mut udp) = (Vec::new(), Vec::new());
    for at in 0..count {
        match sockets.take_tcp_listener(at) {
            Ok(socket) => tcp.extend(socket),
            Err(_) => {
                let socket = sockets.take_udp_socket(at);
                udp.extend(socket.context("a socket of the service manager is neither for TCP nor for UDP")?);
            }
        }
    }
    Ok(Some(OpenSockets::new(tcp, udp).context("cannot use the sockets of the service manager")?))
}
