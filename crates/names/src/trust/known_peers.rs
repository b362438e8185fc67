//! The table of known names in a file, shared by all processes of a user.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use whimbrel_base::{EndpointId, Name, NameKind, SignedRecord, UnixTime};

use super::file::{KnownPeersError, Stamp, lock, read, stamp, write};
use super::{Origin, Pins, Standing, TrustError, TrustNews};

type Tell = Arc<dyn Fn(&TrustNews) + Send + Sync>;

/// What is known of names, kept in a file or in memory only. Cheap to clone; clones share everything.
///
/// Each judgement reads the file again if it was changed; each change is made under a lock beside the file,
/// on the newest state, and replaces the file in one step. The methods read and write files: call them where
/// that may block.
#[derive(Clone)]
pub struct KnownPeers {
    inner: Arc<Inner>,
}

struct Inner {
    file: Option<PathBuf>,
    state: Mutex<State>,
    tell: Option<Tell>,
}

#[derive(Default)]
struct State {
    pins: Pins,
    stamp: Option<Stamp>,
}

impl KnownPeers {
    /// Remembers for as long as it lives.
    pub fn in_memory() -> Self {
        Self::new(None)
    }

    /// Remembers in `file`, which is made when there is something to remember (mode 0600); its directory must
    /// exist. Nothing is read yet.
    pub fn in_file(file: impl Into<PathBuf>) -> Self {
        Self::new(Some(file.into()))
    }

    fn new(file: Option<PathBuf>) -> Self {
        Self { inner: Arc::new(Inner { file, state: Mutex::default(), tell: None }) }
    }

    /// Has news told to `tell`, which must not block: owners that are met for the first time, and new
    /// endpoints.
    #[must_use]
    pub fn telling(self, tell: impl Fn(&TrustNews) + Send + Sync + 'static) -> Self {
        let file = self.inner.file.clone();
        Self { inner: Arc::new(Inner { file, state: Mutex::default(), tell: Some(Arc::new(tell)) }) }
    }

    /// The file, if there is one.
    pub fn file(&self) -> Option<&Path> {
        self.inner.file.as_deref()
    }

    /// Judges a record whose signatures were verified, and remembers what is new.
    ///
    /// # Errors
    /// [`TrustError`] when the record must not be used.
    pub fn judge(&self, record: &SignedRecord, now: UnixTime) -> Result<(), TrustError> {
        let news = self.change(|pins| pins.learn(record, now))?;
        if let Some(tell) = &self.inner.tell {
            news.iter().for_each(|news| tell(news));
        }
        Ok(())
    }

    /// Pins a name to a key, whatever was known before.
    ///
    /// # Errors
    /// [`TrustError::Full`], [`TrustError::Unusable`].
    pub fn pin(&self, name: &Name, key: EndpointId, origin: Origin, now: UnixTime) -> Result<(), TrustError> {
        self.change(|pins| pin(pins, name, key, origin, now))
    }

    /// Takes in a key that others hand out, as in a ticket or a meeting by code. It is pinned where nothing
    /// was known, and where it says better by whose word the key that is known counts; never in place of
    /// another.
    ///
    /// # Errors
    /// [`TrustError::OwnerChanged`], [`TrustError::EndpointChanged`], and those of [`pin`](Self::pin).
    pub fn confirm(
        &self,
        name: &Name,
        key: EndpointId,
        origin: Origin,
        now: UnixTime,
    ) -> Result<Standing, TrustError> {
        self.change(|pins| {
            let standing = pins.standing(name, key)?;
            match standing {
                Standing::New => pin(pins, name, key, origin, now)?,
                Standing::Known if origin.grants_access() => pin(pins, name, key, origin, now)?,
                Standing::Known | Standing::Unproved => {}
            }
            Ok(standing)
        })
    }

    /// Forgets a name; with a user name, all names of that user. Says how many names were forgotten.
    ///
    /// # Errors
    /// [`TrustError::Unusable`].
    pub fn forget(&self, name: &Name) -> Result<usize, TrustError> {
        self.change(|pins| Ok(pins.forget(name)))
    }

    /// All that is known now.
    ///
    /// # Errors
    /// [`KnownPeersError`].
    pub fn pins(&self) -> Result<Pins, KnownPeersError> {
        let mut state = self.state();
        self.refresh(&mut state)?;
        Ok(state.pins.clone())
    }

    /// The owner of a user name, if somebody confirmed it so that it [grants access](Origin::grants_access).
    ///
    /// # Errors
    /// [`KnownPeersError`].
    pub fn pinned_owner(&self, user: &Name) -> Result<Option<EndpointId>, KnownPeersError> {
        let mut state = self.state();
        self.refresh(&mut state)?;
        Ok(state.pins.owner(user).filter(|owner| owner.origin.grants_access()).map(|owner| owner.key))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing under this lock panics half-way through a change.
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the table. It is decided twice if there is something to write: on what was read last, and,
    /// under the lock, on what is there then.
    fn change<T>(&self, decide: impl Fn(&mut Pins) -> Result<T, TrustError>) -> Result<T, TrustError> {
        let mut state = self.state();
        self.refresh(&mut state)?;
        let mut pins = state.pins.clone();
        let result = decide(&mut pins)?;
        if pins == state.pins {
            return Ok(result);
        }
        let Some(file) = &self.inner.file else {
            state.pins = pins;
            return Ok(result);
        };
        let _lock = lock(file)?;
        self.refresh(&mut state)?;
        let mut pins = state.pins.clone();
        let result = decide(&mut pins)?;
        // Sequence numbers change often, and losing the newest of them costs little.
        let durable = pins.owners().ne(state.pins.owners());
        write(file, &pins, durable)?;
        state.stamp = stamp(file)?;
        state.pins = pins;
        Ok(result)
    }

    /// Reads the file if it is another one than was read last.
    fn refresh(&self, state: &mut State) -> Result<(), KnownPeersError> {
        let Some(file) = &self.inner.file else { return Ok(()) };
        let found = stamp(file)?;
        if found == state.stamp {
            return Ok(());
        }
        state.pins = if found.is_some() { read(file)? } else { Pins::default() };
        state.stamp = found;
        Ok(())
    }
}

impl std::fmt::Debug for KnownPeers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KnownPeers").field("file", &self.inner.file).finish_non_exhaustive()
    }
}

