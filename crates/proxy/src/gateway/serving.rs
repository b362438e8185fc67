//! The gateway's side of a stream, up to its bytes.

use super::message::{Answer, Request, Status};
use crate::whole::keep_alive;
use crate::{Destination, Full, Guard, Place, Quota, UpstreamError};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// For a request to come, from the moment that its stream is there, and for its answer to be taken.
const LIMIT: Duration = Duration::from_secs(10);

/// Answers the requests of peers that were let in. Cheap to clone.
#[derive(Clone)]
pub struct GatewayServer {
    guard: Arc<Guard>,
    quota: Arc<Quota<EndpointId>>,
}

/// A stream and the connection that it is for. Their bytes are to be carried.
pub struct Joined {
    /// The connection to the ordinary host.
    pub socket: TcpStream,
    /// Where it leads.
    pub to: Destination,
    /// Counts the connection until it is dropped.
    pub place: Place<EndpointId>,
}

/// Why a request has no connection. The peer was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Declined {
    /// It did not come whole or in time, or is none.
    #[error("no request came: {0}")]
    Request(io::Error),
    /// There are too many connections.
    #[error(transparent)]
    Full(#[from] Full),
    /// It is not let through, or was not reached.
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    /// The peer is gone.
    #[error("the stream broke before the answer: {0}")]
    Gone(io::Error),
}

impl GatewayServer {
    /// Connects by this guard, for so many connections as the quota has.
    pub fn new(guard: Guard, quota: Quota<EndpointId>) -> Self {
        Self { guard: Arc::new(guard), quota: Arc::new(quota) }
    }

    /// Takes the request from a stream, connects to what it asks for, and answers.
    ///
    /// # Errors
    /// Why there is no connection. The stream was told, and ended.
    pub async fn join(&self, stream: &mut Stream) -> Result<Joined, Declined> {
        match self.connected(stream).await {
            Ok(joined) => {
                let by = joined.socket.peer_addr().map(|address| address.to_string()).unwrap_or_default();
                tell(stream, &Answer::new(Status::Connected, &by)).await?;
                Ok(joined)
            }
            Err(declined) => {
                tell(stream, &answer(&declined)).await?;
                stream.finish().map_err(Declined::Gone)?;
                Err(declined)
            }
        }
    }

    async fn connected(&self, stream: &mut Stream) -> Result<Joined, Declined> {
        // A stream takes its place before its request is there: slow ones count.
        let peer = stream.peer_id();
        let place = self.quota.take(peer)?;
        let read = tokio::time::timeout(LIMIT, Request::read(stream)).await;
        let read = read.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let Request { to } = read.map_err(Declined::Request)?;
        let socket = self.guard.connect(&to, peer).await?;
        keep_alive(&socket);
        Ok(Joined { socket, to, place })
    }
}

async fn tell(stream: &mut Stream, answer: &Answer) -> Result<(), Declined> {
    let told = tokio::time::timeout(LIMIT, stream.write_all(&answer.encode())).await;
    told.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(Declined::Gone)
}

fn answer(declined: &Declined) -> Answer {
    match declined {
        Declined::Request(error) | Declined::Gone(error) => {
            Answer::new(Status::NotUnderstood, &error.to_string())
        }
        Declined::Full(full) => Answer::new(Status::Full, &full.to_string()),
        Declined::Upstream(error) => Answer::of_error(error),
    }
}
