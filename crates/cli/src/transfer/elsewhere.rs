//! What has arrived of a file goes to another device: out of the directory here, or into it.

use std::io;

use anyhow::{Context as _, Result, bail};
use tokio::task::block_in_place;
use whimbrel_transport::Connection;

use super::batch::Place;
use super::destination::{Claim, Destination};
use super::inbox::Inbox;
use super::name;
use super::partial::Partial;
use super::underway::SoFar;

/// What is here of a file that was halted. Nobody else writes it until this is dropped.
pub(crate) struct Held {
    partial: Partial,
    _claim: Claim,
}

/// What another device had of a file, as it comes here. It is removed when this is dropped, unless it is
/// [to stay](Self::stays).
pub(crate) struct Kept(Option<Partial>);

impl Inbox {
    /// Holds what is here of a file that was halted on this connection.
    ///
    /// # Errors
    /// When somebody else receives it, or it is not what had arrived.
    pub(crate) async fn hold(&self, so_far: &SoFar, connection: &Connection) -> Result<Held> {
        let Destination { directory, overwrite, .. } = &*self.destination;
        let place = Place { directory: directory.clone(), replace: *overwrite };
        self.hold_at(so_far, &place, connection).await
    }

    /// The same of a file that has its place already.
    ///
    /// # Errors
    /// As [`hold`](Self::hold).
    pub(super) async fn hold_at(
        &self,
        so_far: &SoFar,
        place: &Place,
        connection: &Connection,
    ) -> Result<Held> {
        let name = so_far.name();
        let claim = self.destination.claim(so_far.offer.path(), connection)?;
        let mode = self.destination.modes.file;
        let opening = || Partial::open(&place.directory, name, place.replace, mode);
        let mut partial = claim.open(&opening).await?;
        let failed = || format!("cannot read what has arrived of {name}");
        if block_in_place(|| partial.begin_anew()).with_context(failed)? != so_far.at() {
            bail!("what had arrived of {name} was changed");
        }
        Ok(Held { partial, _claim: claim })
    }

    /// Makes a place for what another device has of a file.
    ///
    /// # Errors
    /// When the name is refused or taken, it is larger than what is taken, or more of it is told to be there
    /// than there can be.
    pub(crate) fn keep_for(&self, so_far: &SoFar) -> Result<Kept> {
        let name = so_far.name();
        name::check(name)?;
        if so_far.before() > so_far.at() || so_far.size().is_some_and(|size| so_far.at() > size) {
            bail!(
                "the other device says that more of {name} is there than there can be; update the older program"
            );
        }
        self.check_size(name, so_far.size().unwrap_or_default().max(so_far.at()), true)?;
        let Destination { directory, overwrite, .. } = &*self.destination;
        let found = directory.entry(name).context("cannot look into the directory")?;
        if found.is_some() && !overwrite {
            bail!("{} exists; move it away, or say another --dir", directory.shown(name).display());
        }
        let mut partial = self.open_partial(name)?;
        partial.clear().with_context(|| format!("cannot clear what was there of {name}"))?;
        Ok(Kept(Some(partial)))
    }

    fn open_partial(&self, name: &str) -> Result<Partial> {
        let Destination { directory, overwrite, modes, .. } = &*self.destination;
        Partial::open(directory, name, *overwrite, modes.file)
    }
}

impl Held {
    /// Reads the next bytes. Blocks.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.partial.read(into)
    }

    /// Removes it: it is elsewhere.
    pub(crate) fn remove(mut self) {
        remove(&mut self.partial);
        self.partial.discard();
    }
}

impl Kept {
    /// Writes what comes. Blocks.
    ///
    /// # Errors
    /// For people: what the system says.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.0 {
            Some(partial) => partial.write(bytes),
            None => Ok(()),
        }
    }

    /// It goes on from there.
    pub(crate) fn stays(mut self) {
        self.0 = None;
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(mut partial) = self.0.take() {
            remove(&mut partial);
            partial.discard();
        }
    }
}

/// Forgets all bytes. What cannot be forgotten stays, as what has arrived does.
fn remove(partial: &mut Partial) {
    if let Err(error) = partial.clear() {
        tracing::info!(%error, "what is elsewhere cannot be removed");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::path::Path;

    use whimbrel_names::KnownPeers;

    use super::super::{Consent, Limits};
    use super::*;
    use crate::progress::Board;

    fn inbox(directory: &Path, file: u64) -> Inbox {
        let known = KnownPeers::in_file(directory.join("known_peers"));
        let limits = Limits { file, total: u64::MAX };
        Inbox::open(directory, false, limits, Consent::Given, known, Board::new(true)).unwrap()
    }

    fn so_far(name: &str, size: Option<u64>) -> SoFar {
        SoFar::of(name.to_owned(), size, (0, 3), false)
    }

    #[test]
    fn what_comes_of_a_file_is_kept_if_it_goes_on_here_and_else_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let inbox = inbox(directory.path(), 100);
        let part = directory.path().join(".f.whimbrel-part");
        let mut kept = inbox.keep_for(&so_far("f", Some(5))).unwrap();
        kept.write(b"abc").unwrap();
        drop(kept);
        assert!(!part.exists());
        // What was left of another attempt is not its beginning.
        fs::write(&part, "other").unwrap();
        let mut kept = inbox.keep_for(&so_far("f", None)).unwrap();
        kept.write(b"abc").unwrap();
        kept.stays();
        assert_eq!(fs::read(&part).unwrap(), b"abc");
    }

    #[test]
    fn a_file_that_may_not_come_is_refused_before_a_byte_of_it_is_here() {
        let directory = tempfile::tempdir().unwrap();
        let inbox = inbox(directory.path(), 100);
        fs::write(directory.path().join("taken"), "mine").unwrap();
        for (name, size, says) in [
            ("../f", Some(5), "is a path"),
            (".profile", Some(5), "begins with a dot"),
            ("taken", Some(5), "--dir"),
            ("large", Some(101), "--max-size"),
        ] {
            let error = inbox.keep_for(&so_far(name, size)).err().unwrap().to_string();
            assert!(error.contains(says), "{error}");
        }
        // What the other device says of it cannot be.
        for (size, before) in [(Some(2), 0), (Some(5), 4), (None, u64::MAX)] {
            let so_far = SoFar::of("f".to_owned(), size, (before, 3), false);
            let error = inbox.keep_for(&so_far).err().unwrap().to_string();
            assert!(error.contains("than there can be"), "{error}");
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
