//! The streams of a forward that was at another device: each waits at a port of its own for a program.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures_util::FutureExt;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use whimbrel_transport::{CloseCode, Connection, Stream};

use super::waiting::{How, Waiting};
use crate::halt::{Halter, Tie};
use crate::local::LocalSocket;
use crate::moving::Halves;
use crate::output;
use crate::plain::plain;
use crate::tunnel::direction::Direction;
use crate::tunnel::{Halted, Tunnel};

/// Characters of a peer's name that another device tells.
const LONGEST: usize = 200;
/// How long the peer may take to confirm the end, once everything has arrived.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Where the program of a stream comes from.
enum Source {
    /// It is here.
    Here(TcpStream),
    /// It comes to a port.
    Port(Waiting),
}

/// Goes on with all of them, until the last one has ended: the first one with the program that is here, if
/// there is one. Of the others, `tell` hears where a program is waited for, and what people call the peer.
///
/// # Errors
/// When one is not there, breaks, or cannot be waited for.
pub(crate) async fn go_on(
    connection: Connection,
    all: Vec<Halves>,
    mut here: Option<TcpStream>,
    tell: impl Fn(SocketAddr, &str) -> Result<()>,
) -> Result<()> {
    let mut streams = connection.streams();
    // Nothing halts them.
    let halter = Halter::<Halted>::new();
    let mut carrying = JoinSet::new();
    for halves in all {
        let at = streams.iter().position(|stream| stream.id() == halves.stream);
        let stream = streams.swap_remove(at.context("the connection came without one of its streams")?);
        let source = match here.take() {
            Some(socket) => Source::Here(socket),
            None => {
                let waiting = Waiting::new(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), (How::Raw, 0)).await?;
                tell(waiting.place()?.at, &plain(&halves.peer, LONGEST))?;
                Source::Port(waiting)
            }
        };
        let carried = carry((connection.clone(), source), stream, halves, halter.tie());
        carrying.spawn(FutureExt::boxed(carried));
    }
    let mut result = Ok(());
    while let Some(carried) = carrying.join_next().await {
        result = result.and(carried.context("a stream broke").and_then(|carried| carried));
    }
    // Everything has arrived; that the peer confirms the end late is nobody's concern.
    let _ = connection.close(CloseCode::NONE, "", CLOSE_LIMIT).await;
    result
}

/// Says where a program is waited for, as `whimbrel take` does.
pub(super) fn print(in_json: bool, at: SocketAddr, peer: &str) -> Result<()> {
    if in_json {
        return output::json(&json!({ "listening": at.to_string(), "peer": peer }));
    }
    output::line(format!("{peer} waits for a program on {at}"))
}

async fn carry(
    (connection, source): (Connection, Source),
    stream: Stream,
    halves: Halves,
    tie: Tie<Halted>,
) -> Result<()> {
    let socket = match source {
        Source::Here(socket) => socket,
        // Where the peer has gone nothing comes any more, however long a program is waited for.
        Source::Port(waiting) => tokio::select! {
            asking = waiting.program() => asking?.0,
            closed = connection.closed() => {
                let peer = plain(&halves.peer, LONGEST);
                bail!("{peer} has gone, before a program connected: {closed}");
            }
        },
    };
    let [out, back] = [halves.out, halves.back].map(|way| Direction::going_on(way.waiting, way.ended));
    let tunnel = Tunnel::going_on(LocalSocket::Tcp(socket), stream, out, back);
    tunnel.run(&tie).await.context("a stream broke")
}
