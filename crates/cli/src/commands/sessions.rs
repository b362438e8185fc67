//! `whimbrel sessions`: what could go on at another device: here, or at a gateway.

mod here;
mod rate;

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use serde_json::json;
use whimbrel_base::{EndpointId, SecretKey};
use whimbrel_devices::{Label, Subject};
use whimbrel_proxy::{Listed, May, SessionError, SessionsAt, Standing};

pub(crate) use self::here::{all_here, find as find_here};
use self::rate::APART;
pub(crate) use self::rate::{Rates, Ways};
use crate::failure::Failure;
use crate::lasting::Lasting;
use crate::network::{Network, Peer, Wish};
use crate::options::{Globals, after};
use crate::own_group::OwnGroup;
use crate::shutdown::Shutdown;
use crate::{failure, moving, output};

/// What stands for a session on command lines: so many digits of its id at least.
const LEAST_DIGITS: usize = 4;

/// Show what runs here and could go on at another device
///
/// Without a gateway: each `whimbrel pipe`, `forward`, `chat`, `send` and `receive` here, and HTTPS that ends
/// in `proxy http --intercept`. With --through: connections of programs behind `whimbrel proxy socks
/// --through`, and tunnels of `proxy http --through` and `run --through`, that this device has, or may take.
/// The rate is that of half a second. docs/devices.md has the rules.
#[derive(Args)]
#[command(after_help = after("\
Examples:
  whimbrel sessions
  whimbrel sessions --from phone.ada@example.org     (there: whimbrel agent --as)
  whimbrel sessions --through gate.home.ada@example.org
  whimbrel sessions --through gate.home.ada@example.org --json"))]
pub(crate) struct Sessions {
    #[command(flatten)]
    at: At,
    /// Another device of yours, whose agent answers by this name
    #[arg(long, value_name = "NAME|TICKET", conflicts_with = "through")]
    from: Option<Peer>,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Which gateway.
#[derive(Args)]
pub(crate) struct At {
    /// The gateway that keeps the sessions
    #[arg(long, value_name = "NAME|TICKET")]
    pub(crate) through: Option<Peer>,
}

impl At {
    /// Which one.
    ///
    /// # Errors
    /// When none was said.
    pub(crate) fn gateway(&self) -> Result<&Peer> {
        self.through
            .as_ref()
            .ok_or_else(|| Failure::usage("say which gateway has the sessions: --through NAME"))
    }

    /// The gateway, once it was reached.
    pub(crate) async fn reach(&self, network: &Arc<Network>) -> Result<SessionsAt> {
        let lasting = Lasting::new(network.clone(), self.gateway()?.clone());
        // Why there is no way there, is told with its exit code.
        drop(lasting.connection().await?);
        Ok(SessionsAt::new(Arc::new(lasting)))
    }
}

pub(crate) async fn run(globals: &Globals, args: Sessions) -> Result<()> {
    if let Some(from) = &args.from {
        let (all, rates) = with_network(globals, async |network| {
            twice(async || moving::list(network, from).await, here::counted).await
        })
        .await?;
        return here::show(&all, &rates, args.json);
    }
    if args.at.through.is_none() {
        let (all, rates) = twice(all_here, here::counted).await?;
        here::tell_what_stays(globals.quiet || args.json).await?;
        return here::show(&all, &rates, args.json);
    }
    let (listed, rates) = with_network(globals, async |network| {
        let sessions = args.at.reach(network).await?;
        twice(async || Ok(sessions.list().await?), counted).await
    })
    .await?;
    let names = Names::of(globals);
    if args.json {
        let sessions: Vec<_> = listed.iter().map(|session| as_json(session, &names, &rates)).collect();
        return output::json(&json!({ "sessions": sessions }));
    }
    listed.iter().try_for_each(|session| output::line(describe(session, &names, &rates)))?;
    if listed.is_empty() {
        output::line("no sessions of this device, and none that it may take")?;
    }
    Ok(())
}

/// Looks twice, if there is anything: what there is now, and how fast it is.
async fn twice<T>(
    look: impl AsyncFn() -> Result<Vec<T>>,
    counted: impl Fn(&T) -> (String, Ways),
) -> Result<(Vec<T>, Rates)> {
    let mut rates = Rates::default();
    let mut all = look().await?;
    rates.look(Instant::now(), all.iter().map(&counted).collect());
    if all.is_empty() {
        return Ok((all, rates));
    }
    tokio::time::sleep(APART).await;
    match look().await {
        Ok(again) => {
            rates.look(Instant::now(), again.iter().map(&counted).collect());
            all = again;
        }
        // What was seen at first is shown, without a rate.
        Err(error) => tracing::info!(error = failure::line(&error), "the second look failed"),
    }
    Ok((all, rates))
}

/// What a gateway has counted of a session.
fn counted(session: &Listed) -> (String, Ways) {
    (session.id.to_string(), Ways { down: session.down, up: session.up })
}

/// Does something with the network, and ends it.
pub(crate) async fn with_network<T>(
    globals: &Globals,
    run: impl AsyncFnOnce(&Arc<Network>) -> Result<T>,
) -> Result<T> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let network = Arc::new(Network::of_user(globals, Wish::default()).await?);
    let result = tokio::select! {
        result = run(&network) => result,
        request = shutdown.requested() => Err(request.error()),
    };
    network.close().await;
    result
}

