//! `whimbrel proxy http`: an HTTP proxy.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tokio::net::TcpListener;
use whimbrel_multiaccess::protocol::Ask;
use whimbrel_multiaccess::{Client, ClientError};
use whimbrel_proxy::{HttpProxy, HttpSettings, Managed};

use crate::manager::{self, Ready};
use crate::options::{Globals, after, size};
use crate::shutdown::Shutdown;
use crate::{files, output};

/// Serve browsers and other programs as an HTTP proxy, until stopped
///
/// Each object of http:// goes over the network that the manager chooses (`whimbrel access serve`), large
/// ones over several at once; each https:// connection goes over one. Set it as HTTP and HTTPS proxy of the
/// program, or start that with `whimbrel run`.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel proxy http
  curl --proxy http://127.0.0.1:8118 http://example.org/
  whimbrel proxy http --listen 127.0.0.1:8119 --first-step 16KiB --json"))]
pub(crate) struct Http {
    /// Where to listen; not needed where systemd hands a socket over
    #[arg(long, value_name = "ADDR:PORT", default_value = "127.0.0.1:8118")]
    listen: SocketAddr,
    #[command(flatten)]
    flags: HttpFlags,
    /// Print a JSON object once it listens
    #[arg(long)]
    json: bool,
}

/// Flags of everything that has an HTTP proxy in it.
#[derive(Args)]
pub(crate) struct HttpFlags {
    /// The manager's socket [default: this user's]
    #[arg(long, value_name = "SOCKET")]
    manager: Option<PathBuf>,
    /// How much of an object is asked for first, to learn its size; 0: all of it
    #[arg(long, value_name = "SIZE", default_value = "8KiB", value_parser = size)]
    first_step: u64,
}

impl HttpFlags {
    /// The proxy, and whether a manager chooses for it.
    pub(crate) async fn proxy(&self, globals: &Globals) -> (HttpProxy, bool) {
        let client = self.manager.as_deref().map_or_else(Client::default, Client::at);
        let is_managed = match client.ask(Ask::default()).await {
            Ok(_) | Err(ClientError::Refused(_)) => true,
            Err(error) => {
                output::note(globals.quiet, format!("the system chooses the network: {error}"));
                false
            }
        };
        let mut settings = HttpSettings::default();
        settings.first_step = self.first_step;
        (HttpProxy::new(Arc::new(Managed::new(client)), settings), is_managed)
    }
}

pub(super) async fn run(globals: &Globals, args: Http) -> Result<()> {
    files::raise_limit();
    let listener = listen(args.listen).await?;
    let local = listener.local_addr().context("cannot tell where it listens")?;
    if !local.ip().is_loopback() {
        // Whoever wants no notes wants this one.
        output::note(
            false,
            format!(
                "WARNING: whoever reaches {local} uses this proxy as you, and reaches what this host does"
            ),
        );
    }
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let (proxy, is_managed) = args.flags.proxy(globals).await;
    let status = format!("HTTP proxy on {local}");
    let _ready = Ready::tell(&status);
    if args.json {
        output::json(&json!({ "listening": local.to_string(), "manager": is_managed }))?;
    } else {
        output::line(&status)?;
    }
    tokio::select! {
        () = proxy.serve(listener) => {}
        _ = shutdown.requested() => {}
    }
    Ok(())
}

/// Listens there, or on the socket that a service manager opened for us.
async fn listen(at: SocketAddr) -> Result<TcpListener> {
    if let Some(socket) = manager::tcp_socket()? {
        let usable = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        return usable.context("cannot use the socket of the service manager");
    }
    TcpListener::bind(at).await.with_context(|| {
        format!("cannot listen on {at}; choose another port with --listen, or stop who uses it")
    })
}
