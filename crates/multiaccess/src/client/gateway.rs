//! Connections of a program that has a gateway at hand: each goes through it, or over a network of this host,
//! as the manager answers.

use super::connect::{check, is_local, target};
use super::{Candidate, Client, ClientError};
use crate::protocol::Ask;
use whimbrel_access::{Granularity, Intents};

/// Why nothing is asked of a manager that has no gateway in its settings.
const NAMES_NONE: &str = "the manager's settings name no gateway";

/// How a connection is to be made where a gateway is at hand.
#[derive(Debug)]
pub enum GatewayOr {
    /// Through the gateway. Why, in the manager's words.
    Gateway(String),
    /// By sockets of this host: the ways, best first.
    Ways(Vec<Candidate>),
    /// No manager says anything of gateways. Why, in words.
    Unanswered(String),
}

impl Client {
    /// The same client for a program that has a gateway at hand. A manager whose settings name none has
    /// nothing to say of gateways: then [`Client::route`] returns `None`, as without a manager.
    #[must_use]
    pub fn beside_gateway(&self) -> Self {
        Self { is_beside_gateway: true, ..self.clone() }
    }

    /// Asks whether a connection to this host goes through the gateway or over a network of this host.
    ///
    /// # Errors
    /// [`ClientError::ByWhimbrel`] for a name of Whimbrel, [`ClientError::Refused`] for one that is none,
    /// [`ClientError::NoWay`] where the policy leaves no way, and [`ClientError::Connect`] if a name of this
    /// host's system has no address.
    pub async fn gateway_or(
        &self,
        host: &str,
        port: u16,
        intents: Intents,
    ) -> Result<GatewayOr, ClientError> {
        check(host, port)?;
        if is_local(host) {
            return self.system(host, port).await.map(GatewayOr::Ways);
        }
        match self.names_gateway().await {
            Ok(true) => {}
            Ok(false) => return Ok(GatewayOr::Unanswered(NAMES_NONE.to_owned())),
            Err(error) => return Ok(GatewayOr::Unanswered(error.to_string())),
        }
        let (to, granularity) = (target(host, port), Granularity::Connection);
        let ask = Ask { intents, granularity, to: Some(to.clone()), ..Ask::default() };
        let verdict = match self.ask(ask).await {
            Ok(verdict) => verdict,
            // A host that only the gateway's side can look up is one of these.
            Err(error) => return Ok(GatewayOr::Unanswered(error.to_string())),
        };
        if let Some(by) = verdict.whimbrel.filter(|by| by.gateway) {
            return Ok(GatewayOr::Gateway(by.why));
        }
        if verdict.gateway.is_none() {
            return Ok(GatewayOr::Unanswered(NAMES_NONE.to_owned()));
        }
        if verdict.local {
            return self.system(host, port).await.map(GatewayOr::Ways);
        }
        let found: Vec<Candidate> = verdict.ways.into_iter().filter_map(Candidate::of_way).collect();
        if found.is_empty() {
            return Err(ClientError::NoWay { to, why: verdict.problems.join("; ") });
        }
        Ok(GatewayOr::Ways(found))
    }

    /// Whether the manager has anything to say of gateways. It is asked once for each connection to it,
    /// without a word of hosts: it would look them up over this host's networks, where all goes through the
    /// gateway.
    pub(super) async fn names_gateway(&self) -> Result<bool, ClientError> {
        let link = self.link().await?;
        if let Some(known) = link.names_gateway.get() {
            return Ok(*known);
        }
        let named = self.ask(Ask::default()).await?.gateway.is_some();
        Ok(*link.names_gateway.get_or_init(|| named))
    }
}
