//! Questions about what is between users: proposals and decisions, and which devices somebody has.

use std::time::Duration;

use whimbrel_base::{Delegation, Name, SignedRecord};

use super::{AskError, NameResolver, accepted, verified};
use crate::clock::now;
use crate::proposal::{Decision, Proposal, ProposalId};
use crate::protocol::{Proposed, Request, Response};

/// A service has no more than this many answers to one question.
const PAGES: usize = 64;

/// A proposal, and what was decided about it. The signatures are good; whose the names are was not looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KnownProposal {
    /// Which.
    pub id: ProposalId,
    /// What is wished, and by whom.
    pub proposal: Proposal,
    /// The decision of the user who is asked, once there is one.
    pub decision: Option<Decision>,
}

impl NameResolver {
    /// Gives the service a signed [`Proposal`], for all devices of the user who is asked. Says for how long
    /// it is kept.
    ///
    /// # Errors
    /// [`AskError::Refused`] says why; [`AskError::Unsupported`] by an older service.
    pub async fn propose(&self, proposal: Vec<u8>) -> Result<Duration, AskError> {
        accepted(self.core.ask(Request::Propose { proposal }).await?)
    }

    /// Gives the service a signed [`Decision`].
    ///
    /// # Errors
    /// [`AskError::Refused`], with [`ErrorCode::NoProposal`](crate::ErrorCode::NoProposal) when another
    /// device decided before; [`AskError::Unsupported`] by an older service.
    pub async fn decide(&self, decision: Vec<u8>) -> Result<(), AskError> {
        accepted(self.core.ask(Request::Decide { decision }).await?).map(drop)
    }

    /// What this endpoint's user proposed and is asked. `word` is the delegation by which the endpoint is one
    /// of the user's devices; the user's own key needs none. What is forged is left out.
    ///
    /// # Errors
    /// [`AskError::Refused`] when the delegation does not count; [`AskError::Unsupported`] by an older
    /// service.
    pub async fn proposals(&self, word: Option<&Delegation>) -> Result<Vec<KnownProposal>, AskError> {
        let word = word.map(Delegation::encode);
        let (mut known, mut after) = (Vec::new(), None);
        for _ in 0..PAGES {
            let request = Request::Proposals { word: word.clone(), after };
            let Response::Proposals { proposals, more } = self.core.ask(request).await? else {
                return Err(AskError::unexpected());
            };
            after = proposals.last().map(|last| ProposalId::of(&last.proposal));
            known.extend(proposals.iter().filter_map(understood));
            if !more || after.is_none() {
                break;
            }
        }
        Ok(known)
    }

    /// Takes a proposal of this endpoint's user back, or says that the decision is known. `word` as in
    /// [`proposals`](Self::proposals).
    ///
    /// # Errors
    /// As [`proposals`](Self::proposals), and [`AskError::Refused`] when there is none.
    pub async fn withdraw(&self, proposal: ProposalId, word: Option<&Delegation>) -> Result<(), AskError> {
        let word = word.map(Delegation::encode);
        accepted(self.core.ask(Request::Withdraw { proposal, word }).await?).map(drop)
    }

    /// Has the service send a code to the address that is to be registered, for this endpoint's key. Says for
    /// how long the code counts.
    ///
    /// # Errors
    /// [`AskError::Refused`] when it sends none; [`AskError::Unsupported`] by an older service.
    pub async fn send_code(&self, user: &Name) -> Result<Duration, AskError> {
        accepted(self.core.ask(Request::Mail { user: user.clone(), code: None }).await?)
    }

    /// Tells the service the code that came by mail: this endpoint may register the name then.
    ///
    /// # Errors
    /// [`AskError::Refused`] when the code is mistyped, used or has ended.
    pub async fn prove_mail(&self, user: &Name, code: &str) -> Result<(), AskError> {
        let code = Some(code.to_owned());
        accepted(self.core.ask(Request::Mail { user: user.clone(), code }).await?).map(drop)
    }

    /// The newest records of a user's devices and services, and the user's own, by name: all that this
    /// endpoint may read, verified, neither revoked nor expired. Empty if there are none, or none that it may
    /// read. Owners that are met for the first time are remembered.
    ///
    /// # Errors
    /// [`AskError`]; [`AskError::Unsupported`] by an older service.
    pub async fn devices_of(&self, user: &Name) -> Result<Vec<SignedRecord>, AskError> {
        let (mut records, mut after) = (Vec::new(), None);
        for _ in 0..PAGES {
            let request = Request::Devices { user: user.clone(), after: after.clone() };
            let Response::Devices { records: found, more } = self.core.ask(request).await? else {
                return Err(AskError::unexpected());
            };
            for found in found.iter().filter(|found| found.seconds > 0) {
                let record = self.of_user(user, &found.record).await?;
                records.extend(record.filter(|record| !record.record().revoked));
            }
            // A service that goes back would be asked for ever.
            match more {
                Some(more) if after.as_ref().is_none_or(|after| *after < more) => after = Some(more),
                _ => break,
            }
        }
        Ok(records)
    }

    /// One of a user's records. `None` if it has just ended.
    async fn of_user(&self, user: &Name, bytes: &[u8]) -> Result<Option<SignedRecord>, AskError> {
        let record = SignedRecord::decode(bytes).map_err(|error| AskError::Invalid(error.to_string()))?;
        let name = record.record().name.clone();
        if name.user() != *user {
            return Err(AskError::Invalid(format!("it is about {name}")));
        }
        if record.record().is_expired(now()) {
            return Ok(None);
        }
        let record = self.core.newest(verified(bytes, &name, now())?);
        Ok(Some(self.core.judged(record).await?))
    }
}

/// What the service says, if it is what it should be.
fn understood(said: &Proposed) -> Option<KnownProposal> {
    let id = ProposalId::of(&said.proposal);
    let proposal = Proposal::read(&said.proposal);
    let decision = said.decision.as_deref().map(Decision::read).transpose();
    let (proposal, decision) = match (proposal, decision) {
        (Ok(proposal), Ok(decision)) if !proposal.is_expired(now()) => (proposal, decision),
        (Ok(_), Ok(_)) => return None,
        (Err(error), _) | (_, Err(error)) => {
            tracing::warn!(%error, "the name service has a request that must not be used");
            return None;
        }
    };
    if decision.as_ref().is_some_and(|decision| !decision.is_about(id, &proposal)) {
        tracing::warn!(?id, "the name service has an answer to another request");
        return None;
    }
    Some(KnownProposal { id, proposal, decision })
}
