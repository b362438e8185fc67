//! `whimbrel devices`: this user's devices, and keeping them in step.

mod step;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;
use whimbrel_devices::{Device, Group, Label, Subject};

use crate::failure::Failure;
use crate::network::Peer;
use crate::options::{Globals, after};
use crate::output;
use crate::own_group::{OwnGroup, call, find, refused, warn_of_forks};

/// List, name, trust and remove this user's devices; keep them in step
///
/// Each device keeps the list of devices and friends itself. Changes are signed, and merge when two
/// devices meet, however long they were apart: docs/devices.md has the rules.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel devices list
  whimbrel devices name laptop.ada@example.org desk
  whimbrel devices trust desk
  whimbrel devices serve               (on one device, prints a ticket)
  whimbrel devices sync TICKET         (on another)
  whimbrel devices remove desk"))]
pub(crate) struct Devices {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// List this user's devices
    #[command(after_help = after("Example:\n  whimbrel devices list --json"))]
    List {
        /// Print a JSON object
        #[arg(long)]
        json: bool,
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

pub(crate) async fn run(globals: &Globals, args: Devices) -> Result<()> {
    match args.action {
        Action::Serve { json } => return step::serve(globals, json).await,
        Action::Sync { peer, json } => return step::sync(globals, &peer, json).await,
        _ => {}
    }
    let group = OwnGroup::open(globals)?;
    match args.action {
        Action::List { json } => list(globals, &group, json),
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
        Action::Serve { .. } | Action::Sync { .. } => Ok(()),
    }
}

fn device_of(group: &Group, text: &str) -> Result<whimbrel_base::EndpointId> {
    match find(group, text)? {
        Subject::Device(id) => Ok(id),
        _ => Err(Failure::usage(format!("{text} is a friend; use `whimbrel friends`"))),
    }
}

fn list(globals: &Globals, own: &OwnGroup, as_json: bool) -> Result<()> {
    let log = own.look(Clone::clone)?;
    let (group, this) = (log.group(), own.key.id());
    warn_of_forks(globals.quiet, &log);
    let names = group.names();
    let called = |id| names.get(&Subject::Device(id)).map(Label::as_str);
    if as_json {
        let devices = group.devices().map(|(id, device)| {
            json!({
                "called": called(id), "name": device.name().to_string(), "id": id.to_string(),
                "trusted": device.is_trusted(), "since": device.since().wall().as_secs(), "this": id == this,
            })
        });
        let devices: Vec<_> = devices.collect();
        let forked: Vec<String> = log.forked().map(|id| id.to_string()).collect();
        return output::json(&json!({
            "user": group.user().to_string(), "this": this.to_string(), "trusted": group.is_trusted(this),
            "devices": devices, "forked": forked,
        }));
    }
    for (id, device) in group.devices() {
        output::line(describe(called(id), device, id == this))?;
    }
    if group.devices().next().is_none() {
        output::line("no devices yet; invite one with `whimbrel invite --device`")?;
    }
    Ok(())
}

fn describe(called: Option<&str>, device: &Device, is_this: bool) -> String {
    let trusted = if device.is_trusted() { ", may act for you" } else { "" };
    let this = if is_this { ", this one" } else { "" };
    format!("{}  {}{trusted}{this}", called.unwrap_or("-"), device.name())
}
