//! Whose a token is.

use aws_lc_rs::{digest, hmac};
use whimbrel_base::{EndpointId, RelayToken, SecretKey};

const TOKEN: &[u8] = b"whimbrel relay token v1\0";
const SALT: &[u8] = b"whimbrel relay salt v1\0";

/// What an endpoint tells its relays, and nobody else, of how its token is made: without it a token does not
/// tell whose it is.
#[derive(Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Salt(pub [u8; 32]);

impl Salt {
    /// The salt of a key's holder, always the same: so are its tokens, at all relays, and TLS resumes after a
    /// move to another relay too.
    pub fn of(key: &SecretKey) -> Self {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &key.to_bytes()), SALT);
        let mut salt = [0; 32];
        salt.copy_from_slice(tag.as_ref());
        Self(salt)
    }
}

impl std::fmt::Debug for Salt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Salt(..)")
    }
}

/// The token of an endpoint: the first 80 bits of SHA-256 over `whimbrel relay token v1`, a zero byte, the id
/// and the salt. A relay computes it from the id that the connection has proved, so nobody gets another
/// one's.
pub fn token_of(id: EndpointId, salt: &Salt) -> RelayToken {
    let mut hash = digest::Context::new(&digest::SHA256);
    hash.update(TOKEN);
    hash.update(id.as_bytes());
    hash.update(&salt.0);
    let mut token = [0; RelayToken::LENGTH];
    token.copy_from_slice(&hash.finish().as_ref()[..RelayToken::LENGTH]);
    RelayToken::from_bytes(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_of_one_key_and_one_salt() {
        let (key, other) = (SecretKey::from_bytes(&[1; 32]), SecretKey::from_bytes(&[2; 32]));
        let salt = Salt::of(&key);
        assert_eq!(salt, Salt::of(&key));
        assert_ne!(salt, Salt::of(&other));
        assert_eq!(token_of(key.id(), &salt), token_of(key.id(), &salt));
        assert_ne!(token_of(key.id(), &salt), token_of(other.id(), &salt));
        assert_ne!(token_of(key.id(), &salt), token_of(key.id(), &Salt([0; 32])));
    }
}
