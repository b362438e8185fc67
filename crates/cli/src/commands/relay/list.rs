//! `whimbrel relay list`: the relays of a group, as a server would find them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use whimbrel_base::Name;
use whimbrel_relay::{Roster, group, pool};

use crate::identity;
use crate::network::{Network, Wish};
use crate::options::{Globals, after};
use crate::output;
use crate::roster::NamedRelays;

/// To look all members up takes no longer.
const LOOKUP: Duration = Duration::from_secs(10);

/// Show the relays of a group: what each says of itself, what the others say of it, and the way to it from
/// here
#[derive(Args)]
#[command(after_help = after("Example:\n  whimbrel relay list pool.ada@example.org"))]
pub(super) struct List {
    /// The group's name
    group: Name,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(globals: &Globals, args: List) -> Result<()> {
    let network = Network::start(globals, identity::of_user(globals)?.key, Wish::default()).await?;
    let shown = show(&network, &args).await;
    network.close().await;
    shown
}

async fn show(network: &Network, args: &List) -> Result<()> {
    let (roster, problem) = NamedRelays::follow(network, &args.group).await?;
    if let Some(problem) = problem {
        return Err(problem).with_context(|| format!("cannot look up {}", args.group));
    }
    let roster: Arc<dyn Roster> = Arc::new(roster);
    let names = roster.members().current().unwrap_or_default();
    let members = pool::list(&roster, &names, &[], LOOKUP).await;
    let absent = group::absent(&members);
    let rtts = pool::measure(network.endpoint.transport(), &members).await;
    let mut relays = Vec::new();
    for name in names.iter() {
        let member = members.iter().find(|member| member.name == *name);
        let rtt = member.and_then(|member| rtts.get(&member.id())).map(|rtt| rtt.as_secs_f64() * 1e3);
        let is_out = member.is_some_and(|member| absent.contains(&member.id()));
        let state = match (member, rtt) {
            (None, _) => "not registered",
            _ if is_out => "out",
            (_, None) => "does not answer",
            _ => "there",
        };
        let place = member.and_then(|member| member.place()).map(ToString::to_string);
        let load = member.map(whimbrel_relay::Listed::share);
        if args.json {
            relays.push(json!({
                "name": name.to_string(), "id": member.map(|member| member.id().to_string()), "state": state,
                "place": place, "load": load, "rtt_ms": rtt,
            }));
            continue;
        }
        let load = load.map(|load| format!("{:.0} % load", load * 100.0));
        let rtt = rtt.map(|rtt| format!("RTT {rtt:.1} ms"));
        let parts = [Some(name.to_string()), Some(state.to_owned()), place, load, rtt];
        output::line(parts.into_iter().flatten().collect::<Vec<_>>().join(", "))?;
    }
    if args.json {
        return output::json(&json!({ "group": args.group.to_string(), "relays": relays }));
    }
    Ok(())
}
