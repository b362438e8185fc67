//! The side that will have a session.

use anyhow::{Context as _, Result, bail};
use tokio::io::AsyncWriteExt as _;
use whimbrel_base::Ticket;
use whimbrel_transport::{Connection, Stream};

use super::bytes::{self, Keep};
use super::wire::{self, Answer, Ask, Elsewhere, HELLO, Halves, MAX_ANSWER, State};
use super::{ANSWER_LIMIT, LIMIT};
use crate::failure::Failure;
use crate::network::{Network, Peer, connect};
use crate::plain::plain;

/// Characters that are shown of what the other device says.
const LONGEST: usize = 200;
const OTHER: &str = "the other device says something else; is it what has the session?";

/// The device that gives a session, until it is here.
pub(crate) struct Giver {
    over: Connection,
    stream: Stream,
}

/// The tunnels of a forward that are here.
pub(crate) struct Taken {
    /// Their connection, whose peer knows this device now.
    pub(crate) connection: Connection,
    /// How far each one is.
    pub(crate) streams: Vec<Halves>,
}

/// Asks for a session the device that has it: the command itself, which waits at a ticket, or by way of the
/// agent there. Returns what there is to know of it; its connection is still there.
///
/// # Errors
/// When that cannot be reached, or does not give it. It stays where it is then.
pub(crate) async fn ask(network: &Network, from: &Peer, session: &str) -> Result<(State, Giver)> {
    let over = connect(network, from).await?;
    let ask = Ask::Session(session.to_ascii_lowercase());
    match question(&over, &ask).await? {
        (Answer::Given(state), stream) => Ok((state, Giver { over, stream })),
        (Answer::At(ticket), _) => {
            // A device sends nobody to another one.
            let ticket = ticket.parse().ok().filter(|ticket: &Ticket| ticket.id() == over.peer_id());
            let ticket = ticket.context(OTHER)?;
            let over = connect(network, &Peer::Ticket(ticket)).await?;
            match question(&over, &ask).await? {
                (Answer::Given(state), stream) => Ok((state, Giver { over, stream })),
                _ => bail!(OTHER),
            }
        }
        _ => bail!(OTHER),
    }
}

/// Takes a session that is a forward.
///
/// # Errors
/// As [`ask`], and when it is something else. It stays where it is then.
pub(crate) async fn take_forward(network: &Network, from: &Peer, session: &str) -> Result<Taken> {
    match ask(network, from, session).await? {
        (State::Forward(streams), giver) => Ok(Taken { connection: giver.accept(network).await?, streams }),
        _ => bail!("it is no forward"),
    }
}

impl Giver {
    /// Fetches what there is of a file: so many bytes, which `keep` takes.
    ///
    /// # Errors
    /// When they do not come, or are not kept. The file stays there then.
    pub(crate) async fn fetch(&mut self, length: u64, keep: &mut Keep<'_>) -> Result<()> {
        bytes::fetch(&mut self.stream, length, keep).await
    }

    /// Does not take the file, and says why.
    pub(crate) async fn refuse(mut self, why: &str) {
        bytes::refuse(&mut self.stream, why).await;
    }

    /// Says that this device has the rest of an object, and needs no more. Once it is said this device goes
    /// on, whether or not it was heard: at worst both do.
    ///
    /// # Errors
    /// When it cannot be said. The object goes on there then.
    pub(crate) async fn has_rest(mut self) -> Result<()> {
        bytes::fetch(&mut self.stream, 0, &mut |_| Ok(())).await?;
        bytes::until_heard(&mut self.stream).await;
        Ok(())
    }

    /// Takes the connection.
    ///
    /// # Errors
    /// When it does not come, or its peer does not let this device in. It stays where it is then.
    pub(crate) async fn accept(self, network: &Network) -> Result<Connection> {
        let Self { over, stream } = self;
        drop(stream);
        let taken = network.endpoint.accept_hand_over(&over, LIMIT).await;
        taken.context("the session stays at the other device")
    }
}

/// What an agent's device has.
///
/// # Errors
/// When it cannot be reached, or says nothing to this device.
pub(crate) async fn list(network: &Network, from: &Peer) -> Result<Vec<Elsewhere>> {
    let over = connect(network, from).await?;
    match question(&over, &Ask::List).await? {
        (Answer::Listed(listed), _) => Ok(listed),
        _ => bail!(OTHER),
    }
}

/// Asks, and fails if the answer is no. What is said behind that is on the stream.
async fn question(over: &Connection, ask: &Ask) -> Result<(Answer, Stream)> {
    let asking = async {
        let mut stream = over.open_stream().await.map_err(std::io::Error::other)?;
        stream.write_all(HELLO).await?;
        wire::say(&mut stream, ask).await?;
        let answer = wire::hear(&mut stream, MAX_ANSWER).await?;
        Ok::<_, std::io::Error>((answer, stream))
    };
    match tokio::time::timeout(ANSWER_LIMIT, asking).await {
        Ok(Ok((Answer::Refused(why), _))) => Err(Failure::new(Failure::REFUSED, plain(&why, LONGEST)).into()),
        Ok(Ok(answered)) => Ok(answered),
        // Also where the word was for another time, or another device was quicker.
        Ok(Err(error)) => {
            tracing::info!(%error, "the other device gives nothing");
            let message = "there is no such session there, or none that this device may take";
            Err(Failure::new(Failure::NOT_FOUND, message).into())
        }
        Err(_) => Err(Failure::new(Failure::UNREACHABLE, "the other device does not answer").into()),
    }
}
