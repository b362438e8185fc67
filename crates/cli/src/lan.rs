//! The local network, with `--lan`: peers that answer there by mDNS are found without a name service, and
//! commands that let peers in are told there.
//!
//! Everybody in the network hears what is told: of a command that lets peers in, its key and where it is. Its
//! name is told only if everybody may look it up.
//!
//! | what is looked for | what counts |
//! | --- | --- |
//! | a key | any answer: the machine that is dialled has to show the key |
//! | a name whose owner is known here | what that key signed; or the machine itself that the name stood for last, by its key |
//! | a name that was never met | what the only one signed that claims it, if no service knows the name; its owner is remembered |
//!
//! A name service that is configured comes first: what it says of a name counts, and that it took a name
//! back, too.

use futures_util::FutureExt;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use anyhow::Result;
use whimbrel::Endpoint;
use whimbrel_base::{Delegation, EndpointAddr, EndpointId, Name, SecretKey, SignedRecord};
use whimbrel_lan::{Announcement, Judge, Neighbours, name_of_key};
use whimbrel_names::{AskError, ErrorCode, KnownPeers, NameResolver, TrustError};
use whimbrel_transport::{BoxFuture, ResolveError, Resolver, Watch, Watched};

use crate::options::Globals;
use whimbrel_base::order;

mod meeting;

pub(crate) use self::meeting::Place;

/// A name service that answers within this is not got ahead of.
const HEAD_START: Duration = Duration::from_secs(1);
/// What the network tells of a name comes before what it tells of the key that the name stood for last.
const BY_KEY_AFTER: Duration = Duration::from_millis(500);

/// The peers of the local network, beside a name service if there is one.
pub(crate) struct Lan {
    neighbours: Neighbours,
    names: Option<Arc<NameResolver>>,
    known: KnownPeers,
    /// Whether names may be met here for the first time: not where a domain's owner has to be asked first.
    may_meet: bool,
    met: Met,
    told: Mutex<HashMap<Name, Told>>,
    announcement: Mutex<Option<Announcement>>,
}

/// Users whose owner nobody but this network has told.
#[derive(Clone, Default)]
struct Met(Arc<Mutex<HashSet<Name>>>);

/// What there is to tell of a name of this host's.
#[derive(Default)]
struct Told {
    /// Everybody may look it up.
    is_public: bool,
    record: Option<SignedRecord>,
}

impl Lan {
    /// Looks for the endpoint's peers in the network from now on.
    ///
    /// # Errors
    /// When the system gives no sockets for that.
    pub(crate) fn start(endpoint: &Endpoint, known: &KnownPeers, globals: &Globals) -> Result<Arc<Self>> {
        let met = Met::default();
        let lan = Arc::new(Self {
            neighbours: Neighbours::start(judge(known.clone(), met.clone()))?,
            names: endpoint.shared_names(),
            known: known.clone(),
            may_meet: globals.prove_domain.is_empty(),
            met,
            told: Mutex::default(),
            announcement: Mutex::default(),
        });
        endpoint.transport().set_resolver(lan.clone());
        Ok(lan)
    }

    /// Has the network told where the endpoint is, whose key this is: from now on, as it lets peers in.
    pub(crate) fn announce(&self, endpoint: &Endpoint, key: &SecretKey) -> Result<()> {
        let name = name_of_key(key.id())?;
        // What was told before is withdrawn first.
        let mut present = lock(&self.announcement);
        drop(present.take());
        let announcement = self.neighbours.announce(endpoint.transport().clone(), key.clone(), name);
        *present = Some(announcement);
        Ok(())
    }

    /// Says whether everybody may look a name of this host's up. Until it is said, nobody may.
    pub(crate) fn show(&self, name: &Name, is_public: bool) {
        let mut all = lock(&self.told);
        let told = all.entry(name.clone()).or_default();
        let was = std::mem::replace(&mut told.is_public, is_public);
        let Some(record) = told.record.as_ref().filter(|_| was != is_public) else { return };
        let done = match is_public {
            true => self.neighbours.tell(record),
            false => self.neighbours.withdraw(record.record().id, name),
        };
        if let Err(error) = done {
            tracing::warn!(%name, %error, "the local network was not told that its readers changed");
        }
    }

    /// Whether the network is told of the name.
    pub(crate) fn shows(&self, name: &Name) -> bool {
        lock(&self.told).get(name).is_some_and(|told| told.is_public)
    }

    /// Tells a record of this host's, if everybody may see it; once.
    fn tell(&self, record: &SignedRecord) {
        let name = &record.record().name;
        let mut all = lock(&self.told);
        let told = all.entry(name.clone()).or_default();
        let is_news = told.record.as_ref() != Some(record);
        told.record = Some(record.clone());
        if told.is_public
            && is_news
            && let Err(error) = self.neighbours.tell(record)
        {
            tracing::warn!(%name, %error, "cannot tell the local network of this name");
        }
    }

    /// Whether nobody but this network has told who owns the user's names, in this process.
    pub(crate) fn has_met(&self, user: &Name) -> bool {
        lock(&self.met.0).contains(user)
    }

