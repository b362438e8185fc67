//! What was learned of names, and the decision whether a record agrees with it. No clock, no file.

use std::collections::BTreeMap;

use whimbrel_base::{EndpointId, Name, NameKind, SignedRecord, UnixTime};

use super::{Origin, TrustError};

/// Owners and endpoints that are remembered at the most, each.
pub const MAX_KNOWN: usize = 65_536;

/// The owner of a user name, as it was learned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownOwner {
    /// The key that owns the name, and signs for its devices and services.
    pub key: EndpointId,
    /// When it was learned.
    pub since: UnixTime,
    /// How it was learned.
    pub origin: Origin,
}

/// The endpoint that a name stood for last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KnownEndpoint {
    /// Its key.
    pub id: EndpointId,
    /// When it was seen or pinned first.
    pub since: UnixTime,
    /// How it was learned. A [`FirstUse`](Origin::FirstUse) may be followed by another endpoint that the
    /// owner signed; what came by a [`Ticket`](Origin::Ticket) only if the owner was confirmed otherwise.
    pub origin: Origin,
    /// The highest sequence number that was seen of the name.
    pub sequence: u64,
}

/// What a record taught.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TrustNews {
    /// A user name was met for the first time: this key is remembered as its owner.
    NewOwner {
        /// The user.
        user: Name,
        /// Its owner from now on.
        key: EndpointId,
    },
    /// A name stands for another endpoint than before. Its owner signed that.
    NewEndpoint {
        /// The name.
        name: Name,
        /// The endpoint from now on.
        id: EndpointId,
        /// The endpoint before.
        before: EndpointId,
    },
}

/// How a key that somebody hands out stands to what is known of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Standing {
    /// It is what is known already.
    Known,
    /// Neither the name nor its owner is known.
    New,
    /// The name's owner is known and has another key, and what the owner gave the name to is not known here.
    Unproved,
}

/// A table of owners and endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pins {
    owners: BTreeMap<Name, KnownOwner>,
    endpoints: BTreeMap<Name, KnownEndpoint>,
}

impl Pins {
    /// The owner of a user name, if it was met.
    pub fn owner(&self, user: &Name) -> Option<&KnownOwner> {
        self.owners.get(user)
    }

    /// The endpoint that a name stood for last, if it was met.
    pub fn endpoint(&self, name: &Name) -> Option<&KnownEndpoint> {
        self.endpoints.get(name)
    }

    /// All owners, by user name.
    pub fn owners(&self) -> impl Iterator<Item = (&Name, &KnownOwner)> {
        self.owners.iter()
    }

    /// All endpoints, by name.
    pub fn endpoints(&self) -> impl Iterator<Item = (&Name, &KnownEndpoint)> {
        self.endpoints.iter()
    }

    /// Judges a record whose signatures were verified, and learns from it.
    ///
    /// # Errors
    /// [`TrustError`] when it contradicts what is known. Nothing is learned then.
    pub fn learn(&mut self, record: &SignedRecord, now: UnixTime) -> Result<Vec<TrustNews>, TrustError> {
        let (authority, record) = (record.authority(), record.record());
        let user = record.name.user();
        let owner = self.owners.get(&user);
        if let Some(known) = owner.filter(|known| known.key != authority) {
            return Err(TrustError::OwnerChanged { user, known: *known, offered: authority });
        }
        let endpoint = self.endpoints.get(&record.name);
        if let Some(known) = endpoint {
            // A ticket is not signed: it yields to an owner whose key was confirmed in a better way.
            let owner_counts = owner.is_some_and(|owner| owner.origin.grants_access());
            let is_firm = known.origin.grants_access() || known.origin == Origin::Ticket && !owner_counts;
            if known.id != record.id && is_firm {
                let (name, offered) = (record.name.clone(), record.id);
                return Err(TrustError::EndpointChanged { name, known: *known, offered });
            }
            if known.sequence > record.sequence {
                let (name, seen) = (record.name.clone(), known.sequence);
                return Err(TrustError::OldRecord { name, seen, offered: record.sequence });
            }
        }
        let full = |table: usize, is_new: bool| is_new && table >= MAX_KNOWN;
        if full(self.owners.len(), owner.is_none()) || full(self.endpoints.len(), endpoint.is_none()) {
            return Err(TrustError::Full);
        }
        let mut news = Vec::new();
        if owner.is_none() {
            news.push(TrustNews::NewOwner { user: user.clone(), key: authority });
        }
        let before = endpoint.copied();
        if let Some(before) = before.filter(|before| before.id != record.id) {
            let (name, id) = (record.name.clone(), record.id);
            news.push(TrustNews::NewEndpoint { name, id, before: before.id });
        }
        self.owners.entry(user).or_insert(KnownOwner {
            key: authority,
            since: now,
            origin: Origin::FirstUse,
        });
        let seen = match before.filter(|before| before.id == record.id) {
            Some(before) => KnownEndpoint { sequence: record.sequence, ..before },
            None => KnownEndpoint {
                id: record.id,
                since: now,
                origin: Origin::FirstUse,
                sequence: record.sequence,
            },
        };
        self.endpoints.insert(record.name.clone(), seen);
        Ok(news)
    }

