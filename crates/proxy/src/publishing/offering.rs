//! The peer's side: a server of its own that a gateway publishes.

use crate::sessions::{Asked, explained};
use crate::{Answer, Publication, Status};
use std::io;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use whimbrel_transport::Stream;

/// For an answer. Longer than a gateway takes, because this side may be moving just then.
const LIMIT: Duration = Duration::from_secs(30);

/// Something that is published, for as long as this is there. Clients come on streams of the same connection,
/// which begin with an [`Arrival`](super::Arrival).
#[derive(Debug)]
pub struct Offering {
    stream: Stream,
    at: String,
}

/// Why something is not published, or not any more.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// It is not allowed, or another program with this key does it now. Nothing is gained by asking again.
    #[error("the gateway says no: {0}")]
    Refused(String),
    /// It cannot just now.
    #[error("the gateway cannot publish it: {0}")]
    Failed(String),
    /// It is of a version before there were publications.
    #[error("the gateway publishes nothing: it is older than this program")]
    Older,
    /// It ended the publication without a word, or is none.
    #[error("the gateway is not heard any more: {0}")]
    Gone(#[from] io::Error),
}

impl Offering {
    /// Asks the gateway that a stream leads to.
    ///
    /// # Errors
    /// When it does not publish that.
    pub async fn begin(mut stream: Stream, what: &Publication) -> Result<Self, PublishError> {
        let asking = async {
            let asked = Asked::Publish { what: what.clone() }.encode();
            // A gateway that is full says so before it has taken the request.
            let written = stream.write_all(&asked).await;
            let read = Answer::read(&mut stream).await;
            read.map_err(|error| explained(written.err().unwrap_or(error)))
        };
        let answer = tokio::time::timeout(LIMIT, asking).await;
        let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        if answer.status == Status::Connected {
            return Ok(Self { at: answer.plain(), stream });
        }
        Err(refused(&answer))
    }

    /// Where clients reach it, as the gateway says: an address for a port, the host itself otherwise. For
    /// people.
    pub fn at(&self) -> &str {
        &self.at
    }

    /// Waits until it is published no more, and returns why. Not cancel-safe: called once, it is polled to
    /// its end or dropped with the offering.
    pub async fn ended(&mut self) -> PublishError {
        match Answer::read(&mut self.stream).await {
            Ok(answer) => refused(&answer),
            Err(error) => PublishError::Gone(error),
        }
    }
}

fn refused(answer: &Answer) -> PublishError {
    match answer.status {
        Status::NotAllowed => PublishError::Refused(answer.plain()),
        Status::NotUnderstood => PublishError::Older,
        _ => PublishError::Failed(answer.plain()),
    }
}
