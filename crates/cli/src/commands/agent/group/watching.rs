//! The group as its file has it, looked at again when the file changes: other commands change it too.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use tokio::sync::watch;
use tokio::time::Instant;
use whimbrel_devices::{Digest, Group, Log, Replica};

use crate::{aside, failure};

/// Between two looks whether the file is another one.
const LOOK: Duration = Duration::from_millis(500);
/// It is read so often at least: two changes may bear the same time.
const READ: Duration = Duration::from_secs(10);

/// What the agent knows of the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Known {
    pub(super) digest: Digest,
    pub(super) group: Group,
    /// Nothing is known yet: whoever the user names may be called.
    pub(super) is_new: bool,
}

impl Known {
    fn of(log: &Log) -> Self {
        Self { digest: log.vector().digest(), group: log.group().clone(), is_new: log.is_empty() }
    }
}

/// Reads the group.
///
/// # Errors
/// When it cannot be read.
pub(super) async fn read(replica: &Arc<Replica>) -> Result<Known> {
    let replica = replica.clone();
    let reading = aside::run(move || replica.look(Known::of));
    Ok(reading.await.context("the process is ending")??)
}

/// Tells whenever the group is another one, for as long as it is polled.
pub(super) async fn follow(
    file: PathBuf,
    replica: Arc<Replica>,
    tell: watch::Sender<Arc<Known>>,
) -> Infallible {
    let (mut seen, mut next) = (stamp(&file), Instant::now() + READ);
    loop {
        tokio::time::sleep(LOOK).await;
        if stamp(&file) == seen && Instant::now() < next {
            continue;
        }
        match read(&replica).await {
            Ok(known) => {
                tell.send_if_modified(|last| {
                    let is_new = **last != known;
                    if is_new {
                        *last = Arc::new(known);
                    }
                    is_new
                });
            }
            // Another command may have it: it is read again soon enough.
            Err(error) => {
                tracing::warn!(error = failure::line(&error), "this user's devices are not known");
            }
        }
        // Reading may change the file too: one that was not closed is mended.
        (seen, next) = (stamp(&file), Instant::now() + READ);
    }
}

/// What changes with a file.
fn stamp(file: &Path) -> Option<(SystemTime, u64)> {
    let metadata = std::fs::metadata(file).ok()?;
    Some((metadata.modified().ok()?, metadata.len()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::{SecretKey, UnixTime};
    use whimbrel_devices::Op;

    use super::*;

    #[tokio::test]
    async fn a_change_by_another_command_is_told_and_a_look_is_none() {
        let (folder, user) = (tempfile::tempdir().unwrap(), SecretKey::from_bytes(&[1; 32]));
        let file = folder.path().join("user.redb");
        let replica = || Arc::new(Replica::in_file(&file, user.id()));
        let (own, other) = (replica(), replica());
        let first = read(&own).await.unwrap();
        assert!(first.is_new);
        let (tell, mut told) = watch::channel(Arc::new(first));
        let following = tokio::spawn(follow(file.clone(), own, tell));
        other.with(|log| drop(log.vector())).unwrap();
        let now = UnixTime::from_secs(1_700_000_000);
        other.with(|log| log.write(&user, vec![Op::Seen], now)).unwrap().unwrap();
        tokio::time::timeout(Duration::from_secs(40), told.changed()).await.unwrap().unwrap();
        let known = told.borrow_and_update().clone();
        assert_eq!((known.digest, known.is_new), (other.with(|log| log.vector().digest()).unwrap(), false));
        following.abort();
    }
}
