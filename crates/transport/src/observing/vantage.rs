//! A second place from which a relay looks at those who ask it. A gateway that shows a socket at the same
//! port to both shows it so to all, as far as one host can tell.

use futures_util::FutureExt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::UdpSocket;

use crate::endpoint_core::EndpointCore;

/// Longer datagrams are no requests.
const MAX_REQUEST: usize = 512;

/// Opens a socket at any port for IPv4, on which requests of STUN are answered as on the endpoint's own,
/// until the endpoint is closed. Without it those who ask are told of one place only. Must run inside a tokio
/// runtime.
pub(crate) fn answer_beside(core: &Arc<EndpointCore>) {
    let beside = core.plan.ips.iter().copied().find(std::net::IpAddr::is_ipv4);
    let at = SocketAddr::new(beside.unwrap_or_else(|| [0; 4].into()), 0);
    let socket = std::net::UdpSocket::bind(at).and_then(|socket| {
        socket.set_nonblocking(true)?;
        UdpSocket::from_std(socket)
    });
    let (socket, port) = match socket.and_then(|socket| Ok((socket.local_addr()?.port(), socket))) {
        Ok((port, socket)) => (socket, port),
        Err(error) => return tracing::warn!(%error, "STUN is answered at one port only"),
    };
    core.stun.set_beside(port);
    let task = tokio::spawn(FutureExt::boxed(answer(core.clone(), socket))).abort_handle();
    core.life.keep(task);
}

async fn answer(core: Arc<EndpointCore>, socket: UdpSocket) {
    let mut buffer = [0; MAX_REQUEST];
    loop {
        // An unconnected socket has no errors of its own; what the system lacks for a moment comes back.
        let Ok((size, from)) = socket.recv_from(&mut buffer).await else {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            continue;
        };
        if let Some(answer) = core.stun.answer_beside(&buffer[..size], from, Instant::now()) {
            // Lost if the kernel takes no more now, as datagrams are.
            let _ = socket.try_send_to(&answer, from);
        }
    }
}
