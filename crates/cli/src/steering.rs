//! The flags that have the multi-access manager choose the networks of connections.

use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use whimbrel_access::Intents;
use whimbrel_multiaccess::Client;
use whimbrel_steering::Steering;
use whimbrel_transport::Endpoint;

use crate::failure::Failure;
use crate::options::NETWORKS;
use crate::{intent, output};

/// What the manager is told of the traffic, and where it is.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct SteeringFlags {
    /// What the traffic is, for the manager: cost=no-expense; repeatable
    // The manager says all that these would.
    #[arg(
        long,
        value_name = "KEY=VALUE",
        value_delimiter = ',',
        value_parser = intent::pair,
        conflicts_with_all = ["mode", "policy", "interface"],
        help_heading = NETWORKS
    )]
    intent: Vec<String>,
    /// The manager that chooses: its socket, auto (this user's) or off
    #[arg(long, value_name = "SOCKET", help_heading = NETWORKS)]
    manager: Option<ManagerAt>,
}

/// Which manager is asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum ManagerAt {
    /// This user's.
    #[default]
    Auto,
    /// None.
    Off,
    /// The one with this socket.
    Socket(PathBuf),
}

impl FromStr for ManagerAt {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(match text {
            "auto" => Self::Auto,
            "off" => Self::Off,
            socket => Self::Socket(socket.into()),
        })
    }
}

/// Connections for which a manager is to choose.
pub(crate) struct Steered {
    client: Client,
    pub(crate) intents: Intents,
}

impl SteeringFlags {
    /// The manager's client; one that asks nobody, if that is wanted.
    pub(crate) fn client(&self) -> Client {
        match &self.manager {
            None | Some(ManagerAt::Auto) => Client::default(),
            Some(ManagerAt::Off) => Client::off(),
            Some(ManagerAt::Socket(socket)) => Client::at(socket),
        }
    }

    /// Whether no manager is to be asked.
    pub(crate) fn is_off(&self) -> bool {
        self.manager == Some(ManagerAt::Off)
    }

    /// Whether the user says which manager is to be asked.
    pub(crate) fn is_named(&self) -> bool {
        self.manager.is_some() && !self.is_off()
    }

    /// What a manager is to be told of connections to peers, if one is to choose for them: where something is
    /// said of the traffic, or of the manager.
    ///
    /// # Errors
    /// When the intents cannot be true together.
    pub(crate) fn steered(&self) -> Result<Option<Steered>> {
        let intents = intent::all(&self.intent).map_err(Failure::usage)?;
        let is_wanted = !self.intent.is_empty() || self.manager.is_some();
        let steered = (is_wanted && !self.is_off()).then(|| Steered { client: self.client(), intents });
        Ok(steered)
    }

    /// Fails if something is said of traffic to peers where there are none.
    ///
    /// # Errors
    /// What to add.
    pub(crate) fn needs_no_peer(&self) -> Result<()> {
        if self.intent.is_empty() {
            return Ok(());
        }
        Err(Failure::usage("--intent is about connections to peers: use it with --through or --host"))
    }
}

impl Steered {
    /// Has the manager choose for what this endpoint dials.
    pub(crate) async fn start(self, endpoint: &Endpoint, quiet: bool) -> Steering {
        let tell = move |news: whimbrel_steering::News| output::note(quiet, news.to_string());
        Steering::start(endpoint, self.client, self.intents, tell).await
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn flags(intent: &[&str], manager: Option<&str>) -> SteeringFlags {
        let intent = intent.iter().map(|pair| (*pair).to_owned()).collect();
        SteeringFlags { intent, manager: manager.map(|manager| manager.parse().unwrap()) }
    }

    #[test]
    fn a_manager_chooses_where_something_is_said_of_the_traffic_or_of_it() {
        let chooses = |intent: &[&str], manager| flags(intent, manager).steered().unwrap().is_some();
        assert!(!chooses(&[], None) && !chooses(&[], Some("off")) && !chooses(&["cost=ignore"], Some("off")));
        assert!(
            chooses(&["cost=ignore"], None) && chooses(&[], Some("auto")) && chooses(&[], Some("/run/x"))
        );
        let twice = flags(&["cost=ignore", "cost=balance"], None).steered();
        assert!(twice.is_err_and(|error| error.to_string().contains("twice")));
        assert!(flags(&["cost=ignore"], None).needs_no_peer().is_err());
        let is_named = |manager| flags(&["cost=ignore"], manager).is_named();
        assert!(is_named(Some("auto")) && is_named(Some("/run/x")));
        assert!(!is_named(None) && !is_named(Some("off")));
    }
}
