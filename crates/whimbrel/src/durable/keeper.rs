//! The task that keeps a connection to a peer that is dialled.

use std::sync::Arc;
use std::time::Duration;

use whimbrel_base::{EndpointId, random_bytes};
use whimbrel_transport::{Connection, Target};

use super::change::Change;
use super::error::StateError;
use super::hub::Hub;
use super::link::attach;
use super::lock;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Dials the peer, again whenever its connection is over, until the endpoint is closed.
pub(super) async fn keep(hub: Arc<Hub>, key: String, target: Target) {
    let mut pause = FIRST_PAUSE;
    loop {
        match reach(&hub, &key, &target).await {
            Ok(connection) => {
                lock(&hub.ledger).note_problem(&key, None);
                pause = FIRST_PAUSE;
                connection.closed().await;
            }
            Err(problem) => {
                tracing::debug!(peer = key, problem, "a peer of durable messages is not reached");
                lock(&hub.ledger).note_problem(&key, Some(problem));
            }
        }
        tokio::time::sleep(spread(pause)).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn reach(hub: &Arc<Hub>, key: &str, target: &Target) -> Result<Connection, String> {
    let connection = hub.endpoint.connect(target).await.map_err(|error| error.to_string())?;
    let id = connection.peer_id();
    learn(hub, key, target, id).await.map_err(|error| error.to_string())?;
    attach(hub, &connection).await.map_err(|error| error.to_string())?;
    Ok(connection)
}

/// Notes who answers at a name. Nobody can forget the peer meanwhile, and it is not brought back.
async fn learn(hub: &Hub, key: &str, target: &Target, id: EndpointId) -> Result<(), StateError> {
    let _adding = hub.adding.lock().await;
    let known = lock(&hub.ledger).peer(key).ok_or(StateError::Forgotten)?.1;
    if known != Some(id) {
        let change = Change::Peer { key: key.to_owned(), target: Some(target.to_string()), id: Some(id) };
        hub.store.write(change, || Ok(())).await?;
    }
    Ok(())
}

/// Between a half and one and a half of a pause, so that those who wait for one peer do not come all at once.
fn spread(pause: Duration) -> Duration {
    pause / 2 + pause * u32::from(u8::from_be_bytes(random_bytes())) / 256
}
