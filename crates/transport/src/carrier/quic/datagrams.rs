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

/// Bytes of datagrams that QUIC may hold unsent. What is more waits in the engine.
pub(super) const SEND_BUFFER: usize = 16 * 1024;
/// Bytes of datagrams that QUIC keeps until they are read: those of a peer that is not known yet, too.
pub(super) const RECEIVE_BUFFER: usize = 64 * 1024;

/// The clock is read once for so many datagrams that have come, at most.
const AT_ONE_TIME: usize = 16;

type Sending = Pin<Box<dyn Future<Output = Result<(), SendDatagramError>> + Send>>;
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
        // What is here came before this.
        let (mut any, mut now) = (false, Instant::now());
        if let Some(reading) = &mut self.reading {
            match reading.as_mut().poll(cx) {
                Poll::Pending => return Ok(false),
                Poll::Ready(datagram) => {
                    any = true;
                    self.reading = None;
                    engine.take_datagram(now, id, &datagram?)?;
                }
            }
        }
        // What is there already needs no future of its own.
        let mut count = 0_usize;
        while let Poll::Ready(datagram) = pin!(connection.read_datagram()).poll(cx) {
            any = true;
            count += 1;
            if count.is_multiple_of(AT_ONE_TIME) {
                // They may come as quickly as they are taken: what comes last is not as old as the first.
                now = Instant::now();
            }
            engine.take_datagram(now, id, &datagram?)?;
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

/// What leaves in datagrams.
#[derive(Default)]
pub(super) struct Leaving {
    /// One for which QUIC has no room yet. It goes before others.
    sending: Option<Sending>,
}

impl Leaving {
    /// Sends what the engine has for datagrams, as long as QUIC has room for them. `blocked`: QUIC takes no
    /// segments now.
    pub(super) fn send(
        &mut self,
        connection: &Connection,
        id: PathId,
        engine: &impl Segments,
        blocked: bool,
        buffer: &mut Vec<u8>,
        cx: &mut Context<'_>,
    ) -> Result<(), PathError> {
        if let Some(sending) = &mut self.sending {
            match sending.as_mut().poll(cx) {
                Poll::Pending => return Ok(()),
                Poll::Ready(sent) => {
                    self.sending = None;
                    check(sent)?;
                }
            }
        }
        if !engine.may_have_datagrams() {
            return Ok(());
        }
        let room = connection.max_datagram_size().unwrap_or_default();
        loop {
            buffer.clear();
            if !engine.next_datagram(Instant::now(), id, room as u64, blocked, buffer) {
                break;
            }
            // QUIC has a lock of its own, which is taken once for each. Mostly there is room.
            let datagram = Bytes::copy_from_slice(buffer);
            if let Poll::Ready(sent) = pin!(connection.send_datagram_wait(datagram)).poll(cx) {
                check(sent)?;
                continue;
            }
            // What follows waits in the engine, where it may still be replaced, or die of its age.
            let (connection, datagram) = (connection.clone(), Bytes::copy_from_slice(buffer));
            let mut sending: Sending = Box::pin(async move { connection.send_datagram_wait(datagram).await });
            match sending.as_mut().poll(cx) {
                Poll::Ready(sent) => check(sent)?,
                Poll::Pending => {
                    self.sending = Some(sending);
                    break;
                }
            }
        }
        Ok(())
    }
}

/// A datagram for which the way has just become too narrow is lost like others.
fn check(sent: Result<(), SendDatagramError>) -> Result<(), PathError> {
    match sent {
        Err(SendDatagramError::ConnectionLost(error)) => Err(error.into()),
        _ => Ok(()),
    }
}
