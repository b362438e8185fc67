//! `whimbrel devices`: this user's devices, and keeping them in step.

mod joining;
mod list;
mod screen;
mod step;

use std::time::Duration;

use anyhow::Result;
use clap::{Args, Subcommand, ValueEnum};
use serde_json::json;
use whimbrel_base::Name;
use whimbrel_devices::{Group, Label, Op, Subject, Visibility};

use crate::commands::sessions::At;
use crate::failure::Failure;
use crate::network::Peer;
use crate::options::{Globals, after};
use crate::output;
use crate::own_group::{OwnGroup, call, find, refused};
use crate::presence;
use crate::relaying::apart::RelayFlag;

pub(super) use self::step::Meetings;

/// How long a new device may use its name unless it is renewed.
const NAME_LASTS: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// List, name, trust and remove this user's devices; keep them in step
///
/// Each device keeps the list of devices and friends itself. Changes are signed, and merge when two
/// devices meet, however long they were apart: docs/devices.md has the rules. Those with a `whimbrel agent`
/// meet by themselves.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel devices list
  whimbrel devices screen
  whimbrel devices name laptop.ada@example.org desk
  whimbrel devices trust desk
  whimbrel devices show desk --to friends
  whimbrel devices serve               (on one device, prints a ticket)
  whimbrel devices sync TICKET         (on another)
  whimbrel devices remove desk"))]