    /// Says good-bye for what was told.
    pub(crate) async fn close(&self) {
        // It holds the endpoint.
        drop(lock(&self.announcement).take());
        self.neighbours.close().await;
    }

    fn knows_owner(&self, name: &Name) -> bool {
        owner(&self.known, &name.user()).is_some()
    }

    /// What the network tells of a name that may be used.
    async fn heard(&self, name: &Name) -> Result<SignedRecord, ResolveError> {
        let pins = self.known.pins().map_err(|error| ResolveError::Untrusted(error.to_string()))?;
        let before = pins.endpoint(name);
        // A ticket is nobody's signed word: it saves no question.
        let is_confirmed = before.is_some_and(|before| before.origin.grants_access());
        if pins.owner(&name.user()).is_none() && !is_confirmed {
            if !self.may_meet {
                return Err(ResolveError::NotFound);
            }
            the_only(name, &self.neighbours.claims(name).await)?;
        }
        let by_key = async {
            match before {
                Some(before) => {
                    tokio::time::sleep(BY_KEY_AFTER).await;
                    self.neighbours.record_of(before.id).await
                }
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            answer = self.neighbours.lookup(name) => answer,
            Ok(record) = by_key => Ok(record),
        }
    }
}

impl Resolver for Lan {
    fn lookup<'a>(&'a self, name: &'a Name) -> BoxFuture<'a, Result<SignedRecord, ResolveError>> {
        Box::pin(async move {
            let Some(names) = &self.names else { return self.heard(name).await };
            let knows_owner = self.knows_owner(name);
            let heard = async {
                tokio::time::sleep(HEAD_START).await;
                self.heard(name).await
            };
            let error = tokio::select! {
                answer = names.lookup_record(name) => match answer {
                    Ok(record) => return Ok(record),
                    Err(error) => error,
                },
                Ok(record) = heard, if knows_owner => return Ok(record),
            };
            if !leaves_it_open(&error, knows_owner) {
                return Err(error.into());
            }
            match self.heard(name).await {
                Err(ResolveError::NotFound) => Err(error.into()),
                answer => answer,
            }
        })
    }

    fn watch(&self, name: &Name) -> Watch<Option<SignedRecord>> {
        let mut heard = self.neighbours.watch(name);
        let Some(names) = &self.names else { return heard };
        let mut pushed = names.watch(name);
        let watched = Watched::new(None::<SignedRecord>);
        let watch = watched.watch();
        tokio::spawn(FutureExt::boxed(async move {
            loop {
                let newest = newer(heard.current(), pushed.current());
                watched.update_if(|known| {
                    let is_news = *known != newest;
                    *known = newest;
                    is_news
                });
                tokio::select! {
                    changed = heard.changed() => if changed.is_none() { return },
                    changed = pushed.changed() => if changed.is_none() { return },
                    () = watched.unwatched() => return,
                }
            }
        }));
        watch
    }

    fn publish(&self, record: SignedRecord) -> BoxFuture<'_, Result<(), ResolveError>> {
        self.tell(&record);
        match &self.names {
            Some(names) => names.publish(record),
            None => Box::pin(std::future::ready(Ok(()))),
        }
    }

