//! Messages of a program that keeps its connections itself, as a proxy does: what [`super::Pool`] does in one
//! step, in parts.

use super::connect::{check, is_local, target};
use super::{Client, ClientError};
use crate::protocol::{Ask, OpenConnection, Report, UnderWay, Verdict};
use whimbrel_access::{Granularity, Intents};

/// A message that cannot come in parts, as it is asked about: what Table I has for messages counts, and it is
/// not split. Else all its parts but one would count as scheduled where nothing comes.
pub(super) fn whole(intents: Intents) -> (Intents, Granularity) {
    (intents.at(Granularity::Message), Granularity::Stream)
}

impl Client {
    /// Asks which way a message to this host goes, and whether one of these open connections is to carry it.
    /// Only where it `may_split` the decision has parts, which are then to be carried out. It counts as
    /// scheduled until [`Client::ended`] is called with the decision's `unit`, or a minute has
    /// passed.
    ///
    /// `None`: the system's way, because the host is this one, or because there is no manager, which is said
    /// once; for a client [beside a gateway](Client::beside_gateway) the gateway's, which is not said.
    ///
    /// # Errors
    /// [`ClientError::ByWhimbrel`] for a name of Whimbrel, [`ClientError::NoWay`] where the policy leaves
    /// none, [`ClientError::Refused`] if the question makes no sense.
    pub async fn route(
        &self,
        host: &str,
        port: u16,
        intents: Intents,
        connections: Vec<OpenConnection>,
        may_split: bool,
    ) -> Result<Option<Verdict>, ClientError> {
        let (intents, granularity) = if may_split { (intents, Granularity::Message) } else { whole(intents) };
        let ask = Ask { intents, granularity, connections, track: true, ..Ask::default() };
        self.route_by(host, port, ask).await
    }

    /// The same for what is left of a message that counts as scheduled already, by this number: in parts, or
    /// in one. What it was to be until now is not in its way.
    ///
    /// # Errors
    /// As [`Client::route`].
    pub async fn route_rest(
        &self,
        host: &str,
        port: u16,
        intents: Intents,
        connections: Vec<OpenConnection>,
        left_of: Option<u64>,
    ) -> Result<Option<Verdict>, ClientError> {
        self.route_by(host, port, Ask { intents, connections, track: true, left_of, ..Ask::default() }).await
    }

    /// The same for a message that comes whole and of which it is not said that it goes: it does not count as
    /// scheduled.
    ///
    /// # Errors
    /// As [`Client::route`].
    pub async fn weigh(
        &self,
        host: &str,
        port: u16,
        intents: Intents,
        connections: Vec<OpenConnection>,
    ) -> Result<Option<Verdict>, ClientError> {
        let (intents, granularity) = whole(intents);
        let ask = Ask { intents, granularity, connections, ..Ask::default() };
        self.route_by(host, port, ask).await
    }

    async fn route_by(&self, host: &str, port: u16, ask: Ask) -> Result<Option<Verdict>, ClientError> {
        check(host, port)?;
        if is_local(host) {
            return Ok(None);
        }
        if self.is_beside_gateway && !self.names_gateway().await.unwrap_or(false) {
            return Ok(None);
        }
        let to = target(host, port);
        match self.ask(Ask { to: Some(to.clone()), ..ask }).await {
            Ok(verdict) if self.is_beside_gateway && verdict.gateway.is_none() => {
                verdict.unit.into_iter().for_each(|unit| self.ended(unit));
                Ok(None)
            }
            Err(error) if self.is_beside_gateway => {
                tracing::debug!(%error, "nobody chooses the network of a message");
                Ok(None)
            }
            Ok(verdict) if verdict.local => Ok(None),
            Ok(verdict) if verdict.ways.is_empty() => {
                Err(ClientError::NoWay { to, why: verdict.problems.join("; ") })
            }
            Ok(verdict) => Ok(Some(verdict)),
            Err(error @ ClientError::Refused(_)) => Err(error),
            Err(error) => {
                self.tell_once(&error);
                Ok(None)
            }
        }
    }

    /// Asks whether the end of a message that is under way should come another way: `intents` say how much is
    /// left of it, or of a part of the unit `left_of`, and `connections` list the one that it is on. The part
    /// of the decision is what should, and it counts as scheduled like a unit of its own. Of what stands
    /// still it is all, which is to come that way too. `None`: all of it stays, or nobody answers.
    pub async fn reconsider(
        &self,
        host: &str,
        port: u16,
        intents: Intents,
        connections: Vec<OpenConnection>,
        under_way: UnderWay,
        left_of: Option<u64>,
    ) -> Option<Verdict> {
        let (to, under_way) = (Some(target(host, port)), Some(under_way));
        let ask = Ask { intents, to, connections, track: true, under_way, left_of, ..Ask::default() };
        match self.ask(ask).await {
            Ok(verdict) => (!verdict.parts.is_empty()).then_some(verdict),
            Err(error) => {
                tracing::debug!(%error, "what is under way stays where it is");
                None
            }
        }
    }

    /// Tells the manager that a unit has ended, without holding anybody up. Without a runtime the manager
    /// forgets it by itself.
    pub fn ended(&self, unit: u64) {
        self.tell(Report { done: Some(unit), ..Report::default() });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_message_that_comes_whole_has_the_intents_of_messages_and_is_not_split() {
        let intents: Intents = "size-received=5 category=stream timeliness=background".parse().unwrap();
        let (stated, granularity) = whole(intents);
        assert_eq!(stated, "size-received=5 timeliness=background".parse().unwrap());
        assert_eq!((granularity, stated.at(granularity)), (Granularity::Stream, stated));
    }
}
