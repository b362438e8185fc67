//! Proposals between users: who may make one, who hears of it, and who decides.
//!
//! The service keeps them and hands them out; it does not know which devices a user trusts. Any device with a
//! living delegation of the user hears of them and may decide. Whether that counts among the user's devices,
//! these know.

use whimbrel_base::{Delegation, EndpointId, Name, NameKind, UnixTime};

use super::Registry;
use super::followers::Follower;
use super::ownership::CLOCK_SKEW;
use crate::error::NamesError;
use crate::proposal::{Decision, MAX_PROPOSAL_TIME, Proposal, ProposalError, ProposalId, Wished};
use crate::store::{Decided, Kept, Proposing};

impl Registry {
    /// Keeps a proposal that `peer` made, for all devices of the user who is to decide. The same again
    /// changes nothing. Says until when it counts.
    ///
    /// # Errors
    /// [`NamesError::BadProposal`], [`NamesError::NotYours`], [`NamesError::NotFound`] when the user
    /// who is asked is not registered or has another key, [`NamesError::UserUnknown`],
    /// those of delegations; [`NamesError::AskedAlready`], [`NamesError::TooManyProposals`],
    /// [`NamesError::Unavailable`].
    pub async fn propose(
        &self,
        peer: EndpointId,
        bytes: &[u8],
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        let proposal = Proposal::read(bytes)?;
        if proposal.by != peer {
            return Err(NamesError::NotYours(proposal.by));
        }
        let latest = now.saturating_add(MAX_PROPOSAL_TIME + CLOCK_SKEW);
        if proposal.is_expired(now)
            || proposal.expires > latest
            || proposal.made > now.saturating_add(CLOCK_SKEW)
        {
            return Err(ProposalError::Times.into());
        }
        // Strangers are not told which names there are.
        if self.key_of_user(&proposal.to, now).await? != Some(proposal.owner) {
            return Err(NamesError::NotFound(proposal.to));
        }
        if let Wished::Friends { from } = &proposal.wished {
            let user = self.speaks_for(peer, proposal.word.as_ref(), now).await?;
            // Whether another key has it is nobody's business.
            if self.key_of_user(from, now).await? != Some(user) {
                return Err(NamesError::UserUnknown(from.clone()));
            }
        }
        let kept = Kept {
            id: ProposalId::of(bytes),
            from: proposal.authority(),
            to: proposal.owner,
            is_of_device: matches!(proposal.wished, Wished::Device { .. }),
            expires: proposal.expires,
            bytes: bytes.to_vec(),
            decided: None,
            withdrawn: false,
        };
        let users = [kept.from, kept.to];
        match self.store.propose(kept, now).await? {
            Proposing::Kept => {
                self.followers.tell(users);
                Ok(proposal.expires)
            }
            Proposing::AskedAlready => Err(NamesError::AskedAlready(proposal.to)),
            Proposing::Full => Err(NamesError::TooManyProposals(proposal.to)),
        }
    }

    /// Keeps what `peer` decided for its user. The first decision stays; the same again changes nothing. Says
    /// until when it is kept.
    ///
    /// # Errors
    /// [`NamesError::BadProposal`], [`NamesError::NotYours`], those of delegations;
    /// [`NamesError::NoProposal`] when it was decided otherwise, withdrawn, or has ended;
    /// [`NamesError::Unavailable`].
    pub async fn decide(
        &self,
        peer: EndpointId,
        bytes: &[u8],
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        let decision = Decision::read(bytes)?;
        if decision.by != peer {
            return Err(NamesError::NotYours(decision.by));
        }
        let user = self.speaks_for(peer, decision.word.as_ref(), now).await?;
        let all = self.store.proposals(&user).await?;
        let known = all.into_iter().find(|known| known.id == decision.about && known.to == user);
        let known = known.filter(|known| known.expires > now).ok_or(NamesError::NoProposal)?;
        if !decision.is_about(known.id, &Proposal::read(&known.bytes)?) {
            return Err(ProposalError::Malformed.into());
        }
        if known.decided.as_ref().is_some_and(|decided| decided.bytes == bytes) {
            return Ok(known.expires);
        }
        let decided = Decided { accepted: decision.accepted, bytes: bytes.to_vec() };
        match self.store.decide(&user, known.id, decided, now).await? {
            true => {
                self.followers.tell([known.from, known.to]);
                Ok(known.expires)
            }
            false => Err(NamesError::NoProposal),
        }
    }

