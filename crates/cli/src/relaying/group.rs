//! The group that a relay belongs to: its flags, and how it joins.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use whimbrel_base::{Name, RelayPlace};
use whimbrel_relay::{Membership, Relay, Roster};
use whimbrel_transport::ListenOptions;

use crate::failure::Failure;
use crate::network::Network;
use crate::options::Globals;
use crate::roster::NamedRelays;
use crate::{naming, output};

/// The group that a relay belongs to.
#[derive(Args, Clone, Debug)]
pub(crate) struct GroupFlags {
    /// Serve in this group of relays, as relays.ada@example.org; its owner has to take the name in
    #[arg(long, value_name = "NAME", requires_all = ["own", "place"])]
    group: Option<Name>,
    /// This relay's own name
    #[arg(long = "as", id = "own", value_name = "NAME", requires = "group")]
    own: Option<Name>,
    /// Where it stands, as fra1: servers take relays of several places, because those of one fail together
    #[arg(long, value_name = "PLACE", requires = "group")]
    place: Option<RelayPlace>,
}

/// A relay in its group.
pub(crate) struct Grouped {
    pub(crate) group: Name,
    pub(crate) own: Name,
    roster: Arc<NamedRelays>,
    place: RelayPlace,
}

impl GroupFlags {
    /// Whether the relay is to belong to one: then it needs a name service.
    pub(crate) fn is_given(&self) -> bool {
        self.group.is_some()
    }

    /// The relay's own name.
    pub(crate) fn own(&self) -> Option<&Name> {
        self.own.as_ref()
    }

    /// The group's name.
    pub(crate) fn name(&self) -> Option<&Name> {
        self.group.as_ref()
    }

    /// The group, if there is one.
    ///
    /// # Errors
    /// If its owner has not taken this relay in.
    pub(crate) async fn find(&self, network: &Network) -> Result<Option<Grouped>> {
        let (Some(group), Some(own), Some(place)) = (&self.group, &self.own, &self.place) else {
            return Ok(None);
        };
        let (roster, problem) = NamedRelays::follow(network, group).await?;
        if let Some(problem) = problem {
            return Err(problem).with_context(|| format!("cannot look up the group {group}"));
        }
        let grouped = Grouped {
            group: group.clone(),
            own: own.clone(),
            roster: Arc::new(roster),
            place: place.clone(),
        };
        if !grouped.is_member() {
            let why = format!(
                "{own} is no member of {group}; have its owner run `whimbrel names group add {group} {own} --readers any`"
            );
            return Err(Failure::new(Failure::REFUSED, why).into());
        }
        Ok(Some(grouped))
    }
}

impl Grouped {
    fn is_member(&self) -> bool {
        self.roster.members().current().is_some_and(|members| members.contains(&self.own))
    }

    /// Registers the relay, and has it watch the others and be watched.
    pub(crate) async fn join(
        &self,
        globals: &Globals,
        network: &Network,
        relay: &Relay,
    ) -> Result<Membership> {
        let delegation = naming::permission(network, &self.own, globals.quiet).await?;
        let mut membership =
            Membership::new(relay, self.place.clone(), self.own.clone(), self.roster.clone());
        let options = ListenOptions::named(&self.own).delegation(delegation).on_renewal(naming::keep);
        let listener = network.endpoint.listen(options.allow(membership.allow())).await?;
        membership.start(relay, listener);
        Ok(membership)
    }

    /// Says so each time that the group's owner takes this relay out, or in again. Never returns.
    pub(crate) async fn follow(&self, quiet: bool) {
        let (mut members, mut was) = (self.roster.members(), true);
        while members.changed().await.is_some() {
            let is = self.is_member();
            if is != was {
                let how =
                    if is { "belongs to it again" } else { "was taken out of it; servers find it no more" };
                output::note(quiet, format!("the group {} has changed: {} {how}", self.group, self.own));
            }
            was = is;
        }
        std::future::pending().await
    }
}