    fn find(&self, id: EndpointId) -> BoxFuture<'_, Result<EndpointAddr, ResolveError>> {
        let Some(names) = &self.names else { return self.neighbours.find(id) };
        Box::pin(async move {
            // Whichever answers: the machine that is dialled has to show the key.
            tokio::select! {
                Ok(found) = names.find(id) => Ok(found),
                Ok(found) = self.neighbours.find(id) => Ok(found),
                else => Err(ResolveError::NotFound),
            }
        })
    }

    fn renewed<'a>(
        &'a self,
        present: &'a Delegation,
    ) -> BoxFuture<'a, Result<Option<Delegation>, ResolveError>> {
        match &self.names {
            Some(names) => Resolver::renewed(&**names, present),
            None => Box::pin(std::future::ready(Ok(None))),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The owner of a user's names, if it was met. A table that cannot be read knows nobody: each judgement says
/// so.
fn owner(known: &KnownPeers, user: &Name) -> Option<EndpointId> {
    known.pins().ok()?.owner(user).map(|owner| owner.key)
}

/// Whether a name service's answer leaves it to the network: it knows no such name, or does not answer and
/// the name's owner is known. That it took a name back is an answer.
fn leaves_it_open(error: &AskError, knows_owner: bool) -> bool {
    match error {
        AskError::Refused { code, .. } => matches!(code, Some(ErrorCode::NotFound | ErrorCode::Expired)),
        AskError::Unreachable(_) => knows_owner,
        _ => false,
    }
}

/// The later of two records.
fn newer(one: Option<SignedRecord>, other: Option<SignedRecord>) -> Option<SignedRecord> {
    match (one, other) {
        (Some(one), Some(other)) if other.record().sequence > one.record().sequence => Some(other),
        (one, other) => one.or(other),
    }
}

/// Fails unless there is one that claims a name of which nobody here knows whose it is.
fn the_only(name: &Name, claims: &[SignedRecord]) -> Result<(), ResolveError> {
    let mut owners: Vec<EndpointId> = claims.iter().map(SignedRecord::authority).collect();
    order::by(&mut owners, Ord::cmp);
    owners.dedup();
    match owners.len() {
        0 => return Err(ResolveError::NotFound),
        1 => return Ok(()),
        _ => {}
    }
    let all: Vec<String> = owners.iter().take(3).map(ToString::to_string).collect();
    Err(ResolveError::Untrusted(format!(
        "{} keys claim it in this network, and none is known here: {}; ask its owner which is right, and write \
         {name}=ID",
        owners.len(),
        all.join(", "),
    )))
}

/// Says whether what the network tells of a name agrees with what is known, and remembers what is new.
fn judge(known: KnownPeers, met: Met) -> Judge {
    Arc::new(move |record| {
        let now = SystemTime::now().into();
        if record.delegation().is_some_and(|delegation| delegation.is_expired(now)) {
            return Err("what answers to it in this network may no longer use it".to_owned());
        }
        let user = record.record().name.user();
        // Files are read and written.
        tokio::task::block_in_place(|| {
            let is_first = owner(&known, &user).is_none();
            known.judge(record, now).map_err(|error| in_words(&record.record().name, error))?;
            if is_first {
                lock(&met.0).insert(user);
            }
            Ok(())
        })
    })
}

/// What contradicts what is known. It comes from somebody in the network, and from no name service.
fn in_words(name: &Name, error: TrustError) -> String {
    let claimed = |offered: &EndpointId, whose: &Name, known: &EndpointId| {
        format!(
            "in this network {offered} CLAIMS {name}, and {whose} is known here as {known}; it is not connected to. If \
             its owner tells you that the key changed, run `whimbrel trust accept {whose}={offered}`"
        )
    };
    match &error {
        TrustError::OwnerChanged { user, known, offered } => claimed(offered, user, &known.key),
        TrustError::EndpointChanged { name, known, offered } => claimed(offered, name, &known.id),
        TrustError::OldRecord { .. } => {
            "what answers to it in this network says less than is known already, as if played back".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::{Record, UnixTime};

    use super::*;

    const NAME: &str = "web.ada@example.org";

    fn record(key: u8, sequence: u64) -> SignedRecord {
        let key = SecretKey::from_bytes(&[key; 32]);
        let expires = UnixTime::from(SystemTime::now()).saturating_add(Duration::from_secs(600));
        let record = Record {
            name: NAME.parse().unwrap(),
            id: key.id(),
            addrs: Vec::new(),
            sequence,
            expires,
            lifetime: Duration::from_secs(60),
            revoked: false,
        };
        SignedRecord::sign(record, &key, None).unwrap()
    }

    #[test]
    fn a_name_that_several_keys_claim_is_nobodys_until_its_owner_is_known() {
        let name: Name = NAME.parse().unwrap();
        assert!(matches!(the_only(&name, &[]), Err(ResolveError::NotFound)));
        assert!(the_only(&name, &[record(1, 1), record(1, 2)]).is_ok());
        let error = the_only(&name, &[record(1, 1), record(2, 9)]).unwrap_err().to_string();
        assert!(error.contains("2 keys claim it") && error.contains(&format!("{NAME}=ID")), "{error}");
    }

    #[test]
    fn that_a_service_took_a_name_back_or_is_silent_of_a_stranger_leaves_nothing_to_the_network() {
        let refused = |code| AskError::Refused { code: Some(code), message: String::new() };
        for (error, of_a_stranger, of_a_known_one) in [
            (refused(ErrorCode::NotFound), true, true),
            (refused(ErrorCode::Expired), true, true),
            (refused(ErrorCode::Revoked), false, false),
            (AskError::Unreachable(String::new()), false, true),
            (AskError::Invalid(String::new()), false, false),
        ] {
            assert_eq!(leaves_it_open(&error, false), of_a_stranger, "{error}");
            assert_eq!(leaves_it_open(&error, true), of_a_known_one, "{error}");
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn another_keys_record_of_a_known_name_is_refused_in_words_of_this_network() {
        let (known, met) = (KnownPeers::in_memory(), Met::default());
        let judge = judge(known, met.clone());
        judge(&record(1, 1)).unwrap();
        assert!(lock(&met.0).contains(&"ada@example.org".parse().unwrap()));
        let error = judge(&record(2, 9)).unwrap_err();
        assert!(error.contains("in this network") && !error.contains("name service"), "{error}");
        assert!(judge(&record(1, 0)).unwrap_err().contains("played back"));
    }

    #[test]
    fn the_later_of_two_records_counts() {
        let later = || Some(record(1, 2));
        assert_eq!(newer(Some(record(1, 1)), later()), later());
        assert_eq!(newer(later(), Some(record(1, 1))), later());
        assert_eq!(newer(None, later()), later());
        assert_eq!(newer(None, None), None);
    }
}
