//! `whimbrel names serve`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use whimbrel::Identity;
use whimbrel_base::EndpointId;
use whimbrel_names::{Admission, Limits, MemoryStore, RedbStore, Rule, Service};
use whimbrel_relay::Relay;

use crate::commandline::Command;
use crate::failure::Failure;
use crate::manager::{self, Ready};
use crate::network::{Network, Wish};
use crate::options::{Globals, after};
use crate::relaying::{DRAIN, RelayFlags, allow_by_names};
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::{files, identity, metrics, output, places, reload};

const DEFAULT_PORT: u16 = 4480;

/// Run a name service until stopped
///
/// Prints its ticket, which goes into the others' --names. Its key is in the configuration
/// directory (`names-identity`), apart from yours, so that the service can move to another machine.
#[derive(Args)]
#[command(after_help = after("Example:\n  whimbrel names serve --listen 0.0.0.0:4480 --allow @example.org"))]
pub(crate) struct Serve {
    /// Where to listen [default: what a service manager opened, or port 4480 of all addresses]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Who may register new user names: an endpoint id, @DOMAIN or `any`; repeatable. Others need a
    /// code of `whimbrel names invite`
    #[arg(long, value_name = "WHO")]
    allow: Vec<Rule>,
    /// More of these, one a line; read once, at the start
    #[arg(long, value_name = "FILE")]
    allow_from: Option<PathBuf>,
    /// Who may make invitations, beside this user; repeatable
    #[arg(long, value_name = "ID")]
    operator: Vec<EndpointId>,
    /// The file that names are kept in [default: ~/.local/share/whimbrel/names.redb]
    #[arg(long, value_name = "FILE", conflicts_with = "ephemeral")]
    store: Option<PathBuf>,
    /// Keep names in memory only: all are forgotten at the end
    #[arg(long)]
    ephemeral: bool,
    /// Names that one key may have
    #[arg(long, value_name = "N", default_value_t = Limits::default().names_per_key)]
    names_per_key: u64,
    /// New names that one address may register in an hour
    #[arg(long, value_name = "N", default_value_t = Limits::default().new_names_per_hour)]
    new_names_per_hour: u32,
    /// Names that one key may watch
    #[arg(long, value_name = "N", default_value_t = Limits::default().watchers_per_peer)]
    watches_per_key: usize,
    /// Requests of one key in a second; further ones wait
    #[arg(long, value_name = "N", default_value_t = Limits::default().requests_per_second)]
    requests_per_second: u32,
    /// Requests from one address (IPv4, or /64 of IPv6) in a second; further ones wait
    #[arg(long, value_name = "N", default_value_t = Limits::default().requests_per_address)]
    requests_per_address: u32,
    /// Where to listen for GET /metrics, in Prometheus' text format
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Print a JSON object once it serves
    #[arg(long)]
    json: bool,
}

/// What a name service relays beside.
pub(crate) struct Relaying {
    /// For whom; nothing: for those who have names here.
    pub(crate) allow: Vec<Rule>,
    pub(crate) flags: RelayFlags,
}

impl Serve {
    fn limits(&self) -> Limits {
        Limits {
            names_per_key: self.names_per_key,
            new_names_per_hour: self.new_names_per_hour,
            watchers_per_peer: self.watches_per_key,
            requests_per_second: self.requests_per_second.max(1),
            requests_per_address: self.requests_per_address.max(1),
            ..Limits::default()
        }
    }

    /// Who may register, and who may invite. This user may, if there is a key already.
    fn admission(&self) -> Result<Admission> {
        let mut rules = self.allow.clone();
        if let Some(file) = &self.allow_from {
            rules.extend(read_rules(file)?);
        }
        let mut admission = rules.into_iter().fold(Admission::invited(), Admission::allow);
        // A system's service has no home directory, and needs none.
        let own = places::config().ok().map(|directory| directory.join("identity"));
        if let Some(own) = own.filter(|own| own.exists()) {
            admission = admission.operator(Identity::in_file(&own)?.key.id());
        }
        Ok(self.operator.iter().fold(admission, |admission, id| admission.operator(*id)))
    }
}

