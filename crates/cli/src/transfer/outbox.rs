//! Several files on their way out together. They can stop, each behind any of its bytes, and go on there or
//! at another device.

mod away;
mod kept;

pub(crate) use self::kept::Kept;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use anyhow::Result;
use futures_util::FutureExt;
use tokio::sync::watch;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;
use whimbrel_transport::{Connection, RecvHalf, SendHalf, Stream};

use super::Trouble;
use super::answers::{done, unexpected, with_reason};
use super::item::{Bytes, Item};
use super::message::{self, Batch, MAX_SHOWN, Message, Offer, VERSION};
use super::outflow::{Outflow, Sent};
use super::pace::Pace;
use super::sending::{begin_item, directory};
use super::together::Announced;
use super::tree::Tree;
use crate::progress::Board;

/// Files of a batch that are on their way at once: enough to make up for a round trip each.
pub(super) const PARALLEL: usize = 16;
/// Refusals that are told one by one.
const MOST_TOLD: usize = 5;
/// For what is just beginning or ending to do so.
const STOP_LIMIT: Duration = Duration::from_secs(10);

/// Several files on their way out.
pub(crate) struct Outbox {
    read: RecvHalf,
    write: SendHalf,
    announced: Announced,
    /// What has not begun, the next one first.
    left: VecDeque<Item>,
    /// What has begun, and has stopped.
    stopped: Vec<Outflow>,
    running: JoinSet<(String, Result<Ended, Trouble>)>,
    /// Whether what runs is to stop.
    stop: watch::Sender<bool>,
    /// What has arrived.
    sent: Sent,
    refused: Refused,
}

/// How something that ran has ended.
enum Ended {
    Arrived(Sent),
    Stopped(Box<Outflow>),
}

/// What the receiver did not take, or could not be read.
#[derive(Default)]
struct Refused {
    told: Vec<String>,
    more: u64,
}

