//! Proposals: one user's signed wish to be another one's friend, or a machine's to be a user's device, and
//! the signed decision about it. A name service keeps them until they end, for all devices of both sides.
//!
//! The service can withhold a proposal, and make none: each is signed by the key that makes it, names the
//! user's key that it is meant for, and ends. A decision names the proposal by the hash of all its bytes, so
//! that it is about no other one.
//!
//! # Bytes
//! Postcard of the fields of [`Proposal`] or [`Decision`] in their order, a delegation as a byte string,
//! behind that the Ed25519 signature (64 bytes) over `whimbrel proposal v1` or `whimbrel decision v1`, a zero
//! byte, and these bytes.

use std::fmt;
use std::time::Duration;

use bip39::Language;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use whimbrel_base::{Delegation, EndpointId, Name, NameKind, SecretKey, Signature, UnixTime};

/// No proposal and no decision is longer, in bytes.
pub const MAX_PROPOSAL_BYTES: usize = 1280;

/// The longest time that a proposal counts.
pub const MAX_PROPOSAL_TIME: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Words by which people tell one proposal from all others: 66 bits.
const WORDS: usize = 6;
/// A word carries so many bits.
const WORD_BITS: usize = 11;

const PROPOSAL: &[u8] = b"whimbrel proposal v1\0";
const DECISION: &[u8] = b"whimbrel decision v1\0";

/// Which proposal: the SHA-256 of its bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ProposalId([u8; 32]);

impl ProposalId {
    /// The id of the proposal with these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// The hash.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The one with this hash.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Six words, with dashes: both sides' screens show the same ones.
    pub fn words(&self) -> String {
        let bit = |at: usize| usize::from((self.0[at / 8] >> (7 - at % 8)) & 1);
        let number = |word: usize| {
            let bits = word * WORD_BITS..(word + 1) * WORD_BITS;
            bits.fold(0, |number, at| (number << 1) | bit(at))
        };
        let words: Vec<&str> = (0..WORDS).map(|word| Language::English.word_list()[number(word)]).collect();
        words.join("-")
    }
}

impl fmt::Debug for ProposalId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProposalId({})", self.words())
    }
}

/// What is wished.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Wished {
    /// That two users are friends.
    Friends {
        /// The user who wishes it.
        from: Name,
    },
    /// That the key which makes the proposal is a device of the user.
    Device {
        /// The device's name.
        name: Name,
    },
}

/// A wish to be introduced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// What is wished.
    pub wished: Wished,
    /// The user who is to decide.
    pub to: Name,
    /// That user's key, as far as the maker knows.
    pub owner: EndpointId,
    /// The key that makes it.
    pub by: EndpointId,
    /// When it was made.
    pub made: UnixTime,
    /// From then on it says nothing.
    pub expires: UnixTime,
    /// By which `by` speaks for a user, if it is not the user's own key.
    #[serde(with = "delegation")]
    pub word: Option<Delegation>,
}

/// Why bytes are no proposal or decision that counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProposalError {
    /// They are none, or say what makes no sense.
    #[error("this is no proposal, or no decision about one; update the older program")]
    Malformed,
    /// The key that it names did not sign it, or a delegation in it is forged.
    #[error("a signature in the proposal or the decision is wrong")]
    Forged,
    /// It has ended, begins in the future, or would count for longer than any.
    #[error("the proposal has ended, or would count for more than seven days; set this machine's clock")]
    Times,
}

impl Proposal {
    /// The proposal's bytes, signed.
    ///
    /// # Errors
    /// [`ProposalError::Malformed`] for one that nobody would take.
    pub fn sign(&self, key: &SecretKey) -> Result<Vec<u8>, ProposalError> {
        let bytes = seal(self, PROPOSAL, key)?;
        Self::read(&bytes)?;
        Ok(bytes)
    }

    /// Reads what [`sign`](Self::sign) wrote, and nothing else.
    ///
    /// # Errors
    /// [`ProposalError::Malformed`], [`ProposalError::Forged`]. Whose the names are, and whether it has
    /// [ended](Self::is_expired), remains to be asked.
    pub fn read(bytes: &[u8]) -> Result<Self, ProposalError> {
        let (proposal, content, signature) = open::<Self>(bytes)?;
        if !proposal.makes_sense() {
            return Err(ProposalError::Malformed);
        }
        check(proposal.by, PROPOSAL, content, &signature)?;
        proposal.word.iter().try_for_each(|word| word.verify()).map_err(|_| ProposalError::Forged)?;
        Ok(proposal)
    }

    /// The key on whose behalf it is made: the user's, or that of a machine that is nobody's device yet.
    pub fn authority(&self) -> EndpointId {
        self.word.as_ref().map_or(self.by, Delegation::issuer)
    }

    /// Whether it has ended at `now`.
    pub fn is_expired(&self, now: UnixTime) -> bool {
        self.expires <= now
    }

