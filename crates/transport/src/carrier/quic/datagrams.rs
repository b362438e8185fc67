//! Datagrams of a QUIC connection (RFC 9221): what they hold is the engine's affair.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use quinn::{Connection, ConnectionError, SendDatagramError};
use whimbrel_proto::PathId;

use super::PathError;
use crate::carrier::Segments;

/// Bytes of datagrams that QUIC may hold unsent. What is more goes in segments.
pub(super) const SEND_BUFFER: usize = 16 * 1024;
/// Bytes of datagrams that QUIC keeps until they are read: those of a peer that is not known yet, too.
pub(super) const RECEIVE_BUFFER: usize = 64 * 1024;
/// What QUIC counts of each datagram beside its bytes, at most.
const OVERHEAD: usize = 32;

type Reading = Pin<Box<dyn Future<Output = Result<Bytes, ConnectionError>> + Send>>;

/// What comes in datagrams.
#[derive(Default)]
pub(super) struct Arriving {
    /// Waits for the next; kept, because QUIC wakes no other.
    reading: Option<Reading>,
}

impl Arriving {
    /// Hands all that has come to the engine. True if there was any.
    pub(super) fn read(
        &mut self,
        connection: &Connection,
        id: PathId,
        engine: &impl Segments,
        cx: &mut Context<'_>,
    ) -> Result<bool, PathError> {
        let mut any = false;
        if let Some(reading) = &mut self.reading {
            match reading.as_mut().poll(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(datagram) => {
                    any = true;
                    self.reading = None;
                    engine.take_datagram(Instant::now(), id, &datagram?)?;
                }
            }
        }
        // What is there already needs no future of its own.
        while let Poll::Ready(datagram) = pin!(connection.read_datagram()).poll(cx) {
            any = true;
            engine.take_datagram(Instant::now(), id, &datagram?)?;
        }
        let connection = connection.clone();
        let mut reading: Reading = Box::pin(async move { connection.read_datagram().await });
        if let Poll::Ready(datagram) = reading.as_mut().poll(cx) {
            engine.take_datagram(Instant::now(), id, &datagram?)?;
            // There may be more.
            cx.waker().wake_by_ref();
            return Ok(true);
        }
        self.reading = Some(reading);
        Ok(any)
    }
}

/// Sends what the engine has for datagrams, as long as QUIC has room for them.
pub(super) fn send(
    connection: &Connection,
    id: PathId,
    engine: &impl Segments,
    buffer: &mut Vec<u8>,
) -> Result<(), PathError> {
    while engine.may_have_datagrams() {
        let space = connection.datagram_send_buffer_space().saturating_sub(OVERHEAD);
        let room = connection.max_datagram_size().unwrap_or_default().min(space);
        buffer.clear();
        if !engine.next_datagram(Instant::now(), id, room as u64, buffer) {
            break;
        }
        // Any other error: the way has just become too narrow for it, and it is lost like others.
        if let Err(SendDatagramError::ConnectionLost(error)) =
            connection.send_datagram(Bytes::copy_from_slice(buffer))
        {
            return Err(error.into());
        }
    }
    Ok(())
}
