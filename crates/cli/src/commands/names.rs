//! `whimbrel names`: the name service, and questions to it.

use anyhow::{Context as _, Result};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use whimbrel_base::relayed::places;
use whimbrel_base::{Name, NameKind, Record, SignedRecord};
use whimbrel_transport::Resolver as _;

use crate::failure::Failure;
use crate::network::{Network, Wish};
use crate::options::{Globals, after};
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::{identity, output};

mod group;
mod invite;
pub(crate) mod limits;
pub(crate) mod serve;

/// Run a name service, or ask one
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel names serve --allow @example.org
  whimbrel names lookup ssh.home.ada@example.org --names whimbrel:…"))]
pub(crate) struct Names {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Serve(serve::Serve),
    Invite(invite::Invite),
    Lookup(Lookup),
    Watch(Watch),
    Group(group::Group),
}

/// Look a name up, or all that a user has
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel names lookup ssh.home.ada@example.org --json
  whimbrel names lookup ada@example.org --devices"))]
struct Lookup {
    /// The name
    name: Name,
    /// All devices and services of the user and where they are, as far as you may see them
    #[arg(long)]
    devices: bool,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Print a name's record now and at each change, until stopped
#[derive(Args)]
#[command(after_help = after("Example:\n  whimbrel names watch ssh.home.ada@example.org --json"))]
struct Watch {
    /// The name; need not be registered yet
    name: Name,
    /// Print a JSON object a line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(globals: &Globals, args: Names) -> Result<()> {
    match args.action {
        Action::Serve(args) => serve::run(globals, args, None).await,
        Action::Invite(args) => invite::run(globals, args).await,
        Action::Lookup(args) => lookup(globals, args).await,
        Action::Watch(args) => watch(globals, args).await,
        Action::Group(args) => group::run(globals, args).await,
    }
}

fn describe(record: &SignedRecord) -> Value {
    let delegated_by = record.delegation().map(|delegation| delegation.issuer().to_string());
    let members = record.members().map(|members| members.iter().map(ToString::to_string).collect::<Vec<_>>());
    let record = record.record();
    json!({
        "name": record.name.to_string(),
        "id": record.id.to_string(),
        "addresses": record.addrs,
        "places": shown(record),
        "sequence": record.sequence,
        "lifetime_s": record.lifetime.as_secs(),
        "ends": record.expires.as_secs(),
        "revoked": record.revoked,
        "delegated_by": delegated_by,
        "members": members,
    })
}

/// Where it is, as people read it.
fn shown(record: &Record) -> Vec<String> {
    places(&record.addrs).iter().map(ToString::to_string).collect()
}

fn print(record: &SignedRecord, as_json: bool) -> Result<()> {
    if as_json {
        return output::json(&describe(record));
    }
    let members = record.members();
    let record = record.record();
    let places = shown(record);
    let place = match (record.revoked, places.is_empty()) {
        _ if members.is_some() => {
            let members: Vec<String> = members.into_iter().flatten().map(ToString::to_string).collect();
            format!("group of {}", members.join(" "))
        }
        (true, _) => "withdrawn".to_owned(),
        (false, true) => "no addresses".to_owned(),
        (false, false) => places.join(" "),
    };
    output::line(format!("{} {} {place}", record.name, record.id))
}

async fn lookup(globals: &Globals, args: Lookup) -> Result<()> {
    if args.devices {
        return lookup_devices(globals, args).await;
    }
    let network = Network::start(globals, identity::of_user(globals)?.key, Wish::default()).await?;
    let result = network.resolver()?.lookup_record(&args.name).await;
    network.close().await;
    print(&result.with_context(|| format!("cannot look up {}", args.name))?, args.json)
}

/// All that a user has, in one question.
async fn lookup_devices(globals: &Globals, args: Lookup) -> Result<()> {
    if args.name.kind() != NameKind::User {
        let user = args.name.user();
        return Err(Failure::usage(format!("--devices is about a user; give the user's name: {user}")));
    }
    let network = Network::start(globals, identity::of_user(globals)?.key, Wish::default()).await?;
    let found = network.resolver()?.devices_of(&args.name).await;
    network.close().await;
    let found = found.with_context(|| format!("cannot look up what {} has", args.name))?;
    let Some(first) = found.first() else {
        let message = format!("nothing of {} is registered there, or nothing is shown to you", args.name);
        return Err(Failure::new(Failure::NOT_FOUND, message).into());
    };
    if args.json {
        let key = first.authority().to_string();
        let records: Vec<Value> = found.iter().map(describe).collect();
        return output::json(&json!({ "user": args.name.to_string(), "key": key, "records": records }));
    }
    found.iter().try_for_each(|record| print(record, false))
}

async fn watch(globals: &Globals, args: Watch) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let network = Network::start(globals, identity::of_user(globals)?.key, Wish::default()).await?;
    let resolver = network.resolver()?;
    // Tells at once if there is no service; that a name is not registered yet is no mistake here.
    let first = resolver.lookup_record(&args.name).await;
    if let Err(error) = first {
        let error = anyhow::Error::new(error);
        if crate::failure::code(&error) != Failure::NOT_FOUND {
            network.close().await;
            return Err(error.context(format!("cannot watch {}", args.name)));
        }
        output::note(globals.quiet, crate::failure::line(&error));
    }
    let _reporter =
        Reporter::start(&network, About::new("names watch", Some(args.name.to_string())), globals.quiet);
    // What is known already is news to a watch that begins.
    let mut records = resolver.watch(&args.name);
    let result = loop {
        tokio::select! {
            changed = records.changed() => match changed {
                Some(Some(record)) => if let Err(error) = print(&record, args.json) {
                    break Err(error);
                },
                Some(None) => {}
                None => break Ok(()),
            },
            _ = shutdown.requested() => break Ok(()),
        }
    };
    network.close().await;
    result
}
