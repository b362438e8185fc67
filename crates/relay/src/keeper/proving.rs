//! What a server shows to relays that want a proof.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt as _;
use whimbrel_transport::{BoxFuture, SendHalf};

use super::messages::Messages;
use super::{ANSWER, End};
use crate::gate::Prover;
use crate::wire::{Message, Reserved};

/// To make a proof takes no longer: a relay that is asked for a reservation waits for ten seconds.
const PROVING: Duration = Duration::from_secs(8);

/// Makes proofs, if there is something to show.
#[derive(Clone)]
pub(super) struct Proving(pub(super) Option<Arc<dyn Prover>>);

impl Proving {
    /// A proof that counts from now.
    pub(super) async fn proof(&self) -> Result<Vec<u8>, End> {
        let refused = |why: String| End::Refused(why);
        let Some(prover) = &self.0 else {
            return Err(refused("it wants to see a name, and this endpoint has none to show".to_owned()));
        };
        match tokio::time::timeout(PROVING, prover.prove()).await {
            Ok(proof) => proof.map_err(|error| refused(error.to_string())),
            Err(_) => Err(refused("it wants to see a name, for which nobody vouches in time".to_owned())),
        }
    }

    /// The relay's answer to a request for a reservation. What it wants to see it is shown, once.
    pub(super) async fn answer(
        &self,
        messages: &mut Messages,
        write: &mut SendHalf,
    ) -> Result<Reserved, End> {
        let mut has_shown = false;
        loop {
            let answer = tokio::time::timeout(ANSWER, messages.next()).await;
            match answer.map_err(std::io::Error::from)?? {
                Message::Reserved(reserved) => return Ok(reserved),
                Message::Refused(reason) => return Err(End::Refused(reason)),
                Message::Prove if !has_shown => {
                    has_shown = true;
                    let proof = self.proof().await?;
                    write.write_all(&Message::Proof(proof).encode()).await?;
                }
                _ => return Err(End::Lost(std::io::ErrorKind::InvalidData.into())),
            }
        }
    }
}

/// The outcome of what is under way, if anything is. Cancel-safe.
pub(super) async fn outcome<T>(under_way: &mut Option<BoxFuture<'_, T>>) -> T {
    match under_way {
        Some(under_way) => under_way.await,
        None => std::future::pending().await,
    }
}
