//! `whimbrel relay`: passes on, to endpoints that nobody can dial, what it cannot read.

use std::net::SocketAddr;

use anyhow::Result;
use clap::{Args, Subcommand};
use serde_json::json;
use whimbrel::Identity;
use whimbrel_base::SecretKey;
use whimbrel_names::Rule;
use whimbrel_relay::Membership;

use crate::failure::{self, Failure};
use crate::manager::{self, Ready};
use crate::network::{Network, Wish};
use crate::options::{Globals, after};
use crate::relaying::{Admitted, DRAIN, GroupFlags, Grouped, RelayFlags};
use crate::serving::Start;
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::takeover::{self, Estate, Inherited, Running, Served, TakeOver, Waking};
use crate::{files, metrics, naming, output, places};

mod list;

const COMMAND: &str = "relay serve";
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
  whimbrel relay serve --allow ID --take-over
  whimbrel relay serve --names SERVICE --allow @example.org
  whimbrel relay serve --allow any --group pool.ada@example.org --as fra.ada@example.org --place fra"))]
struct Serve {
    /// Where to listen [default: what a service manager opened, or port 443 of all addresses]
    #[arg(long, value_name = "ADDR:PORT")]
    listen: Option<SocketAddr>,
    /// Who may be reached through it: an id, `any`, or @DOMAIN (--names vouches for them); repeatable
    #[arg(long, value_name = "WHO", required = true)]
    allow: Vec<Rule>,
    #[command(flatten)]
    group: GroupFlags,
    #[command(flatten)]
    flags: RelayFlags,
    /// Serve GET /metrics there, for Prometheus
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    take_over: TakeOver,
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
    let admitted = Admitted::by(&args.allow, globals.names.as_ref())?;
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    files::raise_limit();
    let file = match &globals.identity {
        Some(file) => file.clone(),
        None => places::config()?.join("relay-identity"),
    };
    let key = Identity::in_file(&file)?.key;
    let own = args.group.own().map(ToString::to_string);
    let running = Running { command: COMMAND, id: key.id(), name: own.as_deref() };
    takeover::serve(globals, &args.take_over, running, &mut shutdown, async |inherited, shutdown| {
        let relay = Serving { globals, args: &args, admitted: &admitted };
        relay.run(key.clone(), inherited, shutdown).await
    })
    .await
}

/// A relay that can be taken over.
struct Serving<'a> {
    globals: &'a Globals,
    args: &'a Serve,
    admitted: &'a Admitted,
}

