//! The side that has a session tells the agent of the device that may have it, which takes it at once.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use whimbrel_base::EndpointId;
use whimbrel_transport::Connection;

use super::wire::{self, Answer, Ask, HELLO, MAX_ASK, Offer};
use crate::failure;
use crate::network::{Network, Peer, connect};
use crate::plain::plain;

/// Characters that are shown of what the agent says.
const LONGEST: usize = 200;
/// For an agent to be reached, and so long that one which is not there keeps nobody.
const REACH: Duration = Duration::from_secs(15);
/// For an agent to take it: its user answers (60 s), a program starts (60 s), and the session comes (70 s).
const TAKE: Duration = Duration::from_secs(200);

/// What became of an offer.
#[derive(Debug)]
pub(crate) enum Offered {
    /// The session is there.
    Taken,
    /// It is not, as the agent says.
    Left(String),
    /// There is no agent, for all that can be seen from here.
    Nobody(String),
}

/// Offers a session to the agent of this device. That one comes for it as any device does.
pub(crate) async fn offer(network: &Network, agent: &Peer, to: EndpointId, offer: Offer) -> Offered {
    let over = match tokio::time::timeout(REACH, connect(network, agent)).await {
        Ok(Ok(over)) => over,
        Ok(Err(error)) => return Offered::Nobody(failure::line(&error)),
        Err(_) => return Offered::Nobody("it cannot be reached".to_owned()),
    };
    if over.peer_id() != to {
        // The word is for another key, which nobody here could use.
        return Offered::Nobody("another key has its name".to_owned());
    }
    match tokio::time::timeout(TAKE, tell(&over, offer)).await {
        Ok(Ok(Answer::Taken)) => Offered::Taken,
        Ok(Ok(Answer::Refused(why))) => Offered::Left(plain(&why, LONGEST)),
        Ok(Ok(_)) => Offered::Nobody("it says something else; is it an agent?".to_owned()),
        // Also an agent of an older version.
        Ok(Err(error)) => Offered::Nobody(error.to_string()),
        Err(_) => Offered::Left("it does not answer".to_owned()),
    }
}

async fn tell(over: &Connection, offer: Offer) -> std::io::Result<Answer> {
    let mut stream = over.open_stream().await.map_err(std::io::Error::other)?;
    stream.write_all(HELLO).await?;
    wire::say(&mut stream, &Ask::Offer(offer)).await?;
    wire::hear(&mut stream, MAX_ASK).await
}
