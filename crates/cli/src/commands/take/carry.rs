//! A session between its gateway and the program that was waited for.

use anyhow::{Context as _, Result};
use tokio::io::AsyncWriteExt as _;
use whimbrel_proxy::{Listed, Outcome, SessionsAt, Takers};

use super::waiting::{Asking, Begins};
use crate::failure::Failure;

/// What there is to say when a session is here.
pub(crate) struct Begun<'a> {
    /// The first byte that comes, among all that the server sends.
    pub(crate) from: u64,
    /// What may be missing, for people.
    pub(crate) warning: Option<&'a str>,
}

/// Takes a session, and carries it until it is over or goes on elsewhere. These devices may take it without a
/// word from then on.
///
/// # Errors
/// When it is not given, cannot go on in this program, or breaks.
pub(crate) async fn carry(
    sessions: &SessionsAt,
    session: &Listed,
    takers: Takers,
    (mut socket, begins): Asking,
    begun: impl FnOnce(Begun<'_>),
) -> Result<Outcome> {
    // Only now, so that the program over there goes on for as long as it can. If it cannot go on here, it
    // goes back to where it was.
    let attached = match &begins {
        Begins::HttpTime(_) => sessions.take_by_time(session.id, session.moves, takers).await?,
        Begins::Raw | Begins::Http(_) | Begins::Line(_) => {
            sessions.take(session.id, session.moves, takers).await?
        }
    };
    let (mut rest, mut early) = (None, Vec::new());
    let found = match &begins {
        Begins::Http(request) => Some(attached.rest(request)),
        Begins::HttpTime(request) => Some(attached.rest_by_time(request)),
        Begins::Raw | Begins::Line(_) => None,
    };
    match found {
        Some(Ok(found)) => rest = Some(found),
        Some(Err(none)) => {
            drop(attached);
            socket.write_all(&none.answer()).await.context("the program is gone")?;
            return Err(Failure::new(Failure::REFUSED, none.to_string()).into());
        }
        None => {}
    }
    match begins {
        Begins::Raw | Begins::Http(_) | Begins::HttpTime(_) => {}
        Begins::Line(own_lines) => {
            let anew = attached.anew(own_lines);
            let anew = anew.map_err(|none| Failure::new(Failure::REFUSED, none.to_string()))?;
            early = anew.begin(&mut socket).await.context("the program does not begin")?;
        }
    }
    begun(Begun { from: attached.offset(), warning: attached.warning() });
    let carried = match rest {
        None => attached.carry(socket, early).await,
        Some(rest) => attached.carry_rest(socket, rest).await,
    };
    carried.context("the session ended early")
}
