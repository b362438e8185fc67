//! Several files go out together, and go on at another device that comes for them.

use anyhow::anyhow;
use tokio::task::block_in_place;
use whimbrel_transport::Connection;

use super::one::{Fate, Way, stays, until_arrived};
use crate::failure;
use crate::moving::{Asked, Outcome, State};
use crate::transfer::Trouble;
use crate::transfer::outbox::Outbox;

const BUSY: &str = "a file begins or ends just now; try again";
const LOST: &str = "the connection to the receiver is lost just now";

/// Sends the rest of the files, until the receiver has them or they have gone to another device.
pub(super) async fn carry(mut outbox: Outbox, way: &Way<'_>) -> Result<Fate, Trouble> {
    let Way { sessions, peer, pace, board } = way;
    let connection = outbox.connection();
    let mut session = sessions.begin(&connection, peer);
    loop {
        let asked = tokio::select! {
            poured = outbox.pour(pace, board) => {
                outbox.explain(poured).await?;
                break;
            }
            asked = session.asked() => asked,
        };
        match give(asked, &connection, &mut outbox, peer).await? {
            Outcome::Moved(to) => return Ok(Fate::Moved(to)),
            Outcome::Stays(why) => stays(board, &why),
            // The other device may be sending them: this one does not begin again by itself.
            Outcome::Lost(why) => {
                let error = anyhow!(
                    "lost {peer}: {why}; if the other device does not send the files, send them again"
                );
                return Err(Trouble::Here(error));
            }
        }
    }
    until_arrived(outbox.end(), session, board).await
}

/// Gives what is left, and then the connection.
async fn give(
    asked: Asked,
    connection: &Connection,
    outbox: &mut Outbox,
    peer: &str,
) -> Result<Outcome, Trouble> {
    match outbox.stop().await {
        Ok(true) => {}
        Ok(false) => {
            asked.refuse(BUSY);
            return Ok(Outcome::Stays(BUSY.to_owned()));
        }
        Err(trouble) => {
            asked.refuse(LOST);
            outbox.explain(Err(trouble)).await?;
            return Ok(Outcome::Stays(LOST.to_owned()));
        }
    }
    match block_in_place(|| outbox.stopped(peer)) {
        Ok((going, mut away)) => {
            let length = going.length;
            let state = State::Going(going);
            let mut read = |into: &mut [u8]| away.read(into);
            Ok(asked.give_file(connection, (state, length), &mut read).await)
        }
        Err(error) => {
            let why = failure::line(&error);
            asked.refuse(&why);
            Ok(Outcome::Stays(why))
        }
    }
}
