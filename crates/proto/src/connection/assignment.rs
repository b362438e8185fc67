//! Ends that go over to another key, at rest and live.

use std::net::SocketAddr;
use std::time::Instant;

use whimbrel_base::{EndpointId, SecretKey};

use super::{Connection, JoinError};
use crate::assignment::Assignment;
use crate::config::Config;
use crate::content::Content;
use crate::draft::Draft;
use crate::error::{CloseCode, DecodeError, ProtocolError};
use crate::event::{Event, PathEnd};
use crate::first_flight::FirstFlight;
use crate::frame::{Frame, TakeOver, TakenOver};
use crate::ids::{PathId, Side};
use crate::path::First;
use crate::session::identity::Claimed;
use crate::session::tenure::Verdict;

/// ASSIGN with 16 addresses.
const ASSIGN_FRAME: usize = 4 + 2 * 32 + 8 + 64 + 16 * 20;

impl Connection {
    /// Signs, as this end's owner, that the end goes to another key. `None` while the peer would not know
    /// what that means: it is of an older version, has not accepted the connection, or may not know the
    /// present copy of this end; and if `key` is not this end's, or `to` is one of the two ends.
    #[must_use]
    pub fn assign(&self, key: &SecretKey, to: EndpointId) -> Option<Assignment> {
        self.session.identity.assign(key, to)
    }

    /// Whether the end may be [assigned](Self::assign) to somebody now: the peer knows of this copy of it.
    #[must_use]
    pub fn may_assign(&self) -> bool {
        self.session.identity.may_assign()
    }

    /// Whether the peer knows what a hand-over to another key is.
    #[must_use]
    pub fn can_hand_over(&self) -> bool {
        self.session.identity.both_hand_over()
    }

    /// Server: tells the client who will have this end, and where that is, if it is known.
    /// [`Event::AssignHeard`] says that it knows. A client need not say so, since it dials itself.
    pub fn announce_owner(&mut self, assignment: Assignment, addresses: Vec<SocketAddr>) {
        if self.side() == Side::Server && self.can_hand_over() {
            self.session.announced.state(assignment, addresses);
        }
    }

    /// As [`restore`](Self::restore), under another key, to which the one before has handed this end over.
    ///
    /// # Errors
    /// As [`restore`](Self::restore), and if the assignment is not of this end, or not by its owner.
    pub fn restore_assigned(
        config: Config,
        bytes: &[u8],
        assignment: Assignment,
        nonce: [u8; 32],
        now: Instant,
    ) -> Result<Self, DecodeError> {
        Self::read_back(config, bytes, now, |identity| identity.claim_assigned(assignment, nonce))
    }

    /// By which this end has its key, as long as the peer may not know.
    #[must_use]
    pub fn own_assignment(&self) -> Option<&Assignment> {
        self.session.identity.tenure.unheard_assignment()
    }

    /// This end was read back under another key, and the peer has not taken that yet.
    #[must_use]
    pub fn is_untaken(&self) -> bool {
        self.session.identity.tenure.own_assignment().is_some()
    }

    /// Client: whether the server's owner has signed this, of the copy that has the connection.
    #[must_use]
    pub fn is_authentic(&self, assignment: &Assignment) -> bool {
        self.side() == Side::Client && self.session.identity.is_authentic(assignment)
    }

    /// Client: the server may have this key by now, which it will have to show. `nonce` must be fresh,
    /// unpredictable bytes. Paths may be opened [to either](Self::open_path_to).
    pub fn expect_peer(&mut self, id: EndpointId, nonce: [u8; 32]) {
        if self.side() == Side::Client && id != self.peer() && self.can_hand_over() {
            self.session.identity.tenure.expect(id, nonce);
        }
    }

    /// Client: the key that the server may have by now, if it may have another one.
    #[must_use]
    pub fn expected_peer(&self) -> Option<EndpointId> {
        self.session.identity.tenure.expected()
    }

    /// Server: whether a TAKE_OVER of `client`, as TLS says, is good. `Ok(true)`: the client would have this
    /// key for the first time, and must be as welcome as one that opens a connection. Nothing has happened
    /// yet.
    ///
    /// # Errors
    /// As [`take_over`](Self::take_over).
    pub fn weigh_take_over(&self, client: EndpointId, take_over: &TakeOver) -> Result<bool, JoinError> {
        self.check_not_held()?;
        match self.session.identity.weigh_take_over(client, take_over) {
            Verdict::Current | Verdict::New => Ok(client != self.peer()),
            Verdict::Superseded => Err(JoinError::Superseded),
            Verdict::Wrong => Err(JoinError::BadProof),
        }
    }