/// The first digits of an id.
///
/// # Errors
/// When it is something else, or too short.
pub(crate) fn digits(wanted: &str) -> Result<String> {
    if wanted.len() < LEAST_DIGITS || !wanted.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Failure::usage(format!(
            "{wanted} is no session; `whimbrel sessions` shows their ids, of which {LEAST_DIGITS} digits do"
        )));
    }
    Ok(wanted.to_ascii_lowercase())
}

/// The one session whose id begins so.
pub(crate) async fn find(sessions: &SessionsAt, wanted: &str) -> Result<Listed> {
    let wanted = digits(wanted)?;
    let listed = sessions.list().await?;
    let mut found = listed.into_iter().filter(|session| session.id.to_string().starts_with(&wanted));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(SessionError::from(whimbrel_proxy::NoSession).into()),
        (Some(_), Some(_)) => {
            Err(Failure::usage(format!("more than one session begins with {wanted}; give more digits")))
        }
    }
}

/// What devices are called here.
pub(crate) struct Names(Option<OwnGroup>);

impl Names {
    fn of(globals: &Globals) -> Self {
        Self::of_group(OwnGroup::open(globals))
    }

    /// In the group of this key.
    pub(crate) fn of_key(key: SecretKey) -> Self {
        Self::of_group(OwnGroup::of(key))
    }

    fn of_group(group: Result<OwnGroup>) -> Self {
        Self(group.inspect_err(|error| tracing::debug!(error = failure::line(error), "no group")).ok())
    }

    /// The name of a device, if it has one here.
    pub(crate) fn of_device(&self, id: EndpointId) -> Option<String> {
        let group = self.0.as_ref()?;
        if group.key.id() == id {
            return Some("this device".to_owned());
        }
        let look = |log: &whimbrel_devices::Log| {
            let names = log.group().names();
            let called = names.get(&Subject::Device(id)).map(Label::as_str).map(str::to_owned);
            called.or_else(|| log.group().device(id).map(|device| device.name().to_string()))
        };
        group.look(look).ok().flatten()
    }
}

fn standing(session: &Listed) -> &'static str {
    match session.standing {
        Standing::Live => "live",
        Standing::Held => "held",
        Standing::Moving => "moving",
        Standing::Fixed => "fixed",
        _ => "?",
    }
}

fn may(session: &Listed) -> &'static str {
    match session.may {
        May::Own => "own",
        May::Consent => "consent",
        May::Rule => "rule",
        _ => "?",
    }
}

fn as_json(session: &Listed, names: &Names, rates: &Rates) -> serde_json::Value {
    let mut value = json!({
        "id": session.id.to_string(), "to": session.to.to_string(), "holder": session.holder.to_string(),
        "called": names.of_device(session.holder), "age": session.age.as_secs(), "up": session.up,
        "down": session.down, "kept": session.kept, "moves": session.moves, "standing": standing(session),
        "may": may(session),
    });
    rate::put(&mut value, rates.of(&session.id.to_string()));
    value
}

fn describe(session: &Listed, names: &Names, rates: &Rates) -> String {
    let id = session.id.to_string();
    let holder = names.of_device(session.holder).unwrap_or_else(|| session.holder.short());
    let take = match session.may {
        May::Own => "",
        May::Consent => ", handed over to this device",
        _ => ", this device may take it",
    };
    let held = match session.standing {
        Standing::Held => ", held for a device to take it",
        Standing::Moving => ", moving",
        Standing::Fixed => ", stays there: TLS",
        _ => "",
    };
    format!(
        "{}  {}  at {holder}{held}{take}; {} bytes down, {} up, {} kept{}",
        &id[..8],
        session.to,
        session.down,
        session.up,
        session.kept,
        rate::describe(rates.of(&id))
    )
}
