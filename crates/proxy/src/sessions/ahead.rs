//! Bytes that a device gets which takes a session, while the one before is still asked how far it is: those
//! that are not even on their way to that one. So a new network is not idle for a round trip of the old one.
//!
//! ```text
//! ahead = 3 (1), offset (8), pieces
//! piece = length (2), bytes; the last one has none
//! ```
//!
//! The answer stands behind that. What the program before has not taken comes as always, and a frame says
//! when it is the turn of these. Where they begin is a guess: the frame says which of them are wanted.

use super::server::Server;
use super::window::Window;
use crate::{Answer, BadMessage};
use bytes::{Buf as _, Bytes};
use std::future::{pending, poll_fn};
use std::io;
use std::ops::Range;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::Instant;
use whimbrel_transport::Stream;

/// No answer begins so.
const MARK: u8 = 3;
/// The most before one answer. A device keeps it until its turn has come.
const MOST: usize = 256 * 1024;
/// Bytes in one piece.
const PIECE: usize = 2 * 1024;
/// Under way until the first arrive: half of what TCP begins with (RFC 6928), which leaves the other half to
/// the answer.
const FIRST: u64 = 5 * 1460;
/// Under way later, beyond what arrives in a round trip.
const BEYOND: u64 = 2 * PIECE as u64;
/// What has arrived is looked at so often.
const LOOK: Duration = Duration::from_millis(5);

/// The bytes before one answer, at the gateway.
pub(super) struct Ahead {
    said: Range<u64>,
    /// What the stream has not taken yet.
    out: Bytes,
    /// How many bytes it has taken.
    written: u64,
    flight: Flight,
}

/// How much is under way at once: little more than what arrives in a round trip. What matters more, which is
/// the answer and what stands behind it, has to wait for that.
struct Flight {
    round_trip: Duration,
    most: u64,
    /// When a round trip began, and what had arrived then. None has before something arrives.
    begun: Option<(Instant, u64)>,
}

impl Ahead {
    /// From this offset on, over a network of this round trip. `None` if the server has said nothing there.
    pub(super) fn new(start: u64, server: &Server, round_trip: Duration) -> Option<Self> {
        let kept = server.kept();
        let start = start.max(kept.base());
        let out = [&[MARK][..], &start.to_be_bytes()].concat().into();
        let flight = Flight::new(round_trip);
        (start < kept.end()).then_some(Self { said: start..start, out, written: 0, flight })
    }

    /// Says what there is to say, and waits for ever then. Cancel-safe.
    pub(super) async fn say(&mut self, stream: &Stream, server: &Server) {
        loop {
            if self.out.is_empty() && !self.gather(stream.backlog().unacknowledged, server) {
                tokio::time::sleep(LOOK).await;
            } else if self.write(stream).await.is_err() {
                // Writing the answer will fail as well, and that is where it is handled.
                return pending().await;
            }
        }
    }

    /// Takes the next piece, if so little is under way that it may go.
    fn gather(&mut self, under_way: u64, server: &Server) -> bool {
        let arrived = self.written.saturating_sub(under_way);
        let most = self.flight.most(arrived, Instant::now());
        let is_full =
            under_way + PIECE as u64 > most || self.said.end - self.said.start > (MOST - PIECE) as u64;
        let bytes = if is_full { Bytes::new() } else { server.from(self.said.end, PIECE) };
        self.said.end += bytes.len() as u64;
        self.out = if bytes.is_empty() { bytes } else { piece(&bytes) };
        !self.out.is_empty()
    }

    async fn write(&mut self, stream: &Stream) -> io::Result<()> {
        let n = poll_fn(|cx| stream.poll_write_bytes(cx, &self.out)).await?;
        self.out.advance(n);
        self.written += n as u64;
        Ok(())
    }

    /// What was said, and what has to be before the answer is.
    pub(super) fn close(self) -> (Range<u64>, Vec<u8>) {
        if self.written == 0 {
            return (self.said.start..self.said.start, Vec::new());
        }
        (self.said, [&self.out[..], &piece(&[])].concat())
    }
}

fn piece(bytes: &[u8]) -> Bytes {
    let length = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
    [&length.to_be_bytes(), bytes].concat().into()
}

