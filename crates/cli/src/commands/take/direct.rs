//! What another device had running goes on in this terminal, and no gateway is between.

use anyhow::Result;
use whimbrel_transport::Config;

use super::ports;
use crate::commands::sessions::digits;
use crate::commands::{chat, pipe};
use crate::moving::{self, State};
use crate::network::{Network, Peer, Wish};
use crate::options::Globals;
use crate::shutdown::Shutdown;

/// Takes a session from the device that has it, and goes on with it until it ends or goes to the next one.
///
/// # Errors
/// When it is not given, or breaks.
pub(super) async fn take(globals: &Globals, session: &str, from: &Peer, json: bool) -> Result<()> {
    let session = digits(session)?;
    // Standard input is what is typed.
    let mut shutdown = Shutdown::catch(false)?.with_hangup()?;
    // What comes is known once it is here. Presence, which a chat shows, costs a pipe next to nothing.
    let config = Config { timeouts: chat::presence(), ..Config::default() };
    let network = Network::of_user(globals, Wish { config, ..Wish::default() }).await?;
    let result = tokio::select! {
        result = go_on(globals, &network, &session, (from, json)) => result,
        request = shutdown.requested() => Err(request.error()),
    };
    network.close().await;
    result
}

async fn go_on(
    globals: &Globals,
    network: &Network,
    session: &str,
    (from, json): (&Peer, bool),
) -> Result<()> {
    let taken = moving::take(network, from, session).await?;
    match taken.state {
        State::Pipe(halves) => pipe::go_on(globals, network, taken.connection, halves).await,
        State::Forward(all) => {
            ports::go_on(taken.connection, all, None, |at, peer| ports::print(json, at, peer)).await
        }
        State::Chat(talk) => chat::go_on(globals, network, (taken.connection, talk), json).await,
    }
}
