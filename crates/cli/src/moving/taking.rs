//! The side that will have a session.

use anyhow::{Context as _, Result, bail};
use tokio::io::AsyncWriteExt as _;
use whimbrel_base::Ticket;
use whimbrel_transport::Connection;

use super::wire::{self, Answer, Ask, Elsewhere, HELLO, MAX_ANSWER, State};
use super::{ANSWER_LIMIT, LIMIT};
use crate::failure::Failure;
use crate::network::{Network, Peer, connect};
use crate::plain::plain;

/// Characters that are shown of what the other device says.
const LONGEST: usize = 200;
const OTHER: &str = "the other device says something else; is it what has the session?";

/// A session that is here.
pub(crate) struct Taken {
    /// Its connection, whose peer knows this device now.
    pub(crate) connection: Connection,
    /// What else there is to know.
    pub(crate) state: State,
}

/// Takes a session from the device that has it: from the command itself, which waits at a ticket, or by way of the
/// agent there.
///
/// # Errors
/// When that cannot be reached, or does not give it. It stays where it is then.
pub(crate) async fn take(network: &Network, from: &Peer, session: &str) -> Result<Taken> {
    let over = connect(network, from).await?;
    let ask = Ask::Session(session.to_ascii_lowercase());
    match question(&over, &ask).await? {
        Answer::Given(state) => accept(network, &over, state).await,
        Answer::At(ticket) => {
            // A device sends nobody to another one.
            let ticket = ticket.parse().ok().filter(|ticket: &Ticket| ticket.id() == over.peer_id());
            let ticket = ticket.context(OTHER)?;
            let over = connect(network, &Peer::Ticket(ticket)).await?;
            match question(&over, &ask).await? {
                Answer::Given(state) => accept(network, &over, state).await,
                _ => bail!(OTHER),
            }
        }
        _ => bail!(OTHER),
    }
}

/// What an agent's device has.
///
/// # Errors
/// When it cannot be reached, or says nothing to this device.
pub(crate) async fn list(network: &Network, from: &Peer) -> Result<Vec<Elsewhere>> {
    let over = connect(network, from).await?;
    match question(&over, &Ask::List).await? {
        Answer::Listed(listed) => Ok(listed),
        _ => bail!(OTHER),
    }
}

async fn accept(network: &Network, over: &Connection, state: State) -> Result<Taken> {
    let taken = network.endpoint.accept_hand_over(over, LIMIT).await;
    let connection = taken.context("the session stays at the other device")?;
    Ok(Taken { connection, state })
}

/// Asks, and fails if the answer is no.
async fn question(over: &Connection, ask: &Ask) -> Result<Answer> {
    let asking = async {
        let mut stream = over.open_stream().await.map_err(std::io::Error::other)?;
        stream.write_all(HELLO).await?;
        wire::say(&mut stream, ask).await?;
        wire::hear(&mut stream, MAX_ANSWER).await
    };
    match tokio::time::timeout(ANSWER_LIMIT, asking).await {
        Ok(Ok(Answer::Refused(why))) => Err(Failure::new(Failure::REFUSED, plain(&why, LONGEST)).into()),
        Ok(Ok(answer)) => Ok(answer),
        // Also where the word was for another time, or another device was quicker.
        Ok(Err(error)) => {
            tracing::info!(%error, "the other device gives nothing");
            let message = "there is no such session there, or none that this device may take";
            Err(Failure::new(Failure::NOT_FOUND, message).into())
        }
        Err(_) => Err(Failure::new(Failure::UNREACHABLE, "the other device does not answer").into()),
    }
}
