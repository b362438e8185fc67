//! Ends that go over to another key: TAKE_OVER and its answer.
//!
//! As in a claim, the first copy that comes has the connection. But the copy before belongs to another key,
//! which may be another person's: so each side gives a fresh random to the secret that follows, and the peer
//! asks the signed word of the key before, and TLS, whether the new key is meant.

use whimbrel_base::{ConnectionId, EndpointId};

use super::{Judgement, Own, Tenure, Verdict};
use crate::assignment::Assignment;
use crate::error::DecodeError;
use crate::frame::{TakeOver, TakenOver};
use crate::ids::{PathId, Side};
use crate::secret::{Asking, Exchange, Secret, Stake};
use crate::snapshot;
use crate::varint::Reader;

/// Client: a server's owner has said that its end goes to this key.
#[derive(Debug, Clone)]
pub(super) struct Expected {
    id: EndpointId,
    nonce: [u8; 32],
}

impl Expected {
    pub(super) fn write_down(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(&self.nonce);
    }

    pub(super) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(Self { id: EndpointId::from_bytes(&reader.array()?), nonce: reader.array()? })
    }
}

/// The last take-over that was agreed on.
#[derive(Debug, Clone)]
pub(super) struct Agreed {
    exchange: Exchange,
    /// The secret before it.
    before: Secret,
    /// By which the server has its key, if it has told so here.
    assignment: Option<Assignment>,
    /// Server: the client is known to have the answer.
    is_heard: bool,
}

/// By which secret a new TAKE_OVER is proved.
#[derive(Debug, Clone)]
enum Base {
    /// The present one: the client has heard all that this end has told it.
    Present,
    /// The one before this end's own claim, which was told and may not have been heard.
    BeforeClaim(Secret),
    /// The one before the client's own claim, which was taken and whose answer it has not heard.
    BeforePeers(Secret),
    /// The one before the last take-over, likewise.
    BeforeAgreed(Secret),
}

/// The two ends that meet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Meeting {
    pub(crate) connection: ConnectionId,
    pub(crate) path: PathId,
    pub(crate) client: EndpointId,
    pub(crate) server: EndpointId,
}

impl Meeting {
    fn asking(&self, stake: Stake) -> Asking {
        Asking { client: self.client, server: self.server, stake }
    }

    /// The client has shown that it knows this secret.
    pub(crate) fn is_proved(&self, secret: &Secret, take_over: &TakeOver) -> bool {
        let asking = self.asking(Stake { generation: take_over.generation, nonce: take_over.nonce });
        secret.proves_take_over(self.connection, self.path, &asking, &take_over.proof)
    }
}

impl Agreed {
    /// Secrets by which the peer may still speak.
    pub(super) fn unheard(&self) -> Option<&Secret> {
        (!self.is_heard).then_some(&self.before)
    }

    pub(super) fn write_down(&self, out: &mut Vec<u8>) {
        let Exchange { asking, answer } = &self.exchange;
        out.extend_from_slice(asking.client.as_bytes());
        out.extend_from_slice(asking.server.as_bytes());
        for stake in [&asking.stake, answer] {
            snapshot::number(out, stake.generation);
            out.extend_from_slice(&stake.nonce);
        }
        self.before.write_down(out);
        write_assignment(out, self.assignment.as_ref());
        snapshot::flag(out, self.is_heard);
    }

    pub(super) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let client = EndpointId::from_bytes(&reader.array()?);
        let server = EndpointId::from_bytes(&reader.array()?);
        let stake = |reader: &mut Reader<'_>| {
            Ok::<_, DecodeError>(Stake { generation: reader.varint()?, nonce: reader.array()? })
        };
        let (asked, answer) = (stake(reader)?, stake(reader)?);
        let exchange = Exchange { asking: Asking { client, server, stake: asked }, answer };
        let before = Secret::read_back(reader)?;
        let assignment = read_assignment(reader)?;
        Ok(Self { exchange, before, assignment, is_heard: snapshot::read_flag(reader)? })
    }
}

pub(super) fn write_assignment(out: &mut Vec<u8>, assignment: Option<&Assignment>) {
    snapshot::flag(out, assignment.is_some());
    assignment.into_iter().for_each(|assignment| assignment.encode(out));
}

pub(super) fn read_assignment(reader: &mut Reader<'_>) -> Result<Option<Assignment>, DecodeError> {
    snapshot::read_flag(reader)?.then(|| Assignment::decode(reader)).transpose()
}

impl Tenure {
    /// The copy of this end that would be handed over.
    pub(crate) fn generation(&self) -> u64 {
        self.own_generation
    }

    /// This end was read back under another key, by this word of the key before, and claims the connection.
    pub(crate) fn claim_assigned(&mut self, assignment: Assignment, nonce: [u8; 32]) {
        self.claim(nonce);
        if let Some(own) = &mut self.own {
            own.assignment = Some(assignment);
        }
    }

    /// By which this end has its key, as long as it was told to nobody.
    pub(crate) fn own_assignment(&self) -> Option<&Assignment> {
        self.own.as_ref()?.assignment.as_ref()
    }

