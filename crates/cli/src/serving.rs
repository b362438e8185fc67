//! Commands that let peers in until they are stopped: how they start, and how they end.

use std::net::SocketAddr;

use anyhow::Result;
use whimbrel_base::Name;
use whimbrel_transport::{Config, ListenOptions};

use crate::access::{Access, Guests};
use crate::failure::{self, Failure};
use crate::network::{Network, Wish};
use crate::options::Globals;
use crate::shutdown::Shutdown;
use crate::takeover::{self, Inherited, Running, Served, TakeOver};
use crate::{identity, leases, naming, output, renewer};

/// Serves on an endpoint of this user's until that ends or the command is stopped; then the name is
/// taken back, unless serving failed, and the endpoint is closed.
pub(crate) async fn until_stopped(
    globals: &Globals,
    wish: Wish,
    name: Option<&Name>,
    serve: impl AsyncFnOnce(&Network) -> Result<()>,
) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let network = Network::of_user(globals, wish).await?;
    let result = tokio::select! {
        result = serve(&network) => result,
        never = renewer::run(&network) => match never {},
        never = leases::keep(&network, name) => match never {},
        _ = shutdown.requested() => Ok(()),
    };
    if let Some(name) = name.filter(|_| result.is_ok()) {
        naming::withdraw(&network, name).await;
    }
    network.close().await;
    result
}

/// As [`until_stopped`], for a command that another instance can take over from, and that can take over
/// itself. `serve` is called again if it [left](Served::Left) and the other instance did not go on.
pub(crate) async fn until_taken_over(
    globals: &Globals,
    flag: &TakeOver,
    command: &'static str,
    name: Option<&Name>,
    (config, advertise): (Config, Vec<SocketAddr>),
    serve: impl AsyncFn(&Network, Option<Inherited>) -> Result<Served>,
) -> Result<()> {
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let (id, shown) = (identity::of_user(globals)?.key.id(), name.map(ToString::to_string));
    let running = Running { command, id, name: shown.as_deref() };
    takeover::serve(globals, flag, running, &mut shutdown, async |mut inherited, shutdown| {
        let wish = Inherited::wish(&mut inherited, config.clone());
        let wish = Wish { advertise: advertise.clone(), ..wish };
        let network = Network::of_user(globals, wish).await?;
        let result = tokio::select! {
            result = serve(&network, inherited) => result,
            never = renewer::run(&network) => match never {},
            never = leases::keep(&network, name) => match never {},
            _ = shutdown.requested() => Ok(Served::Ended),
        };
        if matches!(result, Ok(Served::Left(..))) {
            return result;
        }
        if let Some(name) = name.filter(|_| result.is_ok()) {
            naming::withdraw(&network, name).await;
        }
        network.close().await;
        result
    })
    .await
}

/// How listening begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// The name is published first.
    Anew,
    /// Everything was done before, by another instance or this one: nothing is waited for.
    GoingOn,
}

impl Start {
    /// Whether the command ends because its user could not be told that it begins. One that goes on must not:
    /// the reader of the first instance's output may be gone for long, and connections depend on it.
    pub(crate) fn needs(self, told: Result<()>) -> Result<()> {
        match self {
            Self::Anew => told,
            Self::GoingOn => Ok(()),
        }
    }
}

/// Listens under a name that is published, or by ticket alone. The local network, if it is told anything,
/// hears of the key, and of a name that everybody may look up.
pub(crate) async fn listen(
    globals: &Globals,
    network: &Network,
    name: Option<&Name>,
    by_ticket: bool,
    access: Access,
    mut start: Start,
) -> Result<Guests> {
    let options = match name {
        Some(name) if network.resolves() || !by_ticket => {
            network.needs_to_resolve()?;
            let permission = match start {
                Start::Anew => naming::permission(network, name, globals.quiet).await,
                Start::GoingOn => naming::known_permission(network, name),
            };
            let permission = match permission {
                Err(error) if network.lan.is_some() && failure::code(&error) == Failure::UNREACHABLE => {
                    let why = failure::line(&error);
                    output::note(globals.quiet, format!("{why}; until it does, this network finds {name}"));
                    start = Start::GoingOn;
                    naming::known_permission(network, name)?
                }
                permission => permission?,
            };
            ListenOptions::named(name).delegation(permission).on_renewal(naming::keep)
        }
        Some(name) => ListenOptions::named(name).unpublished(),
        None => ListenOptions::unnamed(),
    };
    let mut options = options.allow(access.allow());
    if start == Start::GoingOn {
        options = options.going_on();
    }
    if let Some(secret) = access.secret() {
        options = options.ticket_secret(secret);
    }
    let guests = Guests::new(network.endpoint.listen(options).await?, access);
    if let Some(name) = name {
        leases::note(network, name, globals.quiet);
    }
    if let Some(lan) = &network.lan {
        lan.announce(&network.endpoint, &network.key)?;
        if let Some(name) = name.filter(|name| !lan.shows(name)) {
            let id = network.id();
            output::note(
                globals.quiet,
                format!(
                    "this network is not told of {name}, which is not shown to all (--readers any), but of {id}"
                ),
            );
        }
    }
    Ok(guests)
}
