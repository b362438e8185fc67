//! `whimbrel proxy socks`: a SOCKS proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tokio::net::TcpListener;
use whimbrel_multiaccess::Client;
use whimbrel_proxy::{Credentials, Gateway, Managed, Routed, Socks as Server, Upstream, WhimbrelHosts};

use crate::failure::Failure;
use crate::hosts::{self, ListedHost};
use crate::lasting::Lasting;
use crate::manager::{self, Ready};
use crate::multipath::PathFlags;
use crate::network::{Network, Peer, Wish};
use crate::options::{Globals, after};
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::{files, output, renewer};

const COMMAND: &str = "proxy socks";

/// Serve programs as a SOCKS proxy (SOCKS5, SOCKS4a), until stopped
///
/// Each connection goes over the network that the manager chooses (`whimbrel access serve`), or through a
/// gateway, where it survives moves. Have programs send names and not addresses (socks5h): they are looked up
/// there.
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
    /// Reach hosts through this gateway: a name, an id or a ticket
    #[arg(long, value_name = "NAME|TICKET")]
    through: Option<Peer>,
    /// Let programs reach this name as a host (….whimbrel), on this port [80]; repeatable
    #[arg(long, value_name = "NAME[:PORT]")]
    host: Vec<ListedHost>,
    /// Ask who uses the proxy: a file with lines USER:PASSWORD
    #[arg(long, value_name = "FILE")]
    credentials: Option<PathBuf>,
    /// The manager's socket [default: this user's]
    #[arg(long, value_name = "SOCKET", conflicts_with = "through")]
    manager: Option<PathBuf>,
    #[command(flatten)]
    paths: PathFlags,
    /// Print a JSON object once it listens
    #[arg(long)]
    json: bool,
}

pub(super) async fn run(globals: &Globals, args: Socks) -> Result<()> {
    files::raise_limit();
    let credentials = match &args.credentials {
        Some(file) => {
            let read = Credentials::read(file).map_err(|error| Failure::usage(error.to_string()));
            Some(read?)
        }
        None => None,
    };
    let listener = listen(&args).await?;
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    // Without peers no key of this user is needed.
    let network = match args.through.is_some() || !args.host.is_empty() {
        true => {
            let wish = Wish { config: args.paths.config(), ..Wish::default() };
            Some(Arc::new(Network::of_user(globals, wish).await?))
        }
        false => None,
    };
    let renewing = async {
        match &network {
            Some(network) => renewer::run(network).await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = serve(globals, &args, network.as_ref(), listener, credentials) => result,
        never = renewing => match never {},
        _ = shutdown.requested() => Ok(()),
    };
    if let Some(network) = network {
        network.close().await;
    }
    result
}

/// Listens there, or on the socket that a service manager opened for us.
async fn listen(args: &Socks) -> Result<TcpListener> {
    if let Some(socket) = manager::tcp_socket()? {
        let local = socket.local_addr().context("cannot tell where the service manager's socket listens")?;
        may_listen(local, args)?;
        let usable = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        return usable.context("cannot use the socket of the service manager");
    }
    may_listen(args.listen, args)?;
    TcpListener::bind(args.listen).await.with_context(|| {
        format!("cannot listen on {}; choose another port with --listen, or stop who uses it", args.listen)
    })
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
    listener: TcpListener,
    credentials: Option<Credentials>,
) -> Result<()> {
    let upstream = upstream(args, network).await?;
    let local = listener.local_addr().context("cannot tell where it listens")?;
    let name = args.through.as_ref().map(ToString::to_string);
    let _reporter = match network {
        Some(network) => Some(Reporter::start(network, About::new(COMMAND, name.clone()), globals.quiet)?),
        None => None,
    };
    let hosts: Vec<String> = args.host.iter().map(ListedHost::shown).collect();
    let status = match &name {
        Some(name) => format!("SOCKS proxy on {local}, through {name}"),
        None => format!("SOCKS proxy on {local}"),
    };
    let _ready = Ready::tell(&status);
    if args.json {
        output::json(&json!({ "listening": local.to_string(), "through": name, "hosts": hosts }))?;
    } else {
        output::line(&status)?;
        hosts.iter().try_for_each(|host| output::line(format!("  {host}")))?;
    }
    match Server::new(upstream, credentials).serve(listener).await {}
}

/// How destinations are reached.
async fn upstream(args: &Socks, network: Option<&Arc<Network>>) -> Result<Arc<dyn Upstream>> {
    let rest: Arc<dyn Upstream> = match (&args.through, network) {
        (Some(gateway), Some(network)) => {
            let lasting = Lasting::new(network.clone(), gateway.clone());
            // A mistake in the name, or not being allowed, is told now rather than to the first program.
            drop(lasting.connection().await?);
            Arc::new(Gateway::new(Arc::new(lasting)))
        }
        _ => Arc::new(Managed::new(args.manager.as_deref().map_or_else(Client::default, Client::at))),
    };
    let mut listed = WhimbrelHosts::default();
    if let Some(network) = network {
        hosts::list(&mut listed, &args.host, network)?;
    }
    Ok(Arc::new(Routed::new(listed, rest)))
}
