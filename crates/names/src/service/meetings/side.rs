//! One side of a meeting, on its stream.

use std::future::pending;
use std::net::IpAddr;

use bytes::BytesMut;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::mpsc;
use tokio::time::Instant;
use whimbrel_base::EndpointId;
use whimbrel_transport::{RecvHalf, SendHalf};

use super::{Pipe, Side};
use crate::error::NamesError;
use crate::protocol::{MAX_MEETING_FRAME, MeetingFrames, Reply, Response, encode, encode_frame};
use crate::service::Shared;
use crate::service::broken::Broken;

/// A request to meet, and the stream that it came on.
pub(in crate::service) struct Arrival {
    pub(in crate::service) number: u64,
    pub(in crate::service) slot: Option<u16>,
    pub(in crate::service) peer: EndpointId,
    /// Where the peer connects from.
    pub(in crate::service) from: Option<IpAddr>,
    pub(in crate::service) read: RecvHalf,
    pub(in crate::service) write: SendHalf,
    /// What was read behind the request.
    pub(in crate::service) rest: BytesMut,
}

/// Answers the request, and carries frames until either side or the time ends the meeting.
pub(in crate::service) async fn serve(arrival: Arrival, shared: &Shared) -> Result<(), Broken> {
    let Arrival { number, slot, peer, from, mut read, mut write, rest } = arrival;
    shared.counters.request();
    let now = Instant::now();
    let entered = if slot.is_some() && !shared.turns.join(from) {
        Err(NamesError::TooOften)
    } else {
        shared.meetings.enter(peer, slot, now)
    };
    let side = match entered {
        Ok(side) => side,
        Err(error) => {
            shared.counters.refused();
            return answer(&mut write, number, Response::error(&error)).await;
        }
    };
    let Side { slot, ends, pipe, _place } = side;
    let seconds = u16::try_from(ends.duration_since(now).as_secs()).unwrap_or(u16::MAX);
    answer(&mut write, number, Response::Meeting { slot, seconds }).await?;
    let Pipe { to, from } = pipe;
    tokio::select! {
        ended = send_on(&mut read, MeetingFrames::new(rest), to) => ended,
        ended = deliver(&mut write, from) => ended,
        () = tokio::time::sleep_until(ends) => Ok(()),
    }?;
    // Dropped, the stream would be reset, and what was delivered last lost on the way.
    Ok(write.shutdown().await?)
}

async fn answer(write: &mut SendHalf, request: u64, response: Response) -> Result<(), Broken> {
    let reply = encode(&Reply::Response { request, response })?;
    Ok(write.write_all(&reply).await?)
}

/// Gives the other side what this one sends. Returns when this side ends its stream.
async fn send_on(
    read: &mut RecvHalf,
    mut frames: MeetingFrames,
    to: mpsc::Sender<Vec<u8>>,
) -> Result<(), Broken> {
    let mut piece = [0; 2 + MAX_MEETING_FRAME];
    loop {
        while let Some(frame) = frames.next_frame()? {
            if to.send(frame).await.is_err() {
                // The other side has ended. What it said before is still to be delivered.
                return pending().await;
            }
        }
        let n = read.read(&mut piece).await?;
        if n == 0 {
            return Ok(());
        }
        frames.push(&piece[..n]);
    }
}

/// Writes what the other side sent. Returns when that has ended, and all of it is written.
async fn deliver(write: &mut SendHalf, mut from: mpsc::Receiver<Vec<u8>>) -> Result<(), Broken> {
    while let Some(frame) = from.recv().await {
        write.write_all(&encode_frame(&frame)?).await?;
    }
    Ok(())
}
