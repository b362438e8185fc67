//! Trying a relay: whether there is one, and whether it gives this endpoint a reservation.

use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use whimbrel_base::{EndpointAddr, Ticket, random_bytes};
use whimbrel_transport::{CloseCode, ConnectError, Connection, Endpoint};

use crate::service::control_name;
use crate::token::Salt;
use crate::wire::Message;

/// A relay answers within this once it is connected to.
const ANSWER: Duration = Duration::from_secs(3);
/// To give the reservation back may take no longer.
const RETURN: Duration = Duration::from_millis(500);

/// Why an endpoint cannot be reached through what was tried.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// It is not connected to.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// It is something else.
    #[error("what answers there is no relay")]
    NoRelay,
    /// It gives one to those alone who prove that they have a name of a domain, which is not tried here.
    #[error("the relay serves those who have a name of its domain: `whimbrel expose NAME` proves that")]
    WantsProof,
    /// It gives no reservation, and says why.
    #[error("the relay gives no reservation: {0}")]
    Refused(String),
}

/// Asks a relay for a reservation as the holder of the endpoint's key, and gives it back. It is one beside
/// those that the key may hold there, which stay as they are. Only what speaks the relays' own protocol
/// counts as a relay: an endpoint may answer to any name. Takes three and a half seconds beyond what it takes
/// to connect.
///
/// # Errors
/// [`ProbeError`].
pub async fn probe(endpoint: &Endpoint, relay: &EndpointAddr) -> Result<(), ProbeError> {
    let name = control_name().map_err(|_| ProbeError::NoRelay)?;
    let ticket = Ticket::new(relay.id, relay.addrs.iter().copied(), Some(name));
    let connection = match endpoint.connect(ticket).await {
        Ok(connection) => Ended(connection),
        Err(ConnectError::Refused { code: CloseCode::NO_LISTENER, .. }) => return Err(ProbeError::NoRelay),
        Err(error) => return Err(error.into()),
    };
    let asked = tokio::time::timeout(ANSWER, ask(&connection.0)).await;
    asked.unwrap_or(Err(ProbeError::NoRelay))
}

async fn ask(connection: &Connection) -> Result<(), ProbeError> {
    let other = |_| ProbeError::NoRelay;
    let stream = connection.open_stream().await.map_err(|_| ProbeError::NoRelay)?;
    let (mut read, mut write) = stream.into_split();
    let salt = Salt(random_bytes());
    write.write_all(&Message::Reserve(salt).encode()).await.map_err(other)?;
    match Message::read(&mut read).await.map_err(other)? {
        Message::Reserved(_) => {}
        Message::Refused(reason) => return Err(ProbeError::Refused(reason)),
        Message::Prove => return Err(ProbeError::WantsProof),
        _ => return Err(ProbeError::NoRelay),
    }
    // If it is not heard, the end of the connection says the same.
    if write.write_all(&Message::Released.encode()).await.is_ok() {
        let _ = tokio::time::timeout(RETURN, write.stream().drained()).await;
    }
    Ok(())
}

/// A connection that ends with the attempt.
struct Ended(Connection);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.abort(CloseCode::NONE, "");
    }
}
