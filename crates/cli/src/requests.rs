//! Requests between users, by the name service: somebody asks another user to be a friend, or a machine asks
//! to be a user's device. They wait there for all devices of both sides, and any device that may act for the
//! user answers.
//!
//! Requests and answers are signed: the service is believed in one thing, which key has a name that nobody
//! here has met. What a device that may not act for the user has asked counts for nothing among the user's
//! own devices.

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use whimbrel_base::{Delegation, EndpointId, Name, NameKind, SecretKey, UnixTime};
use whimbrel_devices::{Group, Op, WriteError};
use whimbrel_names::{
    AskError, Decision, ErrorCode, KnownProposal, NameResolver, Origin, Proposal, ProposalId, Wished,
};

use crate::failure::Failure;
use crate::network::Network;
use crate::own_group::{self, OwnGroup};
use crate::{aside, identity, places};

/// This machine's key, and the user that it speaks for.
pub(crate) struct Voice {
    key: SecretKey,
    /// The user's key.
    pub(crate) user: EndpointId,
    /// By which this machine's key speaks for the user; the user's own key needs none.
    pub(crate) word: Option<Delegation>,
    /// What the user's devices and friends are.
    pub(crate) group: Group,
}

/// What became of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// The other user is asked.
    Waits(ProposalId),
    /// The other user had asked first.
    Accepted,
}

impl Voice {
    /// Finds out for whom this machine speaks.
    ///
    /// # Errors
    /// When the user's group cannot be read, or another user gave this key a name and the delegation is gone.
    pub(crate) async fn of(network: &Network) -> Result<Self> {
        let key = network.key.clone();
        let reading = aside::run(move || {
            let own = OwnGroup::of(key.clone())?;
            let group = own.look(|log| log.group().clone())?;
            let word = match group.user() == key.id() {
                true => None,
                false => Some(given_by(group.user(), key.id())?),
            };
            anyhow::Ok((group, word))
        });
        let (group, word) = reading.await.context("the process is ending")??;
        let word = match word {
            Some(word) => Some(renewed(network.resolver()?, word).await?),
            None => None,
        };
        Ok(Self { key: network.key.clone(), user: group.user(), word, group })
    }

    /// The user's name: the device's user, or the name that was registered with this key here.
    pub(crate) fn name(&self, network: &Network) -> Result<Option<Name>> {
        if let Some(word) = &self.word {
            return Ok(Some(word.name().user()));
        }
        let pins = network.known.pins()?;
        let own = pins.owners().find(|(_, owner)| owner.key == self.user && owner.origin == Origin::Own);
        Ok(own.map(|(name, _)| name.clone()))
    }

    /// Fails if this machine may not act for its user.
    pub(crate) fn check_trust(&self) -> Result<()> {
        if self.may_act(self.key.id()) {
            return Ok(());
        }
        Err(own_group::refused(WriteError::NotTrusted))
    }

    /// Whether a key may act for the user.
    pub(crate) fn may_act(&self, key: EndpointId) -> bool {
        self.group.is_member(key) && self.group.is_trusted(key)
    }

    /// All requests to and by the user.
    pub(crate) async fn requests(&self, network: &Network) -> Result<Vec<KnownProposal>> {
        let resolver = network.resolver()?;
        let known = resolver.proposals(self.word.as_ref()).await;
        known.context("cannot ask for requests")
    }

    /// Whether the user is asked, and none of the user's devices has answered.
    pub(crate) fn is_open(&self, known: &KnownProposal) -> bool {
        known.proposal.owner == self.user && known.decision.is_none()
    }

    /// Asks another user to be a friend. If that one has asked first, accepts.
    pub(crate) async fn ask(
        &self,
        network: &Network,
        (from, to): (Name, &Name),
        lasts: Duration,
    ) -> Result<Asked> {
        self.check_trust()?;
        let owner = owner_of(network, to).await?;
        if owner == self.user {
            return Err(Failure::usage(format!("{to} is you; the devices of one user are no friends")));
        }
        let known = self.requests(network).await?;
        let theirs = known
            .iter()
            .find(|known| is_friends(known) && self.is_open(known) && known.proposal.authority() == owner);
        if let Some(theirs) = theirs {
            self.answer(network, theirs, true, None).await?;
            self.befriend(owner, to).await?;
            return Ok(Asked::Accepted);
        }
        let wished = Wished::Friends { from };
        let (made, by) = (now(), self.key.id());
        let (expires, word) = (made.saturating_add(lasts), self.word.clone());
        let proposal = Proposal { wished, to: to.clone(), owner, by, made, expires, word };
        let bytes = proposal.sign(&self.key)?;
        let id = ProposalId::of(&bytes);
        network.resolver()?.propose(bytes).await.with_context(|| format!("cannot ask {to}"))?;
        Ok(Asked::Waits(id))
    }

