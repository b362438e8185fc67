//! Commands that let peers in until they are stopped: how they start, and how they end.

use anyhow::Result;
use whimbrel_base::Name;
use whimbrel_transport::ListenOptions;

use crate::access::{Access, Guests};
use crate::network::{Network, Wish};
use crate::options::Globals;
use crate::shutdown::Shutdown;
use crate::{naming, renewer};

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
        _ = shutdown.requested() => Ok(()),
    };
    if let Some(name) = name.filter(|_| result.is_ok()) {
        naming::withdraw(&network, name).await;
    }
    network.close().await;
    result
}

/// Listens under a name that is published, or by ticket alone.
pub(crate) async fn listen(
    globals: &Globals,
    network: &Network,
    name: Option<&Name>,
    by_ticket: bool,
    access: Access,
) -> Result<Guests> {
    let options = match name {
        Some(name) if network.has_names() || !by_ticket => {
            network.resolver()?;
            let permission = naming::permission(network, name, globals.quiet).await?;
            ListenOptions::named(name).delegation(permission).on_renewal(naming::keep)
        }
        Some(name) => ListenOptions::named(name).unpublished(),
        None => ListenOptions::unnamed(),
    };
    let mut options = options.allow(access.allow());
    if let Some(secret) = access.secret() {
        options = options.ticket_secret(secret);
    }
    Ok(Guests::new(network.endpoint.listen(options).await?, access))
}
