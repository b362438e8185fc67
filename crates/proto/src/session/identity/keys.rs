//! Ends whose key changes: who may have the connection from then on, and what the other side is told.

use whimbrel_base::{EndpointId, SecretKey};

use super::Identity;
use crate::assignment::Assignment;
use crate::error::DecodeError;
use crate::frame::{Frame, Join, PathReport, Resume, TakeOver, TakenOver};
use crate::ids::{PathId, Side};
use crate::secret::Secret;
use crate::session::tenure::{Meeting, Verdict};
use crate::varint::Reader;

/// Keys that a peer had before, which are told that they are superseded.
const MAX_FORMER: usize = 8;

pub(super) fn read_count(reader: &mut Reader<'_>) -> Result<u64, DecodeError> {
    match reader.varint()? {
        count if count > MAX_FORMER as u64 => Err(DecodeError::TooLarge("former keys")),
        count => Ok(count),
    }
}

/// What somebody says who is not the peer any more.
pub(crate) enum Claimed<'a> {
    Join(&'a Join),
    Resume(&'a Resume),
    TakeOver(&'a TakeOver),
}

impl Identity {
    /// Both sides have said that they know of ends that go over to another key.
    pub(crate) fn both_hand_over(&self) -> bool {
        let knows = self.peer_params.as_ref().is_some_and(|p| p.hand_over);
        self.params.hand_over && knows && self.both_suspend()
    }

    /// The peer knows this copy of this end, and what a hand-over is.
    pub(crate) fn may_assign(&self) -> bool {
        // A client that has no answer yet can only open the connection, and not at another key.
        let is_known = self.side == Side::Client || self.confirmed;
        self.both_hand_over() && is_known && !self.tenure.is_unheard()
    }

    /// Signs that this end goes to another key. `None` while that would mean nothing to the peer, or if `key`
    /// is not this end's.
    pub(crate) fn assign(&self, key: &SecretKey, to: EndpointId) -> Option<Assignment> {
        let is_other = key.id() == self.local && to != self.local && to != self.peer;
        (self.may_assign() && is_other)
            .then(|| Assignment::sign(key, self.id, self.side, to, self.tenure.generation()))
    }

    /// This end was read back under another key, by the word of the one before. False if it is no such word.
    pub(crate) fn claim_assigned(&mut self, assignment: Assignment, nonce: [u8; 32]) -> bool {
        let is_of_this = assignment.from == self.local
            && assignment.to != self.peer
            && assignment.generation == self.tenure.generation()
            && assignment.is_of(self.id, self.side);
        if !is_of_this || !self.may_assign() {
            return false;
        }
        self.local = assignment.to;
        self.tenure.claim_assigned(assignment, nonce);
        true
    }

    /// Client: the word of the server's owner that its end goes to another key is authentic, and of the copy
    /// that has the connection.
    pub(crate) fn is_authentic(&self, assignment: &Assignment) -> bool {
        self.both_hand_over()
            && assignment.from == self.peer
            && assignment.to != self.local
            && self.tenure.is_of_present(assignment)
            && assignment.is_of(self.id, self.side.peer())
    }

    fn meeting(&self, path: PathId, client: EndpointId, server: EndpointId) -> Meeting {
        Meeting { connection: self.id, path, client, server }
    }

    /// Client: begins a path to `server` by a take-over, if one side has another key there.
    pub(crate) fn take_over(&self, path: PathId, server: EndpointId) -> Option<TakeOver> {
        let is_due = server != self.peer || self.tenure.own_assignment().is_some();
        let meeting = self.meeting(path, self.local, server);
        self.secret.as_ref().filter(|_| is_due).and_then(|secret| self.tenure.take_over(secret, &meeting))
    }

    /// Server: what to think of a TAKE_OVER of `client`, as TLS says. Nothing is done about it.
    pub(crate) fn weigh_take_over(&self, client: EndpointId, take_over: &TakeOver) -> Verdict {
        let meeting = self.meeting(take_over.path, client, self.local);
        match &self.secret {
            Some(secret) if take_over.connection == self.id && self.both_hand_over() => {
                self.tenure.weigh_take_over(secret, &meeting, self.peer, take_over)
            }
            _ => Verdict::Wrong,
        }
    }

    /// Server: takes a TAKE_OVER. If the client's key is another one from now on, tells the one before.
    pub(crate) fn hear_take_over(
        &mut self,
        client: EndpointId,
        take_over: &TakeOver,
        random: [u8; 32],
    ) -> (Verdict, Option<EndpointId>) {
        let meeting = self.meeting(take_over.path, client, self.local);
        let known = self.both_hand_over() && take_over.connection == self.id;
        let Some(secret) = self.secret.as_mut().filter(|_| known) else {
            return (Verdict::Wrong, None);
        };
        let verdict = self.tenure.hear_take_over(secret, &meeting, self.peer, take_over, random);
        let is_taken = matches!(verdict, Verdict::New | Verdict::Current);
        (verdict, if is_taken { self.pin(client) } else { None })
    }

    /// Client: judges the answer of `server`. If that is another key than before, tells the one before.
    pub(crate) fn hear_taken_over(
        &mut self,
        path: PathId,
        server: EndpointId,
        taken_over: &TakenOver,
    ) -> (Verdict, Option<EndpointId>) {
        let meeting = self.meeting(path, self.local, server);
        let Some(secret) = self.secret.as_mut() else {
            return (Verdict::Wrong, None);
        };
        let verdict = self.tenure.hear_taken_over(secret, &meeting, self.peer, taken_over);
        let is_taken = matches!(verdict, Verdict::New | Verdict::Current);
        (verdict, if is_taken { self.pin(server) } else { None })
    }

    /// From now on the peer is known by this key.
    fn pin(&mut self, peer: EndpointId) -> Option<EndpointId> {
        if peer == self.peer {
            return None;
        }
        let before = std::mem::replace(&mut self.peer, peer);
        if self.former_peers.len() == MAX_FORMER {
            self.former_peers.pop_front();
        }
        self.former_peers.push_back(before);
        Some(before)
    }

    /// Server: the answer to TAKE_OVER.
    pub(crate) fn taken_over(&self, path: PathId, lost: Vec<PathReport>) -> Frame<'static> {
        match self.tenure.taken_over(self.id, path) {
            Some(taken_over) => Frame::TakenOver(TakenOver { lost, ..taken_over }),
            None => Frame::Joined { lost },
        }
    }

    /// Whether `former` has had this connection and lost it: it shows a secret of before.
    pub(crate) fn is_superseded(&self, former: EndpointId, claimed: &Claimed<'_>) -> bool {
        let proves = |secret: &Secret| match claimed {
            Claimed::Join(join) => secret.proves_join(self.id, join.path, &join.proof),
            Claimed::Resume(resume) => {
                secret.proves_claim(self.id, resume.path, &resume.claim(), &resume.proof)
            }
            Claimed::TakeOver(take_over) => {
                let meeting = self.meeting(take_over.path, former, self.local);
                meeting.is_proved(secret, take_over)
            }
        };
        self.former_peers.contains(&former) && self.tenure.judge_former(proves).verdict == Verdict::Superseded
    }
}
