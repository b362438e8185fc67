//! Meetings: two peers that do not know each other's ids talk through the service.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;
use whimbrel_transport::{RecvHalf, SendHalf};

use super::AskError;
use super::own_stream::{self, OwnStream};
use super::state::{Core, Wanted};
use crate::protocol::{MAX_MEETING_FRAME, MeetingFrames, ProtocolError, Request, Response, encode_frame};

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
    let (response, stream) = own_stream::ask(core, Request::Meet { slot }, "meetings").await?;
    let OwnStream { read, write, rest, wanted } = stream;
    match response {
        Response::Meeting { slot: given, seconds } if slot.is_none_or(|slot| slot == given) => {
            let ends = Instant::now() + Duration::from_secs(seconds.into());
            let frames = MeetingFrames::new(rest);
            Ok(Meeting { slot: given, ends, read, write, frames, _wanted: wanted })
        }
        _ => Err(AskError::unexpected()),
    }
}
