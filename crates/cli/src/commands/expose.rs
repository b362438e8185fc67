//! `whimbrel expose`: lets peers reach a local TCP service.

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use whimbrel_base::Name;
use whimbrel_transport::{Config, Connection, Stream};

use crate::access::{Access, AllowFlags};
use crate::failure::Failure;
use crate::manager::Ready;
use crate::multipath::PathFlags;
use crate::network::{Network, Wish, log_events};
use crate::options::{Globals, after, duration, host_and_port};
use crate::relaying::ReachFlags;
use crate::sockets::Trouble;
use crate::status::{About, Reporter};
use crate::{files, output, reload, serving, tunnel};

/// How long the local service may take to accept.
const TARGET_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether a socket can be opened again.
const FILES_PAUSE: Duration = Duration::from_millis(200);

static OUT_OF_FILES: Mutex<Trouble> = Mutex::const_new(Trouble::new());

/// Let peers reach a local TCP service under a name, until stopped
///
/// Nobody is let in but those named with --allow. If the user in NAME is not registered yet, it is
/// registered for this key.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel expose ssh.home.ada@example.org --to 127.0.0.1:22 --allow ID
  whimbrel expose --ticket --to 127.0.0.1:8080 --secret --port 4433"))]
pub(crate) struct Expose {
    /// The name to be reached under; not needed with --ticket
    name: Option<Name>,
    /// The local service
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    to: String,
    #[command(flatten)]
    allow: AllowFlags,
    /// Print a ticket, with which peers connect without a name service; it lets nobody in by itself
    #[arg(long)]
    ticket: bool,
    /// How long connections of peers that are out of reach are kept: a number and s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    linger: Duration,
    #[command(flatten)]
    reach: ReachFlags,
    #[command(flatten)]
    paths: PathFlags,
    /// Print a JSON object once it can be reached
    #[arg(long)]
    json: bool,
}

impl Expose {
    /// Who is let in.
    pub(crate) fn allow(&self) -> &AllowFlags {
        &self.allow
    }
}

pub(crate) async fn run(globals: &Globals, args: Expose) -> Result<()> {
    args.allow.check(args.ticket, args.name.as_ref())?;
    if args.name.is_none() && !args.ticket {
        return Err(Failure::usage(
            "under which name? Give a NAME, or --ticket; see `whimbrel expose --help`",
        ));
    }
    files::raise_limit();
    let config = args.paths.apply(Config { linger: args.linger, ..Config::default() });
    let wish = Wish { config, advertise: args.reach.advertised(), ..Wish::default() };
    let serve = async |network: &Network| serve(globals, &args, network).await;
    serving::until_stopped(globals, wish, args.name.as_ref(), serve).await
}

async fn serve(globals: &Globals, args: &Expose, network: &Network) -> Result<()> {
    let access = Access::open(&args.allow, args.name.as_ref(), network, globals.quiet).await?;
    let secret = access.secret();
    let mut guests =
        serving::listen(globals, network, args.name.as_ref(), args.ticket, access.clone()).await?;
    let _keeper = args.reach.start(network, globals.quiet).await;
    let ticket = args.ticket.then(|| network.ticket(args.name.clone(), secret).to_string());
    let about = About::new("expose", args.name.as_ref().map(ToString::to_string));
    let _reporter = Reporter::start(network, about, globals.quiet)?;
    let name = args.name.as_ref().map_or("this ticket".to_owned(), ToString::to_string);
    let reachable = format!("{} can be reached as {name}", args.to);
    let _reloading = reload::follow_access(&reachable, &args.allow, &access, network)?;
    let _ready = Ready::tell(&reachable);
    if args.json {
        output::json(&json!({
            "id": network.id().to_string(), "name": args.name.as_ref().map(ToString::to_string),
            "ticket": ticket, "to": args.to, "port": network.endpoint.port(),
        }))?;
    } else {
        output::note(globals.quiet, reachable);
        if let Some(ticket) = ticket {
            output::line(ticket)?;
        }
    }
    while let Some(connection) = guests.accept().await {
        tokio::spawn(log_events(connection.events(), connection.peer_id().short()));
        tokio::spawn(serve_connection(connection, args.to.clone(), globals.quiet));
    }
    Ok(())
}

async fn serve_connection(connection: Connection, to: String, quiet: bool) {
    while let Ok(stream) = connection.accept_stream().await {
        tokio::spawn(serve_stream(stream, to.clone(), quiet));
    }
}

async fn serve_stream(stream: Stream, to: String, quiet: bool) {
    let problem = match tokio::time::timeout(TARGET_LIMIT, connect(&to, quiet)).await {
        Ok(Ok(socket)) => {
            if let Err(error) = tunnel::join_tcp(socket, stream).await {
                tracing::info!(%error, "a stream broke");
            }
            return;
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "no answer".to_owned(),
    };
    output::note(quiet, format!("{to} does not accept connections: {problem}"));
    stream.reset(tunnel::TARGET_REFUSED);
    stream.stop(tunnel::TARGET_REFUSED);
}

/// Connects to the local service, once there are files for it.
async fn connect(to: &str, quiet: bool) -> std::io::Result<TcpStream> {
    loop {
        match TcpStream::connect(to).await {
            Err(error) if files::are_used_up(&error) => {
                output::note(quiet || !OUT_OF_FILES.lock().await.is_to_be_told(), files::USED_UP);
                tokio::time::sleep(FILES_PAUSE).await;
            }
            result => return result,
        }
    }
}