    fn makes_sense(&self) -> bool {
        let fits = match (&self.wished, &self.word) {
            (Wished::Friends { from }, None) => from.kind() == NameKind::User,
            (Wished::Friends { from }, Some(word)) => word.id() == self.by && is_of_device(word, from),
            (Wished::Device { name }, None) => name.kind() == NameKind::Device && name.user() == self.to,
            (Wished::Device { .. }, Some(_)) => false,
        };
        let is_short = self.expires > self.made && self.expires.since(self.made) <= MAX_PROPOSAL_TIME;
        fits && is_short && self.to.kind() == NameKind::User && self.authority() != self.owner
    }
}

/// What became of a proposal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Decision {
    /// Of which one.
    pub about: ProposalId,
    /// Whether the user wants it.
    pub accepted: bool,
    /// The key that decided.
    pub by: EndpointId,
    /// When.
    pub made: UnixTime,
    /// By which `by` speaks for the user, if it is not the user's own key.
    #[serde(with = "delegation")]
    pub word: Option<Delegation>,
    /// What gives a new device its name.
    #[serde(with = "delegation")]
    pub given: Option<Delegation>,
}

impl Decision {
    /// The decision's bytes, signed.
    ///
    /// # Errors
    /// [`ProposalError::Malformed`] for one that nobody would take.
    pub fn sign(&self, key: &SecretKey) -> Result<Vec<u8>, ProposalError> {
        let bytes = seal(self, DECISION, key)?;
        Self::read(&bytes)?;
        Ok(bytes)
    }

    /// Reads what [`sign`](Self::sign) wrote, and nothing else. Whether it is about a proposal says
    /// [`is_about`](Self::is_about).
    ///
    /// # Errors
    /// [`ProposalError::Malformed`], [`ProposalError::Forged`].
    pub fn read(bytes: &[u8]) -> Result<Self, ProposalError> {
        let (decision, content, signature) = open::<Self>(bytes)?;
        if decision.word.as_ref().is_some_and(|word| word.id() != decision.by) {
            return Err(ProposalError::Malformed);
        }
        check(decision.by, DECISION, content, &signature)?;
        let mut words = decision.word.iter().chain(&decision.given);
        words.try_for_each(|word| word.verify()).map_err(|_| ProposalError::Forged)?;
        Ok(decision)
    }

    /// The user's key on whose behalf it was decided.
    pub fn authority(&self) -> EndpointId {
        self.word.as_ref().map_or(self.by, Delegation::issuer)
    }

    /// Whether it decides about this proposal, by a key that speaks for the user who was asked; and gives
    /// what was wished, to whom, if anything.
    pub fn is_about(&self, id: ProposalId, proposal: &Proposal) -> bool {
        let gives = match (&proposal.wished, &self.given) {
            (Wished::Device { name }, Some(given)) => {
                let fits = *given.name() == *name && given.id() == proposal.by;
                self.accepted && fits && given.issuer() == proposal.owner
            }
            (Wished::Device { .. }, None) => !self.accepted,
            (Wished::Friends { .. }, given) => given.is_none(),
        };
        let is_theirs = self.word.as_ref().is_none_or(|word| is_of_device(word, &proposal.to));
        gives && is_theirs && self.about == id && self.authority() == proposal.owner
    }
}

/// Whether a delegation makes its key a device of this user. A key that has a service's name alone is none.
fn is_of_device(word: &Delegation, user: &Name) -> bool {
    word.name().kind() == NameKind::Device && word.name().user() == *user
}

/// Writes, and signs for a purpose.
fn seal(content: &impl Serialize, purpose: &[u8], key: &SecretKey) -> Result<Vec<u8>, ProposalError> {
    let mut bytes = postcard::to_stdvec(content).map_err(|_| ProposalError::Malformed)?;
    let signature = key.sign(&[purpose, bytes.as_slice()].concat());
    bytes.extend_from_slice(&signature.to_bytes());
    Ok(bytes)
}

/// Reads what is signed and the signature, which is not looked at.
fn open<T: DeserializeOwned>(bytes: &[u8]) -> Result<(T, &[u8], Signature), ProposalError> {
    if bytes.len() > MAX_PROPOSAL_BYTES {
        return Err(ProposalError::Malformed);
    }
    let (content, signature) =
        bytes.split_last_chunk::<{ Signature::LENGTH }>().ok_or(ProposalError::Malformed)?;
    let (value, rest) = postcard::take_from_bytes(content).map_err(|_| ProposalError::Malformed)?;
    if !rest.is_empty() {
        return Err(ProposalError::Malformed);
    }
    Ok((value, content, Signature::from_bytes(signature)))
}

fn check(by: EndpointId, purpose: &[u8], content: &[u8], signature: &Signature) -> Result<(), ProposalError> {
    by.verify(&[purpose, content].concat(), signature).map_err(|_| ProposalError::Forged)
}

/// A delegation as a byte string.
mod delegation {
    use super::{Delegation, Deserialize as _, Deserializer, Serialize as _, Serializer};

    pub(super) fn serialize<S: Serializer>(word: &Option<Delegation>, to: S) -> Result<S::Ok, S::Error> {
        word.as_ref().map(Delegation::encode).serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Delegation>, D::Error> {
        let bytes = Option::<Vec<u8>>::deserialize(from)?;
        let word = bytes.map(|bytes| Delegation::decode(&bytes)).transpose();
        word.map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests;