    /// How a key stands to what is known of a name, for keys that others hand out without the owner's
    /// signature.
    ///
    /// # Errors
    /// [`TrustError`] when the name is known to belong to, or to stand for, another one.
    pub fn standing(&self, name: &Name, key: EndpointId) -> Result<Standing, TrustError> {
        let offered = key;
        let owner = self.owners.get(&name.user());
        if name.kind() == NameKind::User {
            return match owner {
                Some(known) if known.key == key => Ok(Standing::Known),
                Some(known) => Err(TrustError::OwnerChanged { user: name.clone(), known: *known, offered }),
                None => Ok(Standing::New),
            };
        }
        match (self.endpoints.get(name), owner) {
            (Some(known), _) if known.id == key => Ok(Standing::Known),
            (Some(known), _) => {
                Err(TrustError::EndpointChanged { name: name.clone(), known: *known, offered })
            }
            // The owner may speak for each of its names itself.
            (None, Some(owner)) if owner.key == key => Ok(Standing::Known),
            (None, Some(_)) => Ok(Standing::Unproved),
            (None, None) => Ok(Standing::New),
        }
    }

    /// Pins a name to a key, whatever was known before: a user name to its owner, another one to its
    /// endpoint.
    ///
    /// # Errors
    /// [`TrustError::Full`].
    pub fn pin(
        &mut self,
        name: &Name,
        key: EndpointId,
        origin: Origin,
        now: UnixTime,
    ) -> Result<(), TrustError> {
        if name.kind() == NameKind::User {
            if self.owners.len() >= MAX_KNOWN && !self.owners.contains_key(name) {
                return Err(TrustError::Full);
            }
            let before = self.owners.insert(name.clone(), KnownOwner { key, since: now, origin });
            if before.is_some_and(|before| before.key != key) {
                // Another owner gives its names to other endpoints and counts anew.
                self.endpoints.retain(|of, known| of.user() != *name || known.origin.is_pinned());
            }
            return Ok(());
        }
        if self.endpoints.len() >= MAX_KNOWN && !self.endpoints.contains_key(name) {
            return Err(TrustError::Full);
        }
        let sequence =
            self.endpoints.get(name).filter(|known| known.id == key).map_or(0, |known| known.sequence);
        self.endpoints.insert(name.clone(), KnownEndpoint { id: key, since: now, origin, sequence });
        Ok(())
    }

    /// Forgets a name; with a user name, all names of that user. Says how many names were forgotten.
    pub fn forget(&mut self, name: &Name) -> usize {
        let before = self.owners.len() + self.endpoints.len();
        if name.kind() == NameKind::User {
            self.owners.remove(name);
            self.endpoints.retain(|of, _| of.user() != *name);
        } else {
            self.endpoints.remove(name);
        }
        before - self.owners.len() - self.endpoints.len()
    }

    pub(super) fn insert_owner(&mut self, user: Name, owner: KnownOwner) -> bool {
        self.owners.insert(user, owner).is_none()
    }

