//! What is written to a client, and decisions that take time.

use crate::by_whimbrel::anywhere;
use crate::decide::Candidate;
use crate::deciders::LOOK_UPS;
use crate::external::Said;
use crate::protocol::{Answer, Ask, Deciding, Verdict};
use crate::refusal::Refusal;
use crate::shared::Shared;
use crate::target::Target;
use serde::Serialize;
use std::borrow::Cow;
use std::time::Duration;
use tokio::sync::Semaphore;

/// How long further look-ups wait. With a look-up behind it this is less than what a client waits for a
/// decision.
const QUEUED: Duration = Duration::from_secs(2);

/// Adds an answer as a line.
pub(super) fn write_line(output: &mut Vec<u8>, answer: &impl Serialize) {
    let length = output.len();
    if let Err(error) = serde_json::to_writer(&mut *output, answer) {
        // No key in an answer is other than text.
        tracing::warn!(%error, "an answer cannot be written down");
        output.truncate(length);
        return;
    }
    output.push(b'\n');
}

/// The answer to a question.
pub(super) fn answer(id: Option<u64>, verdict: Result<Verdict, Refusal>) -> Answer {
    match verdict {
        Ok(verdict) => Answer { id, decision: Some(verdict), ..Answer::default() },
        Err(Refusal { why, is_busy }) => Answer { id, error: Some(why), busy: is_busy, ..Answer::default() },
    }
}

/// A decision that needs names, or another program.
pub(super) async fn later(
    shared: &Shared,
    client: u64,
    ask: &Ask,
    target: Target,
    look_ups: &Semaphore,
) -> Result<Verdict, Refusal> {
    let (endpoint, (candidates, mut problems)) = match target {
        Target::Addresses(candidates) => (None, (candidates, Vec::new())),
        Target::Name { host, port } => (None, look_up(shared, &host, port, look_ups).await?),
        Target::Endpoint(name) => (Some(name), (Vec::new(), Vec::new())),
    };
    let asked = match endpoint {
        Some(_) => Cow::Owned(anywhere(ask)),
        None => Cow::Borrowed(ask),
    };
    let question = |n| Deciding { to: ask.to.clone(), ..shared.question(n, &asked, &candidates) };
    let said = match ask.under_way {
        // The other program chooses ways for what begins, and no parts.
        Some(_) => None,
        None => shared.external.ask(question).await,
    };
    let chosen = match &said {
        Some(Said::Chosen(name, chosen)) => Some((name.as_str(), chosen)),
        Some(Said::Nothing(why)) => {
            problems.push(why.clone());
            None
        }
        None => None,
    };
    let verdict = shared.answer(client, ask, endpoint.as_ref(), &candidates, chosen);
    let mut verdict = verdict.map_err(Refusal::wrong)?;
    problems.append(&mut verdict.problems);
    Ok(Verdict { problems, ..verdict })
}

async fn look_up(
    shared: &Shared,
    host: &str,
    port: u16,
    look_ups: &Semaphore,
) -> Result<(Vec<Candidate>, Vec<String>), Refusal> {
    // In the order in which they were asked.
    match tokio::time::timeout(QUEUED, look_ups.acquire()).await {
        Ok(Ok(_permit)) => shared.look_up(host, port).await,
        _ => Err(Refusal::busy(format!("{LOOK_UPS} look-ups of yours are under way; ask again later"))),
    }
}
