//! What another device had running goes on in this terminal, and no gateway is between.

use std::path::Path;

use anyhow::Result;
use whimbrel_transport::Config;

use super::ports;
use crate::commands::sessions::digits;
use crate::commands::{chat, pipe, receive, send};
use crate::failure::Failure;
use crate::moving::{self, State};
use crate::network::{Network, Peer, Wish};
use crate::options::Globals;
use crate::plain::plain;
use crate::shutdown::Shutdown;

/// Characters that are shown of what the other device says.
const LONGEST: usize = 200;

/// Takes a session from the device that has it, and goes on with it until it ends or goes to the next one.
///
/// # Errors
/// When it is not given, or breaks.
pub(super) async fn take(
    globals: &Globals,
    session: &str,
    from: &Peer,
    (directory, json): (&Path, bool),
) -> Result<()> {
    let session = digits(session)?;
    // Standard input is what is typed.
    let mut shutdown = Shutdown::catch(false)?.with_hangup()?;
    // What comes is known once it is here. Presence, which a chat shows, costs a pipe next to nothing.
    let config = Config { timeouts: chat::presence(), ..Config::default() };
    let network = Network::of_user(globals, Wish { config, ..Wish::default() }).await?;
    let result = tokio::select! {
        result = go_on(globals, &network, (&session, from), (directory, json)) => result,
        request = shutdown.requested() => Err(request.error()),
    };
    network.close().await;
    result
}

async fn go_on(
    globals: &Globals,
    network: &Network,
    (session, from): (&str, &Peer),
    (directory, json): (&Path, bool),
) -> Result<()> {
    let (state, giver) = moving::ask(network, from, session).await?;
    match state {
        State::Pipe(halves) => pipe::go_on(globals, network, giver.accept(network).await?, halves).await,
        State::Forward(all) => {
            let connection = giver.accept(network).await?;
            ports::go_on(connection, all, None, |at, peer| ports::print(json, at, peer)).await
        }
        State::Chat(talk) => chat::go_on(globals, network, (giver.accept(network).await?, talk), json).await,
        State::File(file) => receive::go_on(globals, network, (giver, file), (directory, json)).await,
        State::Together(files) => {
            receive::go_on_together(globals, network, (giver, files), (directory, json)).await
        }
        State::Going(files) => send::go_on_together(globals, network, (giver, files), json).await,
        State::Sending(file) => send::go_on(globals, network, (giver, file), json).await,
        State::Web(object) => {
            giver.refuse("it was not taken with --as http").await;
            let place = plain(&object.place(), LONGEST);
            let message = format!("{place} is asked for by a program here: take it with --as http");
            Err(Failure::new(Failure::REFUSED, message).into())
        }
    }
}