impl Serving<'_> {
    async fn run(
        &self,
        key: SecretKey,
        mut inherited: Option<Inherited>,
        shutdown: &mut Shutdown,
    ) -> Result<Served> {
        let Self { globals, args, admitted } = *self;
        let is_told = inherited.as_ref().is_some_and(Inherited::is_own);
        let start = if inherited.is_some() { Start::GoingOn } else { Start::Anew };
        let network = self.bind(key, &mut inherited).await?;
        let mut grouped = match start {
            Start::Anew => args.group.find(&network).await?,
            // That can wait.
            Start::GoingOn => None,
        };
        let left = Inherited::take_relay(&mut inherited);
        let prepared = args.flags.prepare(&network, admitted.clone(), left)?;
        let stats = prepared.stats_reader();
        let listening = metrics::listen(args.metrics, start == Start::GoingOn).await?;
        let waking = match inherited {
            Some(inherited) => Some(inherited.ready(&network).await?),
            None => None,
        };
        let relay = prepared.listen().await?;
        let connections = waking.map(Waking::begin_connections).transpose()?.unwrap_or_default();
        let relay = relay.go_on(&connections);
        let handshakes = network.endpoint.transport().handshakes();
        let metrics = metrics::serve(listening, move || {
            metrics::of_relay(&stats()) + &metrics::of_endpoint(&handshakes())
        });
        let joined = match (start, &grouped) {
            (Start::Anew, Some(grouped)) => Some(grouped.join(globals, &network, &relay).await?),
            (Start::Anew, None) => None,
            (Start::GoingOn, _) => self.join_again(&network, &relay, &mut grouped).await,
        };
        let name = args.group.own().map(ToString::to_string);
        let about = About::new(COMMAND, name).handing_over();
        let mut reporter = Reporter::start(&network, about, globals.quiet)?;
        let port = network.endpoint.port();
        let status = match args.group.name() {
            Some(group) => format!("relaying on port {port}, in the group {group}"),
            None => format!("relaying on port {port}"),
        };
        let ready = Ready::tell(&status);
        if !is_told {
            start.needs(self.tell(&network, &status))?;
        }
        let following = async {
            match &grouped {
                Some(grouped) => grouped.follow(globals.quiet).await,
                None => std::future::pending().await,
            }
        };
        tokio::pin!(following);
        let left = loop {
            tokio::select! {
                _ = shutdown.requested() => break None,
                () = &mut following => break None,
                asker = reporter.asked() => match network.endpoint.transport().stop_listening() {
                    Ok(leaving) => break Some((asker, leaving)),
                    Err(error) => asker.refuse(error.to_string()).await,
                },
            }
        };
        drop(metrics);
        if let Some((asker, leaving)) = left {
            ready.leave();
            drop(joined);
            let estate = Estate::of_relay(relay.leave(leaving).await);
            return Ok(Served::Left(asker, Box::new(estate)));
        }
        drop(ready);
        if let Some(own) = args.group.own() {
            // Servers that look for a relay now do not find this one.
            naming::withdraw(&network, own).await;
        }
        drop(joined);
        relay.drain(DRAIN).await;
        network.close().await;
        Ok(Served::Ended)
    }

    /// Binds, or goes on with the sockets of another instance.
    async fn bind(&self, key: SecretKey, inherited: &mut Option<Inherited>) -> Result<Network> {
        let Self { globals, args, .. } = *self;
        let opened = if inherited.is_none() { manager::endpoint_sockets()? } else { None };
        if opened.is_some() && (args.listen.is_some() || globals.port.is_some()) {
            return Err(Failure::usage(
                "the service manager says where to listen; leave out --listen and --port, or disable its socket unit",
            ));
        }
        let listen = args.listen;
        let handed_over = Inherited::wish(inherited, whimbrel_relay::Relay::config());
        let wish = Wish {
            ip: listen.map(|listen| listen.ip()).filter(|ip| !ip.is_unspecified()),
            port: listen.map_or(DEFAULT_PORT, |listen| listen.port()),
            advertise: args.flags.advertised(),
            sockets: handed_over.sockets.or(opened),
            ..handed_over
        };
        // A relay alone looks no names up.
        let names = globals.names.clone().filter(|_| args.group.is_given());
        let own = Globals { names, lan: false, ..globals.clone() };
        Network::start(&own, key, wish).await
    }

    /// Joins the group that the instance before was in. If it cannot now, servers that know this relay stay.
    async fn join_again(
        &self,
        network: &Network,
        relay: &whimbrel_relay::Relay,
        grouped: &mut Option<Grouped>,
    ) -> Option<Membership> {
        let joining = async {
            *grouped = self.args.group.find(network).await?;
            match grouped {
                Some(grouped) => grouped.join(self.globals, network, relay).await.map(Some),
                None => Ok(None),
            }
        };
        joining.await.unwrap_or_else(|error| {
            let why = failure::line(&error);
            output::note(false, format!("{why}; this relay is in no group until it is started again"));
            None
        })
    }

    fn tell(&self, network: &Network, status: &str) -> Result<()> {
        let (ticket, port) = (network.ticket(None, None).to_string(), network.endpoint.port());
        if self.args.json {
            let group = &self.args.group;
            let (name, group) = (group.own().map(ToString::to_string), group.name().map(ToString::to_string));
            return output::json(&json!({
                "id": network.id().to_string(), "ticket": ticket, "port": port, "name": name, "group": group,
            }));
        }
        output::note(self.globals.quiet, status);
        output::line(&ticket)
    }
}
