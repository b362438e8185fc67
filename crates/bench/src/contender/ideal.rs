//! What two links could bring at best [msocket §IV-B]: TCP over each, and bytes are counted in whatever order
//! they come.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::Result;
use tokio::time::sleep;

use super::{PORT, sockets};
use crate::flow::{Flow, Notes, Way, ask};
use crate::lab::TwoLinks;
use crate::system::{Channel, Handler};

const LOOK_EVERY: Duration = Duration::from_micros(500);
/// What is under way when a file is complete is gone after this.
const DRAIN: Duration = Duration::from_millis(500);
/// Fetched over each connection before the first file, so that its window is as open as that of others who
/// have carried files before, and the losses at the end of slow start are behind it.
const WARM_UP: u64 = 4_000_000;

pub(super) struct Client {
    server: SocketAddr,
    addresses: [IpAddr; 2],
    channels: [Channel; 2],
}

impl Client {
    pub(super) fn start(net: &TwoLinks, handler: Handler) -> Result<Self> {
        let server = net.server_address(PORT);
        net.server.wait("listen", async { sockets::listen(sockets::Kind::Tcp, server, handler) })??;
        let addresses = [0, 1].map(|link| net.address(link));
        let channels = net.client.wait("connect", connect(server, addresses))??;
        Ok(Self { server, addresses, channels })
    }

    /// Notes at least `size` bytes of both links, and then makes ready for the next file.
    pub(super) async fn download(&mut self, size: u64, notes: &Notes) -> io::Result<()> {
        let [one, other] = &mut self.channels;
        let file = Flow::bulk(Way::Down, size);
        let enough = async {
            while notes.bytes() < size {
                sleep(LOOK_EVERY).await;
            }
        };
        tokio::select! {
            () = enough => {}
            both = async { tokio::try_join!(ask(one, file, notes), ask(other, file, notes)) } => { both?; }
        }
        // What is still under way belongs to nobody.
        let channels = async {
            sleep(DRAIN).await;
            connect(self.server, self.addresses).await
        };
        self.channels = channels.await.map_err(io::Error::other)?;
        Ok(())
    }
}

async fn connect(server: SocketAddr, addresses: [IpAddr; 2]) -> Result<[Channel; 2]> {
    let warm = |ip| async move {
        let mut channel = sockets::connect(sockets::Kind::Tcp, Some(ip), server).await?;
        ask(&mut channel, Flow::bulk(Way::Down, WARM_UP), &Notes::new()).await?;
        anyhow::Ok(channel)
    };
    let (one, other) = tokio::try_join!(warm(addresses[0]), warm(addresses[1]))?;
    Ok([one, other])
}
