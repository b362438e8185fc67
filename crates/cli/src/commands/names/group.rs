//! `whimbrel names group`: names that stand for several endpoints.

use std::collections::BTreeSet;
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::json;
use whimbrel::{GroupError, GroupOptions, Member};
use whimbrel_base::{Name, NameKind};

use crate::failure;
use crate::groups::read_by;
use crate::network::{Network, Wish};
use crate::options::{Globals, after};
use crate::who::Who;
use crate::{naming, output};

/// Say whom a name stands for
///
/// A group is a name for several endpoints: messages to it reach each of them over a connection of its own.
/// Its record is signed by your key, shown to its members, and holds for seven days; every command of yours
/// that goes on running renews it, and so does `names group renew`.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel names group add team.ada@example.org bob@example.org
  whimbrel names group show team.ada@example.org"))]
pub(super) struct Group {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Take members in; the first makes the group
    #[command(after_help = after("Example:\n  whimbrel names group add team.ada@example.org bob@example.org"))]
    Add(Change),
    /// Take members out
    #[command(after_help = after("Example:\n  whimbrel names group remove team.ada@example.org bob@example.org"))]
    Remove(Change),
    /// Print the members
    #[command(after_help = after("Example:\n  whimbrel names group show team.ada@example.org"))]
    Show(Which),
    /// Sign the record anew, for seven days more
    #[command(after_help = after("Example:\n  whimbrel names group renew team.ada@example.org"))]
    Renew(Renew),
}

#[derive(Args)]
struct Which {
    /// The group's name
    name: Name,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Renew {
    #[command(flatten)]
    which: Which,
    /// Who may look it up: `any`, an id or a name; repeatable [default: its members]
    #[arg(long, value_name = "WHO")]
    readers: Vec<Who>,
}

#[derive(Args)]
struct Change {
    #[command(flatten)]
    renew: Renew,
    /// Members: names of endpoints, or ids
    #[arg(required = true, value_name = "MEMBER")]
    members: Vec<Member>,
}

pub(super) async fn run(globals: &Globals, args: Group) -> Result<()> {
    let network = Network::of_user(globals, Wish::default()).await?;
    network.resolver()?;
    let (which, members) = match &args.action {
        Action::Show(which) => {
            (which, network.endpoint.group_members(&which.name).await.map_err(failure::of_group))
        }
        Action::Renew(renew) => (&renew.which, update(globals, &network, renew, |_| {}).await),
        Action::Add(change) => {
            let add = |members: &mut BTreeSet<Member>| members.extend(change.members.iter().cloned());
            (&change.renew.which, update(globals, &network, &change.renew, add).await)
        }
        Action::Remove(change) => {
            let remove =
                |members: &mut BTreeSet<Member>| members.retain(|member| !change.members.contains(member));
            (&change.renew.which, update(globals, &network, &change.renew, remove).await)
        }
    };
    network.close().await;
    print(which, &members?)
}

async fn update(
    globals: &Globals,
    network: &Network,
    renew: &Renew,
    change: impl FnOnce(&mut BTreeSet<Member>),
) -> Result<Vec<Member>> {
    let name = &renew.which.name;
    if name.kind() == NameKind::User {
        return Err(failure::of_group(GroupError::UserName(name.clone())));
    }
    let mut options = GroupOptions::default();
    options.delegation = naming::permission(network, name, globals.quiet).await?;
    options.readers = read_by(&renew.readers, name)?;
    let updated = network.endpoint.update_group(name, options, change).await;
    let members =
        updated.map_err(failure::of_group).with_context(|| format!("cannot change the group {name}"))?;
    if let Some(groups) = &network.groups {
        groups.signed(name, &renew.readers, SystemTime::now().into())?;
    }
    Ok(members)
}

fn print(which: &Which, members: &[Member]) -> Result<()> {
    if which.json {
        let members: Vec<String> = members.iter().map(ToString::to_string).collect();
        return output::json(&json!({ "name": which.name.to_string(), "members": members }));
    }
    members.iter().try_for_each(|member| output::line(member.to_string()))
}
