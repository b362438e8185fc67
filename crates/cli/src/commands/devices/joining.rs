//! `whimbrel devices request`, `accept` and `refuse`: a machine becomes a user's device by the name service,
//! without a code. Both screens show the same six words, which are of the request's hash.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::json;
use tokio::time::{Instant, sleep};
use whimbrel_base::{EndpointId, Name, NameKind};
use whimbrel_names::{KnownProposal, Proposal, ProposalId, Wished};

use crate::commands::invite::{tell_of_own_group, with_network};
use crate::failure::Failure;
use crate::network::{Network, Wish};
use crate::options::Globals;
use crate::requests::{Voice, is_gone, now, owner_of};
use crate::shutdown::Shutdown;
use crate::{identity, output, own_group, places, qr};

/// How long a machine waits for an answer: somebody is sitting at both.
const WAIT: Duration = Duration::from_secs(60 * 60);
/// Between two looks for the answer.
const LOOK: Duration = Duration::from_secs(2);
/// Words of a request.
const WORDS: usize = 6;
/// For the service to take a request back when nobody waits any more.
const TAKE_BACK: Duration = Duration::from_secs(5);

/// Asks a user to make this machine a device, and waits for the answer.
pub(super) async fn ask(globals: &Globals, name: &Name, (as_json, as_qr): (bool, bool)) -> Result<()> {
    if name.kind() != NameKind::Device {
        let user = name.user();
        return Err(Failure::usage(format!("{name} is no device's name; give one, as laptop.{user}")));
    }
    let mut shutdown = Shutdown::catch(globals.until_eof)?;
    let network = Network::of_user(globals, Wish::default()).await?;
    let result = async {
        let (id, owner) = propose(&network, name).await?;
        if as_json {
            output::json(&json!({ "words": id.words(), "name": name.to_string() }))?;
        } else {
            let text = format!("on the machine with {}'s key: whimbrel devices accept", name.user());
            output::note(globals.quiet, text);
            output::line(id.words())?;
            if as_qr {
                qr::print(globals.quiet, &id.words())?;
            }
        }
        let result = tokio::select! {
            result = wait(globals, &network, id) => result,
            request = shutdown.requested() => Err(request.error()),
        };
        // What was answered needs no place any more, and what nobody waits for should not be answered.
        if let Ok(resolver) = network.resolver() {
            let _ = tokio::time::timeout(TAKE_BACK, resolver.withdraw(id, None)).await;
        }
        result?;
        if as_json {
            return output::json(&json!({ "given": name.to_string(), "by": owner.to_string() }));
        }
        output::line(format!("this machine may use {name} now"))
    }
    .await;
    network.close().await;
    result
}

async fn propose(network: &Network, name: &Name) -> Result<(ProposalId, EndpointId)> {
    let (to, by, made) = (name.user(), network.id(), now());
    let owner = owner_of(network, &to).await?;
    if owner == by {
        return Err(Failure::usage(format!("this machine has {to}'s own key, and needs no word of anybody")));
    }
    let wished = Wished::Device { name: name.clone() };
    let expires = made.saturating_add(WAIT);
    let bytes =
        Proposal { wished, to: to.clone(), owner, by, made, expires, word: None }.sign(&network.key)?;
    let id = ProposalId::of(&bytes);
    network.resolver()?.propose(bytes).await.with_context(|| format!("cannot ask {to}"))?;
    Ok((id, owner))
}

/// Waits until the user has answered, and keeps what was given.
async fn wait(globals: &Globals, network: &Network, id: ProposalId) -> Result<()> {
    let end = Instant::now() + WAIT;
    while Instant::now() < end {
        sleep(LOOK).await;
        // The service may be away for a moment.
        let Ok(known) = network.resolver()?.proposals(None).await else { continue };
        let found = known.into_iter().find(|known| known.id == id);
        let Some(decision) = found.and_then(|known| known.decision) else { continue };
        let Some(given) = decision.given.filter(|_| decision.accepted) else {
            return Err(Failure::new(Failure::REFUSED, "the user does not want this machine").into());
        };
        identity::store_delegation(&places::config()?, &given)?;
        tell_of_own_group(globals, network, given.issuer());
        return Ok(());
    }
    Err(Failure::new(Failure::UNREACHABLE, "nobody has answered within an hour; ask again").into())
}

