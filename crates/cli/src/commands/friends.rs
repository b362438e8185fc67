//! `whimbrel friends`: users who were introduced to this one.

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;
use whimbrel_devices::{Label, Op, Subject};

use crate::failure::Failure;
use crate::options::{Globals, after};
use crate::output;
use crate::own_group::{OwnGroup, call, find, refused};

/// List, name and remove friends: users who were introduced to this one
///
/// `whimbrel invite` and `whimbrel join`, with --as on both sides, make two users friends. All devices
/// of this user have the same list once they met.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel friends list
  whimbrel friends name bob@example.org bobby
  whimbrel friends remove bobby"))]
pub(crate) struct Friends {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List friends
    #[command(after_help = after("Example:\n  whimbrel friends list --json"))]
    List {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Call a friend something else
    #[command(after_help = after("Example:\n  whimbrel friends name bob@example.org bobby"))]
    Name {
        /// The friend: the personal name, the user name or the id
        friend: String,
        /// What the friend is called from now on
        name: Label,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove a friend
    #[command(after_help = after("Example:\n  whimbrel friends remove bobby"))]
    Remove {
        /// The friend: the personal name, the user name or the id
        friend: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(globals: &Globals, args: Friends) -> Result<()> {
    let group = OwnGroup::open(globals)?;
    match args.action {
        Action::List { json } => list(&group, json),
        Action::Name { friend, name, json } => {
            call(&group, &friend, &name, true)?;
            if json {
                return output::json(&json!({ "friend": friend, "name": name.as_str() }));
            }
            output::line(format!("{friend} is called {name}"))
        }
        Action::Remove { friend, json } => {
            let id = group.change(|log, key, now| {
                let Subject::Friend(id) = find(log.group(), &friend)? else {
                    return Err(Failure::usage(format!("{friend} is no friend; use `whimbrel devices`")));
                };
                log.write(key, vec![Op::RemoveFriend { friend: id }], now).map_err(refused)?;
                Ok(id)
            })?;
            if json {
                return output::json(&json!({ "removed": id.to_string() }));
            }
            output::line(format!("{friend} is no friend any more"))
        }
    }
}

fn list(own: &OwnGroup, as_json: bool) -> Result<()> {
    let group = own.look(|log| log.group().clone())?;
    let names = group.names();
    let called = |id| names.get(&Subject::Friend(id)).map(Label::as_str);
    if as_json {
        let friends = group.friends().map(|(id, friend)| {
            json!({
                "called": called(id), "name": friend.name().map(ToString::to_string), "id": id.to_string(),
                "may_see": { "presence": friend.rights().presence, "devices": friend.rights().devices },
            })
        });
        return output::json(&json!({ "friends": friends.collect::<Vec<_>>() }));
    }
    for (id, friend) in group.friends() {
        let name = friend.name().map_or_else(|| id.to_string(), ToString::to_string);
        output::line(format!("{}  {name}", called(id).unwrap_or("-")))?;
    }
    if group.friends().next().is_none() {
        output::line("no friends yet; introduce yourselves with `whimbrel invite --as` and `whimbrel join`")?;
    }
    Ok(())
}