    /// Answers a request, for all to see.
    pub(crate) async fn answer(
        &self,
        network: &Network,
        known: &KnownProposal,
        accepted: bool,
        given: Option<Delegation>,
    ) -> Result<()> {
        let (by, made, word) = (self.key.id(), now(), self.word.clone());
        let decision = Decision { about: known.id, accepted, by, made, word, given };
        Ok(network.resolver()?.decide(decision.sign(&self.key)?).await?)
    }

    /// Fails unless the name in a request is that of the user whose key made it, as far as anybody here
    /// knows.
    pub(crate) async fn check_sender(&self, network: &Network, known: &KnownProposal) -> Result<()> {
        let Wished::Friends { from } = &known.proposal.wished else { return Ok(()) };
        if owner_of(network, from).await? == known.proposal.authority() {
            return Ok(());
        }
        let message = format!("the request says that it is from {from}, which belongs to another key");
        Err(Failure::new(Failure::UNTRUSTED, message).into())
    }

    /// Notes that somebody is a friend.
    pub(crate) async fn befriend(&self, friend: EndpointId, name: &Name) -> Result<()> {
        let (key, name) = (self.key.clone(), name.clone());
        let noting = aside::run(move || {
            let op = Op::AddFriend { friend, name: Some(name) };
            OwnGroup::of(key)?
                .change(|log, key, now| log.write(key, vec![op], now).map_err(own_group::refused))
        });
        noting.await.context("the process is ending")?
    }

    /// Brings about what both sides want: notes who accepted as friends, and accepts who was asked by this
    /// user's devices as well. Returns the new friends. Does nothing on a device that may not act for the
    /// user.
    ///
    /// # Errors
    /// When the service or the group fails half-way; the next call goes on.
    pub(crate) async fn settle(&self, network: &Network, known: &[KnownProposal]) -> Result<Vec<Name>> {
        let mut friends = Vec::new();
        if self.check_trust().is_err() {
            return Ok(friends);
        }
        let agreed = agreed(known, self.user, &|key| self.may_act(key));
        for (ours, theirs) in agreed {
            let (friend, name) = (ours.proposal.owner, &ours.proposal.to);
            if let Some(theirs) = theirs {
                match self.answer(network, theirs, true, None).await {
                    // Another device was quicker: it does the rest.
                    Err(error) if is_gone(&error) => continue,
                    answered => answered?,
                }
            }
            if self.group.friend(friend).is_none() {
                self.befriend(friend, name).await?;
                friends.push(name.clone());
            }
            // Last: what is withdrawn is not looked at again. The other side hears of it by its own request.
            match network.resolver()?.withdraw(ours.id, self.word.as_ref()).await {
                Err(error) if error.code() != Some(ErrorCode::NoProposal) => return Err(error.into()),
                _ => {}
            }
        }
        Ok(friends)
    }
}

/// The requests of a user's devices that the other side wants too: accepted ones, and those that cross an
/// open one of the same user, which is told as well.
fn agreed<'a>(
    known: &'a [KnownProposal],
    user: EndpointId,
    may_act: &dyn Fn(EndpointId) -> bool,
) -> Vec<(&'a KnownProposal, Option<&'a KnownProposal>)> {
    let mut agreed = Vec::new();
    for ours in known {
        // What a stolen device asks is not what the user wants.
        if !is_friends(ours) || ours.proposal.authority() != user || !may_act(ours.proposal.by) {
            continue;
        }
        let crossing = known.iter().find(|theirs| {
            let is_back = theirs.proposal.owner == user && theirs.proposal.authority() == ours.proposal.owner;
            is_back && is_friends(theirs) && theirs.decision.is_none()
        });
        match (&ours.decision, crossing) {
            (Some(decision), _) if decision.accepted => agreed.push((ours, None)),
            (None, Some(theirs)) => agreed.push((ours, Some(theirs))),
            _ => {}
        }
    }
    agreed
}

/// Whether two users would be friends by it.
pub(crate) fn is_friends(known: &KnownProposal) -> bool {
    matches!(known.proposal.wished, Wished::Friends { .. })
}

