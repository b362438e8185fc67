//! What the applications do in the lab: the client asks for a flow one way or the other, and whoever receives
//! it notes what arrives when. Both ends are in one process and share its clock.

mod arrivals;

use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval};

pub(crate) use self::arrivals::{Notes, delays, goodput_bins, longest_gap, time_to};
use crate::system::{Channel, Handler};

const CHUNK: usize = 64 * 1024;
/// Way, pattern, and three numbers.
const REQUEST: usize = 2 + 3 * size_of::<u64>();
/// What the server answers once everything has come up.
const DONE: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// To the client.
    Down,
    /// From it.
    Up,
}

impl Way {
    pub(crate) const BOTH: [Self; 2] = [Self::Down, Self::Up];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Up => "up",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// So many bytes, as fast as they go.
    Bulk { bytes: u64 },
    /// One block every now and then, which says when it was written.
    Blocks { size: u64, every: Duration, count: u64 },
}

/// What travels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flow {
    pub(crate) way: Way,
    pub(crate) pattern: Pattern,
}

impl Flow {
    pub(crate) fn bulk(way: Way, bytes: u64) -> Self {
        Self { way, pattern: Pattern::Bulk { bytes } }
    }

    /// More than any trial can carry.
    pub(crate) fn endless(way: Way) -> Self {
        Self::bulk(way, u64::MAX >> 1)
    }

    /// Blocks that make up `bits` a second, for so long.
    pub(crate) fn blocks(way: Way, bits: u64, every: Duration, length: Duration) -> Self {
        let size = (bits as f64 * every.as_secs_f64() / 8.0) as u64;
        let count = (length.as_nanos() / every.as_nanos().max(1)) as u64;
        Self { way, pattern: Pattern::Blocks { size: size.max(size_of::<u64>() as u64), every, count } }
    }

    fn encode(self) -> [u8; REQUEST] {
        let (kind, numbers) = match self.pattern {
            Pattern::Bulk { bytes } => (0, [bytes, 0, 0]),
            Pattern::Blocks { size, every, count } => (1, [size, every.as_nanos() as u64, count]),
        };
        let mut request = [0; REQUEST];
        request[0] = u8::from(self.way == Way::Up);
        request[1] = kind;
        for (place, number) in request[2..].chunks_exact_mut(size_of::<u64>()).zip(numbers) {
            place.copy_from_slice(&number.to_be_bytes());
        }
        request
    }

    fn decode(request: [u8; REQUEST]) -> Self {
        let (numbers, _) = request[2..].as_chunks::<8>();
        let [first, second, third] = [0, 1, 2].map(|index| u64::from_be_bytes(numbers[index]));
        let pattern = match request[1] {
            0 => Pattern::Bulk { bytes: first },
            _ => Pattern::Blocks { size: first, every: Duration::from_nanos(second), count: third },
        };
        Self { way: if request[0] == 0 { Way::Down } else { Way::Up }, pattern }
    }
}

/// The client's application: asks for a flow, and returns when all of it has arrived.
pub(crate) async fn ask(channel: &mut Channel, flow: Flow, notes: &Notes) -> io::Result<()> {
    channel.write_all(&flow.encode()).await?;
    channel.flush().await?;
    match flow.way {
        Way::Down => receive(channel, flow.pattern, notes).await,
        Way::Up => {
            send(channel, flow.pattern, notes).await?;
            channel.read_u8().await.map(drop)
        }
    }
}

/// The server's application: serves one flow after the other.
pub(crate) fn server(notes: Arc<Notes>) -> Handler {
    Arc::new(move |channel| {
        let notes = notes.clone();
        Box::pin(async move {
            if let Err(error) = serve(channel, &notes).await {
                // The client's end says more, unless the trial is over.
                tracing::debug!(%error, "a flow ended");
            }
        })
    })
}

async fn serve(mut channel: Channel, notes: &Notes) -> io::Result<()> {
    loop {
        let mut request = [0; REQUEST];
        channel.read_exact(&mut request).await?;
        let flow = Flow::decode(request);
        match flow.way {
            Way::Down => send(&mut channel, flow.pattern, notes).await?,
            Way::Up => {
                receive(&mut channel, flow.pattern, notes).await?;
                channel.write_u8(DONE).await?;
                channel.flush().await?;
            }
        }
    }
}

async fn send(channel: &mut Channel, pattern: Pattern, notes: &Notes) -> io::Result<()> {
    match pattern {
        Pattern::Bulk { bytes } => {
            let chunk = vec![0x5a; CHUNK];
            let mut left = bytes;
            while left > 0 {
                let part = left.min(CHUNK as u64);
                channel.write_all(&chunk[..part as usize]).await?;
                left -= part;
            }
            channel.flush().await
        }
        Pattern::Blocks { size, every, count } => {
            let mut block = vec![0x5a; size as usize];
            let mut ticks = interval(every);
            // A block that had to wait for the one before was due nevertheless.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            for _ in 0..count {
                let due = ticks.tick().await;
                block[..8].copy_from_slice(&notes.stamp(due.into_std()).to_be_bytes());
                channel.write_all(&block).await?;
                channel.flush().await?;
            }
            Ok(())
        }
    }
}

async fn receive(channel: &mut Channel, pattern: Pattern, notes: &Notes) -> io::Result<()> {
    match pattern {
        Pattern::Bulk { bytes } => {
            let mut buffer = vec![0; CHUNK];
            let mut left = bytes;
            while left > 0 {
                let part = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                let n = channel.read(&mut buffer[..part]).await?;
                if n == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                left -= n as u64;
                notes.arrived(n as u64);
            }
        }
        Pattern::Blocks { size, count, .. } => {
            let mut block = vec![0; size as usize];
            for _ in 0..count {
                channel.read_exact(&mut block).await?;
                let mut stamp = [0; 8];
                stamp.copy_from_slice(&block[..8]);
                notes.block_arrived(size, u64::from_be_bytes(stamp));
            }
        }
    }
    Ok(())
}

/// Lets a flow run until a moment, or to its end. False if the moment came first.
pub(crate) async fn until(
    moment: std::time::Instant,
    flow: impl Future<Output = io::Result<()>>,
) -> io::Result<bool> {
    match tokio::time::timeout_at(Instant::from_std(moment), flow).await {
        Ok(ended) => ended.map(|()| true),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_says_what_travels() {
        let blocks = Flow::blocks(Way::Up, 500_000, Duration::from_millis(20), Duration::from_secs(10));
        assert_eq!(
            blocks.pattern,
            Pattern::Blocks { size: 1250, every: Duration::from_millis(20), count: 500 }
        );
        for flow in [blocks, Flow::bulk(Way::Down, 7), Flow::endless(Way::Up)] {
            assert_eq!(Flow::decode(flow.encode()), flow);
        }
    }

    #[tokio::test]
    async fn flows_of_either_way_are_noted_where_they_arrive() {
        let (one, other) = tokio::io::duplex(1000);
        let (mut client, notes) = (Channel::new(one), Arc::new(Notes::new()));
        tokio::spawn(server(notes.clone())(Channel::new(other)));
        for way in Way::BOTH {
            assert!(ask(&mut client, Flow::bulk(way, 100_000), &notes).await.is_ok());
            let arrivals = notes.take();
            assert_eq!(arrivals.iter().map(|arrival| arrival.bytes).sum::<u64>(), 100_000);
            let blocks = Flow::blocks(way, 8_000_000, Duration::from_millis(1), Duration::from_millis(5));
            assert!(ask(&mut client, blocks, &notes).await.is_ok());
            assert_eq!(delays(&notes.take()).len(), 5);
        }
    }
}
