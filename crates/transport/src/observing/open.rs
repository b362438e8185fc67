//! Tries whether a gateway lets in what anybody sends to a port that it shows of a socket: a socket that has
//! sent to one relay alone is sent to by another one, at another address. Where it does, that place is told
//! to those who look this endpoint up, as one that they can dial.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::time::timeout;

use super::probe::{Flow, REPEAT, REPEATS};
use crate::endpoint_core::{EndpointCore, lock};
use crate::stun::{self, Transaction};

/// How often it is looked whether there is something to try, if nothing new is heard.
const LOOK: Duration = Duration::from_secs(10 * 60);

/// Tries the gateway that this endpoint's relays see it behind, and has others told of the place there for as
/// long as anybody can dial it, until its task is aborted.
pub(crate) async fn try_gateways(core: Arc<EndpointCore>) {
    let mut seen = core.observed.watch();
    let mut told = None;
    loop {
        seen.mark_unchanged();
        let open = core.observed.open();
        if open != told {
            told = open;
            tracing::debug!(?open, "a place that anybody can dial");
            core.tell_places();
        }
        let untried =
            core.observed.untried(Instant::now()).filter(|it| !core.addresses().contains(it.gateway));
        let local = untried.and_then(|untried| lock(&core.sockets).address_for(untried.first));
        let Some((untried, local)) = untried.zip(local) else {
            tokio::select! {
                _ = seen.changed() => {}
                () = core.observed.heard() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
            continue;
        };
        let is_open = is_open(local, untried.first, untried.second).await;
        tracing::debug!(?untried, ?is_open, "a gateway was tried");
        core.observed.note_tried(untried.gateway, is_open.ok().flatten(), Instant::now());
    }
}

/// Whether what `second` sends to where `first` sees a socket comes in, although nothing was sent to `second`
/// from there. `None` if that cannot be told: one of them cannot be reached, or does not send elsewhere than
/// where it is asked from.
async fn is_open(local: IpAddr, first: SocketAddr, second: SocketAddr) -> io::Result<Option<bool>> {
    let left = UdpSocket::bind(SocketAddr::new(local, 0)).await?;
    let Some(seen) = seen_by(&left, first).await? else { return Ok(None) };
    let asking = Flow::open(local, second).await?;
    let transaction = rand::random();
    for _ in 0..REPEATS {
        asking.send(&stun::request_to(&transaction, seen.port())).await?;
        let answer = async {
            tokio::select! {
                answer = hear(&left, &transaction, second.ip()) => answer.map(|_| true),
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
    // What was lost on the way says nothing of the gateway.
    Ok(asking.ask().await?.map(|_| false))
}

/// Where a server sees a socket, if it answers.
async fn seen_by(socket: &UdpSocket, server: SocketAddr) -> io::Result<Option<SocketAddr>> {
    let transaction = rand::random();
    for _ in 0..REPEATS {
        socket.send_to(&stun::request(&transaction), server).await?;
        if let Ok(answer) = timeout(REPEAT, hear(socket, &transaction, server.ip())).await {
            return answer.map(Some);
        }
    }
    Ok(None)
}

/// Waits for the answer to that request, from that host. Cancel-safe.
async fn hear(socket: &UdpSocket, transaction: &Transaction, from: IpAddr) -> io::Result<SocketAddr> {
    let mut datagram = [0; 512];
    loop {
        let (size, sender) = socket.recv_from(&mut datagram).await?;
        if let Some(answer) = stun::answer(&datagram[..size])
            && sender.ip().to_canonical() == from.to_canonical()
            && answer.transaction == *transaction
        {
            return Ok(answer.seen);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::elsewhere::{Elsewhere, server};
    use super::*;

    #[tokio::test]
    async fn a_gateway_is_open_if_a_server_gets_in_that_nothing_was_sent_to() {
        let local = IpAddr::from([127, 0, 0, 1]);
        let (first, _task) = server(1, Elsewhere::Sends).await;
        let cases = [
            (Elsewhere::Sends, Some(true)),
            (Elsewhere::IsLost, Some(false)),
            (Elsewhere::AnswersHere, None),
        ];
        for (what, expected) in cases {
            let (second, _task) = server(2, what).await;
            assert_eq!(is_open(local, first, second).await.unwrap(), expected);
        }
        // A server that is not there says nothing of gateways.
        let silent = UdpSocket::bind("127.0.0.3:0").await.unwrap();
        let silent = silent.local_addr().map(|at| (at, silent)).unwrap();
        let (second, _task) = server(2, Elsewhere::Sends).await;
        assert_eq!(is_open(local, silent.0, second).await.unwrap(), None);
        assert_eq!(is_open(local, first, silent.0).await.unwrap(), None);
    }
}