/// Whether an error says that there is nothing to answer any more.
pub(crate) fn is_gone(error: &anyhow::Error) -> bool {
    let asked = error.chain().find_map(|cause| cause.downcast_ref::<AskError>());
    asked.is_some_and(|error| error.code() == Some(ErrorCode::NoProposal))
}

/// The key of a user, as far as the service says and nothing here contradicts.
pub(crate) async fn owner_of(network: &Network, user: &Name) -> Result<EndpointId> {
    let resolver = network.resolver()?;
    let failed = || format!("cannot look up {user}");
    let missing = match resolver.lookup_record(user).await {
        Ok(record) => return Ok(record.authority()),
        Err(error) => error,
    };
    let is_missing =
        matches!(missing.code(), Some(ErrorCode::NotFound | ErrorCode::Expired | ErrorCode::Revoked));
    if !is_missing {
        return Err(missing).with_context(failed);
    }
    // The user's key may be offline for long: those who have met the user, and the user's devices, know it.
    if let Some(owner) = network.owner_of(user)? {
        return Ok(owner);
    }
    let devices = match resolver.devices_of(user).await {
        Err(AskError::Unsupported(_)) => Vec::new(),
        devices => devices.with_context(failed)?,
    };
    let owner = devices.first().map(|record| record.authority());
    owner.ok_or(missing).with_context(failed)
}

/// The last delegation by which a user made this key a device.
fn given_by(user: EndpointId, key: EndpointId) -> Result<Delegation> {
    let held = identity::held(&places::config()?, key)?;
    let given = held.into_iter().filter(|it| it.issuer() == user && it.name().kind() == NameKind::Device);
    given.filter(|it| it.verify().is_ok()).max_by_key(Delegation::expires).ok_or_else(|| {
        let message =
            "this machine has lost the word by which it is its user's device; have it invited again";
        Failure::new(Failure::REFUSED, message).into()
    })
}

/// The word itself, or the one with which the user gave it more time.
async fn renewed(resolver: &NameResolver, word: Delegation) -> Result<Delegation> {
    if !word.is_expired(now()) {
        return Ok(word);
    }
    let Some(new) = resolver.renewed(&word).await.context("this device's name has lapsed")? else {
        return Ok(word);
    };
    identity::store_delegation(&places::config()?, &new)?;
    Ok(new)
}

/// This machine's clock.
pub(crate) fn now() -> UnixTime {
    SystemTime::now().into()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn key(seed: u8) -> SecretKey {
        SecretKey::from_bytes(&[seed; 32])
    }

    fn of(from: u8, to: u8, decision: Option<bool>) -> KnownProposal {
        let name = |user: u8| format!("user{user}@example.org").parse().unwrap();
        let (made, expires) = (UnixTime::from_secs(1), UnixTime::from_secs(60));
        let proposal = Proposal {
            wished: Wished::Friends { from: name(from) },
            to: name(to),
            owner: key(to).id(),
            by: key(from).id(),
            made,
            expires,
            word: None,
        };
        let id = ProposalId::of(&proposal.sign(&key(from)).unwrap());
        let decided =
            |accepted| Decision { about: id, accepted, by: key(to).id(), made, word: None, given: None };
        KnownProposal { id, proposal, decision: decision.map(decided) }
    }

    #[test]
    fn what_both_sides_want_is_agreed_and_nothing_else() {
        let agreed_of = |known: &[KnownProposal], trusted: bool| {
            let agreed = agreed(known, key(1).id(), &|_| trusted);
            agreed.into_iter().map(|(ours, theirs)| (ours.id, theirs.map(|it| it.id))).collect::<Vec<_>>()
        };
        let (open, refused, accepted) = (of(1, 2, None), of(1, 3, Some(false)), of(1, 4, Some(true)));
        let (crossing, other) = (of(2, 1, None), of(5, 1, None));
        let known = [open.clone(), refused, accepted.clone(), other.clone()];
        assert_eq!(agreed_of(&known, true), [(accepted.id, None)]);
        assert_eq!(agreed_of(&known, false), [], "a stolen device asked");
        assert_eq!(agreed_of(&[open.clone(), crossing.clone()], true), [(open.id, Some(crossing.id))]);
        // What the other side asked is wanted by this one only if it was asked here as well, or accepted by
        // hand.
        assert_eq!(agreed_of(&[crossing, other, of(6, 1, Some(true))], true), []);
        assert_eq!(agreed_of(&[open, of(2, 1, Some(false))], true), []);
    }
}
