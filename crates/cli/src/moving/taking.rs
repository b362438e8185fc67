//! The side that will have a session.

use anyhow::{Context as _, Result};
use tokio::io::AsyncWriteExt as _;
use whimbrel_transport::Connection;

use super::wire::{self, Answer, Ask, HELLO, MAX_ANSWER, State};
use super::{LIMIT, WORD_LIMIT};
use crate::failure::Failure;
use crate::network::{Network, Peer, connect};
use crate::plain::plain;

/// Characters that are shown of what the other device says.
const LONGEST: usize = 200;

/// A session that is here.
pub(crate) struct Taken {
    /// Its connection, whose peer knows this device now.
    pub(crate) connection: Connection,
    /// What else there is to know.
    pub(crate) state: State,
}

/// Takes a session from the device that has it.
///
/// # Errors
/// When that cannot be reached, or does not give it. It stays where it is then.
pub(crate) async fn take(network: &Network, from: &Peer, session: &str) -> Result<Taken> {
    let over = connect(network, from).await?;
    let ask = Ask { session: session.to_ascii_lowercase() };
    let asked = tokio::time::timeout(WORD_LIMIT, question(&over, &ask)).await;
    let state = match asked {
        Ok(Ok(Answer::Given(state))) => state,
        Ok(Ok(Answer::Refused(why))) => {
            return Err(Failure::new(Failure::REFUSED, plain(&why, LONGEST)).into());
        }
        // Also where the word was for another time, or another device was quicker.
        Ok(Err(error)) => {
            tracing::info!(%error, "the other device gives nothing");
            let message = "there is no such session there, or none that this device may take";
            return Err(Failure::new(Failure::NOT_FOUND, message).into());
        }
        Err(_) => return Err(Failure::new(Failure::UNREACHABLE, "the other device does not answer").into()),
    };
    let taken = network.endpoint.accept_hand_over(&over, LIMIT).await;
    let connection = taken.context("the session stays at the other device")?;
    Ok(Taken { connection, state })
}

async fn question(over: &Connection, ask: &Ask) -> std::io::Result<Answer> {
    let mut stream = over.open_stream().await.map_err(std::io::Error::other)?;
    stream.write_all(HELLO).await?;
    wire::say(&mut stream, ask).await?;
    wire::hear(&mut stream, MAX_ANSWER).await
}
