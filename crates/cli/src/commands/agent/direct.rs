//! By a name of this device, the user's other devices see what its commands have running, and take it: no
//! gateway is needed.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use futures_util::FutureExt;
use tokio::task::JoinSet;
use whimbrel_base::{EndpointId, Name, SecretKey};
use whimbrel_transport::{Allow, Connection, ListenOptions};

use super::group;
use super::news::News;
use super::offered::Receiver;
use crate::commands::sessions::{Names, all_here, find_here};
use crate::failure::Failure;
use crate::moving::{Question, Word};
use crate::network::Network;
use crate::own_group::OwnGroup;
use crate::relaying::apart;
use crate::who::Who;
use crate::{aside, failure, leases, naming, output, own_group, readers, status};

/// Devices that are answered at once.
const MOST: usize = 16;
/// Sessions that are here by an offer, or were offered and are not here yet.
const MOST_OFFERS: usize = 64;
/// A device that was sent to a command has so long to come there, in seconds.
const COMES: u64 = 60;
/// Between two looks at the list of devices, for who may look the name up.
const LOOK: Duration = Duration::from_secs(5);

/// No more may look a name up, beside the devices of its own user.
const MOST_READERS: usize = 31;

/// The devices that may take what runs here.
#[derive(Clone)]
pub(super) struct Takers {
    key: SecretKey,
    /// Beside the user's devices that may act for the user.
    others: Arc<[EndpointId]>,
    /// Whether friends who may know are told that this device is up.
    visible: bool,
}

impl Takers {
    /// The devices of the user with this key, and these.
    pub(super) fn new(key: SecretKey, others: &[EndpointId], visible: bool) -> Self {
        Self { key, others: others.into(), visible }
    }

    /// All of them, as the list is now. One that cannot be read lets in nobody.
    async fn now(&self) -> Vec<EndpointId> {
        let key = self.key.clone();
        let looked = aside::run(move || own_group::other_devices(&key)).await;
        let known = looked.context("the process is ending").and_then(|read| read).unwrap_or_else(|error| {
            tracing::warn!(error = failure::line(&error), "this user's devices are not known");
            Vec::new()
        });
        known.into_iter().chain(self.others.iter().copied()).collect()
    }

    /// All of them, and as many as there is room for of those that keep in step with this device, and of
    /// friends who are told that it is up: they find it by its key. While the list cannot be read those that
    /// it is shown to stay: to look it up lets nobody in.
    async fn readers(&self, shown: &[EndpointId]) -> Vec<EndpointId> {
        let (key, visible) = (self.key.clone(), self.visible);
        let look = move || {
            let own = key.id();
            OwnGroup::of(key)?.look(|log| group::called(log.group(), own, visible))
        };
        let looked = aside::run(look).await;
        let read = looked.context("the process is ending").and_then(|read| read);
        let others = read.unwrap_or_else(|_| shown.to_vec());
        let mut readers = self.now().await;
        let known = readers.clone();
        let room = MOST_READERS.saturating_sub(readers.len());
        readers.extend(others.into_iter().filter(|id| !known.contains(id)).take(room));
        readers
    }
}

/// Answers the user's devices under this name, until the endpoint is closed.
///
/// # Errors
/// When the name cannot be listened for.
pub(super) async fn serve(
    quiet: bool,
    (network, name): (&Network, &Name),
    (takers, relays): (Takers, Vec<String>),
    receiver: Receiver,
) -> Result<Infallible> {
    let news = receiver.news;
    let receiver = Arc::new(receiver);
    network.needs_to_resolve()?;
    let permission = naming::permission(network, name, quiet).await?;
    let mut shown = takers.readers(&[]).await;
    show(network, name, &shown)?;
    let asked = takers.clone();
    let allow = Allow::check(move |peer| {
        let takers = asked.clone();
        async move { takers.now().await.contains(&peer) }
    });
    let options = ListenOptions::named(name).delegation(permission).on_renewal(naming::keep).allow(allow);
    let mut listener = network.endpoint.listen(options).await?;
    let _keeper = match apart::keep(&network.endpoint, &relays).await {
        (None, Some(why)) => return Err(Failure::new(Failure::UNREACHABLE, why).into()),
        (keeper, problem) => {
            if let Some(why) = problem {
                output::note(quiet, format!("{why}; trying on"));
            }
            keeper
        }
    };
    let relays: Arc<[String]> = relays.into();
    leases::note(network, name, quiet);
    news.note("ready", &format!("your devices take what runs here by {name}"));
    let mut looking = tokio::time::interval(LOOK);
    looking.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut answering, mut receiving) = (JoinSet::new(), JoinSet::new());
    loop {
        tokio::select! {
            came = listener.accept(), if answering.len() < MOST => {
                let over = came.context("the endpoint is closed")?;
                let asked = answer(over, (takers.key.clone(), relays.clone()), news);
                answering.spawn(FutureExt::boxed(asked));
            }
            Some(answered) = answering.join_next() => {
                // One that is too much ends with its connection.
                if let Ok(Some(question)) = answered
                    && receiving.len() < MOST_OFFERS
                {
                    let receiver = receiver.clone();
                    receiving.spawn(FutureExt::boxed(async move { receiver.serve(question).await }));
                }
            }
            Some(_) = receiving.join_next() => {}
            _ = looking.tick() => {
                let now = takers.readers(&shown).await;
                if now != shown && show(network, name, &now).is_ok() {
                    shown = now;
                }
            }
        }
    }
}

/// Has the name shown to these, and to nobody else.
fn show(network: &Network, name: &Name, takers: &[EndpointId]) -> Result<()> {
    let Some(resolver) = network.endpoint.names() else { return Ok(()) };
    let readers = readers::of(takers.iter().copied().map(Who::Id), name)
        .map_err(|whimbrel::TooManyReaders| Failure::usage("there are too many devices"))?;
    Ok(resolver.set_readers(name.clone(), readers)?)
}

/// Answers one device, which was let in. Returns the question if something is offered.
async fn answer(over: Connection, (key, relays): (SecretKey, Arc<[String]>), news: News) -> Option<Question> {
    let question = Question::hear(over).await?;
    if question.offered().is_some() {
        return Some(question);
    }
    give(question, (key, relays), news).await;
    None
}

/// Answers a device that wants something.
async fn give(question: Question, (key, relays): (SecretKey, Arc<[String]>), news: News) {
    let Some(wanted) = question.session().map(str::to_owned) else {
        return match all_here().await {
            Ok(all) => question.tell(all).await,
            Err(error) => question.refuse(&failure::line(&error)).await,
        };
    };
    let device = question.device();
    let called = Names::of_key(key).of_device(device).unwrap_or_else(|| device.short());
    match give_word(&wanted, (device, &called), relays.to_vec()).await {
        Ok(ticket) => {
            news.note("given", &format!("{called} comes for {}", wanted.get(..8).unwrap_or(&wanted)));
            question.send_to(ticket).await;
        }
        Err(error) => question.refuse(&failure::line(&error)).await,
    }
}

/// Has the command that has the session wait for the device.
async fn give_word(wanted: &str, (to, called): (EndpointId, &str), relays: Vec<String>) -> Result<String> {
    let here = find_here(wanted).await?;
    let (session, called) = (here.session.id, called.to_owned());
    let word = Word { session, to, called, seconds: COMES, relays };
    Ok(status::hand_over(&here.report, word).await?.ticket)
}
