//! `whimbrel forward`: brings a peer's service to a local TCP port.

mod moving;

use futures_util::FutureExt;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use clap::Args;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use self::moving::Moving;
use crate::halt::{Halter, Tie};
use crate::lasting::Lasting;
use crate::local::{LocalListener, LocalSocket, Place, mode};
use crate::manager::{self, Ready};
use crate::moving::Sessions;
use crate::multipath::PathFlags;
use crate::network::{Network, Peer, Wish, log_events};
use crate::options::{Globals, after};
use crate::serving::Start;
use crate::shutdown::Shutdown;
use crate::sockets::{Sockets, Trouble};
use crate::status::{About, Reporter};
use crate::steering::SteeringFlags;
use crate::takeover::{self, Estate, Inherited, Running, Served, TakeOver};
use crate::tunnel::{HALT_LIMIT, Halted, Tunnel};
use crate::{files, identity, output, renewer, tunnel};

const COMMAND: &str = "forward";
/// After an error of accept(2), such as too many open files; earlier if a socket ends.
const ACCEPT_PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Bring a peer's service to a local port or socket, until stopped
///
/// Every program that reaches the port uses the service as you: on this machine by default. A Unix socket is
/// for you alone, or for whom --socket-mode says. All local connections share one to the peer, which
/// survives moves of either side, also to another device (`whimbrel handoff`). It is made anew only if it
/// truly ended, for instance because the peer was restarted.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel forward web.home.ada@example.org --listen 127.0.0.1:8080
  curl http://127.0.0.1:8080/
  whimbrel forward db.home.ada@example.org --listen unix:/run/user/1000/db
  whimbrel forward web.home.ada@example.org --take-over
  whimbrel forward web.home.ada@example.org --intent cost=no-expense"))]
pub(crate) struct Forward {
    /// The peer: a name, an id or a ticket
    #[arg(value_name = "NAME|TICKET")]
    name: Peer,
    /// Where to listen; not needed where systemd hands a socket over
    #[arg(long, value_name = "ADDR:PORT|unix:PATH", default_value = "127.0.0.1:0")]
    listen: Place,
    /// Who may use a Unix socket: its permissions in octal
    #[arg(long, value_name = "MODE", default_value = "0600", value_parser = mode)]
    socket_mode: u32,
    #[command(flatten)]
    take_over: TakeOver,
    #[command(flatten)]
    paths: PathFlags,
    #[command(flatten)]
    steering: SteeringFlags,
    /// Print a JSON object once it listens
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(globals: &Globals, args: Forward) -> Result<()> {
    args.name.check(globals)?;
    files::raise_limit();
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let (id, shown) = (identity::of_user(globals)?.key.id(), args.name.to_string());
    let running = Running { command: COMMAND, id, name: Some(&shown) };
    takeover::serve(globals, &args.take_over, running, &mut shutdown, async |mut inherited, shutdown| {
        let listener = match inherited.as_mut().and_then(|inherited| inherited.estate.listener.take()) {
            Some(listener) => listener,
            None => listen(&args.listen, args.socket_mode).await?,
        };
        let wish = Inherited::wish(&mut inherited, args.paths.config());
        let wish = Wish { steered: args.steering.steered()?, ..wish };
        let network = Arc::new(Network::of_user(globals, wish).await?);
        let result = tokio::select! {
            result = serve(globals, &args, &network, listener, inherited) => result,
            never = renewer::run(&network) => match never {},
            _ = shutdown.requested() => Ok(Served::Ended),
        };
        if !matches!(result, Ok(Served::Left(..))) {
            network.close().await;
        }
        result
    })
    .await
}

/// Listens there, or on the socket that a service manager opened for us.
async fn listen(place: &Place, mode: u32) -> Result<LocalListener> {
    if let Some(socket) = manager::tcp_socket()? {
        let usable = socket.set_nonblocking(true).and_then(|()| TcpListener::from_std(socket));
        return Ok(LocalListener::Tcp(usable.context("cannot use the socket of the service manager")?));
    }
    LocalListener::bind(place, mode).await
}

async fn serve(
    globals: &Globals,
    args: &Forward,
    network: &Arc<Network>,
    mut listener: LocalListener,
    inherited: Option<Inherited>,
) -> Result<Served> {
    let local = listener.place().context("cannot tell where it listens")?;
    let is_told = inherited.as_ref().is_some_and(Inherited::is_own);
    let start = if inherited.is_some() { Start::GoingOn } else { Start::Anew };
    let mut halter = Halter::new();
    let lasting = Lasting::new(network.clone(), args.name.clone());
    let local_side = Arc::new(LocalSide::new(lasting, globals.quiet));
    let mut served = JoinSet::new();
    match inherited {
        Some(inherited) => {
            let waking = inherited.ready(network).await?;
            listener.own();
            let (connections, woken) = waking.begin()?;
            for connection in &connections {
                tokio::spawn(FutureExt::boxed(log_events(connection.events(), args.name.to_string())));
            }
            local_side.lasting.go_on_with(connections).await;
            for tunnel in woken.tunnels {
                served.spawn(FutureExt::boxed(carry(tunnel, local_side.clone(), halter.tie())));
            }
            for socket in woken.sockets {
                served.spawn(FutureExt::boxed(serve_socket(socket, local_side.clone(), halter.tie())));
            }
        }
        // A mistake in the name, or not being allowed, is told now rather than to the first client.
        None => drop(local_side.lasting.connection().await?),
    }
    let sessions = Sessions::default();
    let about = About::new(COMMAND, Some(args.name.to_string())).counting(local_side.sockets.clone());
    let mut reporter = Reporter::start(network, about.handing_over().moving(&sessions), globals.quiet)?;
    let mut moving = Moving::new(&local_side.lasting, &sessions, args.name.to_string());
    let leads = format!("{local} leads to {}", args.name);
    let ready = Ready::tell(&leads);
    if !is_told {
        start.needs(tell(globals, args, network, &local, leads))?;
    }
    let (asker, leaving) = loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(socket) => {
                    served.spawn(FutureExt::boxed(serve_socket(socket, local_side.clone(), halter.tie())));
                }
                Err(error) => {
                    local_side.tell(|| match files::are_used_up(&error) {
                        true => files::USED_UP.to_owned(),
                        false => format!("cannot accept a connection: {error}"),
                    });
                    // A socket that ends makes room.
                    let _ = tokio::time::timeout(ACCEPT_PAUSE, served.join_next()).await;
                }
            },
            Some(_) = served.join_next() => {}
            asked = moving.asked() => {
                let halted = std::mem::replace(&mut halter, Halter::new()).halt(HALT_LIMIT).await;
                match moving.give(asked, halted).await {
                    Ok(to) => {
                        output::note(globals.quiet, format!("went on at {to}"));
                        return Ok(Served::Ended);
                    }
                    Err((why, halted)) => {
                        output::note(globals.quiet, format!("this stays here: {why}"));
                        for one in halted {
                            go_on(one, &local_side, halter.tie(), &mut served);
                        }
                    }
                }
            }
            asker = reporter.asked() => match network.endpoint.transport().stop_listening() {
                Ok(leaving) => break (asker, leaving),
                Err(error) => asker.refuse(error.to_string()).await,
            },
        }
    };
    drop(moving);
    ready.leave();
    let halted = halter.halt(HALT_LIMIT).await;
    let estate = Estate::of(leaving, &local_side.lasting.leave().await, halted).await;
    Ok(Served::Left(asker, Box::new(estate.with_listener(listener))))
}

