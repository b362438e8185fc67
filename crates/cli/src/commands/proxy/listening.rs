//! Where a proxy listens.

use std::net::SocketAddr;

use anyhow::{Context as _, Result};
use tokio::net::TcpListener;

use crate::manager;

/// Listens at `at`, or on the socket that a service manager opened for us, if `may` allows that address.
pub(super) async fn listen(at: SocketAddr, may: impl Fn(SocketAddr) -> Result<()>) -> Result<TcpListener> {
    if let Some(socket) = manager::tcp_socket()? {
        may(socket.local_addr().context("cannot tell where the service manager's socket listens")?)?;
        let usable = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        return usable.context("cannot use the socket of the service manager");
    }
    may(at)?;
    TcpListener::bind(at).await.with_context(|| {
        format!("cannot listen on {at}; choose another port with --listen, or stop who uses it")
    })
}
