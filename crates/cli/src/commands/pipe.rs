//! `whimbrel pipe`: a peer's service on standard input and output.

mod joined;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use whimbrel_proto::StreamError;
use whimbrel_transport::{CloseCode, Connection};

use self::joined::Joined;
use crate::failure::Failure;
use crate::moving::{Asked, Halves, Outcome, Sessions, State};
use crate::multipath::PathFlags;
use crate::network::{Network, Peer, Wish, connect};
use crate::options::{Globals, after};
use crate::plain::plain;
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::steering::SteeringFlags;
use crate::{identity, output, tunnel};

const COMMAND: &str = "pipe";
/// Characters of a peer's name that another device tells.
const LONGEST: usize = 200;
/// How long the peer may take to confirm the end, once everything has arrived.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Join a peer's service to standard input and output
///
/// Made for ssh's ProxyCommand. The end of the input is passed on, while the output goes on; the
/// command ends when both have ended. It fails if anything was lost on the way. It can go on at another
/// device of yours: `whimbrel sessions` and `whimbrel handoff`.
#[derive(Args)]
#[command(after_help = after("\
Example:
  ssh -o ProxyCommand='whimbrel pipe ssh.home.ada@example.org' ada@home"))]
pub(crate) struct Pipe {
    /// The peer: a name, an id or a ticket
    #[arg(value_name = "NAME|TICKET")]
    name: Peer,
    #[command(flatten)]
    paths: PathFlags,
    #[command(flatten)]
    steering: SteeringFlags,
}

pub(crate) async fn run(globals: &Globals, args: Pipe) -> Result<()> {
    let mut shutdown = Shutdown::catch(false)?.with_hangup()?;
    let wish = Wish { config: args.paths.config(), steered: args.steering.steered()?, ..Wish::default() };
    let network = Arc::new(Network::start(globals, identity::of_user(globals)?.key, wish).await?);
    let result = tokio::select! {
        result = serve(globals, &args, &network) => result,
        request = shutdown.requested() => Err(request.error()),
    };
    network.close().await;
    result
}

async fn serve(globals: &Globals, args: &Pipe, network: &Arc<Network>) -> Result<()> {
    let connection = connect(network, &args.name).await?;
    let peer = args.name.to_string();
    // Whatever becomes of the stream, it can be looked at.
    let sessions = Sessions::default();
    let about = About::new(COMMAND, Some(peer.clone())).moving(&sessions);
    let _reporter = Reporter::start(network, about, globals.quiet);
    let stream = connection.open_stream().await.with_context(|| format!("lost {peer}"))?;
    carry(globals.quiet, &sessions, (connection, &peer), Joined::new(stream)).await
}

/// Goes on with a pipe that was at another device.
///
/// # Errors
/// When its stream breaks, or is not there.
pub(crate) async fn go_on(
    globals: &Globals,
    network: &Network,
    connection: Connection,
    halves: Halves,
) -> Result<()> {
    let peer = plain(&halves.peer, LONGEST);
    let sessions = Sessions::default();
    let about = About::new(COMMAND, Some(peer.clone())).moving(&sessions);
    let _reporter = Reporter::start(network, about, globals.quiet);
    let stream = connection.streams().into_iter().find(|stream| stream.id() == halves.stream);
    let stream = stream.context("the connection came without its stream")?;
    output::note(globals.quiet, format!("{peer} goes on here"));
    let joined = Joined::going_on(stream, halves.out, halves.back);
    carry(globals.quiet, &sessions, (connection, &peer), joined).await
}

/// Joins the stream to standard input and output, until both directions have ended or it has gone to another
/// device.
async fn carry(
    quiet: bool,
    sessions: &Sessions,
    (connection, peer): (Connection, &str),
    mut joined: Joined,
) -> Result<()> {
    let mut session = sessions.begin(&connection, peer);
    loop {
        let asked = tokio::select! {
            result = joined.run() => match result {
                Ok(()) => break,
                Err(error) => {
                    joined.break_off();
                    return Err(explain(error, peer));
                }
            },
            asked = session.asked() => asked,
        };
        match give(asked, &connection, peer, &mut joined).await {
            Outcome::Moved(to) => {
                let unsent = joined.unsent().await;
                if unsent > 0 {
                    let text = format!("warning: {unsent} bytes of standard input came too late for {to}");
                    output::note(quiet, text);
                }
                output::note(quiet, format!("went on at {to}"));
                return Ok(());
            }
            Outcome::Stays(why) => output::note(quiet, format!("this stays here: {why}")),
            Outcome::Lost(why) => {
                joined.break_off();
                return Err(anyhow::anyhow!("lost {peer}: {why}"));
            }
        }
    }
    // Everything has arrived; that the peer confirms the end late is nobody's concern.
    let _ = connection.close(CloseCode::NONE, "", CLOSE_LIMIT).await;
    Ok(())
}

async fn give(asked: Asked, connection: &Connection, peer: &str, joined: &mut Joined) -> Outcome {
    match joined.halves(peer).await {
        Ok(halves) => asked.give(connection, State::Pipe(halves)).await,
        Err(why) => {
            asked.refuse(&why);
            Outcome::Stays(why)
        }
    }
}

fn explain(error: io::Error, peer: &str) -> anyhow::Error {
    let ended = error.get_ref().and_then(|inner| inner.downcast_ref::<StreamError>());
    match ended {
        Some(
            StreamError::Reset(_, tunnel::TARGET_REFUSED) | StreamError::Stopped(_, tunnel::TARGET_REFUSED),
        ) => {
            let message =
                format!("{peer} was reached, but the service behind it does not accept connections");
            Failure::new(Failure::UNREACHABLE, message).into()
        }
        Some(StreamError::Reset(..) | StreamError::Stopped(..)) => {
            anyhow::anyhow!("the service at {peer} broke the connection off")
        }
        _ => anyhow::Error::new(error).context(format!("lost {peer}")),
    }
}
