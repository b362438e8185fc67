//! The list also by way of the name service, which keeps for the user's devices what they leave for each
//! other and cannot read it: so two that are never up at once come to have the same.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, bail};
use tokio::sync::watch;
use tokio::time::Instant;
use whimbrel_base::UnixTime;
use whimbrel_devices::{Mailbox, Piece, StoreError};
use whimbrel_names::{AskError, ErrorCode};

use super::watching::Known;
use super::{Shared, chance, policy};
use crate::requests::Voice;
use crate::{aside, failure};

/// Between two looks at what others left, where nothing changes here; sooner after the first errors.
const LOOK: Duration = Duration::from_secs(5 * 60);
/// After a change, at least, and what chance adds at most: of several devices that hear of one, the first
/// leaves it, and the others find it there.
const SOON: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// A service that takes no more for now is left alone for so long: by then it takes a whole list. Less of it
/// again and again would displace what is there.
const HOUR: Duration = Duration::from_secs(60 * 60);
/// So often it is found out anew what is there; a service that knows no mailboxes is asked again.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Leaves what changes, and takes what others left, for as long as it is polled, where there is a name
/// service.
pub(super) async fn follow(shared: Arc<Shared>, mut changes: watch::Receiver<Arc<Known>>) -> Infallible {
    if !shared.network.has_names() {
        return std::future::pending().await;
    }
    let user = shared.known().group.user();
    let (mut mailbox, mut began) = (Mailbox::new(user), Instant::now());
    let mut failures = 0_u32;
    loop {
        if began.elapsed() >= DAY {
            (mailbox, began) = (Mailbox::new(user), Instant::now());
        }
        // What changes from here on is looked at again.
        changes.mark_unchanged();
        let rest;
        (mailbox, failures, rest) = match look(&shared, mailbox).await {
            Ok(mailbox) => (mailbox, 0, None),
            Err(error) => {
                tracing::debug!(error = failure::line(&error), "the mailbox at the name service is not used");
                // What of it was left is found out next time.
                (Mailbox::new(user), failures.saturating_add(1), rest_after(&error))
            }
        };
        let pause = if failures == 0 { LOOK } else { policy::again(failures, chance()) };
        match rest {
            Some(rest) => tokio::time::sleep(rest).await,
            None => tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = changes.changed() => tokio::time::sleep(soon()).await,
            },
        }
    }
}

/// Takes what others left, and leaves what they lack.
async fn look(shared: &Shared, mailbox: Mailbox) -> Result<Mailbox> {
    let voice = Voice::of(&shared.network).await?;
    if voice.user != shared.known().group.user() {
        bail!("this machine is another user's device now");
    }
    let fetched = fetch(shared, &voice, mailbox).await?;
    let Looked { mailbox, due, .. } = match fetched {
        // A device came that could not read what is there.
        Looked { is_outdated: true, .. } => fetch(shared, &voice, Mailbox::new(voice.user)).await?,
        looked => looked,
    };
    let (resolver, count) = (shared.network.resolver()?, due.len());
    for piece in due {
        resolver.leave_batch(voice.word.as_ref(), piece).await.context("cannot leave anything")?;
    }
    if count > 0 {
        tracing::info!(count, "left with the name service what other devices of the user may lack");
    }
    Ok(mailbox)
}

/// What a look came to.
struct Looked {
    mailbox: Mailbox,
    is_outdated: bool,
    due: Vec<Vec<u8>>,
}

/// Takes what others left.
async fn fetch(shared: &Shared, voice: &Voice, mut mailbox: Mailbox) -> Result<Looked> {
    let (resolver, own) = (shared.network.resolver()?, shared.network.id());
    let left = resolver.batches(voice.word.as_ref(), mailbox.after()).await;
    for batch in left.context("cannot ask what other devices left")? {
        let (number, is_own) = (batch.number, batch.by == own);
        mailbox.hear(&Piece { number, is_own, left: batch.left, bytes: batch.bytes });
    }
    let (replica, key) = (shared.replica.clone(), shared.network.key.clone());
    let looking = aside::run(move || -> Result<Looked, StoreError> {
        let now = UnixTime::from(SystemTime::now());
        // To open a file for a change takes longest of all.
        if mailbox.has_news() {
            let entries = replica.with(|log| mailbox.settle(log, &key, now))?;
            if entries > 0 {
                tracing::info!(entries, "took what other devices left with the name service");
            }
        }
        let (is_outdated, due) = replica.look(|log| match mailbox.is_outdated(log) {
            true => (true, Vec::new()),
            false => (false, mailbox.due(log, &key, now)),
        })?;
        Ok(Looked { mailbox, is_outdated, due })
    });
    Ok(looking.await.context("the process is ending")??)
}

fn soon() -> Duration {
    let (least, chances) = SOON;
    least + chances * u32::from(chance()) / u32::from(u16::MAX)
}

/// For how long nothing is asked after an error, whatever changes here.
fn rest_after(error: &anyhow::Error) -> Option<Duration> {
    match error.chain().find_map(|cause| cause.downcast_ref::<AskError>())? {
        // It is of an older version.
        AskError::Unsupported(_) => Some(DAY),
        asked => matches!(asked.code(), Some(ErrorCode::TooOften | ErrorCode::Full)).then_some(HOUR),
    }
}
