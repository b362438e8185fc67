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
    /// It has not answered by when an answer is due.
    #[error(
        "the gateway was asked {what}, and has not answered in {} s{}",
        .limit.as_secs(), way(*.unreachable)
    )]
    Silent {
        /// What it was asked, for people.
        what: &'static str,
        /// How long it was waited for.
        limit: Duration,
        /// For how long no path to it has worked, if none does.
        unreachable: Option<Duration>,
    },
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
    let asked = Asked::Control { id, moves };
    let asking = async { ask(streams, &asked).await.map(|(_, stream)| stream) };
    within(streams, "for a second stream", asking).await
}

/// Waits for the answer to `what` no longer than one may take.
pub(super) async fn within<T>(
    streams: &Arc<dyn Streams>,
    what: &'static str,
    asking: impl Future<Output = Result<T, SessionError>>,
) -> Result<T, SessionError> {
    within_limit(LIMIT, streams, what, asking).await
}

async fn within_limit<T>(
    limit: Duration,
    streams: &Arc<dyn Streams>,
    what: &'static str,
    asking: impl Future<Output = Result<T, SessionError>>,
) -> Result<T, SessionError> {
    let done = tokio::time::timeout(limit, asking).await;
    done.unwrap_or_else(|_| Err(SessionError::Silent { what, limit, unreachable: streams.unreachable() }))
}

/// That the network is to blame, for people, as far as that is known.
fn way(unreachable: Option<Duration>) -> String {
    let told = unreachable.map(|lasts| format!("; no path to it has worked for {} s", lasts.as_secs()));
    told.unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Opening;

    /// A gateway that says nothing, to which there has been no way for so long.
    struct Mute(Option<Duration>);

    impl Streams for Mute {
        fn open(&self) -> Opening<'_> {
            Box::pin(std::future::pending())
        }

        fn unreachable(&self) -> Option<Duration> {
            self.0
        }
    }

    #[tokio::test]
    async fn who_is_not_answered_hears_what_was_asked_and_whether_there_is_no_way() {
        let lasts = Some(Duration::from_secs(12));
        for (unreachable, way) in [(None, ""), (lasts, "; no path to it has worked for 12 s")] {
            let streams: Arc<dyn Streams> = Arc::new(Mute(unreachable));
            let asking = async { ask(&streams, &Asked::List).await.map(drop) };
            let done = within_limit(Duration::from_millis(10), &streams, "for its sessions", asking).await;
            let said = format!("the gateway was asked for its sessions, and has not answered in 0 s{way}");
            assert_eq!(done.err().map(|error| error.to_string()), Some(said));
        }
    }
}
