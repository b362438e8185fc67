//! Who is let in: the entries of `--allow` and of the file of `--allow-from`, as they are just now. The
//! published name is shown to them, unless `--readers` says to whom.
//!
//! A name grants access only through a key that more than the name service speaks for: one that was pinned by
//! hand, by ticket or by a meeting ([`whimbrel_names::trust`]).

use futures_util::FutureExt;
use std::collections::HashMap;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};

use anyhow::{Context as _, Result};
use clap::Args;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use whimbrel::Endpoint;
use whimbrel_base::{EndpointId, Name, NameKind, TicketSecret, UnixTime};
use whimbrel_names::readers::MAX_READERS;
use whimbrel_names::{KnownPeers, Origin, Pin, Readers};
use whimbrel_transport::{Allow, Connection, Resolver as _};

use crate::failure::Failure;
use crate::lan::Lan;
use crate::network::Network;
use crate::who::Who;
use crate::{output, readers};

mod file;
mod guests;

pub(crate) use self::guests::Guests;

const NOBODY: &str = "nobody would be let in; say who may connect with --allow ID, --allow NAME=ID, --allow any, or --ticket --secret";

/// Who may connect.
#[derive(Args, Clone, Debug)]
pub(crate) struct AllowFlags {
    /// Who may connect: an id, NAME=ID, a pinned NAME, `any`; repeatable
    #[arg(long, value_name = "ID|NAME=ID|any")]
    allow: Vec<Entry>,
    /// A file of such entries, one a line; removal ends connections
    #[arg(long, value_name = "FILE")]
    allow_from: Option<PathBuf>,
    /// Let in who has the printed ticket, by a secret in it
    #[arg(long)]
    secret: bool,
    /// Who may look NAME up: ids, users, `any` [default: who is let in]
    #[arg(long, value_name = "WHO,…", value_delimiter = ',')]
    readers: Vec<Who>,
}

impl AllowFlags {
    /// Fails if nobody could ever be let in, a secret could not be told, or readers have nothing to read.
    pub(crate) fn check(&self, by_ticket: bool, name: Option<&Name>) -> Result<()> {
        if name.is_none() && !self.readers.is_empty() {
            return Err(Failure::usage("--readers is about the NAME to be reached under, and none is given"));
        }
        if self.secret && !by_ticket {
            return Err(Failure::usage(
                "--secret is part of a ticket, and none would be printed; see --help",
            ));
        }
        if self.allow.is_empty() && self.allow_from.is_none() && !self.secret {
            return Err(Failure::usage(NOBODY));
        }
        Ok(())
    }
}

/// One entry of `--allow`.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Entry {
    Who(Who),
    Pinned(Pin),
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // No id, and no name without a key, has this character.
        if text.contains('=') {
            return text
                .parse()
                .map(Self::Pinned)
                .map_err(|error: whimbrel_names::PinError| error.to_string());
        }
        text.parse().map(Self::Who)
    }
}

/// Reads whatever somebody writes as an entry. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_anything(text: &str) {
    let _ = text.parse::<Entry>();
}

/// Whom an entry lets in.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Any,
    Key(EndpointId),
    /// Whatever endpoint the owner gives this name to.
    Follow(Name),
}

impl Rule {
    fn who(&self) -> Who {
        match self {
            Self::Any => Who::Any,
            Self::Key(key) => Who::Id(*key),
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
    pub(crate) followed: HashMap<Name, EndpointId>,
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
    quiet: bool,
}

#[derive(Default)]
struct Rules {
    by_flag: ByFlag,
    by_file: Vec<Rule>,
    followed: HashMap<Name, Followed>,
}

/// The key that a name stands for just now, and the task that follows it.
struct Followed {
    key: Option<EndpointId>,
    task: AbortHandle,
}

impl Access {
    /// Reads the flags, and follows names and the file from then on. What is published under `name` is for those
    /// who may look it up. `before` is what another instance knew, or nothing.
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
        for name in names(by_flag.rules.iter().chain(&by_file)) {
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
    /// As [`Access::open`], and when another file is named or a secret comes or goes. Nothing has changed then.
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

    /// What an instance that goes on has to know: a peer that is here must not be ended before its name was looked
    /// up anew.
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
        let rules = self.inner.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.by_flag.rules.iter().chain(&rules.by_file).any(|rule| match rule {
            Rule::Any => anybody,
            Rule::Key(key) => *key == peer,
            Rule::Follow(name) => rules.followed.get(name).is_some_and(|known| known.key == Some(peer)),
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
            Entry::Pinned(Pin { name, key }) => {
                self.inner.known.pin(
                    name,
                    *key,
                    Origin::Hand,
                    UnixTime::from(std::time::SystemTime::now()),
                )?;
                Ok(Rule::Key(*key))
            }
        }
    }

    fn rule_of_name(&self, name: &Name) -> Result<Rule> {
        let pins = self.inner.known.pins()?;
        let owner = pins.owner(&name.user()).filter(|owner| owner.origin.is_pinned());
        let endpoint = pins.endpoint(name).filter(|endpoint| endpoint.origin.is_pinned());
        match (name.kind(), owner, endpoint) {
            // A user's own record is signed by the owner, and by nobody else.
            (NameKind::User, Some(owner), _) => Ok(Rule::Key(owner.key)),
            (_, _, Some(endpoint)) => Ok(Rule::Key(endpoint.id)),
            (_, Some(_), None) => Ok(Rule::Follow(name.clone())),
            (_, None, None) => Err(Failure::new(
                Failure::UNTRUSTED,
                format!(
                    "--allow {name} lets nobody in: nobody confirmed its key here, and the name service's word \
                     grants no access. Write --allow {name}=ID with the id that `whimbrel id` prints there"
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

    /// Who may look the published name up: without a word about it, those who are let in. They may find it again
    /// once both sides have moved. Nobody knows whom a secret lets in.
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
        let mut records = self.inner.endpoint.names()?.watch(name);
        let (access, name) = (self.clone(), name.clone());
        let following = async move {
            while let Some(record) = records.changed().await {
                let key = record.map(|record| {
                    // The key of a group's record is that of whoever keeps the group, and no member's.
                    let is_endpoints = record.members().is_none() && !record.record().revoked;
                    is_endpoints.then_some(record.record().id)
                });
                // Nothing is known before the first answer.
                let Some(key) = key else { continue };
                tracing::info!(%name, ?key, "a name in --allow changed");
                let mut rules = access.rules_to_change();
                if let Some(followed) = rules.followed.get_mut(&name) {
                    followed.key = key;
                }
                drop(rules);
                access.inner.changed.notify_one();
            }
        };
        Some(tokio::spawn(FutureExt::boxed(following)).abort_handle())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_may_say_the_key_of_a_name() {
        let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        assert_eq!("any".parse(), Ok(Entry::Who(Who::Any)));
        assert_eq!(id.to_string().parse(), Ok(Entry::Who(Who::Id(id))));
        assert!(matches!(format!("Ada@example.org={id}").parse(), Ok(Entry::Pinned(pin)) if pin.key == id));
        for wrong in ["", "everybody", "a@", "any ", "ada@example.org=", "=x"] {
            assert!(wrong.parse::<Entry>().is_err(), "{wrong}");
        }
    }
}
