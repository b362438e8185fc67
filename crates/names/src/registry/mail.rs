//! Proof that who registers a user name reads the mail of that address: a code that was sent there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use whimbrel_base::{EndpointId, Name, NameKind, UnixTime};

use super::Registry;
use crate::admission::CodeHash;
use crate::error::NamesError;
use crate::invitations::{hash, new_code};

/// How long a code, and the proof by it, counts.
const COUNTS: Duration = Duration::from_secs(60 * 60);
/// Wrong codes after which the right one counts no more.
const TRIES: u8 = 5;
/// Codes and proofs that are remembered.
const MOST: usize = 10_000;

/// What was proved, and is being proved: by this server, and while it runs.
#[derive(Debug, Default)]
pub(super) struct Mail {
    is_required: AtomicBool,
    proofs: Mutex<HashMap<(EndpointId, Name), Proof>>,
}

#[derive(Debug)]
struct Proof {
    /// The code that was sent; `None` once it came back.
    code: Option<CodeHash>,
    tries: u8,
    expires: UnixTime,
}

impl Mail {
    fn proofs(&self) -> MutexGuard<'_, HashMap<(EndpointId, Name), Proof>> {
        // Nothing under this lock panics half-way through a change.
        self.proofs.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Registry {
    /// From now on registers new user names only for those who have proved that they read that address's
    /// mail.
    pub fn require_mail(&self) {
        self.mail.is_required.store(true, Ordering::Relaxed);
    }

    /// Refuses to have mail sent for those who could not register the name anyway.
    ///
    /// # Errors
    /// [`NamesError::NoMail`] when no proof is required, or for what is no user's name;
    /// [`NamesError::NotAdmitted`]; [`NamesError::Unavailable`].
    pub async fn may_prove_mail(&self, peer: EndpointId, user: &Name) -> Result<(), NamesError> {
        if !self.mail.is_required.load(Ordering::Relaxed) || user.kind() != NameKind::User {
            return Err(NamesError::NoMail);
        }
        self.check_admission(peer, user).await
    }

    /// A new code with which `peer` proves that it reads the mail of `user`, to be sent there. An earlier one
    /// counts no more.
    ///
    /// # Errors
    /// [`NamesError::TooOften`] when too many are under way.
    pub fn mail_code(&self, peer: EndpointId, user: &Name, now: UnixTime) -> Result<String, NamesError> {
        let code = new_code();
        let mut proofs = self.mail.proofs();
        proofs.retain(|_, proof| proof.expires > now);
        let key = (peer, user.clone());
        if proofs.len() >= MOST && !proofs.contains_key(&key) {
            return Err(NamesError::TooOften);
        }
        let expires = now.saturating_add(COUNTS);
        proofs.insert(key, Proof { code: Some(hash(&code)), tries: 0, expires });
        Ok(code)
    }

    /// Takes the code that was sent. It counts once. Says until when the name can be registered.
    ///
    /// # Errors
    /// [`NamesError::BadMailCode`]
    pub fn prove_mail(
        &self,
        peer: EndpointId,
        user: &Name,
        code: &str,
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        let mut proofs = self.mail.proofs();
        let proof = proofs.get_mut(&(peer, user.clone())).filter(|proof| proof.expires > now);
        let proof = proof.ok_or(NamesError::BadMailCode)?;
        if proof.code != Some(hash(code)) || proof.tries >= TRIES {
            proof.tries = proof.tries.saturating_add(1);
            return Err(NamesError::BadMailCode);
        }
        (proof.code, proof.expires) = (None, now.saturating_add(COUNTS));
        Ok(proof.expires)
    }

    /// Refuses a new user name whose mail the peer has not shown to read, where that is required.
    pub(super) fn check_mail(&self, peer: EndpointId, user: &Name, now: UnixTime) -> Result<(), NamesError> {
        if !self.mail.is_required.load(Ordering::Relaxed) {
            return Ok(());
        }
        let proofs = self.mail.proofs();
        let proof = proofs.get(&(peer, user.clone()));
        match proof.is_some_and(|proof| proof.code.is_none() && proof.expires > now) {
            true => Ok(()),
            false => Err(NamesError::NotProved(user.clone())),
        }
    }
}
