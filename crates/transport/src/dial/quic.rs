//! One attempt over QUIC.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::TokioRuntime;
use socket2::{Domain, Protocol, Socket, Type};

use super::{Candidate, Carrier, Dialled, Dialler, bind_device};
use crate::carrier::CarrierKind;
use crate::carrier::quic::{QuicChannel, QuicSocket};

/// The longest that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// A server that was not heard of by then cannot be reached over UDP: several packets were sent.
const VERDICT: Duration = Duration::from_secs(3);

/// Starts a QUIC connection. With a ticket it can be written to at once, before anything was heard from the
/// server; else this waits for the handshake.
pub(super) async fn attempt(candidate: Candidate, who: Arc<Dialler>) -> io::Result<Dialled> {
    let socket = QuicSocket::dialling(connected(&candidate)?)?;
    let (local, remote) = (socket.address(), candidate.remote);
    let endpoint = quinn::Endpoint::new_with_abstract_socket(
        who.quic.dialling(),
        None,
        socket.clone(),
        Arc::new(TokioRuntime),
    )?;
    let (config, observed) = who.quic.client(who.rtt);
    let start = Instant::now();
    let connecting =
        endpoint.connect_with(config, remote, &who.peer.to_string()).map_err(io::Error::other)?;
    let (connection, early) = match connecting.into_0rtt() {
        Ok((connection, accepted)) => {
            tokio::spawn(watch(connection.clone(), local.ip().to_canonical(), remote.ip(), who.clone()));
            (connection, Some(accepted))
        }
        Err(connecting) => {
            let connected = tokio::select! {
                connected = tokio::time::timeout(ATTEMPT, connecting) => connected,
                () = socket.refused() => return Err(io::ErrorKind::ConnectionRefused.into()),
            };
            (connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??, None)
        }
    };
    let rtt = early.is_none().then(|| start.elapsed());
    // A server that grants no stream is of no use.
    let streams = tokio::time::timeout(ATTEMPT, connection.open_bi()).await;
    let (send, recv) = streams.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let channel = QuicChannel { connection, send, recv, observed, early };
    Ok(Dialled { carrier: Carrier::Quic(Box::new(channel)), rtt, local, remote })
}

/// Notes whether the server was heard of at all.
async fn watch(connection: quinn::Connection, local: IpAddr, remote: IpAddr, who: Arc<Dialler>) {
    let _ = tokio::time::timeout(VERDICT, connection.closed()).await;
    let worked = connection.handshake_data().is_some();
    who.reach.note(local, remote, CarrierKind::Quic, worked, Instant::now());
}

/// A socket that sends to and hears one peer only, from the address that the path is bound to or the
/// routes choose.
fn connected(candidate: &Candidate) -> io::Result<Socket> {
    let remote = candidate.remote;
    let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if let Some(local) = &candidate.local {
        bind_device(&socket, local);
        socket.bind(&SocketAddr::new(local.ip, 0).into())?;
    }
    socket.connect(&remote.into())?;
    Ok(socket)
}