    /// By which this end has its key, as long as the peer may not know.
    pub(crate) fn unheard_assignment(&self) -> Option<&Assignment> {
        let agreed = self.agreed.as_ref().filter(|agreed| !agreed.is_heard);
        self.own_assignment().or_else(|| agreed?.assignment.as_ref())
    }

    /// The word of the peer's owner hands over the copy that has the connection.
    pub(crate) fn is_of_present(&self, assignment: &Assignment) -> bool {
        assignment.generation == self.peer_generation
    }

    /// Client: the server's end goes to this key.
    pub(crate) fn expect(&mut self, id: EndpointId, nonce: [u8; 32]) {
        if self.expected() != Some(id) {
            self.expected = Some(Expected { id, nonce });
        }
    }

    pub(crate) fn expected(&self) -> Option<EndpointId> {
        self.expected.as_ref().map(|expected| expected.id)
    }

    /// Client: the server goes on under its present key.
    pub(crate) fn expect_nobody(&mut self) {
        self.expected = None;
    }

    /// Client: what it says of itself in a take-over; `None` if it has nothing to say to this server.
    fn stake(&self, server: EndpointId) -> Option<Stake> {
        if let Some(own) = &self.own {
            return Some(Stake { generation: self.own_generation + 1, nonce: own.nonce });
        }
        let expected = self.expected.as_ref().filter(|expected| expected.id == server)?;
        Some(Stake { generation: self.own_generation, nonce: expected.nonce })
    }

    /// Client: what TAKE_OVER says.
    pub(crate) fn take_over(&self, secret: &Secret, meeting: &Meeting) -> Option<TakeOver> {
        let stake = self.stake(meeting.server)?;
        let Meeting { connection, path, .. } = *meeting;
        let proof = secret.take_over_proof(connection, path, &meeting.asking(stake));
        let (generation, nonce, assignment) = (stake.generation, stake.nonce, self.own_assignment().cloned());
        Some(TakeOver { connection, path, generation, nonce, proof, lost: Vec::new(), assignment })
    }

    /// Server: what to think of a TAKE_OVER, without doing anything about it. `known` is the client's key
    /// until now.
    pub(crate) fn weigh_take_over(
        &self,
        secret: &Secret,
        meeting: &Meeting,
        known: EndpointId,
        take_over: &TakeOver,
    ) -> Verdict {
        self.weigh(secret, meeting, known, take_over).0
    }

    /// With what it is proved by, if it is new.
    fn weigh(
        &self,
        secret: &Secret,
        meeting: &Meeting,
        known: EndpointId,
        take_over: &TakeOver,
    ) -> (Verdict, Option<Base>) {
        let asking = meeting.asking(Stake { generation: take_over.generation, nonce: take_over.nonce });
        let proves = |secret: &Secret| meeting.is_proved(secret, take_over);
        let is_present = take_over.generation == self.peer_generation && meeting.client == known;
        let is_again =
            |agreed: &Agreed| is_present && agreed.exchange.asking == asking && proves(&agreed.before);
        if self.agreed.as_ref().is_some_and(is_again) {
            return (Verdict::Current, None);
        }
        if self.may_take_over(meeting, known, take_over) {
            let base = if proves(secret) { Some(Base::Present) } else { self.former_base(take_over, proves) };
            if base.is_some() {
                let is_new = take_over.generation > self.peer_generation;
                return (if is_new { Verdict::New } else { Verdict::Current }, base);
            }
        }
        (self.refusal(proves).verdict, None)
    }

    /// A secret of before by which the client may still speak, if it proves one.
    fn former_base(&self, take_over: &TakeOver, proves: impl Fn(&Secret) -> bool) -> Option<Base> {
        let claim = self.own.as_ref().and_then(|own| own.before.as_ref());
        if let Some(before) = claim.filter(|secret| proves(secret)) {
            return Some(Base::BeforeClaim(before.clone()));
        }
        let is_same = take_over.generation == self.peer_generation;
        let peers = self.peers.as_ref().filter(|peers| is_same && peers.nonce == take_over.nonce);
        if let Some(peers) = peers.filter(|peers| proves(&peers.before)) {
            return Some(Base::BeforePeers(peers.before.clone()));
        }
        let agreed = self.agreed.as_ref().and_then(Agreed::unheard).filter(|secret| proves(secret));
        agreed.cloned().map(Base::BeforeAgreed)
    }

    /// Whether the client is the copy that may come now, under a key that it may have.
    fn may_take_over(&self, meeting: &Meeting, known: EndpointId, take_over: &TakeOver) -> bool {
        let is_next = take_over.generation == self.peer_generation + 1;
        if meeting.client != known {
            return is_next
                && take_over.assignment.as_ref().is_some_and(|assignment| {
                    (assignment.from, assignment.to) == (known, meeting.client)
                        && self.is_of_present(assignment)
                        && assignment.is_of(meeting.connection, Side::Client)
                });
        }
        // The same client meets a server that has another key, or has not heard that it met one.
        let is_stranger = self.own_assignment().is_some()
            || self.agreed.as_ref().is_some_and(|agreed| agreed.unheard().is_some());
        is_stranger && (is_next || take_over.generation == self.peer_generation)
    }

