//! Which questions make sense.

use crate::protocol::{Ask, MAX_LISTED};
use whimbrel_access::IntentError;

/// In milliseconds.
const DAY: f64 = 86_400_000.0;

/// Why nothing can be decided.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AskError {
    #[error("intents: {0}")]
    Intents(#[from] IntentError),
    #[error("{0} are listed; at most {MAX_LISTED} addresses and as many connections are looked at")]
    Many(usize),
    #[error("connection {0} is listed twice: give each a number of its own")]
    Twice(u32),
    #[error("it is under way on connection {0}, which the question does not list")]
    Unlisted(u32),
    #[error("completes_ms of what is under way is 0 or more, and a day at most")]
    Never,
}

/// Checks what the form of a question alone does not rule out.
pub(crate) fn check(ask: &Ask) -> Result<(), AskError> {
    ask.intents.validate()?;
    let most = ask.addresses.len().max(ask.connections.len());
    if most > MAX_LISTED {
        return Err(AskError::Many(most));
    }
    let Some(under_way) = &ask.under_way else { return Ok(()) };
    let id = under_way.connection;
    if !ask.connections.iter().any(|open| open.id == id) {
        return Err(AskError::Unlisted(id));
    }
    if (0.0..=DAY).contains(&under_way.completes_ms) { Ok(()) } else { Err(AskError::Never) }
}
