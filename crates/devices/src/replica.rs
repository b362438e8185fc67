//! A device's copy of its user's group, in a file or in memory.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::SystemTime;

use whimbrel_base::{EndpointId, SecretKey};

use crate::log::Log;
use crate::store::{Store, StoreError};

/// The log of a group, changed by one at a time. A file is open only while it is used, so that several
/// commands can use it.
#[derive(Debug)]
pub struct Replica {
    place: Place,
    /// What signs checkpoints.
    key: Option<SecretKey>,
}

#[derive(Debug)]
enum Place {
    File { path: PathBuf, user: EndpointId, turn: RwLock<()> },
    Memory(Mutex<Box<Log>>),
}

impl Replica {
    /// The one in a file, which is made when it is first used.
    pub fn in_file(path: &Path, user: EndpointId) -> Self {
        Self { place: Place::File { path: path.to_owned(), user, turn: RwLock::new(()) }, key: None }
    }

    /// One that is gone with its process.
    pub fn in_memory(log: Log) -> Self {
        Self { place: Place::Memory(Mutex::new(Box::new(log))), key: None }
    }

    /// The same one, which signs with this device's key what the user states in checkpoints, once it comes to
    /// the same and time has passed, and states one itself where that is the user's key and many entries came
    /// since the last one. Without it entries are never let go.
    #[must_use]
    pub fn signing(self, key: SecretKey) -> Self {
        Self { key: Some(key), ..self }
    }

    /// Looks at the log. A file is neither changed nor closed to others who look. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]
    pub fn look<T>(&self, run: impl FnOnce(&Log) -> T) -> Result<T, StoreError> {
        match &self.place {
            Place::Memory(log) => Ok(run(&log.lock().unwrap_or_else(PoisonError::into_inner))),
            Place::File { path, user, turn } => {
                let looked = {
                    let _turn = turn.read().unwrap_or_else(PoisonError::into_inner);
                    Store::look(path, *user)?
                };
                let log = match looked {
                    Some(log) => log,
                    None => {
                        let _turn = turn.write().unwrap_or_else(PoisonError::into_inner);
                        Store::open(path, *user)?.1
                    }
                };
                Ok(run(&log))
            }
        }
    }

    /// Does something with the log. What it changed is on the disk when this returns. Blocks.
    ///
    /// # Errors
    /// [`StoreError`]; then nothing was changed.
    pub fn with<T>(&self, run: impl FnOnce(&mut Log) -> T) -> Result<T, StoreError> {
        match &self.place {
            Place::Memory(log) => {
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                let result = run(&mut log);
                self.acknowledge(&mut log);
                Ok(result)
            }
            Place::File { path, user, turn } => {
                let _turn = turn.write().unwrap_or_else(PoisonError::into_inner);
                let (mut store, mut log) = Store::open(path, *user)?;
                let before = log.vector();
                let result = run(&mut log);
                self.acknowledge(&mut log);
                if log.vector() != before {
                    store.save(&log)?;
                }
                Ok(result)
            }
        }
    }

    /// Signs what the user states in a checkpoint, if that is right; as the user, states one if it is time.
    pub(crate) fn acknowledge(&self, log: &mut Log) {
        if let Some(key) = &self.key {
            let now = SystemTime::now().into();
            if key.id() == log.user() && log.is_checkpoint_due(now) {
                // What is wrong with the list is told elsewhere, and another time will do as well.
                let _ = log.compact(key, now);
            }
            log.acknowledge(key, now);
        }
    }
}
