//! `whimbrel relay`: passes on, to endpoints that nobody can dial, what it cannot read.

use std::net::SocketAddr;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;
use whimbrel::Identity;
use whimbrel_names::Rule;

use crate::failure::Failure;
use crate::manager::{self, Ready};
use crate::network::{Network, Wish};
use crate::options::{Globals, after};
use crate::relaying::{self, DRAIN, GroupFlags, RelayFlags};
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::{files, metrics, naming, output, places};

mod list;

const DEFAULT_PORT: u16 = 443;

/// Run a relay, or look at a group of them
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel relay serve --allow ID
  whimbrel relay list pool.ada@example.org"))]
pub(crate) struct Relay {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    Serve(Serve),
    List(list::List),
}

/// Run a relay until stopped
///
/// Prints its ticket, which goes into --relay of those who are to be reached through it. It sees
/// ciphertext only. Its key is in the configuration directory (`relay-identity`), apart from yours.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel relay serve --allow ID
  whimbrel relay serve --listen 0.0.0.0:8443 --allow any --metrics 127.0.0.1:9090
  whimbrel relay serve --allow any --group pool.ada@example.org --as fra.ada@example.org --place fra"))]
struct Serve {
    /// Where to listen [default: what a service manager opened, or port 443 of all addresses]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// An endpoint that may be reached through it: its id, or `any`; repeatable
    #[arg(long, value_name = "WHO", required = true)]
    allow: Vec<Rule>,
    #[command(flatten)]
    group: GroupFlags,
    #[command(flatten)]
    flags: RelayFlags,
    /// Where to listen for GET /metrics, in Prometheus' text format
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Print a JSON object once it relays
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(globals: &Globals, args: Relay) -> Result<()> {
    match args.action {
        Action::Serve(args) => serve(globals, args).await,
        Action::List(args) => list::run(globals, args).await,
    }
}

async fn serve(globals: &Globals, args: Serve) -> Result<()> {
    let allow = relaying::allow(&args.allow)?;
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let sockets = manager::endpoint_sockets()?;
    if sockets.is_some() && (args.listen.is_some() || globals.port.is_some()) {
        return Err(Failure::usage(
            "the service manager says where to listen; leave out --listen and --port, or disable its socket unit",
        ));
    }
    files::raise_limit();
    let file = match &globals.identity {
        Some(file) => file.clone(),
        None => places::config()?.join("relay-identity"),
    };
    let key = Identity::in_file(&file)?.key;
    let listen = args.listen;
    let wish = Wish {
        config: whimbrel_relay::Relay::config(),
        ip: listen.map(|listen| listen.ip()).filter(|ip| !ip.is_unspecified()),
        port: listen.map_or(DEFAULT_PORT, |listen| listen.port()),
        advertise: args.flags.advertised(),
        sockets,
        ..Wish::default()
    };
    // A relay alone looks no names up.
    let names = globals.names.clone().filter(|_| args.group.is_given());
    let own = Globals { names, lan: false, ..globals.clone() };
    let network = Network::start(&own, key, wish).await?;
    let grouped = args.group.find(&network).await?;
    let relay = args.flags.start(&network, allow).await?;
    let membership = match &grouped {
        Some(grouped) => Some(grouped.join(globals, &network, &relay).await?),
        None => None,
    };
    let stats = relay.stats_reader();
    let metrics = metrics::serve(args.metrics, move || metrics::of_relay(&stats())).await?;
    let name = grouped.as_ref().map(|grouped| grouped.own.to_string());
    let group = grouped.as_ref().map(|grouped| grouped.group.to_string());
    let _reporter = Reporter::start(&network, About::new("relay serve", name.clone()), globals.quiet)?;
    let port = network.endpoint.port();
    let status = match &group {
        Some(group) => format!("relaying on port {port}, in the group {group}"),
        None => format!("relaying on port {port}"),
    };
    let ready = Ready::tell(&status);
    let ticket = network.ticket(None, None).to_string();
    if args.json {
        output::json(&json!({
            "id": network.id().to_string(), "ticket": ticket, "port": port, "name": name, "group": group,
        }))?;
    } else {
        output::note(globals.quiet, status);
        output::line(&ticket)?;
    }
    let following = async {
        match &grouped {
            Some(grouped) => grouped.follow(globals.quiet).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        _ = shutdown.requested() => {}
        () = following => {}
    }
    drop((ready, metrics));
    if let Some(grouped) = &grouped {
        // Servers that look for a relay now do not find this one.
        naming::withdraw(&network, &grouped.own).await;
    }
    drop(membership);
    relay.drain(DRAIN).await;
    network.close().await;
    Ok(())
}
