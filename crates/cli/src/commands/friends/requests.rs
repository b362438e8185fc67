//! `whimbrel friends request`, `requests`, `accept` and `refuse`: introductions by the name service.

use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use whimbrel_base::{EndpointId, Name};
use whimbrel_names::{KnownProposal, MAX_PROPOSAL_TIME, Wished};

use crate::commands::invite::{claim, with_network};
use crate::failure::Failure;
use crate::network::Network;
use crate::options::Globals;
use crate::output;
use crate::requests::{Asked, Voice, is_friends, is_gone, now};

/// Asks another user to be a friend.
pub(super) async fn ask(
    globals: &Globals,
    (from, to): (Option<Name>, &Name),
    lasts: Duration,
    as_json: bool,
) -> Result<()> {
    if lasts > MAX_PROPOSAL_TIME {
        return Err(Failure::usage("a request waits for 7 days at most; give a shorter time"));
    }
    with_network(globals, async |network| ask_by(network, (from, to), lasts, as_json).await).await
}

async fn ask_by(
    network: &Network,
    (from, to): (Option<Name>, &Name),
    lasts: Duration,
    as_json: bool,
) -> Result<()> {
    let voice = Voice::of(network).await?;
    let from = own_name(network, &voice, from).await?;
    let asked = voice.ask(network, (from, to), lasts).await?;
    if as_json {
        let (state, words) = match asked {
            Asked::Waits(id) => ("waits", Some(id.words())),
            Asked::Accepted => ("accepted", None),
        };
        return output::json(&json!({ "to": to.to_string(), "state": state, "words": words }));
    }
    output::line(match asked {
        // An acceptance that an agent has heard of is no longer among the requests.
        Asked::Waits(_) => format!(
            "{to} is asked; `whimbrel friends requests` shows the answer, and `whimbrel friends list` if an \
             agent of yours has heard of it first"
        ),
        Asked::Accepted => format!("{to} has asked first, and is a friend now"),
    })
}

/// The name that the user is asked under. One that is given is made sure of.
async fn own_name(network: &Network, voice: &Voice, given: Option<Name>) -> Result<Name> {
    let known = voice.name(network)?;
    match given {
        Some(given) if voice.word.is_none() => {
            // Only a name service passes a request on: without one, no name is noted as the user's own.
            network.resolver()?;
            claim(network, &given).await?;
            Ok(given)
        }
        Some(given) if known.as_ref() != Some(&given) => {
            let known = known.map_or_else(|| "nobody".to_owned(), |known| known.to_string());
            Err(Failure::usage(format!("this machine is a device of {known}, and does not ask for {given}")))
        }
        _ => known.ok_or_else(|| {
            Failure::usage("you have no user name here; give one with --as USER, or `whimbrel id register`")
        }),
    }
}

/// Lists all requests, after what both sides want was brought about.
pub(super) async fn list(globals: &Globals, as_json: bool) -> Result<()> {
    with_network(globals, async |network| list_of(network, as_json).await).await
}

async fn list_of(network: &Network, as_json: bool) -> Result<()> {
    let voice = Voice::of(network).await?;
    let known = voice.requests(network).await?;
    let friends = voice.settle(network, &known).await?;
    if as_json {
        let requests: Vec<Value> = known.iter().map(|known| described(&voice, known)).collect();
        let friends: Vec<&str> = friends.iter().map(Name::as_str).collect();
        return output::json(&json!({ "requests": requests, "new_friends": friends }));
    }
    for friend in &friends {
        output::line(format!("{friend} is a friend now"))?;
    }
    for known in &known {
        output::line(line(&voice, known))?;
    }
    if known.is_empty() && friends.is_empty() {
        output::line("no requests")?;
    }
    Ok(())
}

/// Answers the request that a text means, or takes an own one back.
pub(super) async fn answer(globals: &Globals, wanted: &str, accepted: bool, as_json: bool) -> Result<()> {
    with_network(globals, async |network| answer_by(network, wanted, accepted, as_json).await).await
}

async fn answer_by(network: &Network, wanted: &str, accepted: bool, as_json: bool) -> Result<()> {
    let voice = Voice::of(network).await?;
    voice.check_trust()?;
    let known = voice.requests(network).await?;
    let open = |known: &&KnownProposal| voice.is_open(known) && is_friends(known);
    let Some(found) = known.iter().filter(open).find(|known| is_meant(known, wanted)) else {
        return take_back(network, &voice, &known, (wanted, accepted), as_json).await;
    };
    let Wished::Friends { from } = &found.proposal.wished else { return Ok(()) };
    if accepted {
        voice.check_sender(network, found).await?;
    }
    decide(&voice, network, found, accepted).await?;
    let id = found.proposal.authority();
    if accepted {
        voice.befriend(id, from).await?;
    }
    if as_json {
        let state = if accepted { "accepted" } else { "refused" };
        return output::json(&json!({ "from": from.to_string(), "id": id.to_string(), "state": state }));
    }
    output::line(match accepted {
        true => format!("{from} is a friend now: {id}"),
        false => format!("{from} is refused"),
    })
}