    /// Server: lets in the path of a client whose key, or for whom this side's key, is another than before.
    /// `random` must be fresh, unpredictable bytes. Hand the path's whole first segment to
    /// [`handle_segment`](Self::handle_segment) next.
    ///
    /// # Errors
    /// [`JoinError`] if the proof, the assignment or the path id is wrong, or another copy was quicker.
    pub fn take_over(
        &mut self,
        now: Instant,
        client: EndpointId,
        take_over: &TakeOver,
        random: [u8; 32],
    ) -> Result<(), JoinError> {
        self.weigh_take_over(client, take_over)?;
        // Nothing may be agreed on over a path that cannot be.
        self.check_path_id(take_over.path)?;
        if self.is_over() {
            return Err(JoinError::Closed);
        }
        let (verdict, before) = self.session.identity.hear_take_over(client, take_over, random);
        self.note_new_key(before);
        self.let_in(now, verdict, take_over.path, First::TakenOver, &take_over.lost)
    }

    /// Why a first flight is refused whose TLS peer is not the connection's: [`JoinError::Superseded`] for
    /// one that had the connection and handed it over, `None` for one that has nothing to do with it.
    #[must_use]
    pub fn turn_away(&self, peer: EndpointId, first: &FirstFlight) -> Option<JoinError> {
        let claimed = match first {
            FirstFlight::Open(_) => return None,
            FirstFlight::Join(join) => Claimed::Join(join),
            FirstFlight::Resume(resume) => Claimed::Resume(resume),
            FirstFlight::TakeOver(take_over) => Claimed::TakeOver(take_over),
        };
        self.session.identity.is_superseded(peer, &claimed).then_some(JoinError::Superseded)
    }

    /// Gives all paths up and writes the connection down for another owner, but does not end it: nothing is
    /// read, written or joined from now on until it is [released](Self::release), because the other owner
    /// will have said that it cannot go on, or [let go](Self::let_go). `None` if there is nothing to write
    /// down.
    pub fn hold(&mut self, now: Instant) -> Option<Vec<u8>> {
        self.detach(now);
        let snapshot = self.snapshot()?;
        self.held = true;
        Some(snapshot)
    }

    /// Another owner may be going on with this end.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.held
    }

    /// The other owner does not go on: this one does. It claims the connection anew with `nonce`, which must
    /// be fresh, unpredictable bytes: whatever was written down or assigned before is void once the peer has
    /// heard.
    pub fn release(&mut self, nonce: [u8; 32]) {
        if std::mem::take(&mut self.held) {
            self.session.identity.claim(nonce);
            self.session.announced.heard();
        }
    }

    /// Server: the client may not know who will have this end.
    #[must_use]
    pub fn is_announcing(&self) -> bool {
        self.session.announced.is_under_way()
    }

    /// The other owner goes on: the connection ends here, with [`CloseCode::HANDED_OVER`], and what was not
    /// delivered or read is no matter of this end any more.
    pub fn let_go(&mut self) {
        self.give_up(CloseCode::HANDED_OVER, "");
        self.session.let_go();
    }

    pub(super) fn check_not_held(&self) -> Result<(), JoinError> {
        if self.held { Err(JoinError::Held) } else { Ok(()) }
    }

    pub(super) fn put_assignment(&mut self, draft: &mut Draft<'_>) {
        if draft.room() >= ASSIGN_FRAME
            && let Some((assignment, addresses)) = self.session.announced.take()
        {
            draft.put(&Frame::Assign { assignment, addresses }, Some(Content::Assign));
        }
    }

    pub(super) fn assignment_heard(
        &mut self,
        assignment: &Assignment,
        addresses: Vec<SocketAddr>,
    ) -> Result<(), ProtocolError> {
        if self.side() == Side::Server || !self.can_hand_over() {
            return Err(ProtocolError::Unexpected("ASSIGN"));
        }
        // One that is late is of a copy of before.
        if self.is_authentic(assignment) {
            self.events.push(Event::PeerAssigned { to: assignment.to, addresses });
        }
        Ok(())
    }

    pub(super) fn announcement_heard(&mut self) {
        self.session.announced.heard();
        self.events.push(Event::AssignHeard);
    }

    /// Client: the answer to a path that was begun by TAKE_OVER.
    pub(super) fn taken_over_heard(
        &mut self,
        now: Instant,
        path: PathId,
        taken_over: &TakenOver,
    ) -> Result<(), ProtocolError> {
        let Some(server) = self.paths.get(path).and_then(|path| path.beginning.meets()) else {
            return Err(ProtocolError::Unexpected("TAKEN_OVER"));
        };
        let (verdict, before) = self.session.identity.hear_taken_over(path, server, taken_over);
        match verdict {
            Verdict::Current if before.is_none() => {}
            Verdict::Current | Verdict::New => self.lose_all_but(now, path),
            // Another copy of the server has the connection, whatever this one says.
            Verdict::Superseded | Verdict::Wrong => {
                self.lose_path(now, path, PathEnd::Refused);
                return Ok(());
            }
        }
        self.note_new_key(before);
        self.note_peer_back();
        self.path_answered(now, path, &taken_over.lost)?;
        self.joined += 1;
        Ok(())
    }

    fn note_new_key(&mut self, before: Option<EndpointId>) {
        if let Some(from) = before {
            self.events.push(Event::PeerHandedOver { from, to: self.peer() });
        }
    }
}