pub(crate) struct Devices {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List this user's devices, and which are up
    ///
    /// `whimbrel agent` hears which are up, and what it heard is shown for 90 seconds.
    #[command(after_help = after("\
Examples:
  whimbrel devices list --json
  whimbrel devices list --watch"))]
    List {
        /// Go on, and tell each change, until stopped
        #[arg(long)]
        watch: bool,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Show devices and running sessions on a page of the terminal, and move one by a key
    ///
    /// What `whimbrel sessions` shows of this host, and with --through of a gateway. It goes to a device as
    /// `whimbrel handoff` has it go: an agent there takes it at once. q ends the page.
    #[command(after_help = after("\
Examples:
  whimbrel devices screen
  whimbrel devices screen --through gate.home.ada@example.org"))]
    Screen {
        #[command(flatten)]
        at: At,
        #[command(flatten)]
        relay: RelayFlag,
    },
    /// Call a device something else
    #[command(after_help = after("Example:\n  whimbrel devices name laptop.ada@example.org desk"))]
    Name {
        /// The device: its personal name, its name or its id
        device: String,
        /// What it is called from now on
        name: Label,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let a device act for the user: add and remove devices and friends
    #[command(after_help = after("Example:\n  whimbrel devices trust desk"))]
    Trust {
        /// The device: its personal name, its name or its id
        device: String,
        /// Not any more: what it says beyond what is known here no longer counts
        #[arg(long)]
        off: bool,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say who sees whether a device is up
    #[command(after_help = after("Example:\n  whimbrel devices show desk --to friends"))]
    Show {
        /// The device: its personal name, its name or its id
        device: String,
        /// Nobody; this user's devices; or those, and friends who may (`whimbrel friends allow`)
        #[arg(long, value_enum, value_name = "WHOM")]
        to: Audience,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Say that you are not at this machine
    ///
    /// Its agent tells those who see whether it is up. It holds until --off, or until an agent is started
    /// here.
    #[command(after_help = after("\
Examples:
  whimbrel devices away
  whimbrel devices away --off"))]
    Away {
        /// You are back
        #[arg(long)]
        off: bool,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Remove a device for good
    ///
    /// What it says beyond what is known here never counts, also if its clock is set back; its key does not
    /// come back. Take its name away too: `whimbrel id revoke`, which also does this.
    #[command(after_help = after("Example:\n  whimbrel devices remove desk"))]
    Remove {
        /// The device: its personal name, its name or its id
        device: String,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Ask a user to make this machine a device with this name, and wait for the answer
    ///
    /// For a user who is not here with a code (`whimbrel join`). It prints six words; the request with the
    /// same words is this machine's, and others may be anybody's. It waits for an hour.
    #[command(after_help = after("Example:\n  whimbrel devices request tablet.ada@example.org"))]
    Request {
        /// The device's name
        name: Name,
        /// Show the words as a QR code too
        #[arg(long, conflicts_with = "json")]
        qr: bool,
        /// Print JSON objects: one with the words, one with the result
        #[arg(long)]
        json: bool,
    },
    /// Make the machine that shows these words a device, with the name that it asks for
    ///
    /// `whimbrel friends requests` lists the machines that wait. Run it where the user's key is.
    #[command(after_help = after("Example:\n  whimbrel devices accept WORDS"))]
    Accept {
        /// The six words
        #[arg(required = true, num_args = 1..=6, value_name = "WORDS")]
        words: Vec<String>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Refuse the machine that shows these words
    #[command(after_help = after("Example:\n  whimbrel devices refuse OTHER-WORDS"))]
    Refuse {
        /// The six words
        #[arg(required = true, num_args = 1..=6, value_name = "WORDS")]
        words: Vec<String>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Let the user's other devices bring this one up to date, and themselves, until stopped
    #[command(after_help = after("Example:\n  whimbrel devices serve"))]
    Serve {
        /// Print a JSON object once it can be reached
        #[arg(long)]
        json: bool,
    },
    /// Bring this device and another one up to date
    #[command(after_help = after("Example:\n  whimbrel devices sync TICKET"))]
    Sync {
        /// The ticket that `whimbrel devices serve` prints on the other device
        #[arg(value_name = "TICKET")]
        peer: Peer,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
}

/// Those that see whether a device is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Audience {
    Nobody,
    Devices,
    Friends,
}

impl Audience {
    fn visibility(self) -> Visibility {
        match self {
            Self::Nobody => Visibility::Nobody,
            Self::Devices => Visibility::Devices,
            Self::Friends => Visibility::Friends,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Nobody => "nobody",
            Self::Devices => "devices",
            Self::Friends => "friends",
        }
    }
}

pub(crate) async fn run(globals: &Globals, args: Devices) -> Result<()> {
    match args.action {
        Action::Serve { json } => return step::serve(globals, json).await,
        Action::Sync { peer, json } => return step::sync(globals, &peer, json).await,
        Action::List { json, watch } => return list::run(globals, json, watch).await,
        Action::Screen { at, relay } => return screen::run(globals, &at, &relay).await,
        Action::Request { name, qr, json } => return joining::ask(globals, &name, (json, qr)).await,
        Action::Accept { words, json } => return joining::answer(globals, &words, true, json).await,
        Action::Refuse { words, json } => return joining::answer(globals, &words, false, json).await,
        Action::Away { off, json } => return be_away(!off, json),
        _ => {}
    }
    let group = OwnGroup::open(globals)?;
    match args.action {
        Action::Name { device, name, json } => {
            call(&group, &device, &name, false)?;
            if json {
                return output::json(&json!({ "device": device, "name": name.as_str() }));
            }
            output::line(format!("{device} is called {name}"))
        }
        Action::Trust { device, off, json } => {
            group.change(|log, key, now| {
                let id = device_of(log.group(), &device)?;
                log.trust(key, id, !off, now).map_err(refused)
            })?;
            if json {
                return output::json(&json!({ "device": device, "trusted": !off }));
            }
            output::line(format!("{device} may {}act for you", if off { "no longer " } else { "" }))
        }
        Action::Show { device, to, json } => {
            group.change(|log, key, now| {
                let show = Op::Show { device: device_of(log.group(), &device)?, to: to.visibility() };
                log.write(key, vec![show], now).map_err(refused)
            })?;
            if json {
                return output::json(&json!({ "device": device, "shown_to": to.word() }));
            }
            output::line(format!("whether {device} is up is shown to {}", to.word()))
        }
        Action::Remove { device, json } => {
            let id = group.change(|log, key, now| {
                let id = device_of(log.group(), &device)?;
                log.remove_device(key, id, now).map_err(refused)?;
                Ok(id)
            })?;
            if json {
                return output::json(&json!({ "removed": id.to_string() }));
            }
            output::line(format!("{device} is removed; other devices hear of it when they meet this one"))
        }
        Action::Serve { .. }
        | Action::Sync { .. }
        | Action::List { .. }
        | Action::Request { .. }
        | Action::Accept { .. }
        | Action::Refuse { .. }
        | Action::Away { .. }
        | Action::Screen { .. } => Ok(()),
    }
}

/// Says whether the user is not at this machine.
fn be_away(away: bool, as_json: bool) -> Result<()> {
    presence::set_away(away)?;
    if as_json {
        return output::json(&json!({ "away": away }));
    }
    let state = if away { "away" } else { "present" };
    output::line(format!("you are shown as {state} by the agent of this machine, if one runs"))
}

fn device_of(group: &Group, text: &str) -> Result<whimbrel_base::EndpointId> {
    match find(group, text)? {
        Subject::Device(id) => Ok(id),
        _ => Err(Failure::usage(format!("{text} is a friend, or a friend's; use `whimbrel friends`"))),
    }
}
