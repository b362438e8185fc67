//! Which copy of each end has the connection.
//!
//! A session that was written down may be read back in several places. Each reading is a *claim* with a fresh
//! nonce and the next *generation* of its end; the peer takes the first claim of a generation, and no other.
//! From then on the secret is a new one, in which that nonce is mixed: a copy of before can prove nothing any
//! more, and is told that it was superseded. Nothing here is secret from the peer; that only the two ends
//! know the secret is what makes a claim one [mockets, "Transparent Mobility"].

mod exchange;
mod snapshot;

use std::collections::VecDeque;

use whimbrel_base::ConnectionId;

use self::exchange::{Agreed, Expected};
use crate::assignment::Assignment;
use crate::frame::{Resume, Resumed};
use crate::ids::{PathId, Side};
use crate::secret::{Claim, Secret};

pub(crate) use self::exchange::Meeting;

/// Secrets of copies that were superseded, by which they are told so.
const MAX_RETIRED: usize = 8;

/// So often in a row a client finds others where its server was before, which has not said that it leaves.
const MAX_STRAYS: u8 = 32;

/// What an end may think of a claim, or of a JOIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It comes from the copy that has the connection.
    Current,
    /// As [`Current`](Self::Current): the claim is new, and everything of the copy before it is over.
    New,
    /// It comes from a copy that no longer has the connection.
    Superseded,
    /// It proves nothing.
    Wrong,
}

/// What a server thinks of an asker, and whether its answer has to tell of the server's own claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Judgement {
    pub(crate) verdict: Verdict,
    pub(crate) tells_claim: bool,
}

impl Judgement {
    fn of(verdict: Verdict, tells_claim: bool) -> Self {
        Self { verdict, tells_claim }
    }
}

/// This end was read back.
#[derive(Debug, Clone)]
struct Own {
    nonce: [u8; 32],
    /// The secret before this claim, once the peer was told of it; a server answers by it those that have not
    /// heard of the claim. `None` until then.
    before: Option<Secret>,
    /// The peer is known to have heard of it.
    is_heard: bool,
    /// By which this end has another key than before.
    assignment: Option<Assignment>,
}

/// The peer was read back.
#[derive(Debug, Clone)]
struct Peers {
    nonce: [u8; 32],
    /// The secret before that claim, for the claim said again.
    before: Secret,
}

/// How often each end was read back, and what its present copy is known by.
#[derive(Debug, Default)]
pub(crate) struct Tenure {
    own_generation: u64,
    peer_generation: u64,
    own: Option<Own>,
    peers: Option<Peers>,
    retired: VecDeque<Secret>,
    /// The peer said that it would leave, and has not come back.
    is_peer_away: bool,
    leaving: Leaving,
    /// How often in a row others answered for the server.
    strays: u8,
    expected: Option<Expected>,
    agreed: Option<Agreed>,
    /// Server: how often an answer had something new to tell: a claim of this end, or a take-over.
    words: u64,
}

/// Telling the peer that this end leaves.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    #[default]
    No,
    /// SUSPEND waits for a segment, or for its acknowledgement.
    Waits,
    Sent,
    /// The peer knows.
    Told,
}

impl Tenure {
    /// This end was read back and claims the connection, unless a claim of before may not have been heard:
    /// then that one goes on, because the peer may know either secret.
    pub(crate) fn claim(&mut self, nonce: [u8; 32]) {
        self.leaving = Leaving::No;
        if !self.is_claiming() {
            self.own = Some(Own { nonce, before: None, is_heard: false, assignment: None });
        }
    }

    /// The claim of this end has not reached the peer, as far as is known.
    pub(crate) fn is_claiming(&self) -> bool {
        self.own.as_ref().is_some_and(|own| !own.is_heard)
    }

    /// Server: what was told to the client last has not reached it, as far as is known.
    pub(crate) fn is_unheard(&self) -> bool {
        self.is_claiming() || self.agreed.as_ref().is_some_and(|agreed| agreed.unheard().is_some())
    }

    /// Server: the number of what answers tell of the present secret.
    pub(crate) fn word(&self) -> u64 {
        self.words
    }

    /// Server: an answer with this word was acknowledged. That of a path that was lost long ago says nothing
    /// of what was told since then: a client that goes over tells in its TAKE_OVER what it had on lost paths.
    pub(crate) fn word_heard(&mut self, word: u64) {
        if word == self.words {
            self.own_heard();
        }
    }

