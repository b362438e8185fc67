//! `whimbrel expose`: lets peers reach a local TCP service.

mod public;

use futures_util::FutureExt;
use std::time::Duration;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use whimbrel_base::Name;
use whimbrel_relay::Keeper;
use whimbrel_transport::{Config, Connection, Stream};

use crate::access::{Access, AllowFlags, Guests};
use crate::failure::Failure;
use crate::halt::{Halter, Tie};
use crate::local::LocalSocket;
use crate::manager::Ready;
use crate::multipath::PathFlags;
use crate::network::{Network, log_events};
use crate::options::{Globals, after, duration, host_and_port};
use crate::relaying::ReachFlags;
use crate::serving::Start;
use crate::sockets::Trouble;
use crate::status::{About, Reporter};
use crate::takeover::{Estate, Inherited, Served, TakeOver, Woken};
use crate::tunnel::{HALT_LIMIT, Halted, Tunnel};
use crate::{files, output, reload, serving, tunnel};

const COMMAND: &str = "expose";
/// How long the local service may take to accept.
const TARGET_LIMIT: Duration = Duration::from_secs(10);
/// Between two looks whether a socket can be opened again.
const FILES_PAUSE: Duration = Duration::from_millis(200);

static OUT_OF_FILES: Mutex<Trouble> = Mutex::const_new(Trouble::new());

/// Let peers reach a local TCP service under a name, until stopped
// In two lines without one between them, since the whole is to fit a screen.
#[derive(Args)]
#[command(long_about = "\
Let peers reach a local TCP service under a name, until stopped
Only those of --allow are let in. For anybody: `whimbrel help publishing`.")]
#[command(after_help = after("\
Examples:
  whimbrel expose ssh.home.ada@example.org --to 127.0.0.1:22 --allow ID
  whimbrel expose --ticket --to 127.0.0.1:8080 --secret --port 4433
  whimbrel expose --public 8443 --gateway gate.home.ada@example.org --to 127.0.0.1:8080
  whimbrel expose ssh.home.ada@example.org --to 127.0.0.1:22 --allow ID --take-over"))]
pub(crate) struct Expose {
    /// The name to be reached under; not needed with --ticket
    name: Option<Name>,
    /// The local service
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    to: String,
    #[command(flatten)]
    public: public::PublicFlags,
    #[command(flatten)]
    allow: AllowFlags,
    /// Print a ticket; alone it lets nobody in
    #[arg(long)]
    ticket: bool,
    /// Wait so long for absent peers
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = duration)]
    linger: Duration,
    #[command(flatten)]
    reach: ReachFlags,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    paths: PathFlags,
    /// Print a JSON object once it can be reached
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(globals: &Globals, args: Expose) -> Result<()> {
    if args.public.is_given() {
        return public::run(globals, &args).await;
    }
    args.allow.check(args.ticket, args.name.as_ref())?;
    if args.name.is_none() && !args.ticket {
        return Err(Failure::usage(
            "under which name? Give a NAME, or --ticket; see `whimbrel expose --help`",
        ));
    }
    files::raise_limit();
    let config = args.paths.apply(Config { linger: args.linger, ..Config::default() });
    let config = args.reach.apply(config);
    let serve = async |network: &Network, inherited| serve(globals, &args, network, inherited).await;
    let advertise = args.reach.advertised();
    serving::until_taken_over(
        globals,
        &args.take_over,
        COMMAND,
        args.name.as_ref(),
        (config, advertise),
        serve,
    )
    .await
}