    /// Lets `peer` hear of changes to what [`proposals`](Self::proposals) tells: of those that are made on
    /// this server.
    ///
    /// # Errors
    /// [`NamesError::TooManyFollowers`], and as [`proposals`](Self::proposals).
    pub async fn follow_proposals(
        &self,
        peer: EndpointId,
        word: Option<&[u8]>,
        now: UnixTime,
    ) -> Result<Follower, NamesError> {
        let user = self.user_of_peer(peer, word, now).await?;
        self.followers.follow(user, peer)
    }

    /// Fails once `peer` does not speak for its user any more.
    ///
    /// # Errors
    /// As [`proposals`](Self::proposals).
    pub async fn speaks_for_user(
        &self,
        peer: EndpointId,
        word: Option<&[u8]>,
        now: UnixTime,
    ) -> Result<(), NamesError> {
        self.user_of_peer(peer, word, now).await.map(drop)
    }

    /// The proposals that the user of `peer` made and is asked, by their ids, as far as they count at `now`.
    /// `word` is the delegation by which `peer` is one of the user's devices; the user's own key needs none.
    ///
    /// # Errors
    /// [`NamesError::NotTheUsers`] and those of delegations, [`NamesError::Unavailable`].
    pub async fn proposals(
        &self,
        peer: EndpointId,
        word: Option<&[u8]>,
        now: UnixTime,
    ) -> Result<Vec<Kept>, NamesError> {
        let user = self.user_of_peer(peer, word, now).await?;
        let mut all = self.store.proposals(&user).await?;
        all.retain(|known| known.expires > now && known.is_seen_by(&user));
        Ok(all)
    }

    /// The user of `peer` does not want a proposal of its own any more, or knows what was decided.
    ///
    /// # Errors
    /// [`NamesError::NoProposal`], and as [`proposals`](Self::proposals).
    pub async fn withdraw(
        &self,
        peer: EndpointId,
        word: Option<&[u8]>,
        id: ProposalId,
        now: UnixTime,
    ) -> Result<UnixTime, NamesError> {
        let user = self.user_of_peer(peer, word, now).await?;
        // What is not there must not cost a write.
        let all = self.store.proposals(&user).await?;
        let known = all.into_iter().find(|known| known.id == id && known.from == user);
        let known = known.ok_or(NamesError::NoProposal)?;
        match self.store.withdraw(&user, id).await? {
            true => {
                self.followers.tell([known.from, known.to]);
                Ok(known.expires)
            }
            false => Err(NamesError::NoProposal),
        }
    }

    /// The key of the user that `peer` speaks for, by an encoded delegation if it is not its own.
    pub(super) async fn user_of_peer(
        &self,
        peer: EndpointId,
        word: Option<&[u8]>,
        now: UnixTime,
    ) -> Result<EndpointId, NamesError> {
        let word = word.map(Delegation::decode).transpose()?;
        if let Some(word) = &word {
            word.verify().map_err(|_| ProposalError::Forged)?;
        }
        self.speaks_for(peer, word.as_ref(), now).await
    }

    /// The key of the user that `peer` speaks for: its own, or that of the user whose verified delegation it
    /// has, unless that has ended or was taken back.
    async fn speaks_for(
        &self,
        peer: EndpointId,
        word: Option<&Delegation>,
        now: UnixTime,
    ) -> Result<EndpointId, NamesError> {
        let Some(word) = word else { return Ok(peer) };
        let name = word.name();
        // A machine that was given a service's name alone is none of the user's devices.
        let is_device = name.kind() == NameKind::Device && word.id() == peer;
        if !is_device || self.user_key(name, now).await? != Some(word.issuer()) {
            return Err(NamesError::NotTheUsers { name: name.clone(), user: name.user() });
        }
        if word.is_expired(now) {
            return Err(NamesError::DelegationExpired { name: name.clone(), ended: word.expires() });
        }
        if word.issued() > now.saturating_add(CLOCK_SKEW) {
            return Err(NamesError::DelegationTooEarly(name.clone()));
        }
        self.check_renewable(word, now).await?;
        self.check_signer(word, now).await?;
        Ok(word.issuer())
    }

    /// The key that has a user's name.
    async fn key_of_user(&self, user: &Name, now: UnixTime) -> Result<Option<EndpointId>, NamesError> {
        let known = self.store.get(user).await?.filter(|known| known.entry.held_until > now);
        Ok(known.map(|known| known.entry.owner()))
    }
}
