//! Several files that come together: how many may still come, and the directories that they go to.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FileType, Mode};
use tokio::sync::Mutex;
use whimbrel_transport::Connection;

use super::destination::{Claim, Destination};
use super::directory::{Directory, on_its_way};
use super::filling::{self, Mark};
use super::message::{Batch, MAX_SHOWN, Offer};
use super::name;

/// Files and directories of one batch, at most.
pub(super) const MAX_ENTRIES: u64 = 100_000;

/// A batch on its way.
pub(super) struct Incoming {
    state: Mutex<State>,
    entries: u64,
}

struct State {
    entries_left: u64,
    bytes_left: u64,
    arrived: u64,
    /// The names without a directory above them, if all were told before.
    names: Option<Vec<String>>,
    roots: HashMap<String, Root>,
}

/// A directory of the inbox that is being filled.
struct Root {
    directory: Directory,
    /// It is hidden until everything has arrived, and nobody else's.
    hidden: bool,
    _claim: Claim,
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progress {
    /// Files and directories that were not offered yet, and their bytes.
    pub(super) entries_left: u64,
    pub(super) bytes_left: u64,
    /// Files and directories that have arrived.
    pub(super) arrived: u64,
}

/// Where a file goes.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) directory: Directory,
    /// Whether another file there may be replaced.
    pub(super) replace: bool,
}

impl Incoming {
    /// Checks what a batch says of itself.
    pub(super) fn new(batch: &Batch, bytes: u64) -> Result<Self> {
        if batch.entries > MAX_ENTRIES {
            bail!("{} files are too many; at most {MAX_ENTRIES} are taken together", batch.entries);
        }
        if batch.shown.len() as u64 != batch.names.min(MAX_SHOWN as u64) || batch.names > batch.entries {
            bail!("the sender does not say what it sends");
        }
        batch.shown.iter().try_for_each(|name| name::check(name))?;
        let all = batch.shown.len() as u64 == batch.names;
        let state = State {
            entries_left: batch.entries,
            bytes_left: bytes,
            arrived: 0,
            names: all.then(|| batch.shown.clone()),
            roots: HashMap::new(),
        };
        Ok(Self { state: Mutex::new(state), entries: batch.entries })
    }

    /// One that was under way elsewhere.
    ///
    /// # Errors
    /// When no batch can be so far.
    pub(super) fn going_on(batch: &Batch, so_far: Progress) -> Result<Self> {
        let Progress { entries_left, bytes_left, arrived } = so_far;
        let Self { state, entries } = Self::new(batch, bytes_left)?;
        if entries_left.checked_add(arrived).is_none_or(|known| known > entries) {
            bail!("the other device says what cannot be of the files");
        }
        let mut state = state.into_inner();
        (state.entries_left, state.arrived) = (entries_left, arrived);
        Ok(Self { state: Mutex::new(state), entries })
    }

    /// How far it is.
    pub(super) async fn progress(&self) -> Progress {
        let State { entries_left, bytes_left, arrived, .. } = *self.state.lock().await;
        Progress { entries_left, bytes_left, arrived }
    }

    /// The directories that are being filled, by their names.
    ///
    /// # Errors
    /// When one of them was there before: what is in it is not of this batch alone.
    pub(super) async fn roots(&self) -> Result<HashMap<String, Directory>> {
        let state = self.state.lock().await;
        if let Some((name, _)) = state.roots.iter().find(|(_, root)| !root.hidden) {
            bail!("{name} was there before, and what comes into it with --overwrite stays with it");
        }
        Ok(state.roots.iter().map(|(name, root)| (name.clone(), root.directory.clone())).collect())
    }

    /// Has these directories go on being filled, whose beginnings were brought here. They are locked.
    ///
    /// # Errors
    /// When somebody else has one of them.
    pub(super) async fn keep_roots(
        &self,
        destination: &Arc<Destination>,
        connection: &Connection,
        roots: HashMap<String, Directory>,
    ) -> Result<()> {
        let mut state = self.state.lock().await;
        for (name, directory) in roots {
            let claim = destination.claim(name.clone(), connection)?;
            state.roots.insert(name, Root { directory, hidden: true, _claim: claim });
        }
        Ok(())
    }

