//! Who the two ends of a connection are, what they stated about themselves, and the secret that they share.

mod keys;

pub(crate) use self::keys::Claimed;

use std::collections::VecDeque;
use std::time::Duration;

use whimbrel_base::{ConnectionId, EndpointId};

use super::tenure::{Judgement, Tenure, Verdict};
use crate::error::DecodeError;
use crate::frame::{Frame, Join, Open, PathReport, Resume, Resumed};
use crate::ids::{PathId, Side};
use crate::notice::NoticeKey;
use crate::params::Params;
use crate::secret::Secret;
use crate::snapshot;
use crate::varint::Reader;

/// A connection's two ends, as this one knows them.
#[derive(Debug)]
pub(crate) struct Identity {
    side: Side,
    id: ConnectionId,
    local: EndpointId,
    peer: EndpointId,
    params: Params,
    random: [u8; 32],
    /// What the peer stated; `None` until ACCEPT (client only).
    peer_params: Option<Params>,
    /// The peer's random: every OPEN, and every answer to one, has the same.
    peer_random: Option<[u8; 32]>,
    secret: Option<Secret>,
    /// Server: the client has shown that it knows the secret.
    confirmed: bool,
    /// Keys that the peer had before, the newest last.
    former_peers: VecDeque<EndpointId>,
    pub(crate) tenure: Tenure,
}

impl Identity {
    pub(crate) fn new(
        side: Side,
        id: ConnectionId,
        local: EndpointId,
        peer: EndpointId,
        params: Params,
        random: [u8; 32],
    ) -> Self {
        Self {
            side,
            id,
            local,
            peer,
            params,
            random,
            peer_params: None,
            peer_random: None,
            secret: None,
            confirmed: false,
            former_peers: VecDeque::new(),
            tenure: Tenure::default(),
        }
    }

    pub(crate) fn side(&self) -> Side {
        self.side
    }

    pub(crate) fn id(&self) -> ConnectionId {
        self.id
    }

    pub(crate) fn peer(&self) -> EndpointId {
        self.peer
    }

    /// What this side states about itself.
    pub(crate) fn params(&self) -> &Params {
        &self.params
    }

    /// What the peer states about itself, once that is known.
    pub(crate) fn peer_params(&self) -> Option<&Params> {
        self.peer_params.as_ref()
    }

    /// The name that the client asked for, on either side.
    pub(crate) fn target(&self) -> Option<&str> {
        match self.side {
            Side::Client => self.params.target.as_deref(),
            Side::Server => self.peer_params.as_ref()?.target.as_deref(),
        }
    }

    /// Both sides know each other's parameters.
    pub(crate) fn is_established(&self) -> bool {
        self.peer_params.is_some()
    }

    /// Takes the peer's random, with which the secret is known. False if the peer has said another one
    /// before.
    pub(crate) fn learn_random(&mut self, random: [u8; 32]) -> bool {
        if let Some(known) = self.peer_random {
            return known == random;
        }
        let (local, peer) = ((self.local, &self.random), (self.peer, &random));
        let (client, server) = match self.side {
            Side::Client => (local, peer),
            Side::Server => (peer, local),
        };
        self.secret = Some(Secret::derive(self.id, client.0, server.0, client.1, server.1));
        self.peer_random = Some(random);
        true
    }

    /// The peer's random is this one.
    pub(crate) fn is_peer_random(&self, random: &[u8; 32]) -> bool {
        self.peer_random.as_ref() == Some(random)
    }

    /// Takes what the peer states about itself.
    pub(crate) fn learn_params(&mut self, params: Params) {
        self.peer_params = Some(params);
    }

    /// Server: the client is known to have our answer to OPEN.
    pub(crate) fn is_confirmed(&self) -> bool {
        self.confirmed
    }

    pub(crate) fn confirm(&mut self) {
        self.confirmed = true;
    }

    /// Both sides have said that they know RETIRE.
    pub(crate) fn both_retire(&self) -> bool {
        self.params.retire && self.peer_params.as_ref().is_some_and(|p| p.retire)
    }

    /// Both sides have said that they know messages in datagrams.
    pub(crate) fn both_take_datagrams(&self) -> bool {
        self.params.takes_datagrams() && self.peer_params.as_ref().is_some_and(Params::takes_datagrams)
    }

    /// Both sides have said that they know reliable messages, and answers, in datagrams.
    pub(crate) fn both_take_reliable_datagrams(&self) -> bool {
        let peer = self.peer_params.as_ref();
        self.params.takes_reliable_datagrams() && peer.is_some_and(Params::takes_reliable_datagrams)
    }