impl Flight {
    fn new(round_trip: Duration) -> Self {
        Self { round_trip: round_trip.max(LOOK), most: FIRST, begun: None }
    }

    /// What may be under way, now that so much has arrived.
    fn most(&mut self, arrived: u64, now: Instant) -> u64 {
        match self.begun {
            None if arrived > 0 => self.begun = Some((now, arrived)),
            Some((begun, before)) if now >= begun + self.round_trip => {
                let (took, trip) = ((now - begun).as_micros(), self.round_trip.as_micros());
                let arrives = u128::from(arrived - before) * trip / took;
                self.most = u64::try_from(arrives).unwrap_or(u64::MAX).saturating_add(BEYOND);
                self.begun = Some((now, arrived));
            }
            None | Some(_) => {}
        }
        self.most
    }
}

/// Reads an answer, and what stands before it.
pub(super) async fn read_answer(from: &mut (impl AsyncRead + Unpin)) -> io::Result<(Answer, Window)> {
    let first = from.read_u8().await?;
    if first != MARK {
        return Ok((Answer::read_on(first, from).await?, Window::default()));
    }
    let mut came = Window::at(from.read_u64().await?);
    loop {
        let mut bytes = vec![0; from.read_u16().await?.into()];
        if bytes.is_empty() {
            return Ok((Answer::read(from).await?, came));
        }
        // What follows is added to the offset.
        if came.len() + bytes.len() > MOST || came.base() > i64::MAX as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, BadMessage::Length));
        }
        from.read_exact(&mut bytes).await?;
        came.push(bytes.into());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Status;

    #[test]
    fn little_more_is_under_way_than_arrives_in_a_round_trip() {
        let (begin, trip) = (Instant::now(), Duration::from_millis(40));
        let mut flight = Flight::new(trip);
        let mut most = |millis, arrived| flight.most(arrived, begin + Duration::from_millis(millis));
        assert_eq!(
            [most(0, 0), most(500, 0), most(600, 2000), most(639, 6000)],
            [FIRST; 4],
            "nothing is known"
        );
        assert_eq!(most(640, 7000), 5000 + BEYOND);
        assert_eq!(most(679, 17_000), 5000 + BEYOND);
        assert_eq!(most(680, 27_000), 20_000 + BEYOND);
        assert_eq!(most(760, 57_000), 15_000 + BEYOND, "looked at late");
        assert_eq!(most(900, 57_000), BEYOND, "nothing arrives");
    }

    async fn read(bytes: &[u8]) -> io::Result<(Answer, Window)> {
        let mut from = bytes;
        let read = read_answer(&mut from).await?;
        assert_eq!(from, b"behind");
        Ok(read)
    }

    #[tokio::test]
    async fn an_answer_is_found_with_bytes_before_it_and_without() {
        let answer = Answer::new(Status::Connected, "yes");
        let plain = [&answer.encode()[..], b"behind"].concat();
        let (found, came) = read(&plain).await.unwrap();
        assert_eq!((found, came.end()), (answer.clone(), 0));
        let head = [&[MARK][..], &7_u64.to_be_bytes()].concat();
        let all = [&head[..], &piece(b"abc"), &piece(b"de"), &piece(b""), &plain].concat();
        let (found, came) = read(&all).await.unwrap();
        assert_eq!((found, came.base(), &came.to_vec()[..]), (answer, 7, &b"abcde"[..]));
        for cut in 0..all.len() - b"behind".len() {
            assert!(read_answer(&mut &all[..cut]).await.is_err());
        }
    }

    #[tokio::test]
    async fn no_gateway_has_a_device_keep_more_than_it_is_told_to() {
        let head = [&[MARK][..], &7_u64.to_be_bytes()].concat();
        let much = piece(&vec![1; 32 * 1024]).repeat(MOST / 32 / 1024);
        let rest = [&piece(b"")[..], &Answer::new(Status::Connected, "").encode(), b"behind"].concat();
        assert!(read(&[&head[..], &much, &rest].concat()).await.is_ok());
        assert!(read(&[&head[..], &much, &piece(b"x"), &rest].concat()).await.is_err());
        let far = [&[MARK][..], &u64::MAX.to_be_bytes(), &piece(b"x"), &rest].concat();
        assert!(read(&far).await.is_err());
    }
}