    /// Server: the client is known to have the present secret.
    fn own_heard(&mut self) {
        if let Some(own) = self.own.as_mut().filter(|own| own.before.is_some()) {
            own.is_heard = true;
        }
        self.agreement_heard();
    }

    /// Client: somebody at a place of the server does not know the connection. True if the server may be
    /// elsewhere all the same: it said that it would leave, goes to another key, or was read back before, and
    /// others answer where it was. But not for ever: it may have lost its state.
    pub(crate) fn may_be_elsewhere(&mut self) -> bool {
        self.strays = self.strays.saturating_add(1);
        let has_moved = self.peer_generation > 0 || self.expected.is_some();
        self.is_peer_away || (has_moved && self.strays <= MAX_STRAYS)
    }

    /// Client: the server has answered on a path.
    pub(crate) fn peer_answered(&mut self) {
        self.strays = 0;
    }

    pub(crate) fn is_peer_away(&self) -> bool {
        self.is_peer_away
    }

    /// The peer says that it leaves. True if that is news: of the copy that has the connection, and not said
    /// before.
    pub(crate) fn peer_leaves(&mut self, generation: u64) -> bool {
        let news = generation == self.peer_generation && !self.is_peer_away;
        self.is_peer_away |= news;
        news
    }

    /// The peer's present copy is there. True if it was away.
    pub(crate) fn peer_is_back(&mut self) -> bool {
        std::mem::take(&mut self.is_peer_away)
    }

    /// Client: the copy of the server that has the connection, once it was read back.
    pub(crate) fn peers_copy(&self) -> Option<(u64, [u8; 32])> {
        self.peers.as_ref().map(|peers| (self.peer_generation, peers.nonce))
    }

    /// Server: the client went on with the copy of this end that has this generation and nonce: whether that
    /// is another one.
    pub(crate) fn is_superseded_by(&self, generation: u64, nonce: &[u8; 32]) -> bool {
        let Some(own) = &self.own else { return generation > self.own_generation };
        let claimed = self.own_generation + u64::from(own.before.is_none());
        generation > claimed || (generation == claimed && !own.is_heard && own.nonce != *nonce)
    }

    /// Server: the secret before a claim that the client has not heard of, as far as is known.
    pub(crate) fn secret_before(&self) -> Option<&Secret> {
        self.own.as_ref().filter(|own| !own.is_heard)?.before.as_ref()
    }

    /// There is no claim of this end, and no word to the peer, that [`write_down`](Self::write_down) leaves
    /// out.
    pub(crate) fn may_rest(&self) -> bool {
        self.own.is_none() && self.leaving == Leaving::No
    }

