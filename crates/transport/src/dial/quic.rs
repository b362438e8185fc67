//! One attempt over QUIC.

use futures_util::FutureExt;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn::{RecvStream, SendStream, TokioRuntime};
use socket2::{Domain, Protocol, Socket, Type};

use super::{Candidate, Carrier, Dialled, Dialler, SegmentSize, bind_device, source};
use crate::carrier::CarrierKind;
use crate::carrier::quic::{QuicChannel, QuicSocket};
use crate::locator::Locator;

/// The longest that one attempt may take.
const ATTEMPT: Duration = Duration::from_secs(10);
/// A server that was not heard of by then cannot be reached over UDP: several packets were sent.
const VERDICT: Duration = Duration::from_secs(3);
/// So often a connection may turn out to be of no use because its server's answer overtook the stream.
const TRIES: usize = 3;

type Streams = (SendStream, RecvStream);

/// Starts a QUIC connection. With a ticket it can be written to at once, before anything was heard from the
/// server; else this waits for the handshake.
pub(super) async fn attempt(candidate: Candidate, who: Arc<Dialler>) -> io::Result<Dialled> {
    for _ in 0..TRIES {
        if let Some(dialled) = connect(&candidate, &who).await? {
            return Ok(dialled);
        }
    }
    Err(io::Error::other("the answer overtook the stream each time"))
}

/// `None` if the connection has no stream left that could be used.
async fn connect(candidate: &Candidate, who: &Arc<Dialler>) -> io::Result<Option<Dialled>> {
    let socket = QuicSocket::dialling(connected(candidate)?)?;
    let (local, remote) = (socket.address(), candidate.remote);
    let endpoint = quinn::Endpoint::new_with_abstract_socket(
        who.quic.dialling(),
        None,
        socket.clone(),
        Arc::new(TokioRuntime),
    )?;
    let through = remote.relayed().map(|place| who.aliases.name(who.peer, place, Instant::now()));
    let (config, observed) = who.quic.client(who.rtt, through);
    let start = Instant::now();
    let connecting =
        endpoint.connect_with(config, remote.address(), &who.peer.to_string()).map_err(io::Error::other)?;
    let (connection, mut early) = match connecting.into_0rtt() {
        Ok((connection, accepted)) => {
            tokio::spawn(FutureExt::boxed(watch(
                connection.clone(),
                local.ip().to_canonical(),
                remote,
                who.clone(),
            )));
            (connection, Some(accepted))
        }
        Err(connecting) => {
            let connected = tokio::select! {
                connected = within(connecting) => connected,
                () = socket.refused() => return Err(io::ErrorKind::ConnectionRefused.into()),
            };
            if !matches!(connected, Ok(Ok(_)))
                && let Some(place) = remote.relayed()
            {
                // A relay that does not know what was named there answers itself, with another key.
                who.aliases.doubt(who.peer, place);
            }
            (connected??, None)
        }
    };
    // A server that grants no stream is of no use.
    let mut streams = within(connection.open_bi()).await??;
    // The answer was as quick as we: whether it was there before the stream cannot be told.
    if let Some(verdict) = early.take_if(|_| connection.handshake_data().is_some())
        && !within(verdict).await?
    {
        let Some(others) = opened_now(&connection).await? else { return Ok(None) };
        streams = others;
    }
    let rtt = early.is_none().then(|| start.elapsed());
    let (send, recv) = streams;
    let channel =
        QuicChannel { connection, send, recv, observed, early, hint: socket.hint(remote.address()) };
    // It probes for larger ones itself.
    let (carrier, segments) = (Carrier::Quic(Box::new(channel)), SegmentSize::Small);
    Ok(Some(Dialled { carrier, rtt, local, way: candidate.clone(), segments, peer: who.peer }))
}

/// Dials from a socket that listens, to where the peer's gateway may be open. Without early data: most of
/// what is dialled so leads nowhere.
pub(crate) async fn punched(
    (quic, socket): (quinn::Endpoint, Arc<QuicSocket>),
    port: u16,
    at: SocketAddr,
    who: &Dialler,
) -> io::Result<Dialled> {
    let way = Candidate { local: None, remote: at.into() };
    // The socket may be that of all addresses: routes choose, now as later.
    let bound = quic.local_addr()?.ip();
    let ip = if bound.is_unspecified() { source(&way) } else { Some(bound) };
    let local = SocketAddr::new(ip.ok_or(io::ErrorKind::AddrNotAvailable)?, port);
    through_gateways(&quic, Some(socket), local, way, who).await
}

/// Dials from a socket of which the gateways of both sides let packets through.
pub(crate) async fn found(socket: UdpSocket, at: SocketAddr, who: &Dialler) -> io::Result<Dialled> {
    socket.connect(at)?;
    let socket = QuicSocket::dialling(socket.into())?;
    let (local, config) = (socket.address(), who.quic.dialling());
    let quic = quinn::Endpoint::new_with_abstract_socket(config, None, socket, Arc::new(TokioRuntime))?;
    through_gateways(&quic, None, local, Candidate { local: None, remote: at.into() }, who).await
}

/// A connection through gateways that may have opened just now, or will soon.
async fn through_gateways(
    quic: &quinn::Endpoint,
    socket: Option<Arc<QuicSocket>>,
    local: SocketAddr,
    way: Candidate,
    who: &Dialler,
) -> io::Result<Dialled> {
    let start = Instant::now();
    // What was sent before the gateway opened is soon sent again.
    let (config, observed) = who.quic.client(Some(Duration::ZERO), None);
    let connecting =
        quic.connect_with(config, way.remote.address(), &who.peer.to_string()).map_err(io::Error::other)?;
    let connection = within(connecting).await??;
    let (send, recv) = within(connection.open_bi()).await??;
    let (rtt, segments) = (Some(start.elapsed()), SegmentSize::Small);
    let hint = socket.and_then(|socket| socket.hint(way.remote.address()));
    let channel = QuicChannel { connection, send, recv, observed, early: None, hint };
    let carrier = Carrier::Quic(Box::new(channel));
    Ok(Dialled { carrier, rtt, local, way, segments, peer: who.peer })
}

/// Another stream once early data was refused. There is none if the first one was opened after the refusal,
/// because QUIC takes it for refused too.
async fn opened_now(connection: &quinn::Connection) -> io::Result<Option<Streams>> {
    tokio::select! {
        biased;
        streams = connection.open_bi() => Ok(Some(streams?)),
        () = std::future::ready(()) => Ok(None),
    }
}

async fn within<T>(step: impl Future<Output = T>) -> io::Result<T> {
    tokio::time::timeout(ATTEMPT, step).await.map_err(|_| io::ErrorKind::TimedOut.into())
}

/// Notes whether the server was heard of at all.
async fn watch(connection: quinn::Connection, local: IpAddr, remote: Locator, who: Arc<Dialler>) {
    let _ = tokio::time::timeout(VERDICT, connection.closed()).await;
    let worked = connection.handshake_data().is_some();
    who.reach.note(local, remote, CarrierKind::Quic, worked, Instant::now());
}

/// A socket that sends to and hears one peer only, from the address that the path is bound to or the
/// routes choose.
fn connected(candidate: &Candidate) -> io::Result<Socket> {
    let remote = candidate.remote.address();
    let socket = Socket::new(Domain::for_address(remote), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    if let Some(local) = &candidate.local {
        bind_device(&socket, local);
        socket.bind(&SocketAddr::new(local.ip, 0).into())?;
    }
    socket.connect(&remote.into())?;
    Ok(socket)
}
