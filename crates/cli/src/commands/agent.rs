//! `whimbrel agent`: sessions that are handed over to this device go on in programs of the user's own list.

mod apps;
mod bounds;
mod consent;
mod direct;
mod group;
mod handed;
mod launch;
mod news;
mod offered;
mod requests;
mod which;

use std::collections::HashMap;
use std::convert::Infallible;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;

use anyhow::Result;
use clap::{Args, value_parser};
use futures_util::FutureExt as _;
use tokio::sync::mpsc;
use tokio::task::{Id, JoinSet};
use whimbrel_base::{EndpointId, Name};
use whimbrel_proxy::{Listed, SessionId};

use self::apps::Apps;
use self::bounds::Bounds;
use self::consent::Consent;
use self::direct::Takers;
use self::group::Wished;
use self::handed::Follower;
use self::launch::Launcher;
use self::news::{News, status};
use self::offered::Receiver;
use crate::commands::handoff::device;
use crate::commands::sessions::At;
use crate::failure::Failure;
use crate::manager::Ready;
use crate::network::{Network, Peer, Wish};
use crate::options::{Globals, after};
use crate::relaying::apart::RelayFlag;
use crate::shutdown::Shutdown;
use crate::status::{About, Reporter};
use crate::{failure, leases, naming, output, places, renewer, rule};

const COMMAND: &str = "agent";
/// Sessions that were handed over and are not looked at yet.
const FOUND: usize = 16;

/// Take what is handed over to this device into programs of your list
///
/// With --as NAME, and no gateway: your other devices see and take what your commands have running here, and
/// a `whimbrel forward` that they hand over goes on here. Programs are started without a shell; {url}, {host}
/// and {port} are this host's, and nothing of a peer is in their command line. An entry without `ask = false`
/// asks at this terminal; where there is none it is left. Your devices and friends are kept in step.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel agent --through gate.home.ada@example.org
  whimbrel agent --as phone.ada@example.org
  whimbrel agent --peer TICKET     (whimbrel agent, without more, prints one on another device)
  whimbrel agent --through gate.home.ada@example.org --apps ~/apps.toml --from ID --json"))]
pub(crate) struct Agent {
    #[command(flatten)]
    at: At,
    /// Be found by this name by your devices that may act for you
    #[arg(long = "as", id = "as", value_name = "NAME")]
    name: Option<Name>,
    /// Another agent to keep in step with; repeatable
    #[arg(long, value_name = "NAME|TICKET")]
    peer: Vec<Peer>,
    /// Show this device as away (`devices away`)
    #[arg(long)]
    away: bool,
    /// Tell nobody whether this device is up
    #[arg(long, conflicts_with = "away")]
    invisible: bool,
    #[command(flatten)]
    relay: RelayFlag,
    /// The list of programs (`whimbrel help apps`) [default: ~/.config/whimbrel/apps.toml]
    #[arg(long, value_name = "FILE")]
    apps: Option<PathBuf>,
    /// A device that may do what yours that act for you may; repeatable
    #[arg(long, value_name = "DEVICE")]
    from: Vec<String>,
    /// Programs at once
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = value_parser!(u16).range(1..))]
    most: u16,
    /// Starts of programs in a minute
    #[arg(long, value_name = "COUNT", default_value_t = 12, value_parser = value_parser!(u16).range(1..))]
    each_minute: u16,
    /// Print what happens as JSON objects
    #[arg(long)]
    json: bool,
}

/// What sessions go on in, wherever they come from.
#[derive(Clone)]
struct Means {
    /// The list, if there is one.
    apps: Option<Arc<Apps>>,
    bounds: Arc<Bounds>,
    consent: Arc<Consent>,
}

pub(crate) async fn run(globals: &Globals, args: Agent) -> Result<()> {
    let file = match &args.apps {
        Some(file) => file.clone(),
        None => places::config()?.join("apps.toml"),
    };
    // Without a gateway it does without a list: what is offered waits at ports.
    let reads = args.at.through.is_some() || args.apps.is_some() || file.exists();
    let apps = reads.then(|| Apps::read(&file)).transpose()?.map(Arc::new);
    let means = Means {
        apps,
        bounds: Arc::new(Bounds::new(args.most.into(), args.each_minute.into())),
        consent: Arc::new(Consent::new(globals)),
    };
    let from = args.from.iter().map(|text| device(globals, text)).collect::<Result<Vec<_>>>()?;
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let network = Arc::new(Network::of_user(globals, Wish::default()).await?);
    if args.is_alone() && args.peer.is_empty() && !network.resolves() {
        network.close().await;
        return Err(Failure::usage(
            "there is nothing to do: give a name service (--names), a device of yours (--peer), or whose \
             sessions to take: --through GATEWAY",
        ));
    }
    if args.name.is_none() && !args.relay.texts().is_empty() {
        output::note(globals.quiet, "warning: relays are for --as NAME, and not used without it");
    }
    let mut tasks = JoinSet::new();
    let in_step = in_step(globals, &args, &network);
    let own = by_name(globals, &args, &network, (from.clone(), means.clone()));
    let of_gateway = async {
        match args.at.through {
            Some(_) => serve(globals, &args, &network, (means, from), &mut tasks).await,
            None => std::future::pending().await,
        }
    };
    let result = tokio::select! {
        result = of_gateway => {
            let Err(error) = result;
            Err(error)
        }
        result = own => {
            let Err(error) = result;
            Err(error)
        }
        result = in_step => {
            let Err(error) = result;
            Err(error)
        }
        never = renewer::run(&network) => match never {},
        never = leases::keep(&network, args.name.as_ref()) => match never {},
        never = requests::follow(&network, News::new(args.json)) => match never {},
        _ = shutdown.requested() => Ok(()),
    };
    // Programs end before the connection that their sessions need to be held.
    tasks.shutdown().await;
    if let Some(name) = args.name.as_ref().filter(|_| result.is_ok()) {
        naming::withdraw(&network, name).await;
    }
    network.close().await;
    result
}

