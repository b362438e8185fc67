//! Measures for how long a gateway keeps a UDP mapping that nothing passes through (RFC 5780 §4.6): a flow of
//! its own to a relay is left idle, and then the relay is asked over another flow to send to the first one.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{sleep, timeout};

use crate::endpoint_core::{EndpointCore, lock};
use crate::stun::{self, Transaction};

/// A request is repeated after this.
pub(super) const REPEAT: Duration = Duration::from_millis(500);
pub(super) const REPEATS: usize = 3;
/// Gateways keep a flow for longer that went on for a while in both directions; Linux: after two seconds.
const SETTLING: Duration = Duration::from_secs(3);
/// How often it is looked whether there is something to measure.
const LOOK: Duration = Duration::from_secs(60);
/// After a measurement that came to nothing.
const PAUSE: Duration = Duration::from_secs(15 * 60);

/// Measures at the gateways that this endpoint's relays see it behind, as far as they are not known, until
/// its task is aborted. It takes some four minutes and twenty small packets for each, less than going on as
/// before.
pub(crate) async fn measure(core: Arc<EndpointCore>) {
    let mut seen = core.observed.watch();
    loop {
        let wanted = core.observed.unmeasured();
        let local = wanted.and_then(|(server, ..)| lock(&core.sockets).address_for(server));
        let Some(((server, gateway, idle), local)) = wanted.zip(local) else {
            // A change of what is seen, or none: it is looked in either case.
            let _ = timeout(LOOK, seen.changed()).await;
            continue;
        };
        let is_kept = is_kept(local, server, SETTLING, idle).await;
        tracing::debug!(%server, %gateway, ?idle, ?is_kept, "a mapping was left idle");
        match is_kept {
            // The host may have moved meanwhile.
            Ok(Some(is_kept)) if core.observed.is_behind(gateway) => {
                core.observed.note_idle(gateway, idle, is_kept);
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => sleep(PAUSE).await,
        }
    }
}

/// Whether the gateway on the way to `server` keeps a mapping that was used for a while and then is idle for
/// so long. `None` if that cannot be told: the server cannot be reached, or does not send elsewhere than
/// where it is asked from.
async fn is_kept(
    local: IpAddr,
    server: SocketAddr,
    settling: Duration,
    idle: Duration,
) -> io::Result<Option<bool>> {
    let left = Flow::open(local, server).await?;
    if left.ask().await?.is_none() {
        return Ok(None);
    }
    sleep(settling).await;
    let Some(seen) = left.ask().await? else { return Ok(None) };
    sleep(idle).await;
    let asking = Flow::open(local, server).await?;
    let transaction = rand::random();
    for _ in 0..REPEATS {
        asking.send(&stun::request_to(&transaction, seen.port())).await?;
        let answer = async {
            tokio::select! {
                answer = left.answer(&transaction) => answer.map(|_| true),
                answer = asking.answer(&transaction) => answer.map(|_| false),
            }
        };
        match timeout(REPEAT, answer).await {
            Ok(Ok(true)) => return Ok(Some(true)),
            // An older one answers to where it was asked from.
            Ok(Ok(false)) => return Ok(None),
            Ok(Err(error)) => return Err(error),
            Err(_) => {}
        }
    }
    // What was lost on the way says nothing of mappings.
    Ok(asking.ask().await?.map(|_| false))
}

/// A flow to a STUN server.
pub(super) struct Flow(UdpSocket);

impl Flow {
    pub(super) async fn open(local: IpAddr, server: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(SocketAddr::new(local, 0)).await?;
        socket.connect(server).await?;
        Ok(Self(socket))
    }

    pub(super) async fn send(&self, datagram: &[u8]) -> io::Result<usize> {
        self.0.send(datagram).await
    }

    /// Where the server sees this flow, if it answers.
    pub(super) async fn ask(&self) -> io::Result<Option<SocketAddr>> {
        let transaction = rand::random();
        for _ in 0..REPEATS {
            self.0.send(&stun::request(&transaction)).await?;
            if let Ok(answer) = timeout(REPEAT, self.answer(&transaction)).await {
                return answer.map(Some);
            }
        }
        Ok(None)
    }

    /// Waits for the answer to that request. Cancel-safe.
    pub(super) async fn answer(&self, transaction: &Transaction) -> io::Result<SocketAddr> {
        let mut datagram = [0; 512];
        loop {
            let size = self.0.recv(&mut datagram).await?;
            if let Some(answer) = stun::answer(&datagram[..size])
                && answer.transaction == *transaction
            {
                return Ok(answer.seen);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Instant;

    use tokio::task::JoinSet;

    use super::super::elsewhere::{Elsewhere, server};
    use super::*;

    #[tokio::test]
    async fn a_mapping_is_told_to_live_by_what_another_flow_asks_for_and_one_that_is_lost_too() {
        let (settling, idle) = (Duration::from_millis(20), Duration::from_millis(50));
        let cases = [
            (Elsewhere::Sends, Some(true)),
            (Elsewhere::IsLost, Some(false)),
            (Elsewhere::AnswersHere, None),
        ];
        let mut measured = JoinSet::new();
        let begun = Instant::now();
        for (what, expected) in cases {
            measured.spawn(async move {
                let (at, _task) = server(1, what).await;
                assert_eq!(is_kept(at.ip(), at, settling, idle).await.unwrap(), expected);
            });
        }
        measured.join_all().await;
        assert!(begun.elapsed() >= settling + idle);
        // A server that is not there says nothing of mappings.
        let silent = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        let at = silent.local_addr().unwrap();
        assert_eq!(is_kept(at.ip(), at, settling, idle).await.unwrap(), None);
    }
}
