//! Who is let in: the entries of `--allow` and of the file of `--allow-from`, as they are just now. The
//! published name is shown to them, unless `--readers` says to whom.
//!
//! A name grants access only through a key that was confirmed by hand or by a meeting, or that the owner that
//! was confirmed so has signed for ([`whimbrel_names::trust`]); and no longer than the owner's word holds.
//! What a name service or a ticket says grants none. A user's name lets the user's devices in too, which this
//! machine's own list of devices and friends has: a connection may go on at another one of them.

use futures_util::FutureExt;
use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::time::SystemTime;

use anyhow::{Context as _, Result};
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use whimbrel::Endpoint;
use whimbrel_base::{EndpointId, Name, NameKind, SecretKey, TicketSecret, UnixTime};
use whimbrel_names::readers::MAX_READERS;
use whimbrel_names::{KnownPeers, Origin, Pin, Readers};
use whimbrel_transport::{Allow, Connection, Resolver as _};

use crate::failure::Failure;
use crate::lan::Lan;
use crate::network::Network;
use crate::who::Who;
use crate::{output, readers};

mod devices;
mod file;
mod flags;
mod followed;
mod guests;

pub(crate) use self::flags::AllowFlags;
use self::flags::Entry;
#[cfg(feature = "fuzzing")]
pub(crate) use self::flags::read_anything;
use self::followed::Followed;
pub(crate) use self::followed::NamedKey;
pub(crate) use self::guests::Guests;

/// Whom an entry lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Any,
    Key(EndpointId),
    /// The key of this user, and the user's devices.
    User(EndpointId),
    /// A device of this user, for as long as it is one.
    Device {
        user: EndpointId,
        device: EndpointId,
    },
    /// Whatever endpoint the owner gives this name to.
    Follow(Name),
}

impl Rule {
    fn who(&self) -> Who {
        match self {
            Self::Any => Who::Any,
            Self::Key(key) | Self::User(key) | Self::Device { device: key, .. } => Who::Id(*key),
            Self::Follow(name) => Who::Name(name.clone()),
        }
    }
}

/// What the flags say.
#[derive(Default)]
struct ByFlag {
    rules: Vec<Rule>,
    /// Empty: those who are let in.
    readers: Vec<Who>,
}

/// What is known from before, when an instance goes on in place of another one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Before {
    /// What printed tickets let their holders in by.
    pub(crate) secret: Option<TicketSecret>,
    /// The keys that names in the rules stood for.
    pub(crate) followed: HashMap<Name, NamedKey>,
}

/// The rules in force. Cheap to clone; clones share everything.
#[derive(Clone)]
pub(crate) struct Access {
    inner: Arc<Inner>,
}

struct Inner {
    rules: RwLock<Rules>,
    /// What it begins with.
    before: Before,
    /// The name to be reached under.
    name: Option<Name>,
    /// The rules, or whom they let in, changed.
    changed: Notify,
    endpoint: Endpoint,
    lan: Option<Arc<Lan>>,
    known: KnownPeers,
    key: SecretKey,
    quiet: bool,
}

#[derive(Default)]
struct Rules {
    by_flag: ByFlag,
    by_file: Vec<Rule>,
    followed: HashMap<Name, Followed>,
    /// Of users in the rules.
    devices: devices::Devices,
    /// Keeps these up to date.
    looking: Option<AbortHandle>,
}

impl Rules {
    fn all(&self) -> impl Iterator<Item = &Rule> {
        self.by_flag.rules.iter().chain(&self.by_file)
    }
}

impl Access {
    /// Reads the flags, and follows names and the file from then on. What is published under `name` is for
    /// those who may look it up. `before` is what another instance knew, or nothing.
    ///
    /// # Errors
    /// An entry that grants nothing: a name that nobody pinned, or that needs a name service; a file that
    /// can't be read; more readers than a record may have.
    pub(crate) async fn open(
        flags: &AllowFlags,
        name: Option<&Name>,
        network: &Network,
        quiet: bool,
        before: Before,
    ) -> Result<Self> {
        let secret = flags.secret.then(|| before.secret.unwrap_or_else(TicketSecret::generate));
        let access = Self::nobody(network, name, Before { secret, ..before }, quiet);
        let by_flag = access.by_flag(flags)?;
        let by_file = match &flags.allow_from {
            Some(file) => access.rules_of(&file::read(file)?)?,
            None => Vec::new(),
        };
        // What was known before is not asked about: the service may be away, and the instance to take over
        // from waits.
        let is_new = |name: &&Name| !access.inner.before.followed.contains_key(*name);
        for name in names(by_flag.rules.iter().chain(&by_file)).filter(is_new) {
            access.tell_if_unknown(network, name).await?;
        }
        access.put(Some(by_flag), by_file)?;
        if let Some(file) = &flags.allow_from {
            tokio::spawn(FutureExt::boxed(file::watch(access.clone(), file.clone())));
        }
        Ok(access)
    }

