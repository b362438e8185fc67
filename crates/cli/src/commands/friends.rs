//! `whimbrel friends`: users who were introduced to this one.

mod requests;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;
use whimbrel_base::{EndpointId, Name};
use whimbrel_devices::{Friend, Group, Label, Op, Rights, Subject};

use crate::failure::Failure;
use crate::options::{Globals, after, duration, user_name};
use crate::output;
use crate::own_group::{OwnGroup, call, find, refused};
use crate::presence::{self, Presence, Up};

/// List, ask, name and remove friends: users who were introduced to this one
///
/// `whimbrel invite` and `whimbrel join`, with --as on both sides, make two users friends; so does a request that
/// is accepted. All devices of this user have the same list once they met.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel friends list
  whimbrel friends request bob@example.org
  whimbrel friends requests
  whimbrel friends name bob@example.org bobby
  whimbrel friends device bobby ID
  whimbrel friends allow bobby
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
    /// Ask another user to be a friend
    ///
    /// All devices of the other user hear of it, by the name service, and one that may act for the user answers;
    /// who has asked this user already is accepted. A refused request is not repeated before it ends.
    #[command(after_help = after("Example:\n  whimbrel friends request bob@example.org"))]
    Request {
        /// The other user's name
        #[arg(value_parser = user_name)]
        user: Name,
        /// Your user name [default: the one that this machine's key or its user has]
        #[arg(long = "as", id = "as", value_name = "USER", value_parser = user_name)]
        from: Option<Name>,
        /// How long it waits for an answer, 7d at most: a number and s, m, h or d
        #[arg(long = "for", value_name = "TIME", default_value = "7d", value_parser = duration)]
        lasts: Duration,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// List requests to this user and by this user, and what was answered
    #[command(after_help = after("Example:\n  whimbrel friends requests"))]
    Requests {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Accept another user's request
    #[command(after_help = after("Example:\n  whimbrel friends accept ada@example.org"))]
    Accept {
        /// From whom it is: the user's name, or the words of the request
        user: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Refuse another user's request, or take an own one back
    #[command(after_help = after("Example:\n  whimbrel friends refuse eve@example.org"))]
    Refuse {
        /// The other user's name, or the words of the request
        user: String,
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
    /// Let a friend see which of your devices are up, of those that are shown to friends
    #[command(after_help = after("Example:\n  whimbrel friends allow bobby"))]
    Allow {
        /// The friend: the personal name, the user name or the id
        friend: String,
        /// Not any more
        #[arg(long)]
        off: bool,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Note a device of a friend: `--allow bob@example.org` lets it in too
    #[command(after_help = after("Example:\n  whimbrel friends device bobby ID"))]
    Device {
        /// The friend: the personal name, the user name or the id
        friend: String,
        /// The device's id, as `whimbrel id` prints it there
        device: EndpointId,
        /// It is no device of the friend any more
        #[arg(long)]
        remove: bool,
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
    match args.action {
        Action::Request { user, from, lasts, json } => {
            return requests::ask(globals, (from, &user), lasts, json).await;
        }
        Action::Requests { json } => return requests::list(globals, json).await,
        Action::Accept { user, json } => return requests::answer(globals, &user, true, json).await,
        Action::Refuse { user, json } => return requests::answer(globals, &user, false, json).await,
        _ => {}
    }
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
        Action::Allow { friend, off, json } => {
            allow(&group, &friend, !off)?;
            if json {
                return output::json(&json!({ "friend": friend, "may_see": { "presence": !off } }));
            }
            let may = if off { "does not see any more" } else { "may see" };
            output::line(format!("{friend} {may} which of your devices are up"))
        }
        Action::Device { friend, device, remove, json } => {
            note_device(&group, &friend, device, remove)?;
            if json {
                let device = device.to_string();
                return output::json(&json!({ "friend": friend, "device": device, "removed": remove }));
            }
            output::line(match remove {
                false => format!("{device} is noted as a device of {friend}"),
                true => format!("{device} is no device of {friend} any more"),
            })
        }
        Action::Remove { friend, json } => {
            let id = group.change(|log, key, now| {
                let id = friend_in(log.group(), &friend)?;
                log.write(key, vec![Op::RemoveFriend { friend: id }], now).map_err(refused)?;
                Ok(id)
            })?;
            if json {
                return output::json(&json!({ "removed": id.to_string() }));
            }
            output::line(format!("{friend} is no friend any more"))
        }
        Action::Request { .. } | Action::Requests { .. } | Action::Accept { .. } | Action::Refuse { .. } => {
            Ok(())
        }
    }
}

/// The friend that a text means.
///
/// # Errors
/// When that is nobody, or a device of the user's own.
fn friend_in(group: &Group, text: &str) -> Result<EndpointId> {
    match find(group, text)? {
        Subject::Friend(id) => Ok(id),
        _ => Err(Failure::usage(format!("{text} is no friend; use `whimbrel devices`"))),
    }
}

/// Says whether a friend may see which devices are up. What else the friend may see stays.
fn allow(own: &OwnGroup, friend: &str, presence: bool) -> Result<()> {
    own.change(|log, key, now| {
        let friend = friend_in(log.group(), friend)?;
        let rights = log.group().friend(friend).map(Friend::rights).unwrap_or_default();
        let op = Op::Allow { friend, rights: Rights { presence, ..rights } };
        log.write(key, vec![op], now).map_err(refused)
    })
}

/// Notes that a friend has a device, or has it no more.
fn note_device(own: &OwnGroup, friend: &str, device: EndpointId, remove: bool) -> Result<()> {
    own.change(|log, key, now| {
        let friend = friend_in(log.group(), friend)?;
        let op = match remove {
            false => Op::AddFriendDevice { friend, device, name: None },
            true => Op::RemoveFriendDevice { friend, device },
        };
        log.write(key, vec![op], now).map_err(refused)
    })
}

fn list(own: &OwnGroup, as_json: bool) -> Result<()> {
    let group = own.look(|log| log.group().clone())?;
    let names = group.names();
    let called = |id| names.get(&Subject::Friend(id)).map(Label::as_str);
    let presence = Presence::read(group.user());
    // Of the friend's own key and of the devices that are known.
    let up = |id, friend: &Friend| -> Vec<(EndpointId, Up)> {
        let keys = std::iter::once(id).chain(friend.devices().map(|(device, _)| device));
        keys.filter_map(|key| Some((key, presence.of(key, presence::now())?))).collect()
    };
    if as_json {
        let friends = group.friends().map(|(id, friend)| {
            let devices: Vec<_> = friend.devices().map(|(device, _)| device.to_string()).collect();
            let mut beside = serde_json::Map::new();
            beside.extend(up(id, friend).into_iter().map(|(key, up)| (key.to_string(), up.as_json())));
            json!({
                "called": called(id), "name": friend.name().map(ToString::to_string), "id": id.to_string(),
                "devices": devices,
                "up": beside,
                "may_see": { "presence": friend.rights().presence, "devices": friend.rights().devices },
            })
        });
        return output::json(&json!({ "friends": friends.collect::<Vec<_>>() }));
    }
    for (id, friend) in group.friends() {
        let name = friend.name().map_or_else(|| id.to_string(), ToString::to_string);
        let up = up(id, friend);
        // At one of the devices is enough.
        let best = up.iter().map(|(_, up)| up).min_by_key(|up| up.away);
        let best = best.map(|up| format!(", {up}")).unwrap_or_default();
        output::line(format!("{}  {name}{best}", called(id).unwrap_or("-")))?;
    }
    if group.friends().next().is_none() {
        output::line("no friends yet; introduce yourselves with `whimbrel invite --as` and `whimbrel join`")?;
    }
    Ok(())
}
