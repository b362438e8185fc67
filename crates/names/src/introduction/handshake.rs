//! The key exchange between two who share a code: pure, without a network.
//!
//! Both send a hello with their endpoint id and their half of a SPAKE2 exchange (RFC 9382) over the code's
//! secret. Whoever does not know the secret ends up with another key, and learns nothing from the exchange
//! but that its one guess was wrong. Each side then proves its key with an HMAC over both hellos, so that
//! neither the ids nor the roles can be changed on the way.

use aws_lc_rs::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hmac;
use spake2::{Ed25519Group, Identity, Password, Spake2};
use whimbrel_base::EndpointId;

use super::code::Code;

const VERSION: u8 = 1;
const PURPOSE: &[u8] = b"whimbrel introduction v1\0";
/// Version, role, endpoint id, SPAKE2's message.
pub(super) const HELLO: usize = 1 + 1 + 32 + 33;

/// Which side of a meeting somebody is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Made the code.
    Opener,
    /// Was told it.
    Joiner,
}

impl Role {
    fn number(self) -> u8 {
        match self {
            Self::Opener => 0,
            Self::Joiner => 1,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Opener => Self::Joiner,
            Self::Joiner => Self::Opener,
        }
    }

    fn identity(self) -> Identity {
        Identity::new(match self {
            Self::Opener => b"whimbrel opener",
            Self::Joiner => b"whimbrel joiner",
        })
    }
}

/// An exchange whose hello is on its way.
pub(super) struct Handshake {
    role: Role,
    slot: u16,
    hello: Vec<u8>,
    spake: Spake2<Ed25519Group>,
}

impl Handshake {
    pub(super) fn new(role: Role, code: &Code, id: EndpointId) -> Self {
        let password = Password::new(code.password());
        let (opener, joiner) = (Role::Opener.identity(), Role::Joiner.identity());
        let (spake, half) = match role {
            Role::Opener => Spake2::<Ed25519Group>::start_a(&password, &opener, &joiner),
            Role::Joiner => Spake2::<Ed25519Group>::start_b(&password, &opener, &joiner),
        };
        let mut hello = vec![VERSION, role.number()];
        hello.extend_from_slice(id.as_bytes());
        hello.extend_from_slice(&half);
        Self { role, slot: code.slot(), hello, spake }
    }

    pub(super) fn hello(&self) -> &[u8] {
        &self.hello
    }

    /// Takes in the other side's hello. `None` if it is none.
    pub(super) fn finish(self, theirs: &[u8]) -> Option<Agreed> {
        let theirs: &[u8; HELLO] = theirs.try_into().ok()?;
        if theirs[0] != VERSION || theirs[1] != self.role.other().number() {
            return None;
        }
        let peer = EndpointId::from_bytes(theirs[2..34].first_chunk()?);
        let shared = self.spake.finish(&theirs[34..]).ok()?;
        let (opener, joiner) = match self.role {
            Role::Opener => (&self.hello[..], &theirs[..]),
            Role::Joiner => (&theirs[..], &self.hello[..]),
        };
        let transcript = [PURPOSE, &self.slot.to_be_bytes(), opener, joiner].concat();
        Some(Agreed { role: self.role, peer, shared: hmac::Key::new(hmac::HMAC_SHA256, &shared), transcript })
    }
}

/// A key that is shared with whoever knows the same secret.
pub(super) struct Agreed {
    role: Role,
    peer: EndpointId,
    shared: hmac::Key,
    transcript: Vec<u8>,
}

impl Agreed {
    /// Who the other side says that it is. Proven to be what it sent once its proof is right.
    pub(super) fn peer(&self) -> EndpointId {
        self.peer
    }

    /// Proves that we have the key.
    pub(super) fn proof(&self) -> Vec<u8> {
        self.derive(b"proof", self.role).as_ref().to_vec()
    }

    /// Whether the other side has the key. In constant time.
    pub(super) fn accepts(&self, proof: &[u8]) -> bool {
        let message = self.labelled(b"proof", self.role.other());
        hmac::verify(&self.shared, &message, proof).is_ok()
    }

    /// What is sealed from now on, in both directions.
    pub(super) fn sealing(&self) -> Sealing {
        let key = |role| {
            let bytes = self.derive(b"seal", role);
            // 32 bytes are what the cipher takes: it can't fail.
            UnboundKey::new(&CHACHA20_POLY1305, bytes.as_ref()).ok().map(LessSafeKey::new)
        };
        Sealing { mine: key(self.role), theirs: key(self.role.other()), sealed: 0, opened: 0 }
    }

