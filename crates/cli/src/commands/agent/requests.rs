//! Requests of other users and of new machines: the user is told of each once, and what both sides want comes
//! about.

use std::collections::HashSet;
use std::convert::Infallible;
use std::time::Duration;

use anyhow::{Context as _, Result};
use whimbrel_base::Name;
use whimbrel_names::{AskError, KnownProposal, ProposalId, ProposalNews, Wished};

use super::consent::notify;
use super::news::News;
use crate::failure;
use crate::network::Network;
use crate::requests::Voice;

/// Between two looks where the name service does not say when something has changed.
const LOOK: Duration = Duration::from_secs(20);
/// And where it does: another server of it may have taken in what this one does not hear of.
const SLOW_LOOK: Duration = Duration::from_secs(300);
/// After news that have ended, before they are followed again.
const PAUSE: Duration = Duration::from_secs(1);

/// How this hears that there is something to look at.
enum Hears {
    /// The service says so.
    News(ProposalNews),
    /// Not for now.
    NotNow,
    /// It is of an older version.
    Never,
}

impl Hears {
    /// Follows the news, if they are not followed already, and the service knows any.
    async fn follow(self, network: &Network) -> Self {
        let Self::NotNow = self else { return self };
        let following = async {
            let voice = Voice::of(network).await?;
            let news = network.resolver()?.proposal_news(voice.word.as_ref()).await;
            news.context("cannot follow requests")
        };
        match following.await {
            Ok(news) => Self::News(news),
            Err(error) if is_too_old(&error) => Self::Never,
            Err(error) => {
                tracing::debug!(error = failure::line(&error), "news of requests are not followed for now");
                Self::NotNow
            }
        }
    }

    /// Waits until there may be something new.
    async fn wait(self) -> Self {
        let mut news = match self {
            Self::News(news) => news,
            other => {
                tokio::time::sleep(LOOK).await;
                return other;
            }
        };
        match tokio::time::timeout(SLOW_LOOK, news.changed()).await {
            Ok(Ok(())) | Err(_) => Self::News(news),
            Ok(Err(error)) => {
                tracing::debug!(%error, "news of requests have ended");
                tokio::time::sleep(PAUSE).await;
                Self::NotNow
            }
        }
    }
}

/// Tells of requests for as long as it is polled, where there is a name service that knows any.
pub(super) async fn follow(network: &Network, news: News) -> Infallible {
    if !network.has_names() {
        return std::future::pending().await;
    }
    let (mut told, mut hears) = (HashSet::new(), Hears::NotNow);
    loop {
        // Before the look, so that nothing is missed between the two.
        hears = hears.follow(network).await;
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
        hears = hears.wait().await;
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
