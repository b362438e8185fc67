//! Servers of STUN, for tests, that are asked to answer elsewhere than where they are asked from.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;

use tokio::net::UdpSocket;
use tokio::task::JoinSet;

use crate::stun;

/// What a server does when it is asked to send elsewhere.
#[derive(Clone, Copy)]
pub(super) enum Elsewhere {
    Sends,
    /// As if the gateway on the way did not let it through.
    IsLost,
    AnswersHere,
}

/// Starts a server at 127.0.0.`last`, which runs as long as what is returned.
pub(super) async fn server(last: u8, what: Elsewhere) -> (SocketAddr, JoinSet<()>) {
    let socket = UdpSocket::bind(SocketAddr::from(([127, 0, 0, last], 0))).await.unwrap();
    let (at, mut task) = (socket.local_addr().unwrap(), JoinSet::new());
    task.spawn(async move {
        let mut datagram = [0; 512];
        loop {
            let (size, from) = socket.recv_from(&mut datagram).await.unwrap();
            let answer = stun::observe(&datagram[..size], from, None).unwrap();
            let to = stun::answer_to(&datagram[..size], from);
            match what {
                Elsewhere::IsLost if to != from => continue,
                Elsewhere::Sends => socket.send_to(&answer, to).await.unwrap(),
                Elsewhere::IsLost | Elsewhere::AnswersHere => socket.send_to(&answer, from).await.unwrap(),
            };
        }
    });
    (at, task)
}
