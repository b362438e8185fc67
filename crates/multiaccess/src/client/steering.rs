//! Connections of Multipath TCP whose subflows the manager chooses.

use super::{Client, ClientError, Connected};
use crate::protocol::{Protocol, Request, Steer, Steered};
use whimbrel_access::Intents;

impl Client {
    /// Has the manager choose the subflows of a connection of Multipath TCP from now on, for as long as this
    /// client is there. Returns those that it is to have. [`Client::connect`] and [`Pool`](crate::Pool) do so
    /// by themselves.
    ///
    /// # Errors
    /// As [`Client::ask`]; [`ClientError::Refused`] if there is no such connection of this user, or no
    /// helper.
    pub async fn steer(&self, steer: Steer) -> Result<Vec<Steered>, ClientError> {
        let answer = self.exchange(Request { steer: Some(steer), ..Request::default() }).await?;
        answer.steered.ok_or_else(|| ClientError::Refused("the answer names no subflows".to_owned()))
    }

    /// Has a new connection steered, if it is one of Multipath TCP that the manager chose. Holds nobody up:
    /// without a helper it has the subflows that the kernel gives it.
    pub fn have_steered(&self, connected: &Connected, intents: &Intents) {
        let is_chosen = connected.by.interface.is_some();
        if connected.by.protocol != Protocol::Mptcp || !is_chosen {
            return;
        }
        let (Ok(local), Ok(remote)) = (connected.stream.local_addr(), connected.stream.peer_addr()) else {
            return;
        };
        let steer = Steer { local, remote, intents: *intents };
        self.beside(|client| async move {
            if let Err(error) = client.steer(steer).await {
                tracing::debug!(%error, "the kernel chooses the subflows of a connection");
            }
        });
    }
}