    pub(super) fn insert_endpoint(&mut self, name: Name, endpoint: KnownEndpoint) -> bool {
        self.endpoints.insert(name, endpoint).is_none()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use whimbrel_base::{Delegation, Record, SecretKey};

    use super::*;

    const NOW: UnixTime = UnixTime::from_secs(1_800_000_000);

    fn name(text: &str) -> Name {
        text.parse().unwrap()
    }

    fn record(of: &str, key: &SecretKey, sequence: u64, user: Option<&SecretKey>) -> SignedRecord {
        let record = Record {
            name: name(of),
            id: key.id(),
            addrs: Vec::new(),
            sequence,
            expires: NOW.saturating_add(Duration::from_secs(600)),
            lifetime: Duration::from_secs(600),
            revoked: false,
        };
        let delegation = user.map(|user| {
            let end = NOW.saturating_add(Duration::from_secs(600));
            Delegation::sign(name(of).device().unwrap_or(name(of)), key.id(), NOW, end, user).unwrap()
        });
        SignedRecord::sign(record, key, delegation).unwrap()
    }

    #[test]
    fn the_first_owner_is_remembered_and_another_one_refused() {
        let (ada, eve) = (SecretKey::generate(), SecretKey::generate());
        let mut pins = Pins::default();
        let news = pins.learn(&record("web.ada@example.org", &ada, 1, None), NOW).unwrap();
        assert_eq!(news, [TrustNews::NewOwner { user: name("ada@example.org"), key: ada.id() }]);
        let before = pins.clone();
        for of in ["ada@example.org", "web.ada@example.org", "ssh.phone.ada@example.org"] {
            let error = pins.learn(&record(of, &eve, 9, None), NOW).unwrap_err();
            assert!(matches!(error, TrustError::OwnerChanged { .. }), "{error}");
        }
        assert_eq!(pins, before);
    }

    #[test]
    fn an_endpoint_that_the_owner_signs_is_accepted_and_told_once() {
        let (ada, old, new) = (SecretKey::generate(), SecretKey::generate(), SecretKey::generate());
        let mut pins = Pins::default();
        let of = "ssh.laptop.ada@example.org";
        pins.learn(&record(of, &old, 1, Some(&ada)), NOW).unwrap();
        let news = pins.learn(&record(of, &new, 2, Some(&ada)), NOW).unwrap();
        assert_eq!(news, [TrustNews::NewEndpoint { name: name(of), id: new.id(), before: old.id() }]);
        assert_eq!(pins.learn(&record(of, &new, 3, Some(&ada)), NOW).unwrap(), []);
    }

    #[test]
    fn an_old_record_cannot_come_back() {
        let ada = SecretKey::generate();
        let mut pins = Pins::default();
        pins.learn(&record("web.ada@example.org", &ada, 7, None), NOW).unwrap();
        pins.learn(&record("web.ada@example.org", &ada, 7, None), NOW).unwrap();
        let error = pins.learn(&record("web.ada@example.org", &ada, 6, None), NOW).unwrap_err();
        assert!(matches!(error, TrustError::OldRecord { seen: 7, offered: 6, .. }), "{error}");
        // Nor one that is newer than the first that was seen.
        pins.learn(&record("web.ada@example.org", &ada, 9, None), NOW).unwrap();
        let error = pins.learn(&record("web.ada@example.org", &ada, 8, None), NOW).unwrap_err();
        assert!(matches!(error, TrustError::OldRecord { seen: 9, offered: 8, .. }), "{error}");
    }

    #[test]
    fn a_pinned_endpoint_is_not_followed_to_another() {
        let (ada, old, new) = (SecretKey::generate(), SecretKey::generate(), SecretKey::generate());
        let mut pins = Pins::default();
        let of = name("laptop.ada@example.org");
        pins.pin(&of, old.id(), Origin::Hand, NOW).unwrap();
        pins.learn(&record(of.as_str(), &old, 1, Some(&ada)), NOW).unwrap();
        assert_eq!(pins.endpoint(&of).unwrap().origin, Origin::Hand);
        let error = pins.learn(&record(of.as_str(), &new, 2, Some(&ada)), NOW).unwrap_err();
        assert!(matches!(error, TrustError::EndpointChanged { .. }), "{error}");
    }

    #[test]
    fn accepting_an_owner_begins_anew_with_its_names() {
        let (ada, new) = (SecretKey::generate(), SecretKey::generate());
        let mut pins = Pins::default();
        pins.learn(&record("web.ada@example.org", &ada, 7, None), NOW).unwrap();
        pins.pin(&name("ada@example.org"), new.id(), Origin::Hand, NOW).unwrap();
        pins.learn(&record("web.ada@example.org", &new, 1, None), NOW).unwrap();
        assert!(pins.learn(&record("web.ada@example.org", &ada, 8, None), NOW).is_err());
    }

    #[test]
    fn a_key_is_taken_unasked_only_where_it_contradicts_nothing() {
        let (ada, eve) = (SecretKey::generate(), SecretKey::generate());
        let (user, web) = (name("ada@example.org"), name("web.ada@example.org"));
        let mut pins = Pins::default();
        assert_eq!(pins.standing(&user, eve.id()), Ok(Standing::New));
        assert_eq!(pins.standing(&web, eve.id()), Ok(Standing::New));
        // By first use, which is enough to tell a forged ticket by.
        pins.learn(&record(web.as_str(), &ada, 1, None), NOW).unwrap();
        assert_eq!(pins.standing(&user, ada.id()), Ok(Standing::Known));
        assert!(matches!(pins.standing(&user, eve.id()), Err(TrustError::OwnerChanged { .. })));
        assert_eq!(pins.standing(&web, ada.id()), Ok(Standing::Known));
        assert!(matches!(pins.standing(&web, eve.id()), Err(TrustError::EndpointChanged { .. })));
        let mail = name("mail.ada@example.org");
        assert_eq!(pins.standing(&mail, ada.id()), Ok(Standing::Known), "its owner has it");
        assert_eq!(pins.standing(&mail, eve.id()), Ok(Standing::Unproved));
        pins.pin(&web, eve.id(), Origin::Hand, NOW).unwrap();
        assert!(matches!(pins.standing(&web, ada.id()), Err(TrustError::EndpointChanged { .. })));
    }

    #[test]
    fn what_came_by_ticket_holds_against_a_service_and_yields_to_a_confirmed_owner() {
        let (ada, eve) = (SecretKey::generate(), SecretKey::generate());
        let (user, web) = (name("ada@example.org"), name("web.ada@example.org"));
        let mut pins = Pins::default();
        pins.pin(&web, eve.id(), Origin::Ticket, NOW).unwrap();
        let genuine = record(web.as_str(), &ada, 1, None);
        let error = pins.learn(&genuine, NOW).unwrap_err();
        assert!(matches!(error, TrustError::EndpointChanged { .. }), "{error}");
        pins.pin(&user, ada.id(), Origin::Code, NOW).unwrap();
        let news = pins.learn(&genuine, NOW).unwrap();
        assert_eq!(news, [TrustNews::NewEndpoint { name: web.clone(), id: ada.id(), before: eve.id() }]);
        assert_eq!(pins.endpoint(&web).unwrap().id, ada.id());
    }

    #[test]
    fn only_what_was_confirmed_grants_access() {
        let granting: Vec<_> = Origin::ALL.iter().filter(|(origin, _)| origin.grants_access()).collect();
        assert_eq!(granting, [&(Origin::Hand, "hand"), &(Origin::Code, "code"), &(Origin::Own, "own")]);
        assert!(Origin::Ticket.is_pinned() && !Origin::FirstUse.is_pinned());
        assert!(Origin::Ticket.adds_nothing_to(Origin::Ticket) && Origin::Hand.adds_nothing_to(Origin::Code));
        assert!(!Origin::Hand.adds_nothing_to(Origin::Ticket));
    }

    #[test]
    fn a_pin_keeps_what_was_seen_of_its_key_and_outlives_a_change_of_the_owner() {
        let (ada, bob, new) = (SecretKey::generate(), SecretKey::generate(), SecretKey::generate());
        let (web, mail) = (name("web.ada@example.org"), name("mail.ada@example.org"));
        let mut pins = Pins::default();
        pins.learn(&record(web.as_str(), &ada, 7, None), NOW).unwrap();
        pins.learn(&record(mail.as_str(), &ada, 1, None), NOW).unwrap();
        pins.learn(&record("web.bob@example.org", &bob, 1, None), NOW).unwrap();
        pins.pin(&web, ada.id(), Origin::Hand, NOW).unwrap();
        assert_eq!(pins.endpoint(&web).unwrap().sequence, 7);
        pins.pin(&name("ada@example.org"), new.id(), Origin::Hand, NOW).unwrap();
        assert!(pins.endpoint(&web).is_some() && pins.endpoint(&mail).is_none());
        assert!(pins.endpoint(&name("web.bob@example.org")).is_some());
        pins.pin(&web, bob.id(), Origin::Hand, NOW).unwrap();
        assert_eq!(pins.endpoint(&web).unwrap().sequence, 0, "another key counts anew");
    }

    #[test]
    fn forgetting_a_user_forgets_its_names() {
        let (ada, bob) = (SecretKey::generate(), SecretKey::generate());
        let mut pins = Pins::default();
        pins.learn(&record("web.ada@example.org", &ada, 1, None), NOW).unwrap();
        pins.learn(&record("web.bob@example.org", &bob, 1, None), NOW).unwrap();
        assert_eq!(pins.forget(&name("ada@example.org")), 2);
        assert_eq!(pins.forget(&name("ada@example.org")), 0);
        assert!(pins.endpoint(&name("web.ada@example.org")).is_none());
        assert!(pins.owner(&name("bob@example.org")).is_some());
    }
}
