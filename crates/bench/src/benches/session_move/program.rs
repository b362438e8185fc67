//! A program on a device: it knows nothing of sessions, and notes what it gets.

use std::time::Instant;

use anyhow::{Context, Result};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use whimbrel_proxy::{Attached, Outcome, SessionId};

/// What is read at once, by a program that keeps it, and by one that does not.
const READ: usize = 64 * 1024;
const READ_LITTLE: usize = 4 * 1024;

/// A program's connection: its own end, and that of its device.
pub(super) struct Ends {
    program: TcpStream,
    device: TcpStream,
}

impl Ends {
    /// On the host of this runtime.
    pub(super) async fn new() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let program = TcpStream::connect(listener.local_addr()?).await?;
        let (device, _) = listener.accept().await?;
        Ok(Self { program, device })
    }
}

/// What a program got, and when.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) bytes: Vec<u8>,
    /// How many bytes were there at which moment.
    arrivals: Vec<(usize, Instant)>,
}

impl Record {
    /// When the byte at an index was there.
    pub(super) fn arrival(&self, index: usize) -> Option<Instant> {
        let at = self.arrivals.partition_point(|(there, _)| *there <= index);
        self.arrivals.get(at).map(|(_, moment)| *moment)
    }

    /// When the last byte was there.
    pub(super) fn end(&self) -> Option<Instant> {
        self.arrivals.last().map(|(_, moment)| *moment)
    }
}

/// A program that reads.
pub(super) struct Reading {
    first: watch::Receiver<Option<Instant>>,
    task: JoinHandle<Record>,
}

impl Reading {
    /// Reads until the connection ends or breaks, and keeps what comes, or throws it away.
    pub(super) fn start(mut socket: TcpStream, keeps: bool) -> Self {
        let (sender, first) = watch::channel(None);
        let task = tokio::spawn(async move {
            let (mut record, mut some) = (Record::default(), vec![0; if keeps { READ } else { READ_LITTLE }]);
            while let Ok(n @ 1..) = socket.read(&mut some).await {
                let now = Instant::now();
                if keeps {
                    record.bytes.extend_from_slice(&some[..n]);
                    record.arrivals.push((record.bytes.len(), now));
                }
                sender.send_if_modified(|first| first.replace(first.unwrap_or(now)).is_none());
            }
            record
        });
        Self { first, task }
    }

    /// Waits for the first byte, and says when it was there.
    pub(super) async fn first(&mut self) -> Result<Instant> {
        let first = self.first.wait_for(Option::is_some).await;
        first.ok().and_then(|first| *first).context("the program got nothing")
    }

    pub(super) async fn record(self) -> Result<Record> {
        self.task.await.context("the program failed")
    }
}

/// A program whose connection is a session.
pub(super) struct Program {
    pub(super) id: SessionId,
    /// Where it begins, among all that the server sends.
    pub(super) offset: u64,
    pub(super) reading: Reading,
    carrying: JoinHandle<std::io::Result<Outcome>>,
}

impl Program {
    /// One that says this first, and keeps what it gets, or does not.
    pub(super) fn start(attached: Attached, ends: Ends, says: Vec<u8>, keeps: bool) -> Self {
        let (id, offset) = (attached.id(), attached.offset());
        let reading = Reading::start(ends.program, keeps);
        let carrying = tokio::spawn(attached.carry(ends.device, says));
        Self { id, offset, reading, carrying }
    }

    /// Whether its session is there still.
    pub(super) fn goes_on(&self) -> bool {
        !self.carrying.is_finished()
    }

    /// What it got in all, and how its session ended there.
    pub(super) async fn ended(self) -> Result<(Record, Outcome)> {
        let outcome = self.carrying.await.context("carrying a session failed")??;
        Ok((self.reading.record().await?, outcome))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_record_knows_when_each_byte_was_there() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let record = Record { bytes: vec![0; 30], arrivals: vec![(10, at(1)), (30, at(5))] };
        assert_eq!([0, 9, 10, 29].map(|index| record.arrival(index).unwrap()), [at(1), at(1), at(5), at(5)]);
        assert_eq!((record.arrival(30), record.end()), (None, Some(at(5))));
    }
}
