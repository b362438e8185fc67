//! `whimbrel names invite`.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use whimbrel_names::invitations::invite;
use whimbrel_names::{Domain, RedbStore, Terms};

use crate::network::{Network, Wish};
use crate::options::{Globals, after, duration};
use crate::{aside, identity, output};

/// Make a code by which somebody new may register names
///
/// Asks the name service, which must know this user as an operator: the user that runs it is one,
/// and `names serve --operator ID` names others. With --store it writes into the file of a service
/// that does not run just now.
#[derive(Args)]
#[command(after_help = after("\
Example:
  whimbrel names invite --domain example.org
  whimbrel id register ada@example.org --invite CODE    (on the other machine)"))]
pub(super) struct Invite {
    /// Names of this domain only
    #[arg(long, value_name = "DOMAIN")]
    domain: Option<Domain>,
    /// How many keys may use it, 1 to 100
    #[arg(long, value_name = "N", default_value_t = 1)]
    uses: u16,
    /// How long it counts: a number and s, m, h or d; 30d at most
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    valid: Duration,
    /// The store of a name service that does not run
    #[arg(long, value_name = "FILE")]
    store: Option<PathBuf>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(globals: &Globals, args: Invite) -> Result<()> {
    let terms = Terms { domain: args.domain.clone(), uses: args.uses, valid: args.valid };
    let code = match &args.store {
        Some(file) => into_file(file, terms).await?,
        None => {
            let network = Network::start(globals, identity::of_user(globals)?.key, Wish::default()).await?;
            let code = network.resolver()?.invite(terms).await;
            network.close().await;
            code.context("cannot make an invitation")?
        }
    };
    if args.json {
        let domain = args.domain.map(|domain| domain.to_string());
        return output::json(&json!({
            "code": code, "domain": domain, "uses": args.uses, "valid_s": args.valid.as_secs(),
        }));
    }
    output::line(code)
}

async fn into_file(file: &Path, terms: Terms) -> Result<String> {
    let opened = file.to_owned();
    let store = aside::run(move || RedbStore::open(opened)).await.context("cannot open the store")??;
    Ok(invite(&store, terms, SystemTime::now().into()).await?)
}
