//! `whimbrel handoff`: lets another device take a session of this one.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use whimbrel_base::{EndpointId, Name};
use whimbrel_devices::Subject;

use crate::commands::sessions::{At, find, find_here, with_network};
use crate::failure::{self, Failure};
use crate::moving::{self, Offer, Offered, Ticketed, Word};
use crate::network::Peer;
use crate::options::{Globals, after, duration};
use crate::own_group::{self, OwnGroup};
use crate::plain::plain;
use crate::relaying::apart::RelayFlag;
use crate::{output, status};

/// Characters of a peer's name that another device is told.
const LONGEST: usize = 200;

/// Let another device take a running connection of this one, once
///
/// The connection stays here until the other device takes it, by `whimbrel take` or `whimbrel agent` there.
/// Devices of your own that may act for you (`whimbrel devices trust`) need no word at a gateway. Without
/// --through it is a `whimbrel pipe`, `forward`, `chat`, `send` or `receive` of this host, or HTTPS of `proxy
/// http --intercept`, which goes there directly; a `forward` at once, if the device runs `whimbrel agent
/// --as` its name.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel handoff SESSION --to desk         (prints what to run there)
  whimbrel handoff SESSION --to desk --relay RELAY
  whimbrel handoff SESSION --to desk --through gate.home.ada@example.org"))]
pub(crate) struct HandOff {
    /// The session: the first digits of its id, as `whimbrel sessions` shows it
    session: String,
    /// The device: its personal name, its name or its id
    #[arg(long, value_name = "DEVICE")]
    to: String,
    /// It may for so long, an hour at most
    #[arg(long = "for", value_name = "TIME", default_value = "5m", value_parser = duration)]
    limit: Duration,
    #[command(flatten)]
    at: At,
    #[command(flatten)]
    relay: RelayFlag,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(globals: &Globals, args: HandOff) -> Result<()> {
    let to = device(globals, &args.to)?;
    if args.at.through.is_none() {
        return hand_over(globals, &args, to).await;
    }
    let id = with_network(globals, async |network| {
        let sessions = args.at.reach(network).await?;
        let session = find(&sessions, &args.session).await?;
        sessions.hand_off((session.id, session.moves), to, args.limit).await?;
        Ok(session.id)
    })
    .await?;
    if args.json {
        return output::json(&json!({ "session": id.to_string(), "to": to.to_string() }));
    }
    let (until, id) = (humantime::format_duration(args.limit), id.to_string());
    output::line(format!("{} may take it for {until}: whimbrel take {}", args.to, &id[..8]))
}

/// Has the command on this host that has the session wait for the device.
async fn hand_over(globals: &Globals, args: &HandOff, to: EndpointId) -> Result<()> {
    let given = give_word(&args.session, (to, &args.to), args.limit, args.relay.texts()).await?;
    let ticketed = &given.ticketed;
    if let Some(why) = &ticketed.unrelayed {
        output::note(globals.quiet, format!("{why}; from another network this may be out of reach"));
    }
    if given.command == moving::WEB {
        let what = "what the program said to the server, with cookies and passwords";
        output::note(globals.quiet, format!("{} gets {what}: let it be a device of your own", args.to));
    }
    match push(globals, to, &given).await {
        Offered::Taken if args.json => {
            return output::json(&json!({
                "session": ticketed.session, "to": to.to_string(), "taken": true,
            }));
        }
        Offered::Taken => return output::line(format!("{} has taken it", args.to)),
        Offered::Left(why) => output::note(globals.quiet, format!("{}: {why}", args.to)),
        Offered::Nobody(why) => tracing::info!(%why, "no agent of that device takes it"),
    }
    if args.json {
        return output::json(&json!({
            "session": ticketed.session, "to": to.to_string(), "ticket": ticketed.ticket,
        }));
    }
    let until = humantime::format_duration(args.limit);
    output::line(format!("{} may take it for {until}: {}", args.to, given.command_there()))
}

/// A session that a device may have for a while.
pub(crate) struct Given {
    /// Where that device finds it.
    pub(crate) ticketed: Ticketed,
    command: String,
    peer: String,
}

impl Given {
    /// What takes it at the device.
    pub(crate) fn command_there(&self) -> String {
        let id = &self.ticketed.session;
        let how = if self.command == moving::WEB { " --as http" } else { "" };
        format!("whimbrel take {} --from {}{how}", id.get(..8).unwrap_or(id), self.ticketed.ticket)
    }
}

/// Has the command on this host that has the session wait for a device, which people call so.
///
/// # Errors
/// When there is no such session, or nobody can be waited for.
pub(crate) async fn give_word(
    session: &str,
    (to, called): (EndpointId, &str),
    limit: Duration,
    relays: Vec<String>,
) -> Result<Given> {
    let here = find_here(session).await?;
    let (command, peer) = (here.report.command.clone(), here.session.peer.clone());
    let (session, called, seconds) = (here.session.id, called.to_owned(), limit.as_secs());
    let word = Word { session, to, called, seconds, relays };
    let ticketed = status::hand_over(&here.report, word).await?;
    Ok(Given { ticketed, command, peer })
}

/// Offers it to the agent of the device, if that has a name and is there.
pub(crate) async fn push(globals: &Globals, to: EndpointId, given: &Given) -> Offered {
    // Without anybody who finds it, it is not even looked for.
    if globals.names.is_none() && !globals.lan {
        return Offered::Nobody("without a name service or --lan no agent is found".to_owned());
    }
    let Some(name) = name_of(globals, to) else { return Offered::Nobody("it has no name".to_owned()) };
    let (session, ticket) = (given.ticketed.session.clone(), given.ticketed.ticket.clone());
    let (command, peer) = (given.command.clone(), plain(&given.peer, LONGEST));
    let offer = Offer { session, command, peer, ticket };
    let agent = Peer::Name(name);
    let offering = with_network(globals, async |network| Ok(moving::offer(network, &agent, to, offer).await));
    // The word was given, and holds whatever fails here.
    offering.await.unwrap_or_else(|error| Offered::Nobody(failure::line(&error)))
}

/// What a device of the user is called by everybody.
fn name_of(globals: &Globals, device: EndpointId) -> Option<Name> {
    let found = OwnGroup::open(globals)
        .and_then(|group| group.look(|log| log.group().device(device).map(|device| device.name().clone())));
    found.unwrap_or_else(|error| {
        tracing::debug!(error = failure::line(&error), "the names of devices are not known");
        None
    })
}

/// A device by any name that it has here. Any key may be given, also a friend's.
pub(crate) fn device(globals: &Globals, text: &str) -> Result<EndpointId> {
    if let Ok(id) = text.parse() {
        return Ok(id);
    }
    let group = OwnGroup::open(globals)?.look(|log| log.group().clone())?;
    let found = own_group::find(&group, text)?;
    if !text.contains('@') {
        own_group::check_word(&group, text, found)?;
    }
    match found {
        Subject::Device(id) | Subject::FriendDevice(_, id) => Ok(id),
        Subject::Friend(_) => {
            Err(Failure::usage(format!("{text} is a friend; give one of the friend's devices by its id")))
        }
    }
}
