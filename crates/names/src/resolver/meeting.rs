//! Meetings: two peers that do not know each other's ids talk through the service.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;
use whimbrel_transport::{CloseCode, ClosedBy, Connection, RecvHalf, SendHalf, Stream};

use super::state::{Core, Wanted};
use super::{ANSWER_LIMIT, AskError};
use crate::error::ErrorCode;
use crate::protocol::{
    Decoder, MAX_MEETING_FRAME, MeetingFrames, Numbered, ProtocolError, Reply, Request, Response, encode,
    encode_frame,
};

/// How long [`Meeting::close`] waits for the service to have what was sent.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// The service's clock and ours may differ by so much about a meeting's end.
const END_SLACK: Duration = Duration::from_secs(2);

/// One side of a meeting at the name service: frames of bytes to the other side and back, in order.
///
/// Whoever opens a meeting gets a slot, and tells its number to the person at the other machine, who joins
/// it. The service lets one joiner in, but does not know who it is: **what comes may be from anybody**, the
/// service itself included, until the two sides have proved themselves to each other.
///
/// Lasts ten minutes at most, and no longer than the resolver that it came from. Dropping it ends it for the
/// other side too; what was sent may be lost then: [`close`](Self::close) waits for it.
pub struct Meeting {
    slot: u16,
    ends: Instant,
    read: RecvHalf,
    write: SendHalf,
    frames: MeetingFrames,
    /// Keeps the connection to the service.
    _wanted: Wanted,
}

impl Meeting {
    /// The number by which the other side joins: 0 to 2047.
    pub fn slot(&self) -> u16 {
        self.slot
    }

    /// Sends a frame of 1 to [`MAX_MEETING_FRAME`] bytes. It waits at the service until the other side joins
    /// and takes it; when many wait, so does this. Not cancel-safe: a meeting whose `send` was dropped is of
    /// no more use.
    ///
    /// # Errors
    /// [`MeetingError`].
    pub async fn send(&mut self, frame: &[u8]) -> Result<(), MeetingError> {
        let bytes = encode_frame(frame).map_err(MeetingError::Frame)?;
        match tokio::time::timeout_at(self.ends, self.write.write_all(&bytes)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.ended(&error)),
            Err(_) => Err(MeetingError::TimeUp),
        }
    }

    /// Waits for the next frame of the other side. Cancel-safe.
    ///
    /// # Errors
    /// [`MeetingError::Ended`] when the other side ended the meeting and all that it sent was received;
    /// otherwise [`MeetingError::TimeUp`] or [`MeetingError::Lost`].
    pub async fn recv(&mut self) -> Result<Vec<u8>, MeetingError> {
        let mut piece = [0; 2 + MAX_MEETING_FRAME];
        loop {
            if let Some(frame) = self.frames.next_frame().map_err(MeetingError::Frame)? {
                return Ok(frame);
            }
            match tokio::time::timeout_at(self.ends, self.read.read(&mut piece)).await {
                Ok(Ok(0)) => return Err(self.over()),
                Ok(Ok(n)) => self.frames.push(&piece[..n]),
                Ok(Err(error)) => return Err(self.ended(&error)),
                Err(_) => return Err(MeetingError::TimeUp),
            }
        }
    }

    /// Ends the meeting, and waits until the service has all that was sent; five seconds at most.
    ///
    /// # Errors
    /// [`MeetingError`] when the other side will not get all of it.
    pub async fn close(self) -> Result<(), MeetingError> {
        self.write.stream().finish().map_err(|error| self.ended(&error))?;
        match tokio::time::timeout(CLOSE_LIMIT, self.write.stream().drained()).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(self.ended(&error)),
            Err(_) => Err(MeetingError::Lost("the name service does not answer".to_owned())),
        }
    }

    /// Why the stream ended in order.
    fn over(&self) -> MeetingError {
        if Instant::now() + END_SLACK >= self.ends { MeetingError::TimeUp } else { MeetingError::Ended }
    }

    fn ended(&self, error: &io::Error) -> MeetingError {
        match self.write.stream().connection().close_reason() {
            Some(reason) => MeetingError::Lost(reason.to_string()),
            None if error.kind() == io::ErrorKind::ConnectionAborted => MeetingError::Lost(error.to_string()),
            None => self.over(),
        }
    }
}