    /// Tells the peer that this end leaves.
    pub(crate) fn leave(&mut self) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Waits;
        }
    }

    /// SUSPEND has to be said; it names the generation that leaves.
    pub(crate) fn take_leave(&mut self) -> Option<u64> {
        let waits = self.leaving == Leaving::Waits;
        if waits {
            self.leaving = Leaving::Sent;
        }
        waits.then_some(self.own_generation)
    }

    pub(crate) fn waits(&self) -> bool {
        self.leaving == Leaving::Waits
    }

    /// SUSPEND was lost with its path.
    pub(crate) fn mark(&mut self) {
        if self.leaving == Leaving::Sent {
            self.leaving = Leaving::Waits;
        }
    }

    /// SUSPEND was acknowledged.
    pub(crate) fn leave_heard(&mut self) {
        if self.leaving != Leaving::No {
            self.leaving = Leaving::Told;
        }
    }

    pub(crate) fn is_leave_heard(&self) -> bool {
        self.leaving == Leaving::Told
    }

    fn own_claim(&self, side: Side, nonce: [u8; 32]) -> Claim {
        Claim { side, generation: self.own_generation + 1, nonce }
    }

    /// Client: what RESUME says, while this end claims the connection.
    pub(crate) fn resume(&self, secret: &Secret, connection: ConnectionId, path: PathId) -> Option<Resume> {
        let own = self.own.as_ref().filter(|own| own.before.is_none())?;
        let claim = self.own_claim(Side::Client, own.nonce);
        let proof = secret.claim_proof(connection, path, &claim);
        let (generation, nonce, lost) = (claim.generation, claim.nonce, Vec::new());
        Some(Resume { connection, path, generation, nonce, proof, lost })
    }

    /// Client: the server has taken the claim of this end, if there is one.
    pub(crate) fn claim_heard(&mut self, secret: &mut Secret) {
        if let Some(own) = self.own.take_if(|own| own.before.is_none()) {
            let claim = self.own_claim(Side::Client, own.nonce);
            *secret = secret.claimed(&claim);
            self.own_generation = claim.generation;
        }
    }

    /// Server: judges the claim of a client.
    pub(crate) fn hear_resume(&mut self, secret: &mut Secret, resume: &Resume) -> Judgement {
        let claim = resume.claim();
        let proves =
            |secret: &Secret| secret.proves_claim(resume.connection, resume.path, &claim, &resume.proof);
        if self.own.as_ref().is_some_and(Own::is_stranger) {
            return self.refusal(proves);
        }
        if claim.generation == self.peer_generation + 1 {
            // One that has not heard of this end's own claim proves the secret of before that.
            let unheard =
                self.own.as_ref().and_then(|own| own.before.clone()).filter(|before| proves(before));
            if let Some(before) = unheard {
                self.retire(secret.clone());
                self.accept(&before, &claim);
                self.mix_own(secret, before.claimed(&claim));
                return Judgement::of(Verdict::New, true);
            }
            if proves(secret) {
                let before = secret.clone();
                self.accept(&before, &claim);
                *secret = before.claimed(&claim);
                self.own = self.own.take().filter(|own| own.before.is_none());
                self.agreement_heard();
                return Judgement::of(Verdict::New, self.tell_claim(secret));
            }
        }
        let is_again =
            self.peers.as_ref().is_some_and(|peers| peers.nonce == claim.nonce && proves(&peers.before));
        if claim.generation == self.peer_generation && is_again {
            return Judgement::of(Verdict::Current, self.own.is_some());
        }
        self.refusal(proves)
    }

    /// Server: judges a JOIN by what proves it.
    pub(crate) fn hear_join(&mut self, secret: &mut Secret, proves: impl Fn(&Secret) -> bool) -> Judgement {
        if self.own.as_ref().is_some_and(Own::is_stranger) {
            return self.refusal(proves);
        }
        if proves(secret) {
            self.own_heard();
            return Judgement::of(Verdict::Current, self.tell_claim(secret));
        }
        let before = self.own.as_ref().and_then(|own| own.before.as_ref());
        if before.is_some_and(&proves) {
            return Judgement::of(Verdict::Current, true);
        }
        self.refusal(proves)
    }

    fn refusal(&self, proves: impl Fn(&Secret) -> bool) -> Judgement {
        let is_superseded = self.retired.iter().any(proves);
        Judgement::of(if is_superseded { Verdict::Superseded } else { Verdict::Wrong }, false)
    }

    /// Server: what RESUMED says in the answer to a JOIN or RESUME that has not heard of this end's claim.
    pub(crate) fn resumed(&self, connection: ConnectionId, path: PathId) -> Option<Resumed> {
        let own = self.own.as_ref()?;
        let before = own.before.as_ref()?;
        let claim = Claim { side: Side::Server, generation: self.own_generation, nonce: own.nonce };
        let proof = before.claim_proof(connection, path, &claim);
        Some(Resumed { generation: claim.generation, nonce: claim.nonce, proof, lost: Vec::new() })
    }

    /// Client: judges the claim of a server in its answer on `path`.
    pub(crate) fn hear_resumed(
        &mut self,
        secret: &mut Secret,
        connection: ConnectionId,
        path: PathId,
        resumed: &Resumed,
    ) -> Verdict {
        // The answer shows that the server has taken our own claim.
        self.claim_heard(secret);
        let claim = Claim { side: Side::Server, generation: resumed.generation, nonce: resumed.nonce };
        let proves = |secret: &Secret| secret.proves_claim(connection, path, &claim, &resumed.proof);
        if claim.generation == self.peer_generation + 1 && proves(secret) {
            let before = secret.clone();
            self.accept(&before, &claim);
            *secret = before.claimed(&claim);
            return Verdict::New;
        }
        match &self.peers {
            Some(peers)
                if claim.generation == self.peer_generation
                    && peers.nonce == claim.nonce
                    && proves(&peers.before) =>
            {
                Verdict::Current
            }
            Some(peers) if proves(&peers.before) => Verdict::Superseded,
            _ => Verdict::Wrong,
        }
    }

    /// Server: the first that comes to a copy that claims the connection is told of the claim. True if it is.
    fn tell_claim(&mut self, secret: &mut Secret) -> bool {
        let is_untold = self.own.as_ref().is_some_and(|own| own.before.is_none());
        if is_untold {
            self.own_generation += 1;
            self.mix_own(secret, secret.clone());
        }
        is_untold
    }

    fn mix_own(&mut self, secret: &mut Secret, before: Secret) {
        let generation = self.own_generation;
        self.words += 1;
        if let Some(own) = &mut self.own {
            *secret = before.claimed(&Claim { side: Side::Server, generation, nonce: own.nonce });
            own.before = Some(before);
        }
    }

    fn accept(&mut self, before: &Secret, claim: &Claim) {
        self.retire(before.clone());
        self.peers = Some(Peers { nonce: claim.nonce, before: before.clone() });
        self.peer_generation = claim.generation;
    }

    fn retire(&mut self, secret: Secret) {
        if self.retired.len() == MAX_RETIRED {
            self.retired.pop_front();
        }
        self.retired.push_back(secret);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::varint::Reader;

    fn id() -> ConnectionId {
        ConnectionId::from_bytes(&[3; 16])
    }

    /// One copy of an end.
    struct Copy {
        tenure: Tenure,
        secret: Secret,
    }

    impl Copy {
        fn new() -> Self {
            Self { tenure: Tenure::default(), secret: Secret::read_back(&mut Reader::new(&[7; 32])).unwrap() }
        }

        /// Written down and read back, with another nonce.
        fn read_back(&self, nonce: u8) -> Self {
            let mut bytes = Vec::new();
            self.tenure.write_down(&mut bytes);
            self.secret.write_down(&mut bytes);
            let mut reader = Reader::new(&bytes);
            let mut tenure = Tenure::read_back(&mut reader).unwrap();
            tenure.claim([nonce; 32]);
            Self { tenure, secret: Secret::read_back(&mut reader).unwrap() }
        }

        /// This client dials that server, and hears its answer unless it is lost. Returns both verdicts.
        fn dial(&mut self, server: &mut Self, path: u64, lost: bool) -> (Verdict, Option<Verdict>) {
            let path = PathId(path);
            let resume = self.tenure.resume(&self.secret, id(), path);
            let proof = self.secret.join_proof(id(), path);
            let Judgement { verdict, tells_claim } = match &resume {
                Some(resume) => server.tenure.hear_resume(&mut server.secret, resume),
                None => server
                    .tenure
                    .hear_join(&mut server.secret, |secret| secret.proves_join(id(), path, &proof)),
            };
            if lost || matches!(verdict, Verdict::Superseded | Verdict::Wrong) {
                return (verdict, None);
            }
            let answer = server.tenure.resumed(id(), path).filter(|_| tells_claim);
            let heard = match answer {
                Some(resumed) => self.tenure.hear_resumed(&mut self.secret, id(), path, &resumed),
                None => {
                    self.tenure.claim_heard(&mut self.secret);
                    Verdict::Current
                }
            };
            (verdict, Some(heard))
        }
    }

    use Verdict::{Current, New, Superseded, Wrong};

    #[test]
    fn the_first_of_two_copies_wins_its_retry_passes_and_the_other_is_told() {
        let (client, mut server) = (Copy::new(), Copy::new());
        let (mut first, mut second) = (client.read_back(1), client.read_back(2));
        assert_eq!(first.dial(&mut server, 1, true), (New, None), "the answer was lost");
        assert_eq!(second.dial(&mut server, 1, false), (Superseded, None));
        assert_eq!(first.dial(&mut server, 2, false), (Current, Some(Current)));
        assert_eq!(first.dial(&mut server, 3, false), (Current, Some(Current)), "JOIN under the new secret");
        let mut old = client;
        assert_eq!(old.dial(&mut server, 9, false), (Superseded, None), "the one that was written down");
        assert_eq!(second.dial(&mut server, 9, false), (Superseded, None));
    }

    #[test]
    fn a_server_that_was_read_back_tells_so_and_the_copy_before_proves_nothing() {
        let (mut client, server) = (Copy::new(), Copy::new());
        let mut copy = server.read_back(5);
        assert_eq!(client.dial(&mut copy, 1, true), (Current, None));
        assert_eq!(client.dial(&mut copy, 2, false), (Current, Some(New)));
        assert_eq!(client.dial(&mut copy, 3, false), (Current, Some(Current)));
        let mut old = server;
        assert_eq!(client.dial(&mut old, 4, false), (Wrong, None));
    }

    #[test]
    fn of_two_copies_of_a_server_the_one_that_was_not_heard_is_superseded() {
        for asked in [false, true] {
            let (mut client, server) = (Copy::new(), Copy::new());
            let (mut first, mut second) = (server.read_back(5), server.read_back(6));
            if asked {
                // Its answer was lost.
                assert_eq!(client.dial(&mut second, 1, true), (Current, None));
            }
            assert_eq!(client.tenure.peers_copy(), None);
            assert_eq!(client.dial(&mut first, 2, false), (Current, Some(New)));
            let (generation, nonce) = client.tenure.peers_copy().unwrap();
            assert!(second.tenure.is_superseded_by(generation, &nonce));
            assert_eq!(second.tenure.secret_before().is_some(), asked);
            assert!(!first.tenure.is_superseded_by(generation, &nonce), "it is that one");
            first.tenure.own_heard();
            assert!(!first.tenure.is_superseded_by(generation, &[7; 32]), "the client has decided");
            assert!(server.tenure.is_superseded_by(generation, &nonce), "the one that was written down");
        }
    }

    #[test]
    fn both_ends_may_be_read_back_at_once_whatever_answers_are_lost() {
        for losses in 0..8u32 {
            let (client, server) = (Copy::new(), Copy::new());
            let (mut client, mut server) = (client.read_back(1), server.read_back(2));
            for attempt in 0..3 {
                client.dial(&mut server, attempt, losses >> attempt & 1 == 1);
            }
            assert_eq!(client.dial(&mut server, 9, false).0, Current, "losses {losses:b}");
            assert_eq!(client.secret.join_proof(id(), PathId(7)), server.secret.join_proof(id(), PathId(7)));
            // And again, from what was just agreed.
            let mut client = client.read_back(3);
            assert_eq!(client.dial(&mut server, 10, false), (New, Some(Current)));
        }
    }

    #[test]
    fn a_client_that_never_heard_of_the_servers_claim_may_be_read_back_too() {
        let (mut client, server) = (Copy::new(), Copy::new());
        let mut server = server.read_back(2);
        assert_eq!(client.dial(&mut server, 1, true), (Current, None));
        let mut client = client.read_back(3);
        assert_eq!(client.dial(&mut server, 2, true), (New, None));
        assert_eq!(client.dial(&mut server, 3, false).0, Current);
        assert_eq!(client.secret.join_proof(id(), PathId(7)), server.secret.join_proof(id(), PathId(7)));
    }

    #[test]
    fn a_server_that_is_read_back_again_before_its_claim_was_heard_goes_on_with_it() {
        for heard in [false, true] {
            let (mut client, server) = (Copy::new(), Copy::new());
            let mut server = server.read_back(1);
            assert_eq!(client.dial(&mut server, 1, !heard).0, Current);
            assert!(server.tenure.is_claiming());
            let mut server = server.read_back(2);
            assert_eq!(client.dial(&mut server, 2, false).1, Some(if heard { Current } else { New }));
            server.tenure.own_heard();
            assert!(!server.tenure.is_claiming());
            let mut server = server.read_back(3);
            assert_eq!(client.dial(&mut server, 3, false), (Current, Some(New)));
        }
    }

    #[test]
    fn a_server_that_was_read_back_once_is_not_looked_for_for_ever() {
        let mut client = Copy::new();
        let mut server = client.read_back(1);
        assert!(!client.tenure.may_be_elsewhere());
        assert_eq!(client.dial(&mut server, 1, false).1, Some(New));
        client.tenure.peer_answered();
        (0..MAX_STRAYS).for_each(|_| assert!(client.tenure.may_be_elsewhere()));
        assert!(!client.tenure.may_be_elsewhere(), "it has lost its state");
        client.tenure.peer_answered();
        assert!(client.tenure.may_be_elsewhere());
    }

    #[test]
    fn leaving_is_said_until_it_was_heard() {
        let mut tenure = Tenure::default();
        tenure.leave();
        assert_eq!(tenure.take_leave(), Some(0));
        assert_eq!(tenure.take_leave(), None);
        tenure.mark();
        assert_eq!(tenure.take_leave(), Some(0));
        tenure.leave_heard();
        tenure.mark();
        assert!(tenure.is_leave_heard() && !tenure.waits());
        let mut peer = Tenure::default();
        assert!(!peer.may_be_elsewhere());
        assert!(peer.peer_leaves(0) && !peer.peer_leaves(0) && peer.may_be_elsewhere());
        assert!(peer.peer_is_back() && !peer.peer_leaves(7), "another copy's word");
    }
}