    /// Both sides have said that they know datagrams with several messages.
    pub(crate) fn both_take_datagram_bundles(&self) -> bool {
        let peer = self.peer_params.as_ref();
        self.params.takes_datagram_bundles() && peer.is_some_and(Params::takes_datagram_bundles)
    }

    /// Both sides have said that they keep journals.
    pub(crate) fn both_keep_journals(&self) -> bool {
        self.params.keeps_journals() && self.peer_params.as_ref().is_some_and(Params::keeps_journals)
    }

    /// Both sides have said that they know CANDIDATES.
    pub(crate) fn both_punch(&self) -> bool {
        self.params.punch && self.peer_params.as_ref().is_some_and(|p| p.punch)
    }

    /// Both sides have said that they know OBSERVED.
    pub(crate) fn both_tell_what_they_observe(&self) -> bool {
        self.params.observed && self.peer_params.as_ref().is_some_and(|p| p.observed)
    }

    /// Both sides have said that they take part in searches for ports.
    pub(crate) fn both_search(&self) -> bool {
        let peer = self.peer_params.as_ref();
        self.params.takes_part_in_searches() && peer.is_some_and(Params::takes_part_in_searches)
    }

    /// How long the peer may hold an acknowledgement back.
    pub(crate) fn peer_ack_delay(&self) -> Duration {
        let params = self.peer_params.as_ref();
        params.map_or_else(|| Params::default().max_ack_delay, |p| p.max_ack_delay)
    }

    /// Makes and checks the connection's notices; `None` before ACCEPT.
    pub(crate) fn notice_key(&self) -> Option<NoticeKey> {
        self.secret.as_ref().map(Secret::notice_key)
    }

    /// Both sides have said that they know SUSPEND.
    pub(crate) fn both_suspend(&self) -> bool {
        self.params.suspend && self.peer_params.as_ref().is_some_and(|p| p.suspend)
    }

    /// Server: what to think of a JOIN.
    pub(crate) fn hear_join(&mut self, join: &Join) -> Judgement {
        let id = self.id;
        self.judge(join.connection, |tenure, secret| {
            tenure.hear_join(secret, |secret| secret.proves_join(id, join.path, &join.proof))
        })
    }

    /// Server: what to think of a RESUME.
    pub(crate) fn hear_resume(&mut self, resume: &Resume) -> Judgement {
        self.judge(resume.connection, |tenure, secret| tenure.hear_resume(secret, resume))
    }

    fn judge(
        &mut self,
        connection: ConnectionId,
        judge: impl FnOnce(&mut Tenure, &mut Secret) -> Judgement,
    ) -> Judgement {
        match &mut self.secret {
            Some(secret) if connection == self.id => judge(&mut self.tenure, secret),
            _ => Judgement { verdict: Verdict::Wrong, tells_claim: false },
        }
    }

    /// Client: what to think of the claim in an answer.
    pub(crate) fn hear_resumed(&mut self, path: PathId, resumed: &Resumed) -> Verdict {
        let (id, tenure) = (self.id, &mut self.tenure);
        self.secret.as_mut().map_or(Verdict::Wrong, |secret| tenure.hear_resumed(secret, id, path, resumed))
    }

    /// Client: the server has let this copy in.
    pub(crate) fn claim_heard(&mut self) {
        if let Some(secret) = &mut self.secret {
            self.tenure.claim_heard(secret);
        }
    }

    /// This end was read back: it claims the connection, if the peer knows what that is.
    pub(crate) fn claim(&mut self, nonce: [u8; 32]) {
        if self.both_suspend() {
            self.tenure.claim(nonce);
        }
    }

