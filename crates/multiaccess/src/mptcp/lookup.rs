//! Asks the kernel for a connection of Multipath TCP and for its subflows.

use super::{Connection, ConnectionsMessage, Ends, Subflow, SubflowsMessage};
use crate::diag::{AF_INET, AF_INET6};
use crate::kernel::Kernel;
use netlink_sys::protocols::NETLINK_SOCK_DIAG;
use std::io;

/// The most subflows of a connection that are looked at; the kernel's own path manager opens eight.
const MOST: usize = 64;

/// A socket for such questions. After an error it has to be opened anew.
pub(crate) struct Lookup {
    kernel: Kernel,
}

impl Lookup {
    /// Opens the socket. Must run inside a tokio runtime.
    pub(crate) fn open() -> io::Result<Self> {
        Ok(Self { kernel: Kernel::open(NETLINK_SOCK_DIAG)? })
    }

    /// The established connection of Multipath TCP with these ends. `None` if there is none, or it is TCP
    /// alone.
    pub(crate) async fn connection(&mut self, ends: Ends) -> io::Result<Option<Connection>> {
        let mut found = None;
        for family in families(ends) {
            let ports = (ends.local.port(), ends.remote.port());
            let take = |message| {
                if let ConnectionsMessage::Connection(Some(connection)) = message
                    && connection.ends == ends
                {
                    found = Some(connection);
                }
            };
            self.kernel.dump(ConnectionsMessage::Request { family, ports }, take).await?;
        }
        Ok(found)
    }

    /// The subflows of a connection to the port that it was made to. Before Linux 6.15 they are told to those
    /// alone who have CAP_NET_ADMIN; others see none.
    pub(crate) async fn subflows(&mut self, connection: &Connection) -> io::Result<Vec<Subflow>> {
        let mut found = Vec::new();
        for family in families(connection.ends) {
            let remote_port = connection.ends.remote.port();
            let take = |message| {
                if let SubflowsMessage::Subflow(Some(subflow)) = message
                    && subflow.token == connection.token
                    && found.len() < MOST
                {
                    found.push(subflow);
                }
            };
            self.kernel.dump(SubflowsMessage::Request { family, remote_port }, take).await?;
        }
        Ok(found)
    }
}

/// A socket of IPv6 may speak IPv4 too.
fn families(ends: Ends) -> impl Iterator<Item = u8> {
    let both = [AF_INET, AF_INET6];
    both.into_iter().filter(move |family| *family == AF_INET6 || ends.local.is_ipv4())
}