/// Pins a key, unless it is known on no weaker word: then it keeps its date.
fn pin(
    pins: &mut Pins,
    name: &Name,
    key: EndpointId,
    origin: Origin,
    now: UnixTime,
) -> Result<(), TrustError> {
    let known = match name.kind() {
        NameKind::User => pins.owner(name).map(|known| (known.key, known.origin)),
        _ => pins.endpoint(name).map(|known| (known.id, known.origin)),
    };
    match known {
        Some((known, before)) if known == key && origin.adds_nothing_to(before) => Ok(()),
        _ => pins.pin(name, key, origin, now),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;
    use std::time::Duration;

    use whimbrel_base::{Record, SecretKey};

    use super::*;

    fn record(key: &SecretKey, of: &str, sequence: u64) -> SignedRecord {
        let record = Record {
            name: of.parse().unwrap(),
            id: key.id(),
            addrs: Vec::new(),
            sequence,
            expires: NOW.saturating_add(Duration::from_secs(600)),
            lifetime: Duration::from_secs(60),
            revoked: false,
        };
        SignedRecord::sign(record, key, None).unwrap()
    }

    const NOW: UnixTime = UnixTime::from_secs(1_800_000_000);

    #[test]
    fn what_one_process_learned_another_one_knows() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_peers");
        let (ada, eve) = (SecretKey::generate(), SecretKey::generate());
        let (one, two) = (KnownPeers::in_file(&file), KnownPeers::in_file(&file));
        one.judge(&record(&ada, "ada@example.org", 1), NOW).unwrap();
        let error = two.judge(&record(&eve, "ada@example.org", 2), NOW).unwrap_err();
        assert!(matches!(error, TrustError::OwnerChanged { .. }), "{error}");
        two.forget(&"ada@example.org".parse().unwrap()).unwrap();
        one.judge(&record(&eve, "ada@example.org", 2), NOW).unwrap();
    }

    #[test]
    fn the_file_is_private_and_a_damaged_one_is_refused_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_peers");
        let ada = SecretKey::generate();
        let known = KnownPeers::in_file(&file);
        known.judge(&record(&ada, "ada@example.org", 1), NOW).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(&file).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        fs::write(&file, "nonsense\n").unwrap();
        let error = known.judge(&record(&ada, "ada@example.org", 2), NOW).unwrap_err().to_string();
        assert!(error.contains("known_peers:1:"), "{error}");
        assert_eq!(fs::read_to_string(&file).unwrap(), "nonsense\n");
    }

    #[test]
    fn a_ticket_changes_nothing_that_is_known_and_a_better_word_replaces_it() {
        let known = KnownPeers::in_memory();
        let (ada, eve) = (SecretKey::generate().id(), SecretKey::generate().id());
        let [user, web] = ["ada@example.org", "web.ada@example.org"].map(|name| name.parse().unwrap());
        let origin = |of: &Name| known.pins().unwrap().endpoint(of).map(|known| (known.id, known.origin));
        assert_eq!(known.confirm(&web, eve, Origin::Ticket, NOW), Ok(Standing::New));
        assert_eq!(origin(&web), Some((eve, Origin::Ticket)));
        known.confirm(&web, ada, Origin::Ticket, NOW).unwrap_err();
        assert_eq!(known.pinned_owner(&user), Ok(None));
        known.pin(&web, eve, Origin::Hand, NOW).unwrap();
        assert_eq!(origin(&web), Some((eve, Origin::Hand)), "the same key, by a better word");
        known.pin(&user, ada, Origin::Hand, NOW).unwrap();
        let mail = "mail.ada@example.org".parse().unwrap();
        assert_eq!(known.confirm(&mail, eve, Origin::Ticket, NOW), Ok(Standing::Unproved));
        assert_eq!(origin(&mail), None);
        assert_eq!(known.confirm(&user, ada, Origin::Code, NOW), Ok(Standing::Known));
        assert_eq!(known.pinned_owner(&user), Ok(Some(ada)));
    }

    #[test]
    fn many_at_once_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("known_peers");
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let known = KnownPeers::in_file(&file);
                scope.spawn(move || {
                    let key = SecretKey::generate();
                    for at in 0..20 {
                        known.judge(&record(&key, &format!("u{worker}x{at}@example.org"), 1), NOW).unwrap();
                    }
                });
            }
        });
        assert_eq!(KnownPeers::in_file(&file).pins().unwrap().owners().count(), 80);
    }
}
