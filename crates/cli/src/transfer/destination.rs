//! The directory that files go to, and which names in it are being received just now.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use whimbrel_transport::{CloseCode, Connection};

use super::directory::{Directory, Modes};
use super::partial::Locked;

/// How long a transfer that is replaced may take to let go of its file.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(5);
const TAKEOVER_PAUSE: Duration = Duration::from_millis(20);

/// Where files go. Shared by all transfers.
pub(super) struct Destination {
    pub(super) directory: Directory,
    /// Whether files that exist are replaced.
    pub(super) overwrite: bool,
    pub(super) modes: Modes,
    /// What is on its way just now, by the files' names.
    coming: Mutex<HashMap<String, Connection>>,
}

impl Destination {
    pub(super) fn open(directory: &Path, overwrite: bool) -> Result<Self> {
        Ok(Self {
            directory: Directory::open(directory)?,
            overwrite,
            modes: Modes::of_user(),
            coming: Mutex::default(),
        })
    }

    /// Claims a name for a transfer on `connection`. A sender that died and was started again finds its own
    /// old transfer, which would wait for it for a day: that one is ended.
    pub(super) fn claim(self: &Arc<Self>, key: String, new: &Connection) -> Result<Claim> {
        let old = {
            let mut all = self.coming();
            let old = all.get(&key);
            if old.is_some_and(|old| old.peer_id() != new.peer_id() || old.id() == new.id()) {
                return Err(Locked(key).into());
            }
            all.insert(key.clone(), new.clone())
        };
        if let Some(old) = old {
            old.abort(CloseCode::EVICTED, "the sender sends the file anew");
        }
        Ok(Claim { destination: self.clone(), key, connection: new.clone() })
    }

    fn coming(&self) -> MutexGuard<'_, HashMap<String, Connection>> {
        self.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A name that nothing else is received under.
pub(super) struct Claim {
    destination: Arc<Destination>,
    key: String,
    connection: Connection,
}

impl Claim {
    /// Opens what the name stands for, as soon as the transfer that was ended lets go of it.
    pub(super) async fn open<T>(&self, opening: &(dyn Fn() -> Result<T> + Sync)) -> Result<T> {
        let start = Instant::now();
        loop {
            match opening() {
                Err(error) if error.is::<Locked>() && start.elapsed() < TAKEOVER_LIMIT => {
                    tokio::time::sleep(TAKEOVER_PAUSE).await;
                }
                other => return other,
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut all = self.destination.coming();
        if all.get(&self.key).is_some_and(|known| known.id() == self.connection.id()) {
            all.remove(&self.key);
        }
    }
}
