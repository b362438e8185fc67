//! `whimbrel proxy socks`: a SOCKS proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tokio::net::TcpListener;
use whimbrel_proxy::{Credentials, Socks as Server};

use crate::commands::proxy::listening;
use crate::commands::proxy::reaching::{self, ReachFlags};
use crate::failure::Failure;
use crate::manager::Ready;
use crate::network::Network;
use crate::options::{Globals, after};
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::{files, metrics, output};

const COMMAND: &str = "proxy socks";

/// Serve programs as a SOCKS proxy (SOCKS5, SOCKS4a), until stopped
///
/// Each connection goes over the network that the manager chooses (`whimbrel access serve`), or through a
/// gateway, where it survives moves; through one if the manager says so, if both are named (--through,
/// --manager). Have programs send names and not addresses (socks5h): they are looked up there.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel proxy socks --through gate.home.ada@example.org
  curl --proxy socks5h://127.0.0.1:1080 http://example.org/
  whimbrel proxy socks --listen 127.0.0.1:1081 --host web.home.ada@example.org:80
  curl --proxy socks5h://127.0.0.1:1081 http://web.home.ada.at.example.org.whimbrel/"))]
pub(super) struct Socks {
    /// Where to listen; not needed where systemd hands a socket over
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:1080")]
    listen: SocketAddr,
    /// Ask who uses the proxy: a file with lines USER:PASSWORD
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
    /// Serve GET /metrics there, for Prometheus
    #[arg(long, value_name = "ADDR:PORT")]
    metrics: Option<SocketAddr>,
    #[command(flatten)]
    reach: ReachFlags,
    /// Print a JSON object once it listens
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(globals: &Globals, args: Socks) -> Result<()> {
    args.reach.check(globals)?;
    files::raise_limit();
    let credentials = match &args.credentials {
        Some(file) => {
            let read = Credentials::read(file).map_err(|error| Failure::usage(error.to_string()));
            Some(read?)
        }
        None => None,
    };
    let listener = listening::listen(args.listen, |at| may_listen(at, &args)).await?;
    let figures = metrics::listen(args.metrics, false).await?;
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let network = args.reach.network(globals).await?;
    let result = tokio::select! {
        result = serve(globals, &args, network.as_ref(), (listener, figures), credentials) => result,
        never = reaching::renewing(network.as_ref()) => match never {},
        _ = shutdown.requested() => Ok(()),
    };
    if let Some(network) = network {
        network.close().await;
    }
    result
}

/// Where others reach the proxy, it must know who they are.
fn may_listen(at: SocketAddr, args: &Socks) -> Result<()> {
    if at.ip().to_canonical().is_loopback() || args.credentials.is_some() {
        return Ok(());
    }
    Err(Failure::usage(format!(
        "whoever reaches {at} would use this proxy as you; listen on 127.0.0.1, or ask who they are with \
         --credentials FILE"
    )))
}

async fn serve(
    globals: &Globals,
    args: &Socks,
    network: Option<&Arc<Network>>,
    (listener, figures): (TcpListener, Option<TcpListener>),
    credentials: Option<Credentials>,
) -> Result<()> {
    let upstream = args.reach.upstream(network, args.reach.client()).await?;
    let local = listener.local_addr().context("cannot tell where it listens")?;
    let name = args.reach.gateway();
    let _reporter = match network {
        Some(network) => Some(Reporter::start(network, About::new(COMMAND, name.clone()), globals.quiet)?),
        None => None,
    };
    let hosts = args.reach.hosts();
    let status = format!("SOCKS proxy on {local}{}", args.reach.shown());
    let _ready = Ready::tell(&status);
    if args.json {
        output::json(&json!({ "listening": local.to_string(), "through": name, "hosts": hosts }))?;
    } else {
        output::line(&status)?;
        hosts.iter().try_for_each(|host| output::line(format!("  {host}")))?;
    }
    let server = Server::new(upstream, credentials);
    let counting = server.clone();
    let text = move || metrics::of_socks(&counting.stats(), &counting.networks());
    let _metrics = metrics::serve(figures, text);
    match server.serve(listener).await {}
}
