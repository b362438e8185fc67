//! `whimbrel pipe`: a peer's service on standard input and output.

use std::io::{self, IsTerminal as _};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use whimbrel_proto::StreamError;
use whimbrel_transport::{CloseCode, Stream};

use crate::failure::Failure;
use crate::multipath::PathFlags;
use crate::network::{Network, Peer, Wish, connect};
use crate::options::{Globals, after};
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::steering::SteeringFlags;
use crate::{identity, tunnel};

/// How long the peer may take to confirm the end, once everything has arrived.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// Join a peer's service to standard input and output
///
/// Made for ssh's ProxyCommand. The end of the input is passed on, while the output goes on; the
/// command ends when both have ended. It fails if anything was lost on the way.
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
    let _reporter = Reporter::start(network, About::new("pipe", Some(args.name.to_string())), globals.quiet);
    let stream = connection.open_stream().await.with_context(|| format!("lost {}", args.name))?;
    join(stream).await.map_err(|error| explain(error, &args.name))?;
    // Everything has arrived; that the peer confirms the end late is nobody's concern.
    let _ = connection.close(CloseCode::NONE, "", CLOSE_LIMIT).await;
    Ok(())
}

/// Joins the stream to standard input and output until both directions have ended.
async fn join(stream: Stream) -> io::Result<()> {
    let (mut read, mut write) = stream.into_split();
    let result = {
        let out = async {
            tunnel::copy(&mut tokio::io::stdin(), &mut write).await?;
            write.stream().drained().await
        };
        let back = async {
            tunnel::copy(&mut read, &mut tokio::io::stdout()).await?;
            close_output()
        };
        tokio::pin!(out, back);
        tokio::select! {
            result = &mut out => match result {
                Ok(()) => back.await,
                error => error,
            },
            result = &mut back => match result {
                // Nobody will press Ctrl-D to end a session that is over.
                Ok(()) if io::stdin().is_terminal() => Ok(()),
                Ok(()) => out.await,
                error => error,
            },
        }
    };
    if result.is_err() {
        write.stream().reset(tunnel::BROKEN);
        read.stream().stop(tunnel::BROKEN);
    }
    result
}

/// Whoever reads our output sees its end now, even while we go on to read the input. Ours is not the
/// only handle that the process has on it, so it is replaced.
fn close_output() -> io::Result<()> {
    let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    Ok(rustix::stdio::dup2_stdout(nothing)?)
}

fn explain(error: io::Error, peer: &Peer) -> anyhow::Error {
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
