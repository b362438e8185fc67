//! Which copy of each end has the connection, written down.

use super::exchange::{Agreed, Expected, read_assignment, write_assignment};
use super::{MAX_RETIRED, Own, Peers, Tenure};
use crate::error::DecodeError;
use crate::secret::Secret;
use crate::snapshot;
use crate::varint::Reader;

impl Tenure {
    /// Writes itself down; of an own claim only what the peer may not have heard of.
    pub(crate) fn write_down(&self, out: &mut Vec<u8>) {
        snapshot::numbers(out, [self.own_generation, self.peer_generation]);
        let claiming = self.own.as_ref().filter(|own| !own.is_heard);
        snapshot::flag(out, claiming.is_some());
        if let Some(own) = claiming {
            out.extend_from_slice(&own.nonce);
            snapshot::flag(out, own.before.is_some());
            own.before.iter().for_each(|before| before.write_down(out));
            write_assignment(out, own.assignment.as_ref());
        }
        snapshot::flag(out, self.peers.is_some());
        if let Some(peers) = &self.peers {
            out.extend_from_slice(&peers.nonce);
            peers.before.write_down(out);
        }
        snapshot::number(out, self.retired.len() as u64);
        self.retired.iter().for_each(|secret| secret.write_down(out));
        snapshot::flag(out, self.is_peer_away);
        snapshot::flag(out, self.agreed.is_some());
        self.agreed.iter().for_each(|agreed| agreed.write_down(out));
        snapshot::flag(out, self.expected.is_some());
        self.expected.iter().for_each(|expected| expected.write_down(out));
    }

    pub(crate) fn read_back(reader: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let [own_generation] = snapshot::read_counts(reader)?;
        let [peer_generation] = snapshot::read_numbers(reader)?;
        let mut this = Self { own_generation, peer_generation, ..Self::default() };
        if snapshot::read_flag(reader)? {
            let nonce = reader.array()?;
            let before = snapshot::read_flag(reader)?.then(|| Secret::read_back(reader)).transpose()?;
            let assignment = read_assignment(reader)?;
            this.own = Some(Own { nonce, before, is_heard: false, assignment });
        }
        if snapshot::read_flag(reader)? {
            this.peers = Some(Peers { nonce: reader.array()?, before: Secret::read_back(reader)? });
        }
        let retired = reader.varint()?;
        if retired > MAX_RETIRED as u64 {
            return Err(DecodeError::TooLarge("retired secrets"));
        }
        for _ in 0..retired {
            this.retired.push_back(Secret::read_back(reader)?);
        }
        this.is_peer_away = snapshot::read_flag(reader)?;
        if snapshot::read_flag(reader)? {
            this.agreed = Some(Agreed::read_back(reader)?);
        }
        if snapshot::read_flag(reader)? {
            this.expected = Some(Expected::read_back(reader)?);
        }
        Ok(this)
    }
}