/// The rules in a file: one a line; empty lines and what follows `#` do not count.
fn read_rules(file: &Path) -> Result<Vec<Rule>> {
    let text = std::fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("cannot read --allow-from {}: {error}", file.display())))?;
    let mut rules = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let entry = line.split('#').next().unwrap_or_default().trim();
        if !entry.is_empty() {
            let place = format!("{}:{}", file.display(), at + 1);
            rules.push(entry.parse().map_err(|error| Failure::usage(format!("{place}: {error}")))?);
        }
    }
    Ok(rules)
}

/// Serves names, and relays on the same endpoint if there are rules for that.
pub(crate) async fn run(globals: &Globals, args: Serve, relaying: Option<Relaying>) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let sockets = manager::endpoint_sockets()?;
    if sockets.is_some() && (args.listen.is_some() || globals.port.is_some()) {
        return Err(Failure::usage(
            "the service manager says where to listen; leave out --listen and --port, or disable its socket unit",
        ));
    }
    if relaying.is_some() {
        files::raise_limit();
    }
    let (admission, limits) = (args.admission()?, args.limits());
    let is_invited_only = admission.is_invited_only();
    let file = match &globals.identity {
        Some(file) => file.clone(),
        None => places::config()?.join("names-identity"),
    };
    let key = Identity::in_file(&file)?.key;
    let listen = args.listen;
    let wish = Wish {
        config: Service::config(),
        ip: listen.map(|listen| listen.ip()).filter(|ip| !ip.is_unspecified()),
        port: listen.map_or(DEFAULT_PORT, |listen| listen.port()),
        sockets,
        advertise: relaying.as_ref().map(|relaying| relaying.flags.advertised()).unwrap_or_default(),
    };
    // A service asks no other one.
    let own = Globals { names: None, ..globals.clone() };
    let network = Network::start(&own, key, wish).await?;
    let endpoint = network.endpoint.transport();
    let (service, store) = if args.ephemeral {
        (Service::start(endpoint.clone(), MemoryStore::new(), admission, limits).await?, None)
    } else {
        let file = match args.store {
            Some(file) => file,
            None => {
                let directory = places::data()?;
                identity::private_directory(&directory)?;
                directory.join("names.redb")
            }
        };
        let opened = file.clone();
        let store = tokio::task::spawn_blocking(move || RedbStore::open(opened))
            .await
            .context("cannot open the store")??;
        (Service::start(endpoint.clone(), store, admission, limits).await?, Some(file))
    };
    let relay = match &relaying {
        Some(Relaying { allow, flags }) => {
            let allow = allow_by_names(allow.clone(), service.registry().clone());
            Some(flags.start(&network, allow).await?)
        }
        None => None,
    };
    let (names, relayed) = (service.stats_reader(), relay.as_ref().map(Relay::stats_reader));
    let metrics = metrics::serve(args.metrics, move || {
        metrics::of_names(&names())
            + &relayed.as_ref().map_or(String::new(), |stats| metrics::of_relay(&stats()))
    });
    let metrics = metrics.await?;
    let ticket = network.ticket(None, None).to_string();
    let _reporter = Reporter::start(&network, About::new("names serve", None), globals.quiet)?;
    let what = if relay.is_some() { "serving names, and relaying," } else { "serving names" };
    let status = format!("{what} on port {}", network.endpoint.port());
    let registry = service.registry().clone();
    let reloading = reload::follow(&status, move |cli| {
        let serve = match &cli.command {
            Command::Names(names) => names.serve(),
            Command::Serve(serve) => Some(serve.names()),
            _ => None,
        };
        registry.set_admission(serve.context("this command serves no names")?.admission()?);
        Ok(())
    })?;
    let ready = Ready::tell(&status);
    if is_invited_only {
        output::note(
            globals.quiet,
            "nobody new may register a name except with an invitation; make one with `whimbrel names invite`, \
             or say who may with --allow @DOMAIN, --allow ID or --allow any",
        );
    }
    if args.json {
        output::json(&json!({
            "id": network.id().to_string(), "ticket": ticket, "port": network.endpoint.port(), "store": store,
        }))?;
    } else {
        let kept = store.map_or("in memory".to_owned(), |file| format!("in {}", file.display()));
        output::note(globals.quiet, format!("{status}; names are kept {kept}"));
        output::line(&ticket)?;
    }
    shutdown.requested().await;
    drop((reloading, ready, metrics));
    if let Some(relay) = relay {
        relay.drain(DRAIN).await;
    }
    service.shutdown(Duration::from_secs(1)).await;
    network.close().await;
    Ok(())
}
