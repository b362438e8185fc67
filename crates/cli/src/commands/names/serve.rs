//! `whimbrel names serve`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{Args, FromArgMatches as _};
use serde_json::json;
use whimbrel::Identity;
use whimbrel_base::{EndpointId, SecretKey};
use whimbrel_names::{Admission, Limits, MemoryStore, RedbStore, Registry, Rule, Service, Smtp};
use whimbrel_relay::Prepared;

use super::limits::Limit;
use crate::arguments;
use crate::failure::Failure;
use crate::manager::{self, Ready};
use crate::network::{Network, Wish};
use crate::options::{Globals, LIMITS, after};
use crate::relaying::{DRAIN, RelayFlags, admit_by_names};
use crate::serving::Start;
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::takeover::{self, Estate, Inherited, Running, Served, TakeOver, Waking};
use crate::{aside, files, identity, metrics, output, places, reload};

const COMMAND: &str = "names serve";
const DEFAULT_PORT: u16 = 4480;
/// How long peers may take to hear that the service stops.
const STOP_LIMIT: Duration = Duration::from_secs(1);
/// How long an instance that was taken over may keep the store.
const RELEASE_LIMIT: Duration = Duration::from_secs(2);
const RELEASE_PAUSE: Duration = Duration::from_millis(10);

/// Run a name service until stopped
///
/// Prints its ticket, which goes into the others' --names. Its key is in the configuration
/// directory (`names-identity`), apart from yours, so that the service can move to another machine.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel names serve --listen 0.0.0.0:4480 --allow @example.org
  whimbrel names serve --allow @example.org --take-over"))]
pub(crate) struct Serve {
    /// Where to listen [default: what a service manager opened, or port 4480 of all addresses]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Who may register new user names: an endpoint id, @DOMAIN or `any`; repeatable. Others need a
    /// code of `whimbrel names invite`
    #[arg(long, value_name = "WHO")]
    allow: Vec<Rule>,
    /// More of these, one a line; read at the start and on a reload
    #[arg(long, value_name = "FILE")]
    allow_from: Option<PathBuf>,
    /// Others who may make invitations; repeatable
    #[arg(long, value_name = "ID")]
    operator: Vec<EndpointId>,
    /// New users prove their mail address: smtp://HOST[:PORT][/SENDER]
    #[arg(long, value_name = "RELAY")]
    verify_mail: Option<Smtp>,
    /// The file of names [default: ~/.local/share/whimbrel/names.redb]
    #[arg(long, value_name = "FILE", conflicts_with = "ephemeral")]
    store: Option<PathBuf>,
    /// Keep names in memory, until the end
    #[arg(long)]
    ephemeral: bool,
    /// Names that one key may have
    #[arg(long, value_name = "N", default_value_t = Limits::default().names_per_key, help_heading = LIMITS)]
    names_per_key: u64,
    /// New names that one address may register in an hour
    #[arg(long, value_name = "N", default_value_t = Limits::default().new_names_per_hour, help_heading = LIMITS)]
    new_names_per_hour: u32,
    /// Names that one key may watch
    #[arg(long, value_name = "N", default_value_t = Limits::default().watchers_per_peer, help_heading = LIMITS)]
    watches_per_key: usize,
    /// Requests of one key in a second; further ones wait
    #[arg(long, value_name = "N", default_value_t = Limits::default().requests_per_second, help_heading = LIMITS)]
    requests_per_second: u32,
    /// Requests from one address (or /64) in a second
    #[arg(long, value_name = "N", default_value_t = Limits::default().requests_per_address, help_heading = LIMITS)]
    requests_per_address: u32,
    /// Another limit; repeatable
    #[arg(long, value_name = "NAME=VALUE", help_heading = LIMITS)]
    limit: Vec<Limit>,
    /// Serve GET /metrics there, for Prometheus
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    take_over: TakeOver,
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
        let mut limits = Limits {
            names_per_key: self.names_per_key,
            new_names_per_hour: self.new_names_per_hour,
            watchers_per_peer: self.watches_per_key,
            requests_per_second: self.requests_per_second.max(1),
            requests_per_address: self.requests_per_address.max(1),
            ..Limits::default()
        };
        self.limit.iter().for_each(|limit| limit.set(&mut limits));
        limits
    }

    /// Where names are kept; `None` for in memory.
    fn store_file(&self) -> Result<Option<PathBuf>> {
        if self.ephemeral {
            return Ok(None);
        }
        if let Some(file) = &self.store {
            return Ok(Some(file.clone()));
        }
        let directory = places::data()?;
        identity::private_directory(&directory)?;
        Ok(Some(directory.join("names.redb")))
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
    if relaying.is_some() {
        files::raise_limit();
    }
    let file = match &globals.identity {
        Some(file) => file.clone(),
        None => places::config()?.join("names-identity"),
    };
    let key = Identity::in_file(&file)?.key;
    let running = Running { command: COMMAND, id: key.id(), name: None };
    takeover::serve(globals, &args.take_over, running, &mut shutdown, async |inherited, shutdown| {
        serve(globals, &args, &key, relaying.as_ref(), inherited, shutdown).await
    })
    .await
}

