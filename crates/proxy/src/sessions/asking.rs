//! What a device asks a gateway about sessions.

use super::SessionId;
use super::attached::Attached;
use super::message::{Asked, GOES_ON, Listed, Takers, read_granted, read_list};
use super::words::Hearing;
use crate::{Answer, BadMessage, Destination, Status, Streams, UpstreamError};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::AsyncWriteExt as _;
use whimbrel_base::EndpointId;
use whimbrel_transport::Stream;

/// For an answer. Longer than a gateway takes, because this side may be moving just then.
const LIMIT: Duration = Duration::from_secs(30);

/// Why a gateway did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SessionError {
    /// It cannot be spoken to.
    #[error("the gateway is not reached: {0}")]
    Unreachable(String),
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

/// The sessions that a gateway has for this device. Cheap to clone.
#[derive(Clone)]
pub struct SessionsAt {
    streams: Arc<dyn Streams>,
}

impl SessionsAt {
    /// At the gateway that these streams lead to.
    pub fn new(streams: Arc<dyn Streams>) -> Self {
        Self { streams }
    }

    /// Those that this device has, and those that it may take.
    ///
    /// # Errors
    /// When the gateway is not reached, or older.
    pub async fn list(&self) -> Result<Vec<Listed>, SessionError> {
        within(async {
            let mut stream = ask(&self.streams, &Asked::List).await?.1;
            Ok(read_list(&mut stream).await?)
        })
        .await
    }

    /// Hears of each session that is handed over to this device from now on. What was before is in the list.
    ///
    /// # Errors
    /// [`SessionError::Older`] if the gateway tells nobody: then the list is what there is to look at.
    pub async fn hear(&self) -> Result<Hearing, SessionError> {
        within(async { ask(&self.streams, &Asked::Words).await.map(|(_, stream)| Hearing::new(stream)) })
            .await
    }

    /// Lets another device take a session of this one, which was moved so often until now, for some time.
    ///
    /// # Errors
    /// [`SessionError::None`] if this device has no such session.
    pub async fn hand_off(
        &self,
        (id, moves): (SessionId, u32),
        to: EndpointId,
        limit: Duration,
    ) -> Result<(), SessionError> {
        let asked = Asked::HandOff { id, moves, to, limit };
        within(async { ask(&self.streams, &asked).await.map(drop) }).await
    }

    /// Lets these devices, and no others, take all sessions of this one without being asked to. What one that
    /// may no more has taken by the rule within an hour comes back.
    ///
    /// # Errors
    /// When the gateway is not reached, or older.
    pub async fn set_rule(&self, rule: Takers) -> Result<(), SessionError> {
        within(async { ask(&self.streams, &Asked::Rule { rule }).await.map(drop) }).await
    }

    /// Takes a session that was moved so often until now, as [`Listed`] says. From then on, devices of the
    /// rule may take it without being asked to.
    ///
    /// # Errors
    /// [`SessionError::None`] if this device may not, if another one is taking it, or took it meanwhile.
    pub async fn take(&self, id: SessionId, moves: u32, rule: Takers) -> Result<Attached, SessionError> {
        within(async {
            let (answer, mut stream) = ask(&self.streams, &Asked::Take { id, moves, rule }).await?;
            let granted = read_granted(&mut stream).await?;
            let attached = Attached::new(granted, stream, self.streams.clone());
            Ok(if answer.text == GOES_ON { attached } else { attached.with_warning(answer.plain()) })
        })
        .await
    }
}

/// A connection through a gateway.
pub(crate) enum Opened {
    Session(Box<Attached>, String),
    /// It keeps none: version 1 is what it speaks.
    Older,
}

/// Opens a session.
pub(crate) async fn open(
    streams: &Arc<dyn Streams>,
    to: &Destination,
    rule: &Takers,
) -> Result<Opened, UpstreamError> {
    let unreachable = |source| UpstreamError::Unreachable { to: to.to_string(), source };
    let opened = async {
        let opened = streams.open().await;
        let mut stream = opened.map_err(|why| UpstreamError::NoWay { to: to.to_string(), why })?;
        let asked = Asked::Open { to: to.clone(), rule: rule.clone() };
        let answer = said(&mut stream, &asked).await.map_err(|error| unreachable(explained(error)))?;
        let by = format!("through the gateway, to {}", answer.plain());
        if answer.status == Status::NotUnderstood {
            return Ok(Opened::Older);
        }
        if let Some(error) = answer.error(to) {
            return Err(error);
        }
        let granted = read_granted(&mut stream).await.map_err(unreachable)?;
        Ok(Opened::Session(Box::new(Attached::new(granted, stream, streams.clone())), by))
    };
    let opened = tokio::time::timeout(LIMIT, opened).await;
    opened.unwrap_or_else(|_| {
        let why = io::Error::new(io::ErrorKind::TimedOut, "the gateway does not answer");
        Err(unreachable(why))
    })
}

/// Opens a second stream for a session.
pub(super) async fn control(
    streams: &Arc<dyn Streams>,
    id: SessionId,
    moves: u32,
) -> Result<Stream, SessionError> {
    within(async { ask(streams, &Asked::Control { id, moves }).await.map(|(_, stream)| stream) }).await
}

async fn within<T>(asking: impl Future<Output = Result<T, SessionError>>) -> Result<T, SessionError> {
    let done = tokio::time::timeout(LIMIT, asking).await;
    done.unwrap_or_else(|_| Err(SessionError::Unreachable("it does not answer in time".to_owned())))
}

/// Asks, and returns what is granted: the stream on which the rest comes.
async fn ask(streams: &Arc<dyn Streams>, asked: &Asked) -> Result<(Answer, Stream), SessionError> {
    let mut stream = streams.open().await.map_err(SessionError::Unreachable)?;
    let answer = said(&mut stream, asked).await.map_err(explained)?;
    match answer.status {
        Status::Connected => Ok((answer, stream)),
        Status::NoSession => Err(super::NoSession.into()),
        Status::NotUnderstood => Err(SessionError::Older),
        _ => Err(SessionError::Refused(answer.plain())),
    }
}

async fn said(stream: &mut Stream, asked: &Asked) -> io::Result<Answer> {
    // A gateway that is full says so before it has taken the request: its answer tells more than a failed
    // write.
    let written = stream.write_all(&asked.encode()).await;
    let read = Answer::read(stream).await;
    read.map_err(|error| written.err().unwrap_or(error))
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
