//! `whimbrel proxy http`: an HTTP proxy.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tokio::net::TcpListener;
use whimbrel_multiaccess::ClientError;
use whimbrel_multiaccess::protocol::Ask;
use whimbrel_proxy::{HttpProxy, HttpSettings, Interception};

use crate::commands::proxy::intercepting::InterceptFlags;
use crate::commands::proxy::listening;
use crate::commands::proxy::reaching::{self, ReachFlags};
use crate::commands::proxy::transfers;
use crate::failure::Failure;
use crate::manager::Ready;
use crate::moving::{self, Sessions};
use crate::network::Network;
use crate::options::{Globals, after, size};
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::{files, metrics, output};

const COMMAND: &str = moving::WEB;

/// Serve browsers and other programs as an HTTP proxy, until stopped
///
/// Objects of http:// go over what the manager chooses (`whimbrel access serve`), large ones over several
/// networks, and https:// connections over one.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel proxy http
  curl --proxy http://127.0.0.1:8118 http://example.org/
  whimbrel proxy http --listen 127.0.0.1:8119 --intercept example.org --intercept-ca ca
  whimbrel proxy http --listen 127.0.0.1:8120 --host web.home.ada@example.org
  curl --proxy http://127.0.0.1:8120 http://web.home.ada.at.example.org.whimbrel/"))]
pub(crate) struct Http {
    /// Where to listen, unless systemd does
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8118")]
    listen: SocketAddr,
    /// Serve whoever reaches that address: they use your networks and key
    #[arg(long)]
    allow_anyone: bool,
    #[command(flatten)]
    interception: InterceptFlags,
    #[command(flatten)]
    flags: HttpFlags,
    /// Serve GET /metrics there, for Prometheus
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    /// Print a JSON object once it listens
    #[arg(long)]
    json: bool,
}

/// Flags of everything that has an HTTP proxy in it.
#[derive(Args)]
pub(crate) struct HttpFlags {
    /// Ask for so much first; 0: all
    #[arg(long, value_name = "SIZE", default_value = "12800", value_parser = size)]
    first_step: u64,
    /// Objects of a server at once; 0: all
    #[arg(long, value_name = "N", default_value_t = 6)]
    turns: usize,
    #[command(flatten)]
    pub(crate) reach: ReachFlags,
}

impl HttpFlags {
    /// The proxy, and whether a manager chooses for it.
    pub(crate) async fn proxy(
        &self,
        globals: &Globals,
        network: Option<&Arc<Network>>,
        interception: Option<Interception>,
    ) -> Result<(HttpProxy, bool)> {
        let mut settings = HttpSettings::default();
        if self.first_step > settings.window {
            return Err(Failure::usage("--first-step is at most 8MiB: no more waits for its reader"));
        }
        settings.first_step = self.first_step;
        settings.turns = self.turns;
        let client = self.reach.client();
        let is_managed = match client.ask(Ask::default()).await {
            _ if self.reach.steering.is_off() => false,
            _ if self.reach.through.is_some() && !self.reach.is_by_answer() => false,
            Ok(verdict) if self.reach.is_by_answer() && verdict.gateway.is_none() => {
                let why = "the manager's settings name no gateway";
                output::note(globals.quiet, format!("all goes through the gateway: {why}"));
                false
            }
            Ok(_) | Err(ClientError::Refused(_)) => true,
            Err(error) => {
                let chooses = match self.reach.through {
                    Some(_) => "all goes through the gateway",
                    None => "the system chooses the network",
                };
                output::note(globals.quiet, format!("{chooses}: {error}"));
                false
            }
        };
        let upstream = self.reach.upstream(network, client).await?;
        let proxy = match interception {
            Some(interception) => HttpProxy::intercepting(upstream, settings, interception),
            None => HttpProxy::new(upstream, settings),
        };
        Ok((proxy, is_managed))
    }
}

pub(super) async fn run(globals: &Globals, args: Http) -> Result<()> {
    args.flags.reach.check(globals)?;
    files::raise_limit();
    let interception = args.interception.read()?;
    let listener = listening::listen(args.listen, |at| may_listen(at, &args)).await?;
    let figures = metrics::listen(args.metrics, false).await?;
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let network = args.flags.reach.network(globals).await?;
    let result = tokio::select! {
        result = serve(globals, &args, network.as_ref(), (listener, figures), interception) => result,
        never = reaching::renewing(network.as_ref()) => match never {},
        _ = shutdown.requested() => Ok(()),
    };
    if let Some(network) = network {
        network.close().await;
    }
    result
}

async fn serve(
    globals: &Globals,
    args: &Http,
    network: Option<&Arc<Network>>,
    (listener, figures): (TcpListener, Option<TcpListener>),
    interception: Option<Interception>,
) -> Result<()> {
    let (proxy, is_managed) = args.flags.proxy(globals, network, interception).await?;
    let counting = proxy.clone();
    let text = move || metrics::of_http_proxy(&counting.stats(), &counting.networks());
    let _metrics = metrics::serve(figures, text);
    let local = listener.local_addr().context("cannot tell where it listens")?;
    let (through, hosts) = (args.flags.reach.gateway(), args.flags.reach.hosts());
    let sessions = Sessions::default();
    let _reporter = match network {
        Some(network) => {
            let about = About::new(COMMAND, through.clone()).moving(&sessions);
            Some(Reporter::start(network, about, globals.quiet)?)
        }
        None => None,
    };
    let transfers = network.and_then(|_| proxy.transfers());
    let status = format!("HTTP proxy on {local}{}", args.flags.reach.shown());
    args.interception.tell(globals.quiet);
    let _ready = Ready::tell(&status);
    if args.json {
        output::json(&json!({
            "listening": local.to_string(),
            "manager": is_managed,
            "through": through,
            "hosts": hosts,
        }))?;
    } else {
        output::line(&status)?;
        hosts.iter().try_for_each(|host| output::line(format!("  {host}")))?;
    }
    tokio::select! {
        () = proxy.serve(listener) => Ok(()),
        never = transfers::offer(globals.quiet, transfers, &sessions) => match never {},
    }
}

/// Where others reach the proxy, that must be meant: it does not ask who they are.
fn may_listen(at: SocketAddr, args: &Http) -> Result<()> {
    args.interception.may_listen(at)?;
    if at.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    if !args.allow_anyone {
        return Err(Failure::usage(format!(
            "whoever reaches {at} would use this proxy as you; listen on 127.0.0.1, or say --allow-anyone if \
             nobody else is on that network"
        )));
    }
    // A warning: --quiet does not suppress it.
    output::note(false, format!("WARNING: whoever reaches {at} uses this proxy as you"));
    Ok(())
}
