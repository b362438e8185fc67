//! How a proxy reaches what it is asked for, as its flags say.

use std::convert::Infallible;
use std::sync::Arc;

use anyhow::Result;
use clap::Args;
use whimbrel_multiaccess::Client;
use whimbrel_proxy::{ByAnswer, Gateway, Managed, Routed, Upstream, WhimbrelHosts};

use crate::hosts::{self, ListedHost};
use crate::lasting::Lasting;
use crate::multipath::PathFlags;
use crate::network::{Network, Peer, Wish};
use crate::options::Globals;
use crate::steering::SteeringFlags;
use crate::{renewer, rule};

/// Flags of every proxy.
#[derive(Args)]
pub(crate) struct ReachFlags {
    /// Reach hosts through this gateway; with --manager: if that says so
    #[arg(long, value_name = "NAME|TICKET")]
    pub(crate) through: Option<Peer>,
    /// Let programs reach this name as a host; port 80 if none; repeatable
    #[arg(long, value_name = "NAME[:PORT]")]
    host: Vec<ListedHost>,
    #[command(flatten)]
    paths: PathFlags,
    #[command(flatten)]
    pub(crate) steering: SteeringFlags,
}

impl ReachFlags {
    /// Fails early if the gateway is called by a name that nothing has.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn check(&self, globals: &Globals) -> Result<()> {
        self.through.as_ref().map_or(Ok(()), |through| through.check(globals))
    }

    /// What peers are reached with. Without peers no key of this user is needed.
    pub(crate) async fn network(&self, globals: &Globals) -> Result<Option<Arc<Network>>> {
        if self.through.is_none() && self.host.is_empty() {
            self.steering.needs_no_peer()?;
            return Ok(None);
        }
        let wish = Wish { config: self.paths.config(), steered: self.steering.steered()?, ..Wish::default() };
        Ok(Some(Arc::new(Network::of_user(globals, wish).await?)))
    }

    /// The manager's client, which chooses the network for what goes neither through a gateway nor to a name.
    pub(crate) fn client(&self) -> Client {
        self.steering.client()
    }

    /// How destinations are reached.
    pub(crate) async fn upstream(
        &self,
        network: Option<&Arc<Network>>,
        client: Client,
    ) -> Result<Arc<dyn Upstream>> {
        let rest: Arc<dyn Upstream> = match (&self.through, network) {
            (Some(gateway), Some(network)) => {
                let lasting = Lasting::new(network.clone(), gateway.clone());
                // A mistake in the name, or not being allowed, is told now rather than to the first program.
                drop(lasting.connection().await?);
                let through: Arc<dyn Upstream> = with_sessions(Gateway::new(Arc::new(lasting)), network);
                match self.steering.steered()?.filter(|_| self.is_by_answer()) {
                    Some(steered) => Arc::new(ByAnswer::new(&client, steered.intents, through)),
                    None => through,
                }
            }
            _ => Arc::new(Managed::new(client)),
        };
        let mut listed = WhimbrelHosts::default();
        if let Some(network) = network {
            hosts::list(&mut listed, &self.host, network)?;
        }
        Ok(Arc::new(Routed::new(listed, rest)))
    }

    /// Whether the manager says for each connection whether it goes through the gateway. All of them do
    /// unless a manager is named: a gateway may be there to hide where this user is.
    pub(crate) fn is_by_answer(&self) -> bool {
        self.through.is_some() && self.steering.is_named()
    }

    /// How hosts are reached, behind where a proxy is said to listen.
    pub(crate) fn shown(&self) -> String {
        match &self.through {
            Some(gateway) if self.is_by_answer() => {
                format!(", through {gateway} where the manager says so")
            }
            Some(gateway) => format!(", through {gateway}"),
            None => String::new(),
        }
    }

    /// The gateway, as people wrote it.
    pub(crate) fn gateway(&self) -> Option<String> {
        self.through.as_ref().map(ToString::to_string)
    }

    /// The hosts that stand for names, with their ports.
    pub(crate) fn hosts(&self) -> Vec<String> {
        self.host.iter().map(ListedHost::shown).collect()
    }
}

/// Connections that this user's other devices may take, whichever these are at that time.
fn with_sessions(gateway: Gateway, network: &Network) -> Arc<Gateway> {
    let takers = rule::takers(&network.key);
    let gateway = Arc::new(gateway.with_sessions(takers.clone()));
    let told = gateway.clone();
    let tell = move |takers| {
        let gateway = told.clone();
        async move { gateway.set_rule(takers).await }
    };
    // For as long as the proxy.
    tokio::spawn(rule::follow(network.key.clone(), takers, tell));
    gateway
}

/// Keeps what this user is known by fresh, for as long as it is polled.
pub(crate) async fn renewing(network: Option<&Arc<Network>>) -> Infallible {
    match network {
        Some(network) => renewer::run(network).await,
        None => std::future::pending().await,
    }
}