    fn derive(&self, label: &[u8], role: Role) -> hmac::Tag {
        hmac::sign(&self.shared, &self.labelled(label, role))
    }

    fn labelled(&self, label: &[u8], role: Role) -> Vec<u8> {
        [label, &[0, role.number()], &self.transcript].concat()
    }
}

/// Seals and opens messages, in order. Each direction has a key of its own, and a message's number is its
/// nonce.
pub(super) struct Sealing {
    mine: Option<LessSafeKey>,
    theirs: Option<LessSafeKey>,
    sealed: u32,
    opened: u32,
}

impl Sealing {
    /// `None` once too many were sealed.
    pub(super) fn seal(&mut self, message: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = message.to_vec();
        let nonce = nonce(self.sealed);
        self.sealed = self.sealed.checked_add(1)?;
        self.mine.as_ref()?.seal_in_place_append_tag(nonce, Aad::empty(), &mut bytes).ok()?;
        Some(bytes)
    }

    /// `None` if it is not the other side's next message.
    pub(super) fn open(&mut self, sealed: &[u8]) -> Option<Vec<u8>> {
        let mut bytes = sealed.to_vec();
        let nonce = nonce(self.opened);
        self.opened = self.opened.checked_add(1)?;
        let length = self.theirs.as_ref()?.open_in_place(nonce, Aad::empty(), &mut bytes).ok()?.len();
        bytes.truncate(length);
        Some(bytes)
    }
}

fn nonce(number: u32) -> Nonce {
    let mut bytes = [0; 12];
    bytes[8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;

    use super::*;

    fn both(opener: &Code, joiner: &Code) -> (Handshake, Handshake) {
        let id = |byte| SecretKey::from_bytes(&[byte; 32]).id();
        (Handshake::new(Role::Opener, opener, id(1)), Handshake::new(Role::Joiner, joiner, id(2)))
    }

    #[test]
    fn two_with_one_code_agree_and_know_each_other() {
        let code = Code::new(7);
        let (opener, joiner) = both(&code, &code);
        let (to_opener, to_joiner) = (joiner.hello().to_vec(), opener.hello().to_vec());
        let (opener, joiner) = (opener.finish(&to_opener).unwrap(), joiner.finish(&to_joiner).unwrap());
        assert!(opener.accepts(&joiner.proof()) && joiner.accepts(&opener.proof()));
        assert!(!opener.accepts(&opener.proof()), "a proof that was sent back");
        assert_eq!(opener.peer(), SecretKey::from_bytes(&[2; 32]).id());
        assert_eq!(joiner.peer(), SecretKey::from_bytes(&[1; 32]).id());
        let (mut opener, mut joiner) = (opener.sealing(), joiner.sealing());
        for text in [&b"one"[..], b"", b"three"] {
            let sealed = opener.seal(text).unwrap();
            assert_eq!(joiner.open(&sealed).unwrap(), text);
            assert!(joiner.open(&sealed).is_none(), "a message that was played again");
            joiner.opened -= 1;
            let back = joiner.seal(text).unwrap();
            assert_eq!(opener.open(&back).unwrap(), text);
        }
    }

    #[test]
    fn another_secret_gives_another_key() {
        let (mine, theirs) = (Code::new(7), Code::new(7));
        assert_ne!(mine, theirs);
        let (opener, joiner) = both(&mine, &theirs);
        let (to_opener, to_joiner) = (joiner.hello().to_vec(), opener.hello().to_vec());
        let (opener, joiner) = (opener.finish(&to_opener).unwrap(), joiner.finish(&to_joiner).unwrap());
        assert!(!opener.accepts(&joiner.proof()) && !joiner.accepts(&opener.proof()));
    }

    #[test]
    fn ids_and_roles_that_were_changed_on_the_way_are_noticed() {
        let code = Code::new(7);
        for at in 0..HELLO {
            let (opener, joiner) = both(&code, &code);
            let to_joiner = opener.hello().to_vec();
            let mut to_opener = joiner.hello().to_vec();
            to_opener[at] ^= 1;
            let joiner = joiner.finish(&to_joiner).unwrap();
            let noticed = opener.finish(&to_opener).is_none_or(|opener| !opener.accepts(&joiner.proof()));
            assert!(noticed, "byte {at}");
        }
        let (opener, _) = both(&code, &code);
        let own = opener.hello().to_vec();
        assert!(opener.finish(&own).is_none(), "a hello that was sent back");
    }
}
