//! `whimbrel friends`: users who were introduced to this one.

mod list;
mod naming;
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
use crate::own_group::{OwnGroup, find, refused};

/// List, ask, name and remove friends: users introduced to this one
///
/// `whimbrel invite` and `whimbrel join`, with --as on both sides, make two users friends; so does a request
/// that is accepted. All devices of this user have the same list once they met.
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
    /// List friends, and which devices they have, of those who let you see that
    #[command(after_help = after("Example:\n  whimbrel friends list --json"))]
    List {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Ask another user to be a friend
    ///
    /// All devices of the other user hear of it, by the name service, and one that may act for the user
    /// answers; who has asked this user already is accepted. A refused request is not repeated before it
    /// ends.
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
    /// Call a friend, or a friend's device, something else
    ///
    /// A device that the friend shows is noted so, as by `whimbrel friends device`.
    #[command(after_help = after("Example:\n  whimbrel friends name bob@example.org bobby"))]
    Name {
        /// The friend or the device: the personal name, the whole name or the id
        friend: String,
        /// What that is called from now on
        name: Label,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let a friend see which of your devices are up, of those that are shown to friends
    #[command(after_help = after("\
Examples:
  whimbrel friends allow bobby
  whimbrel friends allow bobby --devices"))]
    Allow {
        /// The friend: the personal name, the user name or the id
        friend: String,
        /// Also which devices you have: their names, what you call them and their ids
        #[arg(long)]
        devices: bool,
        /// Not any more: neither of both, or with --devices only not which you have
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
        Action::List { json } => list::run(&group, json),
        Action::Name { friend, name, json } => {
            naming::name(&group, &friend, &name)?;
            if json {
                return output::json(&json!({ "friend": friend, "name": name.as_str() }));
            }
            output::line(format!("{friend} is called {name}"))
        }
        Action::Allow { friend, devices, off, json } => {
            let Rights { presence, devices: all } = allow(&group, &friend, (!off, devices))?;
            if json {
                let may_see = json!({ "presence": presence, "devices": all });
                return output::json(&json!({ "friend": friend, "may_see": may_see }));
            }
            output::line(match (off, devices) {
                (false, false) => format!("{friend} may see which of your devices are up"),
                (false, true) => format!("{friend} may see which devices you have, and which of them are up"),
                (true, false) => format!("{friend} does not see any more which of your devices are up"),
                (true, true) => format!("{friend} does not see any more which devices you have"),
            })
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
/// When that is nobody, or a device.
fn friend_in(group: &Group, text: &str) -> Result<EndpointId> {
    match find(group, text)? {
        Subject::Friend(id) => Ok(id),
        Subject::Device(_) => Err(Failure::usage(format!("{text} is no friend; use `whimbrel devices`"))),
        Subject::FriendDevice(..) => Err(Failure::usage(format!(
            "{text} is a friend's device; say whose, as `whimbrel friends list` does"
        ))),
    }
}

/// Says whether a friend may see which devices are up, or with `devices` also which there are. Returns what
/// the friend may see then.
fn allow(own: &OwnGroup, friend: &str, (allowed, devices): (bool, bool)) -> Result<Rights> {
    own.change(|log, key, now| {
        let friend = friend_in(log.group(), friend)?;
        let before = log.group().friend(friend).map(Friend::rights).unwrap_or_default();
        let rights = changed(before, allowed, devices);
        log.write(key, vec![Op::Allow { friend, rights }], now).map_err(refused)?;
        Ok(rights)
    })
}

/// What a friend may see after a change. Who may not see which are up does not see either which there are: by
/// asking for them a friend would know which answer.
fn changed(before: Rights, allowed: bool, devices: bool) -> Rights {
    match (allowed, devices) {
        (true, false) => Rights { presence: true, ..before },
        (true, true) => Rights { presence: true, devices: true },
        (false, true) => Rights { devices: false, ..before },
        (false, false) => Rights::default(),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_friend_may_see_is_given_and_taken_back_and_never_devices_alone() {
        let rights = |presence, devices| Rights { presence, devices };
        let (none, up, all) = (rights(false, false), rights(true, false), rights(true, true));
        for (before, change, after) in [
            (none, (true, false), up),
            (none, (true, true), all),
            (up, (true, true), all),
            (all, (true, false), all),
            (all, (false, true), up),
            (none, (false, true), none),
            (all, (false, false), none),
            // A list that an older program wrote.
            (rights(false, true), (false, false), none),
        ] {
            assert_eq!(changed(before, change.0, change.1), after, "{before:?} {change:?}");
        }
    }
}
