//! Invitations to register user names: making one, and finding it by its code.

use sha2::{Digest as _, Sha256};
use whimbrel_base::{UnixTime, random_bytes};

use crate::admission::{CodeHash, Invitation, MAX_INVITATION_TIME, MAX_INVITATION_USES, Terms};
use crate::error::NamesError;
use crate::store::Store;

/// Characters of a code: five random bits each, none of them easily mistaken for another.
const ALPHABET: &[u8; 32] = b"ybndrfg8ejkmcpqxot1uwisza345h769";
const CODE_CHARS: usize = 16;
const GROUP: usize = 4;

/// Makes an invitation and returns its code, which is not kept anywhere.
///
/// # Errors
/// [`NamesError::BadTerms`] when the terms are out of bounds, [`NamesError::Unavailable`].
pub async fn invite(store: &dyn Store, terms: Terms, now: UnixTime) -> Result<String, NamesError> {
    let fits = (1..=MAX_INVITATION_USES).contains(&terms.uses)
        && !terms.valid.is_zero()
        && terms.valid <= MAX_INVITATION_TIME;
    if !fits {
        return Err(NamesError::BadTerms);
    }
    let code = new_code();
    let expires = now.saturating_add(terms.valid);
    let invitation = Invitation { domain: terms.domain, uses: terms.uses, expires, used_by: Vec::new() };
    store.invite(hash(&code), invitation, now).await?;
    Ok(code)
}

/// A code of 80 random bits.
pub(crate) fn new_code() -> String {
    let random: [u8; CODE_CHARS] = random_bytes();
    let mut code = String::new();
    for (at, byte) in random.iter().enumerate() {
        if at > 0 && at % GROUP == 0 {
            code.push('-');
        }
        code.push(char::from(ALPHABET[usize::from(byte % 32)]));
    }
    code
}

/// The hash of a code, however its groups and its case are written.
pub(crate) fn hash(code: &str) -> CodeHash {
    let mut hash = Sha256::new();
    hash.update(b"whimbrel invitation v1\0");
    let plain = code.bytes().filter(|byte| !matches!(byte, b'-' | b' '));
    hash.update(plain.map(|byte| byte.to_ascii_lowercase()).collect::<Vec<u8>>());
    hash.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_found_however_they_are_typed() {
        assert_eq!(hash("abcd-efgh"), hash("ABCD EFGH"));
        assert_ne!(hash("abcd-efgh"), hash("abcd-efgx"));
    }
}