    /// Server: judges a TAKE_OVER, and takes it. `random` is this side's half of the new secret.
    pub(crate) fn hear_take_over(
        &mut self,
        secret: &mut Secret,
        meeting: &Meeting,
        known: EndpointId,
        take_over: &TakeOver,
        random: [u8; 32],
    ) -> Verdict {
        let (verdict, Some(base)) = self.weigh(secret, meeting, known, take_over) else {
            return self.weigh_take_over(secret, meeting, known, take_over);
        };
        let (before, assignment) = match base {
            Base::BeforeAgreed(before) => {
                // What this end may claim since then is told later.
                (before, self.agreed.take().and_then(|agreed| agreed.assignment))
            }
            base => {
                let own = self.own.take();
                if own.as_ref().is_some_and(|own| own.before.is_none()) {
                    // The claim is told here for the first time.
                    self.own_generation += 1;
                }
                let before = match base {
                    Base::BeforeClaim(before) | Base::BeforePeers(before) => before,
                    Base::Present | Base::BeforeAgreed(_) => secret.clone(),
                };
                (before, own.and_then(|own| own.assignment))
            }
        };
        let asking = meeting.asking(Stake { generation: take_over.generation, nonce: take_over.nonce });
        let answer = Stake { generation: self.own_generation, nonce: random };
        let exchange = Exchange { asking, answer };
        let next = before.exchanged(meeting.connection, &exchange);
        let present = std::mem::replace(secret, next);
        if !present.is(&before) {
            self.retire(present);
        }
        self.retire(before.clone());
        self.peer_generation = take_over.generation;
        self.peers = None;
        self.words += 1;
        self.agreed = Some(Agreed { exchange, before, assignment, is_heard: false });
        verdict
    }

    /// Server: what TAKEN_OVER says on `path`.
    pub(crate) fn taken_over(&self, connection: ConnectionId, path: PathId) -> Option<TakenOver> {
        let agreed = self.agreed.as_ref()?;
        let Stake { generation, nonce } = agreed.exchange.answer;
        let proof = agreed.before.taken_over_proof(connection, path, &agreed.exchange);
        Some(TakenOver { generation, nonce, proof, lost: Vec::new(), assignment: agreed.assignment.clone() })
    }

    /// Server: the client is known to have the newest secret.
    pub(super) fn agreement_heard(&mut self) {
        if let Some(agreed) = &mut self.agreed {
            agreed.is_heard = true;
        }
    }

    /// Client: judges the answer of a server. `known` is the server's key until now.
    pub(crate) fn hear_taken_over(
        &mut self,
        secret: &mut Secret,
        meeting: &Meeting,
        known: EndpointId,
        taken_over: &TakenOver,
    ) -> Verdict {
        let answer = Stake { generation: taken_over.generation, nonce: taken_over.nonce };
        let proves = |secret: &Secret, exchange: &Exchange| {
            secret.proves_taken_over(meeting.connection, meeting.path, exchange, &taken_over.proof)
        };
        if let Some(agreed) = &self.agreed
            && agreed.exchange.answer == answer
            && agreed.exchange.asking.server == meeting.server
            && proves(&agreed.before, &agreed.exchange)
        {
            return Verdict::Current;
        }
        let Some(stake) = self.stake(meeting.server) else {
            return Verdict::Wrong;
        };
        let exchange = Exchange { asking: meeting.asking(stake), answer };
        let is_next = answer.generation == self.peer_generation + 1;
        let is_meant = if meeting.server == known {
            is_next || answer.generation == self.peer_generation
        } else {
            is_next
                && taken_over.assignment.as_ref().is_some_and(|assignment| {
                    (assignment.from, assignment.to) == (known, meeting.server)
                        && self.is_of_present(assignment)
                        && assignment.is_of(meeting.connection, Side::Server)
                })
        };
        if !is_meant || !proves(secret, &exchange) {
            return Verdict::Wrong;
        }
        let before = secret.clone();
        *secret = before.exchanged(meeting.connection, &exchange);
        (self.own, self.peers, self.expected) = (None, None, None);
        self.own_generation = stake.generation;
        self.peer_generation = answer.generation;
        self.agreed = Some(Agreed { exchange, before, assignment: None, is_heard: true });
        if is_next { Verdict::New } else { Verdict::Current }
    }

    /// Whether somebody who has another key by now may be told that it is superseded: it proves a secret of
    /// before.
    pub(crate) fn judge_former(&self, proves: impl Fn(&Secret) -> bool) -> Judgement {
        self.refusal(proves)
    }
}

impl Own {
    /// This end has another key, and nobody was told.
    pub(super) fn is_stranger(&self) -> bool {
        self.assignment.is_some()
    }
}