async fn serve(
    globals: &Globals,
    args: &Expose,
    network: &Network,
    inherited: Option<Inherited>,
) -> Result<Served> {
    let name = args.name.as_ref();
    let before = inherited.as_ref().map(|inherited| inherited.estate.before.clone()).unwrap_or_default();
    let is_told = inherited.as_ref().is_some_and(Inherited::is_own);
    let access = Access::open(&args.allow, name, network, globals.quiet, before).await?;
    let secret = access.secret();
    let waking = match inherited {
        Some(inherited) => Some(inherited.ready(network).await?),
        None => None,
    };
    let start = if waking.is_some() { Start::GoingOn } else { Start::Anew };
    let mut guests = serving::listen(globals, network, name, args.ticket, access.clone(), start).await?;
    let halter = Halter::new();
    let service = Service { to: args.to.clone(), quiet: globals.quiet, tie: halter.tie() };
    if let Some(waking) = waking {
        let (connections, woken) = waking.begin()?;
        service.go_on(connections, woken, &guests);
    }
    let keeper = args.reach.start(network, name, args.ticket && !is_told, globals.quiet).await?;
    let ticket = args.ticket.then(|| network.ticket(args.name.clone(), secret).to_string());
    let shown = name.map(ToString::to_string);
    let about = About::new(COMMAND, shown).handing_over().relayed(keeper.as_ref().map(Keeper::news));
    let mut reporter = Reporter::start(network, about, globals.quiet)?;
    let name = name.map_or("this ticket".to_owned(), ToString::to_string);
    let reachable = format!("{} can be reached as {name}", args.to);
    let _reloading = reload::follow_access(&globals.source, &reachable, &args.allow, &access, network)?;
    let ready = Ready::tell(&reachable);
    if !is_told {
        let told = tell(globals, args, network, reachable, ticket);
        start.needs(told)?;
    }
    let (asker, leaving) = loop {
        tokio::select! {
            connection = guests.accept() => match connection {
                Some(connection) => service.serve(connection),
                None => return Ok(Served::Ended),
            },
            asker = reporter.asked() => match network.endpoint.transport().stop_listening() {
                Ok(leaving) => break (asker, leaving),
                Err(error) => asker.refuse(error.to_string()).await,
            },
        }
    };
    ready.leave();
    drop(service);
    let halted = halter.halt(HALT_LIMIT).await;
    let estate = Estate::of(leaving, &guests.leave(), halted).await;
    Ok(Served::Left(asker, Box::new(estate.with_access(access.known()))))
}

fn tell(
    globals: &Globals,
    args: &Expose,
    network: &Network,
    reachable: String,
    ticket: Option<String>,
) -> Result<()> {
    if args.json {
        return output::json(&json!({
            "id": network.id().to_string(), "name": args.name.as_ref().map(ToString::to_string),
            "ticket": ticket, "to": args.to, "port": network.endpoint.port(),
        }));
    }
    output::note(globals.quiet, reachable);
    ticket.map_or(Ok(()), output::line)
}

/// What serves each connection.
#[derive(Clone)]
struct Service {
    to: String,
    quiet: bool,
    tie: Tie<Halted>,
}

impl Service {
    /// Serves connections and streams that were served before.
    fn go_on(&self, connections: Vec<Connection>, woken: Woken, guests: &Guests) {
        for tunnel in woken.tunnels {
            tokio::spawn(FutureExt::boxed(self.clone().carry(tunnel)));
        }
        for stream in woken.streams {
            tokio::spawn(FutureExt::boxed(self.clone().serve_stream(stream)));
        }
        for connection in connections {
            guests.welcome(connection.clone());
            self.serve(connection);
        }
    }

    fn serve(&self, connection: Connection) {
        tokio::spawn(FutureExt::boxed(log_events(connection.events(), connection.peer_id().short())));
        tokio::spawn(FutureExt::boxed(self.clone().serve_connection(connection)));
    }

    async fn serve_connection(self, connection: Connection) {
        loop {
            tokio::select! {
                stream = connection.accept_stream() => match stream {
                    Ok(stream) => drop(tokio::spawn(FutureExt::boxed(self.clone().serve_stream(stream)))),
                    Err(_) => return,
                },
                () = self.tie.is_to_halt() => return,
            }
        }
    }

    async fn serve_stream(self, stream: Stream) {
        let Self { to, quiet, tie } = &self;
        let connected = tokio::select! {
            connected = tokio::time::timeout(TARGET_LIMIT, connect(to, *quiet)) => connected,
            () = tie.is_to_halt() => return tie.give(Halted::Stream(stream)).await,
        };
        let problem = match connected {
            Ok(Ok(socket)) => return self.carry(Tunnel::new(LocalSocket::Tcp(socket), stream)).await,
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer".to_owned(),
        };
        output::note(*quiet, format!("{to} does not accept connections: {problem}"));
        stream.reset(tunnel::TARGET_REFUSED);
        stream.stop(tunnel::TARGET_REFUSED);
    }

    async fn carry(self, tunnel: Tunnel) {
        if let Err(error) = tunnel.run(&self.tie).await {
            tracing::info!(%error, "a stream broke");
        }
    }
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
