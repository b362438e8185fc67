//! Relays through which one command of several with the same key is reached, for a while: by the device that
//! comes for its session, or for what it has.

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use whimbrel::Endpoint;
use whimbrel_relay::{Directory, Keeper, pool};

use super::{At, RelayTarget};
use crate::plain::plain;
use crate::roster::NamedRelays;

/// No more are used.
pub(crate) const MOST: usize = 4;
/// Of a group, so many.
const OF_A_GROUP: usize = 2;
/// Characters of what a relay says when it refuses.
const LONGEST: usize = 200;
/// For the name service to say where they are.
const LOOK_UP: Duration = Duration::from_secs(5);
/// For the first of them to answer.
const FIRST: Duration = Duration::from_secs(10);

/// Through which relays another device finds this one.
#[derive(Args, Clone, Debug)]
pub(crate) struct RelayFlag {
    /// A relay or group to be reached through as well
    #[arg(long, value_name = "RELAY")]
    relay: Vec<RelayTarget>,
}

impl RelayFlag {
    /// As texts.
    pub(crate) fn texts(&self) -> Vec<String> {
        self.relay.iter().map(ToString::to_string).collect()
    }
}

/// Has this endpoint be reached through these relays, at places that nothing else with its key has, until
/// what is returned is dropped. Waits a little, so that what is told next has the first of them. Says beside
/// it, for people, why it has none so far; without a keeper none is to come.
pub(crate) async fn keep(endpoint: &Endpoint, relays: &[String]) -> (Option<Keeper>, Option<String>) {
    if relays.is_empty() {
        return (None, None);
    }
    if relays.len() > MOST {
        return (None, Some(format!("a device is reached through {MOST} relays at most")));
    }
    let directories = match tokio::time::timeout(LOOK_UP, directories(endpoint, relays)).await {
        Ok(Ok(directories)) => directories,
        Ok(Err(why)) => return (None, Some(why)),
        Err(_) => return (None, Some("the name service does not say where the relays are".to_owned())),
    };
    let keeper = Keeper::start_apart(endpoint.transport().clone(), directories, None);
    let mut news = keeper.news();
    if tokio::time::timeout(FIRST, news.wait_for(|now| now.held > 0)).await.is_ok() {
        return (Some(keeper), None);
    }
    let why = news.current().problem.unwrap_or_else(|| "no answer yet".to_owned());
    (Some(keeper), Some(format!("no relay can be used so far: {}", plain(&why, LONGEST))))
}

async fn directories(endpoint: &Endpoint, relays: &[String]) -> Result<Vec<Arc<dyn Directory>>, String> {
    let mut all: Vec<Arc<dyn Directory>> = Vec::new();
    for text in relays {
        match text.parse::<RelayTarget>()? {
            RelayTarget::At(address) => all.push(Arc::new(At(address))),
            RelayTarget::Named(name) => {
                let resolver = endpoint.names();
                let resolver = resolver.ok_or("a relay that has a name needs a name service: --names")?;
                let (roster, problem) = NamedRelays::by(endpoint, resolver, &name).await;
                if let Some(problem) = problem {
                    return Err(format!("cannot look up the relays of {name}: {problem}"));
                }
                all.extend(pool::seats(endpoint.transport().clone(), Arc::new(roster), OF_A_GROUP));
            }
        }
    }
    Ok(all)
}
