//! TCP, and the kernel's MPTCP.

use std::net::{IpAddr, SocketAddr};

use anyhow::{Context, Result};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpSocket};

use super::PORT;
use crate::lab::TwoLinks;
use crate::system::{Channel, Handler};

const BACKLOG: i32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Tcp,
    Mptcp,
}

impl Kind {
    fn socket(self) -> Result<Socket> {
        let protocol = match self {
            Self::Tcp => Protocol::TCP,
            Self::Mptcp => Protocol::MPTCP,
        };
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(protocol))?;
        socket.set_nonblocking(true)?;
        // Every system here sends at once, so these do too.
        socket.set_tcp_nodelay(true)?;
        Ok(socket)
    }
}

pub(super) fn start(net: &TwoLinks, kind: Kind, link: Option<usize>, handler: Handler) -> Result<Channel> {
    let server = net.server_address(PORT);
    net.server.wait("listen", async { listen(kind, server, handler) })??;
    let from = link.map(|link| net.address(link));
    net.client.wait("connect", connect(kind, from, server))?
}

/// The listener stays for as long as the runtime, because no subflow of MPTCP can join without it.
pub(crate) fn listen(kind: Kind, address: SocketAddr, handler: Handler) -> Result<()> {
    let socket = kind.socket()?;
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    let listener = TcpListener::from_std(socket.into())?;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if stream.set_nodelay(true).is_ok() {
                tokio::spawn(handler(Channel::new(stream)));
            }
        }
    });
    Ok(())
}

pub(crate) async fn connect(kind: Kind, from: Option<IpAddr>, server: SocketAddr) -> Result<Channel> {
    let socket = kind.socket()?;
    if let Some(ip) = from {
        socket.bind(&SocketAddr::new(ip, 0).into())?;
    }
    let stream = TcpSocket::from_std_stream(socket.into()).connect(server).await;
    Ok(Channel::new(stream.with_context(|| format!("cannot connect to {server}"))?))
}