    /// The place of a file that was counted in before.
    ///
    /// # Errors
    /// When the directory above it is not there.
    pub(super) async fn place_again(&self, destination: &Destination, above: &[String]) -> Result<Place> {
        let Some((top, below)) = above.split_first() else {
            let (directory, replace) = (destination.directory.clone(), destination.overwrite);
            return Ok(Place { directory, replace });
        };
        let state = self.state.lock().await;
        let root = state.roots.get(top).with_context(|| format!("{top} is not here"))?;
        let (directory, replace) = (root.directory.clone(), root.hidden || destination.overwrite);
        drop(state);
        let directory = below.iter().try_fold(directory, |directory, name| directory.existing(name))?;
        Ok(Place { directory, replace })
    }

    /// Counts an entry in, and finds its place. Every name of its path was checked.
    pub(super) async fn place(
        &self,
        destination: &Arc<Destination>,
        connection: &Connection,
        offer: &Offer,
    ) -> Result<Place> {
        let mut state = self.state.lock().await;
        let top = offer.above.first().unwrap_or(&offer.name);
        if state.names.as_ref().is_some_and(|names| !names.contains(top)) {
            bail!("{top} was not announced");
        }
        let entries = state.entries_left.checked_sub(1);
        let bytes = state.bytes_left.checked_sub(offer.size);
        let (Some(entries), Some(bytes)) = (entries, bytes) else {
            bail!("the sender offers more than it announced");
        };
        (state.entries_left, state.bytes_left) = (entries, bytes);
        if offer.above.is_empty() && !offer.directory {
            return Ok(Place { directory: destination.directory.clone(), replace: destination.overwrite });
        }
        if !state.roots.contains_key(top) {
            let root = Root::open(destination, connection, (top.as_str(), offer.part_of)).await?;
            state.roots.insert(top.clone(), root);
        }
        let root = &state.roots[top];
        let replace = root.hidden || destination.overwrite;
        let directory = root.directory.clone();
        drop(state);
        let below = offer.above.iter().skip(1);
        // An empty directory is made as those above a file are.
        let own = (offer.directory && !offer.above.is_empty()).then_some(&offer.name);
        let directory = below
            .chain(own)
            .try_fold(directory, |directory, name| directory.child(name, Mode::from(0o777), name))?;
        Ok(Place { directory, replace })
    }

    /// An entry has arrived.
    pub(super) async fn arrived(&self) {
        self.state.lock().await.arrived += 1;
    }

    /// Gives the directories their names, now that everything has arrived.
    pub(super) async fn finish(&self, destination: &Destination) -> Result<Vec<PathBuf>> {
        let mut state = self.state.lock().await;
        if state.arrived != self.entries {
            bail!("{} of {} files did not arrive; send again", self.entries - state.arrived, self.entries);
        }
        let roots = std::mem::take(&mut state.roots);
        roots.iter().map(|(name, root)| root.finish(destination, name)).collect()
    }
}

impl Root {
    /// Opens or makes the directory with this name, for this batch.
    async fn open(
        destination: &Arc<Destination>,
        connection: &Connection,
        (name, batch): (&str, Option<u64>),
    ) -> Result<Self> {
        let claim = destination.claim(name.to_owned(), connection)?;
        let all = &destination.directory;
        let found = all.entry(name)?;
        let is_directory = found.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode).is_dir());
        if is_directory && destination.overwrite {
            let directory = all.child(name, Mode::from(0o777), name)?;
            return Ok(Self { directory, hidden: false, _claim: claim });
        }
        if found.is_some() {
            bail!(all.exists(name));
        }
        let open = || filling::open(all, name);
        let directory = claim.open(&open).await?;
        // What it says of another batch, or of being a copy, is not so any more.
        if batch.is_none_or(|id| Mark::of(&directory) != Some(Mark::Arrived(id))) {
            Mark::remove(&directory)?;
        }
        Ok(Self { directory, hidden: true, _claim: claim })
    }

    fn finish(&self, destination: &Destination, name: &str) -> Result<PathBuf> {
        let all = &destination.directory;
        if self.hidden {
            let part = on_its_way(name);
            if !all.is(&part, &self.directory.stat()?)? {
                bail!("{} was moved or replaced while it was received", all.shown(&part).display());
            }
            Mark::remove(&self.directory)?;
            self.directory.set_mode(destination.modes.directory)?;
            all.rename_new(&part, name)?;
        }
        all.sync();
        Ok(all.shown(name))
    }
}