/// Answers the request with these words.
pub(super) async fn answer(globals: &Globals, words: &[String], accepted: bool, as_json: bool) -> Result<()> {
    let words = plain(words)?;
    with_network(globals, async |network| answer_by(globals, network, &words, (accepted, as_json)).await)
        .await
}

async fn answer_by(
    globals: &Globals,
    network: &Network,
    words: &str,
    (accepted, as_json): (bool, bool),
) -> Result<()> {
    let voice = Voice::of(network).await?;
    voice.check_trust()?;
    let known = voice.requests(network).await?;
    let open = known.iter().filter(|known| voice.is_open(known));
    let mut waiting = open.filter_map(|known| Some((known, device_in(known)?)));
    let Some((found, name)) = waiting.find(|(known, _)| known.id.words() == words) else {
        let message = "no machine that waits shows these words; `whimbrel friends requests` lists them";
        return Err(Failure::new(Failure::NOT_FOUND, message).into());
    };
    let device = found.proposal.by;
    if accepted {
        give(globals, network, &voice, (found, name)).await?;
    } else {
        said(voice.answer(network, found, false, None).await)?;
    }
    if as_json {
        let given = accepted.then(|| name.to_string());
        return output::json(&json!({ "device": device.to_string(), "given": given }));
    }
    output::line(match accepted {
        true => format!("the other machine may use {name} now: {device}"),
        false => "the other machine is refused".to_owned(),
    })
}

/// Gives the machine its name. The user's key alone can.
async fn give(
    globals: &Globals,
    network: &Network,
    voice: &Voice,
    (found, name): (&KnownProposal, &Name),
) -> Result<()> {
    if voice.word.is_some() {
        let message =
            format!("only the user's own key gives names; run this where the key of {} is", name.user());
        return Err(Failure::new(Failure::REFUSED, message).into());
    }
    let device = found.proposal.by;
    let given = network.endpoint.delegate(name, device, super::NAME_LASTS)?;
    said(voice.answer(network, found, true, Some(given.clone())).await)?;
    if let Some(devices) = &network.devices {
        devices.delegated(&given)?;
    }
    own_group::note_device(&network.key, globals.quiet, name, device);
    Ok(())
}

/// An answer that came too late, in plain words.
fn said(answered: Result<()>) -> Result<()> {
    match answered {
        Err(error) if is_gone(&error) => {
            Err(Failure::new(Failure::REFUSED, "that machine does not wait any more; have it ask again")
                .into())
        }
        answered => answered,
    }
}

fn device_in(known: &KnownProposal) -> Option<&Name> {
    match &known.proposal.wished {
        Wished::Device { name } => Some(name),
        _ => None,
    }
}

/// The six words in one form, however they were separated.
fn plain(words: &[String]) -> Result<String> {
    let text = words.join(" ").to_lowercase();
    let words: Vec<&str> =
        text.split(|c: char| c == '-' || c.is_whitespace()).filter(|it| !it.is_empty()).collect();
    match words.len() {
        WORDS => Ok(words.join("-")),
        count => {
            Err(Failure::usage(format!("give the six words that the other machine shows; these are {count}")))
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn six_words_are_read_however_they_are_separated() {
        let read = |words: &[&str]| plain(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(read(&["One-two-three", "four five", "six"]).unwrap(), "one-two-three-four-five-six");
        assert!(read(&["one-two-three"]).unwrap_err().to_string().contains("these are 3"));
    }
}
