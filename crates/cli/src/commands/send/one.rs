//! One file goes out, and goes on at another device that comes for it.

use std::time::Duration;

use anyhow::anyhow;
use whimbrel_transport::Connection;

use crate::failure;
use crate::moving::{Asked, Leaving, Outcome, Session, Sessions, State};
use crate::progress::Board;
use crate::transfer::Trouble;
use crate::transfer::outflow::{Outflow, Sent, Stopped};
use crate::transfer::pace::Pace;

/// For standard input to be read to its end before what is left of it goes elsewhere. The other device waits
/// for its answer meanwhile, and the receiver for more.
const READ_AHEAD: Duration = Duration::from_secs(10);
const OPEN: &str = "standard input has not ended, and only what is there to its end moves";
const ALL_SENT: &str = "all of it is sent, and is about to arrive";

/// What became of what was sent.
pub(super) enum Fate {
    Arrived(Sent),
    /// It goes on at the device that is called so.
    Moved(String),
}

/// How something is sent.
pub(super) struct Way<'a> {
    /// Where it is known while it can move.
    pub(super) sessions: &'a Sessions,
    /// What people call the receiver.
    pub(super) peer: &'a str,
    pub(super) pace: &'a Pace,
    pub(super) board: &'a Board,
}

/// Sends the rest of a file, until the receiver has it or it has gone to another device.
pub(super) async fn carry(mut outflow: Outflow, way: &Way<'_>) -> Result<Fate, Trouble> {
    let Way { sessions, peer, pace, board } = way;
    let connection = outflow.stream().connection();
    let mut session = sessions.begin(&connection, peer);
    loop {
        let asked = tokio::select! {
            poured = outflow.pour(pace, board) => {
                outflow.explain(poured).await?;
                break;
            }
            asked = session.asked() => asked,
        };
        match give(asked, &connection, &mut outflow, peer).await {
            Outcome::Moved(to) => return Ok(Fate::Moved(to)),
            Outcome::Stays(why) => stays(board, &why),
            // The other device may be sending it: this one does not begin again by itself.
            Outcome::Lost(why) => {
                let error =
                    anyhow!("lost {peer}: {why}; if the other device does not send it, send it again");
                return Err(Trouble::Here(error));
            }
        }
    }
    until_arrived(outflow.end(), session, board).await
}

/// Waits for the receiver to have everything. What is all sent does not go to another device any more.
pub(super) async fn until_arrived(
    ending: impl Future<Output = Result<Sent, Trouble>>,
    mut session: Session,
    board: &Board,
) -> Result<Fate, Trouble> {
    tokio::pin!(ending);
    loop {
        tokio::select! {
            sent = &mut ending => return sent.map(Fate::Arrived),
            asked = session.asked() => {
                asked.refuse(ALL_SENT);
                stays(board, ALL_SENT);
            }
        }
    }
}

/// Says why something stays.
pub(super) fn stays(board: &Board, why: &str) {
    board.note(&format!("this stays here: {why}"));
}

/// Gives what is left, and then the connection.
async fn give(asked: Asked, connection: &Connection, outflow: &mut Outflow, peer: &str) -> Outcome {
    let stream = outflow.stream().id();
    let stopped = match read_ahead(outflow).await {
        Ok(()) => outflow.stopped().map_err(|error| failure::line(&error)),
        Err(why) => Err(why),
    };
    match stopped {
        Ok((stopped, mut left)) => {
            let length = left.length();
            let state = State::Sending(leaving(stopped, stream, peer));
            let mut read = |into: &mut [u8]| left.read(into);
            asked.give_file(connection, (state, length), &mut read).await
        }
        Err(why) => {
            asked.refuse(&why);
            Outcome::Stays(why)
        }
    }
}

async fn read_ahead(outflow: &mut Outflow) -> Result<(), String> {
    match tokio::time::timeout(READ_AHEAD, outflow.read_ahead()).await {
        Ok(read) => read.map_err(|error| failure::line(&error)),
        Err(_) => Err(OPEN.to_owned()),
    }
}

fn leaving(stopped: Stopped, stream: u64, peer: &str) -> Leaving {
    let Stopped { name, before, at, left, chunks, carried, waiting } = stopped;
    Leaving { peer: peer.to_owned(), stream, name, before, at, left, chunks, carried, waiting }
}