async fn serve(
    globals: &Globals,
    args: &Serve,
    key: &SecretKey,
    relaying: Option<&Relaying>,
    mut inherited: Option<Inherited>,
    shutdown: &mut Shutdown,
) -> Result<Served> {
    let is_told = inherited.as_ref().is_some_and(Inherited::is_own);
    let opened = if inherited.is_none() { manager::endpoint_sockets()? } else { None };
    if opened.is_some() && (args.listen.is_some() || globals.port.is_some()) {
        return Err(Failure::usage(
            "the service manager says where to listen; leave out --listen and --port, or disable its socket unit",
        ));
    }
    let start = if inherited.is_some() { Start::GoingOn } else { Start::Anew };
    let (admission, limits) = (args.admission()?, args.limits());
    let is_invited_only = admission.is_invited_only();
    let handed_over = Inherited::wish(&mut inherited, Service::config());
    let wish = Wish {
        ip: args.listen.map(|listen| listen.ip()).filter(|ip| !ip.is_unspecified()),
        port: args.listen.map_or(DEFAULT_PORT, |listen| listen.port()),
        advertise: relaying.map(|relaying| relaying.flags.advertised()).unwrap_or_default(),
        sockets: handed_over.sockets.or(opened),
        ..handed_over
    };
    // A service asks no other one.
    let own = Globals { names: None, lan: false, ..globals.clone() };
    let network = Network::start(&own, key.clone(), wish).await?;
    let store = args.store_file()?;
    let registry = match &store {
        None => Registry::new(MemoryStore::new(), admission, limits),
        Some(file) => Registry::new(open(file, inherited.is_some()).await?, admission, limits),
    };
    let prepared = match relaying {
        Some(Relaying { allow, flags }) => {
            let admitted = admit_by_names(allow.clone(), registry.clone());
            Some(flags.prepare(&network, admitted, Inherited::take_relay(&mut inherited))?)
        }
        None => None,
    };
    let listening = metrics::listen(args.metrics, inherited.is_some()).await?;
    let waking = match inherited {
        Some(inherited) => Some(inherited.ready(&network).await?),
        None => None,
    };
    if args.verify_mail.is_some() {
        registry.require_mail();
    }
    let service = Service::start_with(network.endpoint.transport().clone(), registry.clone()).await?;
    if let Some(smtp) = &args.verify_mail {
        service.mail_with(smtp.clone());
    }
    service.vouch_with(key.clone());
    let (names, relayed) = (service.stats_reader(), prepared.as_ref().map(Prepared::stats_reader));
    let relay = match prepared {
        Some(prepared) => {
            let listening = prepared.listen().await?;
            let connections = waking.map(Waking::begin_connections).transpose()?.unwrap_or_default();
            Some(listening.go_on(&connections))
        }
        // Its peers come by themselves.
        None => {
            drop(waking.map(Waking::begin).transpose()?);
            None
        }
    };
    let handshakes = network.endpoint.transport().handshakes();
    let metrics = metrics::serve(listening, move || {
        metrics::of_names(&names())
            + &metrics::of_endpoint(&handshakes())
            + &relayed.as_ref().map_or(String::new(), |stats| metrics::of_relay(&stats()))
    });
    let about = About::new(COMMAND, None);
    // What is kept in memory only would be forgotten.
    let about = if store.is_some() { about.handing_over() } else { about };
    let mut reporter = Reporter::start(&network, about, globals.quiet)?;
    let what = if relay.is_some() { "serving names, and relaying," } else { "serving names" };
    let status = format!("{what} on port {}", network.endpoint.port());
    let reloading = reload::follow(&globals.source, &status, move |matches| {
        registry.set_admission(Serve::from_arg_matches(arguments::own(matches))?.admission()?);
        Ok(())
    })?;
    let ready = Ready::tell(&status);
    if !is_told {
        start.needs(tell(globals, args, &network, is_invited_only, &status, store))?;
    }
    let left = loop {
        tokio::select! {
            _ = shutdown.requested() => break None,
            asker = reporter.asked() => match network.endpoint.transport().stop_listening() {
                Ok(leaving) => break Some((asker, leaving)),
                Err(error) => asker.refuse(error.to_string()).await,
            },
        }
    };
    drop((reloading, metrics));
    let Some((asker, leaving)) = left else {
        if let Some(relay) = relay {
            relay.drain(DRAIN).await;
        }
        drop(ready);
        service.shutdown(STOP_LIMIT).await;
        network.close().await;
        return Ok(Served::Ended);
    };
    ready.leave();
    service.shutdown(STOP_LIMIT).await;
    let estate = match relay {
        Some(relay) => Estate::of_relay(relay.leave(leaving).await),
        None => Estate::of(leaving, &[], Vec::new()).await,
    };
    Ok(Served::Left(asker, Box::new(estate)))
}

fn tell(
    globals: &Globals,
    args: &Serve,
    network: &Network,
    is_invited_only: bool,
    status: &str,
    store: Option<PathBuf>,
) -> Result<()> {
    if is_invited_only {
        output::note(
            globals.quiet,
            "nobody new may register a name except with an invitation; make one with `whimbrel names invite`, \
             or say who may with --allow @DOMAIN, --allow ID or --allow any",
        );
    }
    let (ticket, port) = (network.ticket(None, None).to_string(), network.endpoint.port());
    if args.json {
        return output::json(
            &json!({ "id": network.id().to_string(), "ticket": ticket, "port": port, "store": store }),
        );
    }
    let kept = store.map_or("in memory".to_owned(), |file| format!("in {}", file.display()));
    output::note(globals.quiet, format!("{status}, kept {kept}"));
    output::line(&ticket)
}

/// Opens the store; one that another instance `had` may still be on its way out.
async fn open(file: &Path, had: bool) -> Result<RedbStore> {
    let start = Instant::now();
    loop {
        let file = file.to_owned();
        let opened = aside::run(move || RedbStore::open(file)).await;
        match opened.context("cannot open the store")? {
            Err(_) if had && start.elapsed() < RELEASE_LIMIT => tokio::time::sleep(RELEASE_PAUSE).await,
            opened => return Ok(opened?),
        }
    }
}
