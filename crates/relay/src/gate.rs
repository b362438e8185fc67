//! Proofs: who gets a reservation although the relay does not know the key.
//!
//! What a proof is, is for those above this crate to say: here it is bytes that a server shows to a relay,
//! over a connection that proves the server's key.

use std::io;
use std::time::Duration;

use whimbrel_base::EndpointId;
use whimbrel_transport::BoxFuture;

/// A relay's side: which servers are to prove something, and what counts.
pub trait Gate: Send + Sync + 'static {
    /// Whether this server has to prove nothing.
    fn is_open_to(&self, server: EndpointId) -> bool;

    /// For how long from now what this server shows counts. It is asked for another proof before, and loses
    /// its reservation at the end.
    ///
    /// # Errors
    /// Why it does not count, for people.
    fn check(&self, server: EndpointId, proof: &[u8]) -> Result<Duration, String>;
}

/// A server's side: what it shows to relays that ask for a proof.
pub trait Prover: Send + Sync + 'static {
    /// A proof that counts from now, of at most [`MAX_PROOF`](crate::wire::MAX_PROOF) bytes.
    fn prove(&self) -> BoxFuture<'_, io::Result<Vec<u8>>>;
}
