//! The statement by which the owner of one end of a connection hands it over to another key.

use whimbrel_base::{ConnectionId, EndpointId, SecretKey, Signature};

use crate::error::DecodeError;
use crate::ids::Side;
use crate::varint::{self, Reader};

/// What stands before everything else that is signed, so that the signature serves no other purpose.
const DOMAIN: &[u8] = b"whimbrel hand-over v1";

/// One end of one connection goes from one key to another, signed by the first.
///
/// It has no end in time: it is void once the copy that it hands over is not the newest of its end any more,
/// and with the connection itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The owner until now, by whom it is signed.
    pub from: EndpointId,
    /// The owner from now on.
    pub to: EndpointId,
    /// Which copy of the end is handed over: how often it was read back.
    pub generation: u64,
    signature: Signature,
}

impl Assignment {
    /// Hands `side` of a connection over, as its owner with `key`.
    #[must_use]
    pub fn sign(
        key: &SecretKey,
        connection: ConnectionId,
        side: Side,
        to: EndpointId,
        generation: u64,
    ) -> Self {
        let from = key.id();
        let signature = key.sign(&signed(connection, side, from, to, generation));
        Self { from, to, generation, signature }
    }

    /// Whether the owner has signed this, of this side of this connection.
    #[must_use]
    pub fn is_of(&self, connection: ConnectionId, side: Side) -> bool {
        let message = signed(connection, side, self.from, self.to, self.generation);
        self.from != self.to && self.from.verify(&message, &self.signature).is_ok()
    }

    /// Appends it: `from | to | generation | signature`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.from.as_bytes());
        out.extend_from_slice(self.to.as_bytes());
        varint::write(out, self.generation);
        out.extend_from_slice(&self.signature.to_bytes());
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self {
            from: EndpointId::from_bytes(&reader.array()?),
            to: EndpointId::from_bytes(&reader.array()?),
            generation: reader.varint()?,
            signature: Signature::from_bytes(&reader.array()?),
        })
    }

    /// Reads what [`encode`](Self::encode) wrote, and nothing else.
    ///
    /// # Errors
    /// [`DecodeError`] if these are other bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut reader = Reader::new(bytes);
        let this = Self::decode(&mut reader)?;
        if reader.is_empty() { Ok(this) } else { Err(DecodeError::Invalid("end of an assignment")) }
    }
}

fn signed(
    connection: ConnectionId,
    side: Side,
    from: EndpointId,
    to: EndpointId,
    generation: u64,
) -> Vec<u8> {
    let side = match side {
        Side::Client => 0,
        Side::Server => 1,
    };
    [DOMAIN, connection.as_bytes(), &[side], from.as_bytes(), to.as_bytes(), &generation.to_be_bytes()]
        .concat()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn it_is_of_one_side_of_one_connection_and_any_changed_bit_is_noticed() {
        let (from, to) = (SecretKey::from_bytes(&[1; 32]), SecretKey::from_bytes(&[2; 32]).id());
        let (id, other) = (ConnectionId::from_bytes(&[3; 16]), ConnectionId::from_bytes(&[4; 16]));
        let assignment = Assignment::sign(&from, id, Side::Client, to, 300);
        assert!(assignment.is_of(id, Side::Client));
        assert!(!assignment.is_of(id, Side::Server) && !assignment.is_of(other, Side::Client));
        let mut bytes = Vec::new();
        assignment.encode(&mut bytes);
        assert_eq!(Assignment::from_bytes(&bytes).unwrap(), assignment);
        for bit in 0..bytes.len() * 8 {
            let mut forged = bytes.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            let is_good = Assignment::from_bytes(&forged).is_ok_and(|forged| forged.is_of(id, Side::Client));
            assert!(!is_good, "bit {bit}");
        }
        (0..bytes.len()).for_each(|cut| assert!(Assignment::from_bytes(&bytes[..cut]).is_err()));
        let itself = Assignment::sign(&from, id, Side::Client, from.id(), 0);
        assert!(!itself.is_of(id, Side::Client), "a hand-over to the same key is none");
    }
}
