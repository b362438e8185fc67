//! What a device asks a gateway about sessions.

use super::SessionId;
use super::ahead::read_answer;
use super::message::{Asked, How};
use super::window::Window;
use crate::{Answer, BadMessage, Status, Streams};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use whimbrel_transport::Stream;

/// For an answer. Longer than a gateway takes, because this side may be moving just then.
pub(super) const LIMIT: Duration = Duration::from_secs(30);

/// Why a gateway did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// It cannot be spoken to.
    #[error("the gateway is not reached: {0}")]
    Unreachable(String),
    /// It is of a version that knows nothing of films.
    #[error("the gateway is older than this program, and knows nothing of films; take it as http")]
    KnowsNoFilms,
    /// It is of a version before there were sessions.
    #[error("the gateway keeps no sessions: it is older than this program")]
    Older,
    /// There is no such session for this device. Why, nobody is told.
    #[error(transparent)]
    None(#[from] super::NoSession),
    /// It says no, and why.
    #[error("the gateway says no: {0}")]
    Refused(String),
    /// It broke off, or is none.
    #[error("the gateway does not answer as one: {0}")]
    Broken(#[from] io::Error),
}

/// Opens a second stream for a session.
pub(super) async fn control(
    streams: &Arc<dyn Streams>,
    id: SessionId,
    moves: u32,
) -> Result<Stream, SessionError> {
    within(async { ask(streams, &Asked::Control { id, moves }).await.map(|(_, stream)| stream) }).await
}

/// Waits for an answer no longer than one may take.
pub(super) async fn within<T>(
    asking: impl Future<Output = Result<T, SessionError>>,
) -> Result<T, SessionError> {
    let done = tokio::time::timeout(LIMIT, asking).await;
    done.unwrap_or_else(|_| Err(SessionError::Unreachable("it does not answer in time".to_owned())))
}

/// What a gateway said to a request.
pub(super) struct Said {
    pub(super) answer: Answer,
    /// What came before that.
    pub(super) ahead: Window,
}

/// Asks, and returns what is granted: the stream on which the rest comes.
pub(super) async fn ask(streams: &Arc<dyn Streams>, asked: &Asked) -> Result<(Said, Stream), SessionError> {
    let mut stream = streams.open().await.map_err(SessionError::Unreachable)?;
    let said = said(&mut stream, asked).await.map_err(explained)?;
    let answer = &said.answer;
    match answer.status {
        Status::Connected => Ok((said, stream)),
        Status::NoSession => Err(super::NoSession.into()),
        Status::NotUnderstood => Err(SessionError::Older),
        _ => Err(SessionError::Refused(answer.plain())),
    }
}

/// Says what is asked for, and returns what is said to it.
pub(super) async fn said(stream: &mut Stream, asked: &Asked) -> io::Result<Said> {
    // A gateway that is full says so before it has taken the request: its answer tells more than a failed
    // write.
    let written = stream.write_all(&asked.encode()).await;
    let read = match asked {
        Asked::Take { how: How::Ahead, .. } => read_answer(stream).await,
        _ => Answer::read(stream).await.map(|answer| (answer, Window::default())),
    };
    let (answer, ahead) = read.map_err(|error| written.err().unwrap_or(error))?;
    Ok(Said { answer, ahead })
}

/// What is wrong with an answer, for people.
pub(crate) fn explained(error: io::Error) -> io::Error {
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
