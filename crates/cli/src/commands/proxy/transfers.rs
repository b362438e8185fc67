//! Answers of HTTPS that ends in the proxy go on at another device, which asks their server for what is left.

use std::convert::Infallible;

use futures_util::FutureExt;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use whimbrel_proxy::WebTransfer;

use crate::moving::{Outcome, Sessions};
use crate::output;

/// Answers that could move at once; more are told of once some of these have ended.
const MOST: usize = 64;

/// Lets other devices have what comes out of there, each answer until it ends or has gone.
pub(super) async fn offer(
    quiet: bool,
    transfers: Option<mpsc::Receiver<WebTransfer>>,
    sessions: &Sessions,
) -> Infallible {
    let Some(mut transfers) = transfers else { return std::future::pending().await };
    let mut offered = JoinSet::new();
    loop {
        tokio::select! {
            told = transfers.recv(), if offered.len() < MOST => match told {
                Some(transfer) => {
                    offered.spawn(FutureExt::boxed(follow(quiet, transfer, sessions.clone())));
                }
                // The proxy has ended.
                None => return std::future::pending().await,
            },
            Some(_) = offered.join_next() => {}
        }
    }
}

/// Lets another device have this one.
async fn follow(quiet: bool, mut transfer: WebTransfer, sessions: Sessions) {
    let mut session = sessions.begin_object(transfer.place(), transfer.passed());
    loop {
        let asked = tokio::select! {
            () = transfer.ended() => return,
            asked = session.asked() => asked,
        };
        let place = transfer.place();
        let why = match transfer.halt().await {
            Ok(halted) => match asked.give_object(halted.object().clone()).await {
                Outcome::Moved(to) => {
                    halted.leave();
                    output::note(quiet, format!("{place} went on at {to}"));
                    return;
                }
                Outcome::Stays(why) | Outcome::Lost(why) => why,
            },
            Err(why) => {
                let why = why.to_string();
                asked.refuse(&why);
                why
            }
        };
        output::note(quiet, format!("{place} stays here: {why}"));
    }
}
