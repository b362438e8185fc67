//! The connection ids that a server gives itself, by which a relay knows that a client has heard of the
//! server.
//!
//! ```text
//! id (20 bytes) = marker (1) | token or alias (10) | random (4) | check (5)
//! ```
//!
//! The check is the beginning of HMAC-SHA256 with the salt of the token over `whimbrel relay id v1`, a zero
//! byte and what stands before it. Server and relay alone can make it, so a client that knows the token, as
//! everybody may, has such an id from the server alone. The salt is the same for all time: connections
//! outlive reservations.

use whimbrel_base::routing::{ROUTED_ID, routed_id};
use whimbrel_base::{RelayToken, random_bytes};

use crate::spare::Key;
use crate::token::Salt;

const CHECK: usize = 5;
const PURPOSE: &[u8] = b"whimbrel relay id v1\0";

/// Makes ids of a token, and tells them from others.
#[derive(Clone, Debug)]
pub struct Ids(Key);

impl Ids {
    /// Those of the tokens with this salt.
    pub fn of(salt: &Salt) -> Self {
        Self(Key::new(&salt.0))
    }

    /// What they are told by, for the relay that goes on in this one's place.
    pub(crate) fn to_bytes(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The same, of what they are told by.
    pub(crate) fn from_bytes(bytes: &[u8; 32]) -> Self {
        Self(Key::new(bytes))
    }

    /// Another id that leads to the holder of the token.
    pub fn fresh(&self, token: RelayToken) -> [u8; ROUTED_ID] {
        let mut id = routed_id(token, random_bytes());
        let (words, check) = id.split_at_mut(ROUTED_ID - CHECK);
        check.copy_from_slice(&self.0.sign(&[PURPOSE, words]).as_ref()[..CHECK]);
        id
    }

    /// Whether it was made by somebody with the salt.
    pub fn made(&self, id: &[u8; ROUTED_ID]) -> bool {
        let (words, check) = id.split_at(ROUTED_ID - CHECK);
        self.0.begins(&[PURPOSE, words], check)
    }
}

#[cfg(test)]
mod tests {
    use whimbrel_base::routing::{Routed, routed};

    use super::*;

    #[test]
    fn only_those_with_the_salt_make_ids_and_each_changed_byte_is_told() {
        let (token, ids, others) =
            (RelayToken::from_bytes([7; 10]), Ids::of(&Salt([1; 32])), Ids::of(&Salt([2; 32])));
        let id = ids.fresh(token);
        assert_ne!(id, ids.fresh(token));
        assert!(ids.made(&id) && !others.made(&id) && !ids.made(&routed_id(token, random_bytes())));
        for at in 0..ROUTED_ID {
            let mut changed = id;
            changed[at] ^= 1;
            assert!(!ids.made(&changed), "byte {at}");
        }
        let mut packet = vec![0x40];
        packet.extend(id);
        assert_eq!(routed(&packet), Some(Routed { token, id }));
    }
}