    /// Puts the entries of `new` in force, and reads the file again; `old` is what the command was started
    /// with.
    ///
    /// # Errors
    /// As [`Access::open`], and when another file is named or a secret comes or goes. Nothing has changed
    /// then.
    pub(crate) fn reload(&self, old: &AllowFlags, new: &AllowFlags) -> Result<()> {
        if new.allow_from != old.allow_from || new.secret != old.secret {
            return Err(Failure::usage("another --allow-from or --secret needs a restart"));
        }
        let by_flag = self.by_flag(new)?;
        let by_file = match &new.allow_from {
            Some(file) => self.rules_of(&file::read(file)?)?,
            None => Vec::new(),
        };
        self.put(Some(by_flag), by_file)
    }

    /// Lets one key in, and nobody else.
    pub(crate) fn only(key: EndpointId, network: &Network, quiet: bool) -> Self {
        let access = Self::nobody(network, None, Before::default(), quiet);
        access.rules_to_change().by_flag.rules.push(Rule::Key(key));
        access
    }

    fn nobody(network: &Network, name: Option<&Name>, before: Before, quiet: bool) -> Self {
        Self {
            inner: Arc::new(Inner {
                rules: RwLock::default(),
                before,
                name: name.cloned(),
                changed: Notify::new(),
                endpoint: network.endpoint.clone(),
                lan: network.lan.clone(),
                known: network.known.clone(),
                key: network.key.clone(),
                quiet,
            }),
        }
    }

    /// For the listener.
    pub(crate) fn allow(&self) -> Allow {
        let access = self.clone();
        Allow::check(move |peer| std::future::ready(access.lets_in(peer)))
    }

    /// What a ticket holds that lets its holder in.
    pub(crate) fn secret(&self) -> Option<TicketSecret> {
        self.inner.before.secret
    }

    /// What an instance that goes on has to know: a peer that is here must not be ended before its name was
    /// looked up anew.
    pub(crate) fn known(&self) -> Before {
        let rules = self.inner.rules.read().unwrap_or_else(PoisonError::into_inner);
        let followed = rules.followed.iter().filter_map(|(name, of)| Some((name.clone(), of.key?)));
        Before { secret: self.secret(), followed: followed.collect() }
    }

    /// Whether the peer of this connection may be here now.
    pub(crate) fn admits(&self, connection: &Connection) -> bool {
        connection.is_by_ticket() || self.lets_in(connection.peer_id())
    }

    /// Whether the rules let this key in now.
    pub(crate) fn lets_in(&self, peer: EndpointId) -> bool {
        self.any_rule(peer, true)
    }

    fn any_rule(&self, peer: EndpointId, anybody: bool) -> bool {
        let now = UnixTime::from(SystemTime::now());
        let rules = self.inner.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.all().any(|rule| match rule {
            Rule::Any => anybody,
            Rule::Key(key) => *key == peer,
            Rule::User(key) => *key == peer || rules.has(key, peer),
            Rule::Device { user, device } => *device == peer && rules.has(user, peer),
            Rule::Follow(name) => {
                let key = rules.followed.get(name).and_then(|followed| followed.key);
                key.is_some_and(|key| key.is(peer, now))
            }
        })
    }

    /// Whether the rules name this key, and do not only let it in as they let in anybody.
    pub(crate) fn names(&self, peer: EndpointId) -> bool {
        self.any_rule(peer, false)
    }

    /// Waits until somebody who was let in may not be any more. Cancel-safe.
    pub(crate) async fn changed(&self) {
        self.inner.changed.notified().await;
    }

    /// By what rule an entry lets somebody in.
    fn rule(&self, entry: &Entry) -> Result<Rule> {
        match entry {
            Entry::Who(Who::Any) => Ok(Rule::Any),
            Entry::Who(Who::Id(id)) => Ok(Rule::Key(*id)),
            Entry::Who(Who::Name(name)) => self.rule_of_name(name),
            Entry::Called(label) => self.rule_of_label(label),
            Entry::Pinned(Pin { name, key }) => {
                self.inner.known.pin(name, *key, Origin::Hand, UnixTime::from(SystemTime::now()))?;
                Ok(match name.kind() {
                    NameKind::User => Rule::User(*key),
                    _ => Rule::Key(*key),
                })
            }
        }
    }

    fn rule_of_name(&self, name: &Name) -> Result<Rule> {
        let pins = self.inner.known.pins()?;
        let owner = pins.owner(&name.user()).filter(|owner| owner.origin.grants_access());
        let endpoint = pins.endpoint(name).filter(|endpoint| endpoint.origin.grants_access());
        match (name.kind(), owner, endpoint) {
            // A user's own record is signed by the owner, and by nobody else.
            (NameKind::User, Some(owner), _) => Ok(Rule::User(owner.key)),
            (_, _, Some(endpoint)) => Ok(Rule::Key(endpoint.id)),
            (_, Some(_), None) => Ok(Rule::Follow(name.clone())),
            (_, None, None) => Err(Failure::new(
                Failure::UNTRUSTED,
                format!(
                    "--allow {name} lets nobody in: nobody confirmed its key here, and the word of a name service or \
                     a ticket grants no access. Write --allow {name}=ID with the id that `whimbrel id` prints there"
                ),
            )
            .into()),
        }
    }

