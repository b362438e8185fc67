//! An answer of HTTPS that came at another device: its server is asked from here for what is left, for a
//! program that asks anew. No gateway is needed, and no connection moves.

use std::sync::Arc;

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use whimbrel_multiaccess::Client;
use whimbrel_proxy::{Managed, WebOrigins};

use super::waiting::{Begins, How, Waiting};
use super::{Take, asking, succeeded};
use crate::commands::sessions::{digits, with_network};
use crate::failure::Failure;
use crate::moving::{self, State};
use crate::network::{Network, Peer};
use crate::options::Globals;
use crate::output;
use crate::plain::plain;

/// Characters that are shown of what the other device says.
const LONGEST: usize = 200;

/// Waits for a program, and gives it what is left.
///
/// # Errors
/// When it is not given there, or not had here. It goes on there then.
pub(super) async fn take(globals: &Globals, args: &Take, from: &Peer) -> Result<()> {
    let session = digits(&args.session)?;
    let upstream = Arc::new(Managed::new(Client::default()));
    let origins = WebOrigins::new(upstream, None).context("no server can be verified")?;
    with_network(globals, async |network| {
        let waiting = Waiting::new(args.listen, (How::Http, 0)).await?;
        let place = waiting.place()?;
        if args.json {
            output::json(&json!({
                "listening": place.at.to_string(), "url": place.url, "session": session,
            }))?;
        } else if args.program.is_empty() {
            let short = session.get(..8).unwrap_or(&session);
            output::line(format!("{short} waits for a program on {}", place.url))?;
        }
        let (mut program, (socket, begins)) = asking(globals, args, waiting, &place).await?;
        let request = match begins {
            Begins::Http(request) => request,
            Begins::Raw | Begins::HttpTime(_) | Begins::Line(_) => Vec::new(),
        };
        go_on(globals, network, (from, &session), &origins, (socket, &request)).await?;
        succeeded(&mut program).await
    })
    .await
}

/// Only once the program is there, so that the one over there goes on for as long as it can.
async fn go_on(
    globals: &Globals,
    network: &Network,
    (from, session): (&Peer, &str),
    origins: &WebOrigins,
    (mut program, request): (TcpStream, &[u8]),
) -> Result<()> {
    let (state, giver) = moving::ask(network, from, session).await?;
    let State::Web(object) = state else {
        let message = "this is no answer of HTTPS: take it without --as http";
        return Err(Failure::new(Failure::REFUSED, message).into());
    };
    let (place, at) = (plain(&object.place(), LONGEST), object.at());
    match origins.rest(object, request).await {
        Ok(rest) => {
            giver.has_rest().await?;
            output::note(globals.quiet, format!("{place} goes on here, from byte {at}"));
            rest.give(&mut program).await.context("the rest ended early")?;
            program.shutdown().await.context("the program is gone")
        }
        Err(none) => {
            giver.refuse(&none.to_string()).await;
            // The program may be gone: what is wrong is told here in any case.
            let _ = program.write_all(&none.answer()).await;
            Err(Failure::new(Failure::REFUSED, format!("{place} stays there: {none}")).into())
        }
    }
}
