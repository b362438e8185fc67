//! `whimbrel trust`: who owns the names that were met here.

use std::time::{Duration, SystemTime};

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use whimbrel_base::{Name, NameKind, UnixTime};
use whimbrel_names::trust::{KnownEndpoint, KnownOwner, Pins};
use whimbrel_names::{Origin, Pin};

use crate::failure::Failure;
use crate::network::known_peers;
use crate::options::{Globals, after};
use crate::output;

/// Show, confirm or forget whom the names that were met here belong to
///
/// The first owner of a name that this program meets is remembered in `known_peers`, in the configuration
/// directory. If the name service says another one later, nothing connects until you say which is right.
/// Only keys that you confirmed, by hand or by a meeting by code, grant access with `--allow NAME`.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel trust show
  whimbrel trust accept ada@example.org=ID    (ask ada for the ID: `whimbrel id` prints it there)
  whimbrel trust forget ada@example.org"))]
pub(crate) struct Trust {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Show what is known, of all names or of one
    #[command(after_help = after("Example:\n  whimbrel trust show ada@example.org --json"))]
    Show {
        /// A name; with a user name, all names of that user
        name: Option<Name>,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Confirm a name's key: a user's owner, a device's or service's endpoint
    #[command(after_help = after("Example:\n  whimbrel trust accept ada@example.org=ID"))]
    Accept {
        /// The name and its key
        #[arg(value_name = "NAME=ID")]
        pin: Pin,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
    /// Forget a name; with a user name, all names of that user
    #[command(after_help = after("Example:\n  whimbrel trust forget ada@example.org"))]
    Forget {
        /// The name
        name: Name,
        /// Print a JSON object
        #[arg(long)]
        json: bool,
    },
}

pub(crate) async fn run(globals: &Globals, args: Trust) -> Result<()> {
    let known = known_peers(globals)?;
    match args.action {
        Action::Show { name, json } => show(&known.pins()?, name.as_ref(), json),
        Action::Accept { pin: Pin { name, key }, json } => {
            known.pin(&name, key, Origin::Hand, UnixTime::from(SystemTime::now()))?;
            if json {
                return output::json(&json!({ "name": name.to_string(), "key": key.to_string() }));
            }
            output::line(format!("{name} is pinned to {key}"))
        }
        Action::Forget { name, json } => {
            let forgotten = known.forget(&name)?;
            if forgotten == 0 {
                return Err(Failure::new(Failure::NOT_FOUND, format!("{name} is not known here")).into());
            }
            if json {
                return output::json(&json!({ "name": name.to_string(), "forgotten": forgotten }));
            }
            output::line(format!("{name} is forgotten; it is remembered anew when it is met next"))
        }
    }
}

fn show(pins: &Pins, only: Option<&Name>, as_json: bool) -> Result<()> {
    let wanted = |name: &Name| match only {
        None => true,
        Some(only) if only.kind() == NameKind::User => name.user() == *only,
        Some(only) => name == only,
    };
    let owners: Vec<_> = pins.owners().filter(|(user, _)| wanted(user)).collect();
    let endpoints: Vec<_> = pins.endpoints().filter(|(name, _)| wanted(name)).collect();
    if let Some(name) = only.filter(|_| owners.is_empty() && endpoints.is_empty()) {
        return Err(Failure::new(Failure::NOT_FOUND, format!("{name} is not known here")).into());
    }
    if as_json {
        let owners: Vec<Value> = owners.iter().map(|(name, owner)| describe_owner(name, owner)).collect();
        let endpoints: Vec<Value> =
            endpoints.iter().map(|(name, endpoint)| describe_endpoint(name, endpoint)).collect();
        return output::json(&json!({ "owners": owners, "endpoints": endpoints }));
    }
    if owners.is_empty() && endpoints.is_empty() {
        return output::line("no names were met yet");
    }
    for (user, owner) in owners {
        output::line(format!("{user}  owner {}  {} since {}", owner.key, owner.origin, day(owner.since)))?;
    }
    for (name, endpoint) in endpoints {
        let since = day(endpoint.since);
        output::line(format!("{name}  endpoint {}  {} since {since}", endpoint.id, endpoint.origin))?;
    }
    Ok(())
}

/// As 2026-01-31.
fn day(time: UnixTime) -> String {
    // The last second that has four digits of the year.
    let secs = time.as_secs().min(253_402_300_799);
    let time = humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(secs));
    time.to_string().split('T').next().unwrap_or_default().to_owned()
}

fn describe_owner(name: &Name, owner: &KnownOwner) -> Value {
    json!({
        "user": name.to_string(), "key": owner.key.to_string(), "since": owner.since.as_secs(),
        "origin": owner.origin.to_string(),
    })
}

fn describe_endpoint(name: &Name, endpoint: &KnownEndpoint) -> Value {
    json!({
        "name": name.to_string(), "id": endpoint.id.to_string(), "since": endpoint.since.as_secs(),
        "origin": endpoint.origin.to_string(), "sequence": endpoint.sequence,
    })
}
