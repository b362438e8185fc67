//! Proofs of a ticket's secret.
//!
//! A proof goes inside TLS to the key that the ticket names. It holds for one connection of one client: who
//! sees one, in a log or in memory, can't come in with it.

use hmac::{Hmac, Mac};
use sha2::Sha256;
use whimbrel_base::{ConnectionId, EndpointId, TicketSecret};

use crate::mac;

fn over(secret: &TicketSecret, connection: ConnectionId, client: EndpointId) -> Hmac<Sha256> {
    mac::over(secret.as_bytes(), &[b"whimbrel ticket v1", connection.as_bytes(), client.as_bytes()])
}

/// The proof that a client's OPEN of this connection carries.
#[must_use]
pub fn ticket_proof(secret: &TicketSecret, connection: ConnectionId, client: EndpointId) -> [u8; 32] {
    over(secret, connection, client).finalize().into_bytes().into()
}

/// Checks the proof in a client's OPEN, in constant time.
#[must_use]
pub fn proves_ticket(
    secret: &TicketSecret,
    connection: ConnectionId,
    client: EndpointId,
    proof: &[u8; 32],
) -> bool {
    over(secret, connection, client).verify_slice(proof).is_ok()
}

#[cfg(test)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::*;

    #[test]
    fn a_proof_is_of_one_secret_one_connection_and_one_client() {
        let [secret, other] = [TicketSecret::generate(), TicketSecret::generate()];
        let [client, another] = [1, 2].map(|seed| SecretKey::from_bytes(&[seed; 32]).id());
        let connection = ConnectionId::random();
        let proof = ticket_proof(&secret, connection, client);
        assert!(proves_ticket(&secret, connection, client, &proof));
        assert!(!proves_ticket(&other, connection, client, &proof));
        assert!(!proves_ticket(&secret, ConnectionId::random(), client, &proof));
        assert!(!proves_ticket(&secret, connection, another, &proof));
    }
}