/// Goes on with what was halted.
fn go_on(halted: Halted, local_side: &Arc<LocalSide>, tie: Tie<Halted>, served: &mut JoinSet<()>) {
    match halted {
        Halted::Tunnel(tunnel) => {
            served.spawn(FutureExt::boxed(carry(tunnel, local_side.clone(), tie)));
        }
        Halted::Socket(socket) => {
            served.spawn(FutureExt::boxed(serve_socket(socket, local_side.clone(), tie)));
        }
        // Of those that are waited for here there are none.
        Halted::Stream(_) => {}
    }
}

fn tell(globals: &Globals, args: &Forward, network: &Network, local: &Place, leads: String) -> Result<()> {
    if let Place::Tcp(address) = local
        && !address.ip().is_loopback()
    {
        output::note(
            globals.quiet,
            format!(
                "warning: whoever reaches {address} over the network uses {} as you; listen on 127.0.0.1 or a \
                 Unix socket unless that is meant",
                args.name
            ),
        );
    }
    if args.json {
        return output::json(
            &json!({ "listening": local.to_string(), "name": args.name.to_string(), "id": network.id().to_string() }),
        );
    }
    output::line(leads)
}

/// What all local sockets share.
struct LocalSide {
    lasting: Lasting,
    sockets: Arc<Sockets>,
    trouble: Mutex<Trouble>,
    quiet: bool,
}

impl LocalSide {
    fn new(lasting: Lasting, quiet: bool) -> Self {
        Self { lasting, sockets: Arc::default(), trouble: Mutex::default(), quiet }
    }

    /// Tells of trouble, unless there was some a moment ago.
    fn tell(&self, text: impl FnOnce() -> String) {
        let mut trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner);
        if trouble.is_to_be_told() {
            output::note(self.quiet, text());
        }
    }
}

async fn serve_socket(socket: LocalSocket, local_side: Arc<LocalSide>, tie: Tie<Halted>) {
    let opened = tokio::select! {
        opened = local_side.lasting.stream() => opened,
        () = tie.is_to_halt() => return tie.give(Halted::Socket(socket)).await,
    };
    match opened {
        Ok(stream) => carry(Tunnel::new(socket, stream), local_side, tie).await,
        Err(error) => {
            local_side.sockets.refuse();
            local_side.tell(|| crate::failure::line(&error));
            tunnel::refuse(&socket);
        }
    }
}

async fn carry(tunnel: Tunnel, local_side: Arc<LocalSide>, tie: Tie<Halted>) {
    let _counted = local_side.sockets.open();
    if let Err(error) = tunnel.run(&tie).await {
        tracing::info!(%error, "a stream broke");
    }
}
