//! Hears from the kernel when links, addresses or routes change, so that nobody has to look for it.

use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, SocketAddr, TokioSocket};
use std::io;
use std::time::Duration;

/// Multicast groups of rtnetlink(7): RTNLGRP_LINK, RTNLGRP_IPV4_IFADDR and _ROUTE, then those of IPv6.
const GROUPS: [u32; 5] = [1, 5, 7, 9, 11];
/// What belongs together (a link, its addresses, its routes) comes within this time.
const GATHERED: Duration = Duration::from_millis(2);
/// Where changes never end, news is told all the same after so many datagrams.
const MOST: usize = 256;
/// ENOBUFS: the kernel had more to tell than the socket's buffer holds. Something changed, then.
const LOST: i32 = 105;

/// A socket that hears of changes.
pub(crate) struct Watch {
    socket: TokioSocket,
    /// Something changed, of which nobody was told yet.
    is_news: bool,
}

impl Watch {
    /// Listens from now on. Must run inside a tokio runtime.
    pub(crate) fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        let groups = GROUPS.iter().fold(0, |groups, group| groups | 1 << (group - 1));
        socket.socket_mut().bind(&SocketAddr::new(0, groups))?;
        Ok(Self { socket, is_news: false })
    }

    /// Waits until something changed, and until what belongs to it has been told too. Cancel-safe.
    pub(crate) async fn changed(&mut self) -> io::Result<()> {
        // Kept where this is dropped while it waits for more: the kernel tells it once.
        if !self.is_news {
            self.heard().await?;
            self.is_news = true;
        }
        for _ in 0..MOST {
            match tokio::time::timeout(GATHERED, self.heard()).await {
                Ok(heard) => heard?,
                Err(_) => break,
            }
        }
        self.is_news = false;
        Ok(())
    }

    async fn heard(&mut self) -> io::Result<()> {
        match self.socket.recv_from_full().await {
            Err(error) if error.raw_os_error() == Some(LOST) => Ok(()),
            other => other.map(drop),
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::future::ready;
    use whimbrel_lab::{Lab, LinkSpec, require};

    #[test]
    fn a_change_is_told_also_where_it_was_not_waited_for_to_the_end_before() {
        if !require!() {
            return;
        }
        let lab = Lab::new().unwrap();
        let (host, other) = (lab.host("host").unwrap(), lab.host("other").unwrap());
        let link = lab.link(&host, &other, LinkSpec::default()).unwrap();
        let runtime = host.runtime(1).unwrap();
        let mut watch = runtime.block_on(async { Watch::open().unwrap() });
        link.end(&host).add_address("10.0.1.1/24").unwrap();
        let told = runtime.block_on(async move {
            // It has come by now, and more of it is waited for.
            tokio::time::sleep(Duration::from_millis(200)).await;
            tokio::select! {
                biased;
                told = watch.changed() => panic!("nothing was waited for: {told:?}"),
                () = ready(()) => {}
            }
            tokio::time::timeout(Duration::from_secs(5), watch.changed()).await
        });
        assert!(told.is_ok_and(|told| told.is_ok()), "the change was forgotten");
    }
}