    /// Writes itself down.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::flag(out, self.side == Side::Server);
        out.extend_from_slice(self.id.as_bytes());
        out.extend_from_slice(self.local.as_bytes());
        out.extend_from_slice(self.peer.as_bytes());
        out.extend_from_slice(&self.random);
        write_params(out, Some(&self.params));
        write_params(out, self.peer_params.as_ref());
        snapshot::flag(out, self.peer_random.is_some());
        out.extend(self.peer_random.iter().flatten());
        self.secret.iter().for_each(|secret| secret.write_down(out));
        snapshot::flag(out, self.confirmed);
        snapshot::number(out, self.former_peers.len() as u64);
        self.former_peers.iter().for_each(|id| out.extend_from_slice(id.as_bytes()));
        self.tenure.write_down(out);
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let side = if snapshot::read_flag(reader)? { Side::Server } else { Side::Client };
        let id = ConnectionId::from_bytes(&reader.array()?);
        let local = EndpointId::from_bytes(&reader.array()?);
        let peer = EndpointId::from_bytes(&reader.array()?);
        let random = reader.array()?;
        let params = read_params(reader)?.ok_or(DecodeError::Invalid("parameters"))?;
        let mut this = Self::new(side, id, local, peer, params, random);
        this.peer_params = read_params(reader)?;
        if snapshot::read_flag(reader)? {
            this.learn_random(reader.array()?);
            this.secret = Some(Secret::read_back(reader)?);
        }
        if this.secret.is_none() || !this.is_established() {
            return Err(DecodeError::Invalid("a connection that is not established"));
        }
        this.confirmed = snapshot::read_flag(reader)?;
        for _ in 0..keys::read_count(reader)? {
            this.former_peers.push_back(EndpointId::from_bytes(&reader.array()?));
        }
        this.tenure = Tenure::read_back(reader)?;
        Ok(this)
    }

    pub(crate) fn open(&self, path: PathId, lost: Vec<PathReport>) -> Frame<'static> {
        let (connection, random, params) = (self.id, self.random, self.params.clone());
        Frame::Open(Open { connection, path, random, lost, params })
    }

    pub(crate) fn accept(&self, lost: Vec<PathReport>) -> Frame<'static> {
        Frame::Accept { random: self.random, lost, params: self.params.clone() }
    }

    /// The answer to a JOIN or RESUME, with this end's claim if that has to be told.
    pub(crate) fn joined(&self, path: PathId, tells_claim: bool, lost: Vec<PathReport>) -> Frame<'static> {
        match self.tenure.resumed(self.id, path).filter(|_| tells_claim) {
            Some(resumed) => Frame::Resumed(Resumed { lost, ..resumed }),
            None => Frame::Joined { lost },
        }
    }

    pub(crate) fn join(&self, path: PathId, lost: Vec<PathReport>) -> Frame<'static> {
        let Some(secret) = &self.secret else {
            unreachable!("a client joins once ACCEPT told it the secret");
        };
        if let Some(resume) = self.tenure.resume(secret, self.id, path) {
            return Frame::Resume(Resume { lost, ..resume });
        }
        let proof = secret.join_proof(self.id, path);
        Frame::Join(Join { connection: self.id, path, proof, lost })
    }
}

fn write_params(out: &mut Vec<u8>, params: Option<&Params>) {
    let mut encoded = Vec::new();
    params.iter().for_each(|params| params.encode(&mut encoded));
    snapshot::bytes(out, &encoded);
}

/// Parameters that were stated are never empty.
fn read_params(reader: &mut Reader<'_>) -> Result<Option<Params>, DecodeError> {
    let encoded = reader.prefixed()?;
    if encoded.is_empty() { Ok(None) } else { Params::decode(encoded).map(Some) }
}

#[cfg(test)]
mod tests {
    use whimbrel_base::SecretKey;

    use super::*;

    fn ends() -> (Identity, Identity) {
        let (a, b) = (SecretKey::from_bytes(&[1; 32]).id(), SecretKey::from_bytes(&[2; 32]).id());
        let id = ConnectionId::from_bytes(&[3; 16]);
        let params = Params::default();
        (
            Identity::new(Side::Client, id, a, b, params.clone(), [4; 32]),
            Identity::new(Side::Server, id, b, a, params, [5; 32]),
        )
    }

    #[test]
    fn both_ends_share_a_secret_once_each_knows_the_others_random() {
        let (mut client, mut server) = ends();
        assert!(server.learn_random([4; 32]) && client.learn_random([5; 32]));
        let join = |identity: &Identity, path| match identity.join(PathId(path), Vec::new()) {
            Frame::Join(join) => join,
            _ => unreachable!("it is a JOIN"),
        };
        assert_eq!(server.hear_join(&join(&client, 7)).verdict, Verdict::Current);
        let elsewhere = Join { path: PathId(8), ..join(&client, 7) };
        assert_eq!(server.hear_join(&elsewhere).verdict, Verdict::Wrong);
    }

    #[test]
    fn an_end_that_was_never_established_is_not_read_back() {
        let (mut client, _) = ends();
        let read = |client: &Identity| {
            let mut bytes = Vec::new();
            client.write_down(&mut bytes);
            Identity::read_back(&mut Reader::new(&bytes)).map(drop)
        };
        let wrong = Err(DecodeError::Invalid("a connection that is not established"));
        assert_eq!(read(&client), wrong);
        client.learn_params(Params::default());
        assert_eq!(read(&client), wrong, "it has no secret");
        client.learn_random([5; 32]);
        assert_eq!(read(&client), Ok(()));
    }

    #[test]
    fn a_second_answer_with_another_random_is_refused_and_changes_nothing() {
        let (mut client, _) = ends();
        assert!(client.learn_random([5; 32]));
        assert!(!client.learn_random([6; 32]) && client.learn_random([5; 32]));
        assert!(client.is_peer_random(&[5; 32]));
    }
}