/// Answers, and says so in plain words if somebody was quicker.
async fn decide(voice: &Voice, network: &Network, found: &KnownProposal, accepted: bool) -> Result<()> {
    match voice.answer(network, found, accepted, None).await {
        Err(error) if is_gone(&error) => {
            Err(Failure::new(Failure::REFUSED, "another device has answered it, or it was taken back").into())
        }
        answered => answered,
    }
}

/// Takes an own request back, if that is what was meant.
async fn take_back(
    network: &Network,
    voice: &Voice,
    known: &[KnownProposal],
    (wanted, accepted): (&str, bool),
    as_json: bool,
) -> Result<()> {
    let is_own = |known: &&KnownProposal| known.proposal.authority() == voice.user && is_friends(known);
    let own = known
        .iter()
        .filter(is_own)
        .find(|known| known.proposal.to.as_str() == wanted.to_lowercase() || known.id.words() == wanted);
    let Some(own) = own.filter(|_| !accepted) else {
        let message = format!("no request of {wanted} waits; `whimbrel friends requests` lists them");
        return Err(Failure::new(Failure::NOT_FOUND, message).into());
    };
    let to = &own.proposal.to;
    let withdrawn = network.resolver()?.withdraw(own.id, voice.word.as_ref()).await;
    withdrawn.with_context(|| format!("cannot take the request to {to} back"))?;
    if as_json {
        return output::json(&json!({ "to": to.to_string(), "state": "withdrawn" }));
    }
    output::line(format!("the request to {to} is taken back"))
}

fn is_meant(known: &KnownProposal, wanted: &str) -> bool {
    let by_name = match &known.proposal.wished {
        Wished::Friends { from } => from.as_str() == wanted.to_lowercase(),
        _ => false,
    };
    by_name || known.id.words() == wanted || known.proposal.authority().to_string() == wanted
}

/// How a request stands, and whose answer that is.
fn state(voice: &Voice, known: &KnownProposal) -> (&'static str, Option<EndpointId>) {
    match &known.decision {
        Some(decision) if decision.accepted => ("accepted", Some(decision.by)),
        Some(decision) => ("refused", Some(decision.by)),
        None if voice.is_open(known) => ("open", None),
        None => ("waits", None),
    }
}

/// The name that a device of this user has, or the key.
fn called(voice: &Voice, key: EndpointId) -> String {
    let known = voice.group.device(key).map(|device| device.name().to_string());
    known.unwrap_or_else(|| key.short())
}

fn described(voice: &Voice, known: &KnownProposal) -> Value {
    let (state, by) = state(voice, known);
    let proposal = &known.proposal;
    let (kind, from) = match &proposal.wished {
        Wished::Friends { from } => ("friends", Some(from)),
        Wished::Device { name } => ("device", Some(name)),
        _ => ("other", None),
    };
    json!({
        "kind": kind, "from": from.map(Name::as_str), "to": proposal.to.to_string(),
        "own": proposal.authority() == voice.user, "id": proposal.authority().to_string(),
        "made": proposal.made.as_secs(), "expires": proposal.expires.as_secs(),
        "words": known.id.words(), "state": state, "answered_by": by.map(|by| by.to_string()),
    })
}

/// In one line, with what to do about it.
fn line(voice: &Voice, known: &KnownProposal) -> String {
    let (state, by) = state(voice, known);
    let proposal = &known.proposal;
    let days = proposal.expires.since(now()).as_secs().div_ceil(86_400);
    let answered = by.map(|by| format!("{state} by {}", called(voice, by)));
    let answered = answered.unwrap_or_else(|| format!("waits {days} days at most"));
    let is_open = voice.is_open(known);
    match &proposal.wished {
        Wished::Friends { .. } if proposal.authority() == voice.user => {
            format!("to {}: {answered}", proposal.to)
        }
        Wished::Friends { from } if is_open => {
            format!("from {from}: {answered}; `whimbrel friends accept {from}`, or refuse")
        }
        Wished::Friends { from } => format!("from {from}: {answered}"),
        Wished::Device { name } if is_open => format!(
            "a machine wants to be {name}: if it shows {words}, `whimbrel devices accept {words}`",
            words = known.id.words()
        ),
        Wished::Device { name } => format!("a machine wants to be {name}: {answered}"),
        _ => "something that this program does not know; update it".to_owned(),
    }
}