impl Refused {
    fn add(&mut self, why: String) {
        if self.told.len() < MOST_TOLD {
            self.told.push(why);
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    fn count(&self) -> u64 {
        self.more.saturating_add(self.told.len() as u64)
    }

    fn text(&self) -> String {
        let told = self.told.join("; ");
        match (self.more, told.is_empty()) {
            (0, _) => told,
            (more, true) => format!("{more} of them, as the device before has said"),
            (more, false) => format!("{told}; and {more} more"),
        }
    }
}

impl Outbox {
    /// Announces everything in a tree on this stream, and waits until it may come.
    pub(crate) async fn begin(stream: Stream, id: u64, tree: &Tree) -> Result<Self, Trouble> {
        let (mut read, mut write) = stream.into_split();
        let announced = Announced {
            id,
            entries: tree.entries.len() as u64,
            names: tree.roots.len() as u64,
            shown: tree.roots.iter().take(MAX_SHOWN).cloned().collect(),
            size: tree.size(),
        };
        let result = announce(&mut read, &mut write, &announced).await;
        with_reason(&mut read, &write, result).await?;
        let left = tree.entries.iter().map(Item::of).collect();
        Ok(Self::new((read, write), announced, left))
    }

    fn new((read, write): (RecvHalf, SendHalf), announced: Announced, left: VecDeque<Item>) -> Self {
        Self {
            read,
            write,
            announced,
            left,
            stopped: Vec::new(),
            running: JoinSet::new(),
            stop: watch::Sender::new(false),
            sent: Sent::default(),
            refused: Refused::default(),
        }
    }

    /// The connection to the receiver.
    pub(crate) fn connection(&self) -> Connection {
        self.write.stream().connection()
    }

    /// Sends everything. Cancel-safe: can be begun again, or go on elsewhere.
    ///
    /// # Errors
    /// What is to be [explained](Self::explain).
    pub(crate) async fn pour(&mut self, pace: &Pace, board: &Board) -> Result<(), Trouble> {
        let connection = self.connection();
        let name = format!("{} files", self.announced.entries);
        let mut progress = board.file(&name, self.announced.size, self.sent.size);
        loop {
            while self.running.len() < PARALLEL && self.begin_next(&connection, pace, board) {}
            let Some(ended) = self.running.join_next().await else { return Ok(()) };
            self.note(ended)?;
            progress.at(self.sent.size);
        }
    }

    /// Has the next file go out. False if there is none.
    fn begin_next(&mut self, connection: &Connection, pace: &Pace, board: &Board) -> bool {
        let (pace, quiet, stop) = (pace.clone(), board.nowhere(), self.stop.subscribe());
        if let Some(outflow) = self.stopped.pop() {
            self.running.spawn(FutureExt::boxed(async move {
                let shown = outflow.name().to_owned();
                (shown, carry(outflow, (&pace, &quiet), stop).await)
            }));
            return true;
        }
        let Some(item) = self.left.pop_front() else { return false };
        let (connection, id) = (connection.clone(), self.announced.id);
        self.running.spawn(FutureExt::boxed(async move {
            let result = match connection.open_stream().await {
                Ok(stream) => part(stream, (id, &item), (&pace, &quiet), stop).await,
                Err(error) => Err(Trouble::Lost(io::Error::other(error))),
            };
            (item.shown(), result)
        }));
        true
    }

    fn note(&mut self, ended: Result<(String, Result<Ended, Trouble>), JoinError>) -> Result<(), Trouble> {
        let (shown, result) = ended.map_err(|error| Trouble::Here(error.into()))?;
        match result {
            Ok(Ended::Stopped(outflow)) => self.stopped.push(*outflow),
            Ok(Ended::Arrived(one)) => {
                self.sent.size = self.sent.size.saturating_add(one.size);
                self.sent.resumed_from = self.sent.resumed_from.saturating_add(one.resumed_from);
                self.sent.carried = self.sent.carried.saturating_add(one.carried);
            }
            Err(Trouble::Lost(error)) => return Err(Trouble::Lost(error)),
            Err(Trouble::Refused(reason)) => self.refused.add(format!("{shown}: {reason}")),
            Err(Trouble::Here(error)) => {
                self.refused.add(format!("{shown}: {}", crate::failure::line(&error)));
            }
        }
        Ok(())
    }

    /// Stops what is on its way. False if something of it begins or ends just now, and runs on.
    ///
    /// # Errors
    /// What is to be [explained](Self::explain).
    pub(crate) async fn stop(&mut self) -> Result<bool, Trouble> {
        self.stop.send_replace(true);
        let end = Instant::now() + STOP_LIMIT;
        let stopped = loop {
            match tokio::time::timeout_at(end, self.running.join_next()).await {
                Ok(Some(ended)) => self.note(ended)?,
                Ok(None) => break true,
                Err(_) => break false,
            }
        };
        self.stop.send_replace(false);
        Ok(stopped)
    }

    /// Puts the receiver's own words, if it has said why, in the place of a lost stream. Not cancel-safe.
    pub(crate) async fn explain(&mut self, poured: Result<(), Trouble>) -> Result<(), Trouble> {
        with_reason(&mut self.read, &self.write, poured).await
    }

    /// Says that this is all, and waits until the receiver has it.
    pub(crate) async fn end(mut self) -> Result<Sent, Trouble> {
        let complete = self.refused.count() == 0;
        let result = say_end(&mut self.read, &mut self.write, complete).await;
        with_reason(&mut self.read, &self.write, result).await?;
        if complete { Ok(self.sent) } else { Err(Trouble::Refused(self.refused.text())) }
    }
}

async fn announce(read: &mut RecvHalf, write: &mut SendHalf, all: &Announced) -> Result<(), Trouble> {
    let Announced { id, entries, names, shown, size } = all.clone();
    let (name, batch) = (format!("{entries} files"), Some(Batch { id, entries, names, shown }));
    let offer = Offer { version: VERSION, name, size, batch, ..Offer::default() };
    message::write(write, &Message::Offer(offer)).await.map_err(Trouble::Lost)?;
    match message::read(read).await.map_err(Trouble::Lost)? {
        Message::Accept => Ok(()),
        Message::Refuse { reason } => Err(Trouble::Refused(reason)),
        _ => Err(Trouble::Here(unexpected())),
    }
}

async fn say_end(read: &mut RecvHalf, write: &mut SendHalf, complete: bool) -> Result<(), Trouble> {
    message::write(write, &Message::BatchEnd { complete }).await.map_err(Trouble::Lost)?;
    done(read).await
}

/// Sends what is a part of a batch, until it is there or to stop.
async fn part(
    stream: Stream,
    (batch, item): (u64, &Item),
    way: (&Pace, &Board),
    stop: watch::Receiver<bool>,
) -> Result<Ended, Trouble> {
    if matches!(item.bytes, Bytes::None) {
        return directory(stream, item.offer(Some(batch))).await.map(Ended::Arrived);
    }
    carry(begin_item(stream, Some(batch), item).await?, way, stop).await
}

/// Sends the rest of a file, until it is there or to stop.
async fn carry(
    mut outflow: Outflow,
    (pace, board): (&Pace, &Board),
    stop: watch::Receiver<bool>,
) -> Result<Ended, Trouble> {
    let poured = tokio::select! {
        poured = outflow.pour(pace, board) => poured,
        () = is_to_stop(stop) => return Ok(Ended::Stopped(Box::new(outflow))),
    };
    outflow.explain(poured).await?;
    outflow.end().await.map(Ended::Arrived)
}

async fn is_to_stop(mut stop: watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        std::future::pending::<()>().await;
    }
}
