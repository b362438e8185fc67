//! The client's side: destinations are reached through a gateway.

use super::message::{Answer, BadMessage, Request};
use crate::whole::Whole;
use crate::{Destination, Reached, Reaching, Upstream, UpstreamError};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use whimbrel_access::Intents;
use whimbrel_transport::Stream;

/// For an answer. Longer than a gateway takes, because this side may be moving just then.
const LIMIT: Duration = Duration::from_secs(30);

/// What [`Streams::open`] returns.
pub type Opening<'a> = Pin<Box<dyn Future<Output = Result<Stream, String>> + Send + 'a>>;

/// Opens streams to one peer, on a connection that lasts.
pub trait Streams: Send + Sync + 'static {
    /// A new stream, or what is wrong.
    fn open(&self) -> Opening<'_>;
}

/// Reaches destinations through a gateway.
pub struct Gateway {
    streams: Arc<dyn Streams>,
}

impl Gateway {
    /// Through the peer that these streams lead to.
    pub fn new(streams: Arc<dyn Streams>) -> Self {
        Self { streams }
    }

    async fn ask(&self, to: &Destination) -> Result<Reached, UpstreamError> {
        let unreachable = |source| UpstreamError::Unreachable { to: to.to_string(), source };
        let opened = self.streams.open().await;
        let stream = opened.map_err(|why| UpstreamError::NoWay { to: to.to_string(), why })?;
        let mut stream = Whole::new(stream);
        let request = Request { to: to.clone() };
        // A gateway that is full says so before it has taken the request: its answer tells more than a failed write.
        let written = stream.write_all(&request.encode()).await;
        let read = Answer::read(&mut stream).await;
        let answer = read.map_err(|error| unreachable(written.err().unwrap_or_else(|| explained(error))))?;
        let by = format!("through the gateway, to {}", answer.plain());
        match answer.error(to) {
            Some(error) => Err(error),
            None => Ok(Reached { stream: Box::new(stream), by }),
        }
    }
}

impl Upstream for Gateway {
    fn reach<'a>(&'a self, to: &'a Destination, _intents: &'a Intents) -> Reaching<'a> {
        Box::pin(async move {
            let asked = tokio::time::timeout(LIMIT, self.ask(to)).await;
            asked.unwrap_or_else(|_| {
                let why = io::Error::new(io::ErrorKind::TimedOut, "the gateway does not answer");
                Err(UpstreamError::Unreachable { to: to.to_string(), source: why })
            })
        })
    }
}

/// What is wrong with an answer, for people.
fn explained(error: io::Error) -> io::Error {
    let is_other = error.get_ref().is_some_and(|inner| inner.is::<BadMessage>());
    let text = match (is_other, error.kind()) {
        (true, _) => format!("the peer does not answer as a gateway: {error}"),
        (false, io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            format!("the peer ends streams without an answer: is it a gateway? ({error})")
        }
        _ => return error,
    };
    io::Error::other(text)
}