impl Agent {
    /// Whether it takes no sessions: it keeps the user's devices in step, and that is all.
    fn is_alone(&self) -> bool {
        self.at.through.is_none() && self.name.is_none()
    }
}

/// Keeps the user's devices in step. If that is not all that the agent does, what else it does goes on
/// without.
async fn in_step(globals: &Globals, args: &Agent, network: &Arc<Network>) -> Result<Infallible> {
    let alone = args.is_alone();
    let wished = Wished {
        peers: args.peer.clone(),
        visible: !args.invisible,
        away: args.away,
        told: alone.then_some(args.json),
    };
    let _reporter = match alone {
        true => Some(Reporter::start(network, About::new(COMMAND, None), globals.quiet)?),
        false => None,
    };
    let _ready = alone.then(|| Ready::tell("keeping this user's devices in step"));
    match group::run(globals.quiet, network, wished).await {
        Err(error) if !alone => {
            let why = failure::line(&error);
            output::note(globals.quiet, format!("warning: your devices are not kept in step: {why}"));
            std::future::pending().await
        }
        ended => ended,
    }
}

/// Lets the user's devices take what runs here, if that is wished.
async fn by_name(
    globals: &Globals,
    args: &Agent,
    network: &Arc<Network>,
    (from, means): (Vec<EndpointId>, Means),
) -> Result<Infallible> {
    let Some(name) = &args.name else { return std::future::pending().await };
    // With a gateway the command is shown as that one's.
    let _reporter = match args.at.through {
        Some(_) => None,
        None => Some(Reporter::start(network, About::new(COMMAND, Some(name.to_string())), globals.quiet)?),
    };
    let takers = Takers::new(network.key.clone(), &from, !args.invisible);
    let reach = (takers, args.relay.texts());
    let receiver = Receiver { network: network.clone(), means, news: News::new(args.json) };
    direct::serve(globals.quiet, (network, name), reach, receiver).await
}

async fn serve(
    globals: &Globals,
    args: &Agent,
    network: &Arc<Network>,
    (means, from): (Means, Vec<EndpointId>),
    tasks: &mut JoinSet<bool>,
) -> Result<Infallible> {
    let Means { apps: Some(apps), bounds, consent } = means else {
        return Err(anyhow::anyhow!("there is no list of programs"));
    };
    let sessions = args.at.reach(network).await?;
    let (through, news) = (args.at.gateway()?.to_string(), News::new(args.json));
    let told = status(&through, apps.len());
    let _reporter = Reporter::start(network, About::new(COMMAND, Some(through.clone())), globals.quiet)?;
    let _ready = Ready::tell(&told);
    news.ready(&through, apps.len())?;
    let launcher = Arc::new(Launcher {
        sessions: sessions.clone(),
        key: network.key.clone(),
        apps,
        from,
        bounds,
        consent,
        news,
        through,
    });
    let (sender, mut found) = mpsc::channel(FOUND);
    let mut following = pin!(Follower::new(&sessions, sender, news).run());
    let takers = rule::takers(&network.key);
    let mut ruling = pin!(rule::follow(network.key.clone(), takers, |takers| sessions.set_rule(takers)));
    let mut running = Running::default();
    loop {
        tokio::select! {
            never = &mut following => match never {},
            never = &mut ruling => match never {},
            Some(session) = found.recv() => running.begin(session, &launcher, tasks),
            Some(done) = tasks.join_next_with_id(), if !tasks.is_empty() => {
                let (task, was_served) = done.unwrap_or_else(|error| (error.id(), true));
                if let Some(session) = running.end(task).filter(|_| !was_served) {
                    running.begin(session, &launcher, tasks);
                }
            }
        }
    }
}

/// Sessions that are being served.
#[derive(Default)]
struct Running {
    tasks: HashMap<Id, SessionId>,
    /// Those that were handed over once more meanwhile: looked at again if they are left.
    again: HashMap<SessionId, Listed>,
}

impl Running {
    fn begin(&mut self, session: Listed, launcher: &Arc<Launcher>, tasks: &mut JoinSet<bool>) {
        if self.tasks.values().any(|known| *known == session.id) {
            self.again.insert(session.id, session);
            return;
        }
        let (id, launcher) = (session.id, launcher.clone());
        let task = tasks.spawn(async move { launcher.serve(&session).await }.boxed());
        self.tasks.insert(task.id(), id);
    }

    /// A task has ended. Returns its session if that was handed over once more.
    fn end(&mut self, task: Id) -> Option<Listed> {
        let session = self.tasks.remove(&task)?;
        self.again.remove(&session)
    }
}

/// Decodes whatever comes from another agent.
#[cfg(feature = "fuzzing")]
pub(crate) fn decode_anything(bytes: &[u8]) {
    group::decode_anything(bytes);
}
