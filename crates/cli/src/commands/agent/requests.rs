//! Requests of other users and of new machines: the user is told of each once, and what both sides want comes
//! about.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

use anyhow::Result;
use whimbrel_base::Name;
use whimbrel_names::{AskError, KnownProposal, ProposalId, Wished};

use super::consent::notify;
use super::news::News;
use crate::failure;
use crate::network::Network;
use crate::requests::Voice;

/// Between two looks.
const LOOK: Duration = Duration::from_secs(20);

/// Tells of requests for as long as it is polled, where there is a name service that knows any.
pub(super) async fn follow(network: &Network, news: News) -> Infallible {
    if !network.has_names() {
        return std::future::pending().await;
    }
    let mut told = HashSet::new();
    loop {
        match look(network, &mut told).await {
            Ok(texts) => {
                for text in texts {
                    news.note("request", &text);
                    notify(&text).await;
                }
            }
            Err(error) if is_too_old(&error) => {
                tracing::debug!("the name service knows no requests between users");
                return std::future::pending().await;
            }
            Err(error) => tracing::debug!(error = failure::line(&error), "requests are not known for now"),
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// What is new, in words.
async fn look(network: &Network, told: &mut HashSet<ProposalId>) -> Result<Vec<String>> {
    let voice = Voice::of(network).await?;
    let known = voice.requests(network).await?;
    let friends = voice.settle(network, &known).await?;
    told.retain(|id| known.iter().any(|known| known.id == *id));
    // One that crossed an own request is answered by now.
    let open = known.iter().filter(|known| voice.is_open(known) && !is_of(known, &friends));
    let new: Vec<&KnownProposal> = open.filter(|known| told.insert(known.id)).collect();
    let friends = friends.iter().map(|name| format!("{name} is a friend now"));
    Ok(friends.chain(new.into_iter().map(asks)).collect())
}

fn is_of(known: &KnownProposal, users: &[Name]) -> bool {
    matches!(&known.proposal.wished, Wished::Friends { from } if users.contains(from))
}

/// What somebody wishes, and what the user can do.
fn asks(known: &KnownProposal) -> String {
    match &known.proposal.wished {
        Wished::Friends { from } => {
            format!("{from} asks to be a friend of yours: whimbrel friends accept {from}, or refuse {from}")
        }
        Wished::Device { name } => {
            let words = known.id.words();
            format!("a machine that shows {words} asks to be {name}: whimbrel devices accept {words}")
        }
        _ => "somebody asks what this program does not know; update it".to_owned(),
    }
}

fn is_too_old(error: &anyhow::Error) -> bool {
    let asked = error.chain().find_map(|cause| cause.downcast_ref::<AskError>());
    matches!(asked, Some(AskError::Unsupported(_)))
}