impl std::fmt::Debug for Meeting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Meeting").field("slot", &self.slot).finish_non_exhaustive()
    }
}

/// Why nothing more is sent or received in a meeting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MeetingError {
    /// The other side ended it.
    #[error("the other side ended the meeting; begin a new one")]
    Ended,
    /// It lasted as long as a meeting may.
    #[error("the meeting's time is up; begin a new one")]
    TimeUp,
    /// The connection to the name service ended.
    #[error("the meeting was lost with the connection to the name service ({0}); begin a new one")]
    Lost(String),
    /// The frame is empty or too large, or the service sent such a one.
    #[error(transparent)]
    Frame(ProtocolError),
}

/// Opens a meeting, or joins the one in `slot`.
pub(super) async fn enter(core: &Arc<Core>, slot: Option<u16>) -> Result<Meeting, AskError> {
    let wanted = Core::want_connection(core)?;
    let entered = async {
        let mut connections = core.connection();
        loop {
            let present = connections.borrow_and_update().clone();
            if let Some(connection) = present {
                match ask(&connection, slot).await {
                    Ok(entered) => return entered,
                    // Another connection may do better.
                    Err(error) => tracing::debug!(%error, "no answer about a meeting"),
                }
            }
            if connections.changed().await.is_err() {
                return Err(AskError::Closed);
            }
        }
    };
    let limit = tokio::time::timeout(ANSWER_LIMIT, entered).await;
    let Entered { slot, seconds, stream: (read, write), frames } =
        limit.unwrap_or_else(|_| Err(AskError::Unreachable(core.why())))?;
    let ends = Instant::now() + Duration::from_secs(seconds.into());
    Ok(Meeting { slot, ends, read, write, frames, _wanted: wanted })
}

struct Entered {
    slot: u16,
    seconds: u16,
    stream: (RecvHalf, SendHalf),
    frames: MeetingFrames,
}

/// Asks on a stream of its own. An error of the stream is one that another connection may not have.
async fn ask(connection: &Connection, slot: Option<u16>) -> io::Result<Result<Entered, AskError>> {
    let asked = async {
        let stream = connection.open_stream().await.map_err(io::Error::other)?;
        exchange(stream, slot).await
    };
    match asked.await {
        Ok(answer) => Ok(answer),
        Err(error) => match connection.close_reason() {
            // What a service does that knows no meetings.
            Some(reason) if reason.code == CloseCode::PROTOCOL && reason.by == ClosedBy::Peer => {
                Ok(Err(AskError::Unsupported("meetings")))
            }
            _ => Err(error),
        },
    }
}

async fn exchange(stream: Stream, slot: Option<u16>) -> io::Result<Result<Entered, AskError>> {
    let (mut read, mut write) = stream.into_split();
    let request = Numbered { number: 0, request: Request::Meet { slot } };
    write.write_all(&encode(&request).map_err(io::Error::other)?).await?;
    let mut decoder = Decoder::<Reply>::new();
    let mut piece = [0; 2048];
    let reply = loop {
        match decoder.next_message() {
            Ok(Some(reply)) => break reply,
            Ok(None) => {}
            Err(error) => return Ok(Err(AskError::Invalid(error.to_string()))),
        }
        match read.read(&mut piece).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => decoder.push(&piece[..n]),
        }
    };
    Ok(match reply {
        Reply::Response { response: Response::Meeting { slot: given, seconds }, .. }
            if slot.is_none_or(|slot| slot == given) =>
        {
            let frames = MeetingFrames::new(decoder.into_rest());
            Ok(Entered { slot: given, seconds, stream: (read, write), frames })
        }
        Reply::Response { response: Response::Error { code, message }, .. } => {
            Err(AskError::Refused { code: ErrorCode::from_number(code), message })
        }
        _ => Err(AskError::unexpected()),
    })
}