    fn by_flag(&self, flags: &AllowFlags) -> Result<ByFlag> {
        let rules = self.rules_of(&flags.allow)?;
        Ok(ByFlag { rules, readers: flags.readers.clone() })
    }

    fn rules_of(&self, entries: &[Entry]) -> Result<Vec<Rule>> {
        entries.iter().map(|entry| self.rule(entry)).collect()
    }

    /// Looks a name up once, so that mistakes are told at the start.
    async fn tell_if_unknown(&self, network: &Network, name: &Name) -> Result<()> {
        let resolver = network.resolver().with_context(|| format!("cannot allow {name}"))?;
        if let Err(error) = resolver.lookup_record(name).await {
            output::note(self.inner.quiet, format!("{name} in --allow lets nobody in yet: {error}"));
        }
        Ok(())
    }

    /// Puts new rules in force. Names that none of them has are no longer followed.
    ///
    /// # Errors
    /// When a record could not have so many readers. Nothing has changed then.
    fn put(&self, by_flag: Option<ByFlag>, by_file: Vec<Rule>) -> Result<()> {
        let mut rules = self.rules_to_change();
        if let Some(name) = &self.inner.name {
            let shown_to = self.shown_to(by_flag.as_ref().unwrap_or(&rules.by_flag), &by_file);
            let is_public = shown_to.contains(&Who::Any);
            if let Some(resolver) = self.inner.endpoint.names() {
                resolver.set_readers(name.clone(), readers_of(name, shown_to)?)?;
            }
            if let Some(lan) = &self.inner.lan {
                lan.show(name, is_public);
            }
        }
        if let Some(by_flag) = by_flag {
            rules.by_flag = by_flag;
        }
        rules.by_file = by_file;
        self.look_at_users(&mut rules);
        let wanted: Vec<Name> = names(rules.by_flag.rules.iter().chain(&rules.by_file)).cloned().collect();
        rules.followed.retain(|name, followed| {
            let keep = wanted.contains(name);
            if !keep {
                followed.task.abort();
            }
            keep
        });
        for name in wanted {
            if !rules.followed.contains_key(&name)
                && let Some(task) = self.follow(&name)
            {
                let key = self.inner.before.followed.get(&name).copied();
                rules.followed.insert(name, Followed { key, task });
            }
        }
        drop(rules);
        self.inner.changed.notify_one();
        Ok(())
    }

    /// Who may look the published name up: without a word about it, those who are let in. They may find it
    /// again once both sides have moved. Nobody knows whom a secret lets in.
    fn shown_to(&self, by_flag: &ByFlag, by_file: &[Rule]) -> Vec<Who> {
        if !by_flag.readers.is_empty() {
            return by_flag.readers.clone();
        }
        let by_secret = self.inner.before.secret.map(|_| Who::Any);
        by_flag.rules.iter().chain(by_file).map(Rule::who).chain(by_secret).collect()
    }

    fn rules_to_change(&self) -> RwLockWriteGuard<'_, Rules> {
        self.inner.rules.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches a name's record. Its owner was pinned: a record in another one's name never arrives here.
    fn follow(&self, name: &Name) -> Option<AbortHandle> {
        let records = self.inner.endpoint.names()?.watch(name);
        let following = followed::follow(self.clone(), name.clone(), records);
        Some(tokio::spawn(FutureExt::boxed(following)).abort_handle())
    }

    /// The key that a followed name stands for.
    fn followed(&self, name: &Name) -> Option<NamedKey> {
        let rules = self.inner.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.followed.get(name).and_then(|followed| followed.key)
    }

    fn set_followed(&self, name: &Name, key: Option<NamedKey>) {
        if let Some(followed) = self.rules_to_change().followed.get_mut(name) {
            followed.key = key;
        }
        self.inner.changed.notify_one();
    }
}

/// Those who may look `name` up.
///
/// # Errors
/// When they are more than a record may have.
fn readers_of(name: &Name, shown_to: Vec<Who>) -> Result<Readers> {
    readers::of(shown_to, name).map_err(|whimbrel::TooManyReaders| {
        let beside = MAX_READERS - 1;
        Failure::usage(format!(
            "more than {beside} could look {name} up, and its record can name no more beside its own user; name \
             users instead of their keys, or say --readers any"
        ))
    })
}

fn names<'a>(rules: impl Iterator<Item = &'a Rule>) -> impl Iterator<Item = &'a Name> {
    rules.filter_map(|rule| if let Rule::Follow(name) = rule { Some(name) } else { None })
}
