//! Who may register user names at a service.
//!
//! Owners keep what they have, and register their devices and services; anybody may look names up. What is
//! decided here is who may register a user name that is new.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use whimbrel_base::{EndpointId, Name, UnixTime};

/// The most times that an invitation can be used.
pub const MAX_INVITATION_USES: u16 = 100;

/// The longest time that an invitation counts.
pub const MAX_INVITATION_TIME: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Who may register user names that are new. Whoever redeemed an [invitation](Terms) may as well.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    any: bool,
    keys: HashSet<EndpointId>,
    domains: HashSet<Domain>,
    operators: HashSet<EndpointId>,
}

impl Admission {
    /// Nobody, except with an invitation.
    pub fn invited() -> Self {
        Self::default()
    }

    /// Everybody: for tests, and for services that only friends can reach.
    pub fn any() -> Self {
        Self::default().allow(Rule::Any)
    }

    /// Also those that `rule` names.
    #[must_use]
    pub fn allow(mut self, rule: Rule) -> Self {
        match rule {
            Rule::Any => self.any = true,
            Rule::Key(key) => drop(self.keys.insert(key)),
            Rule::Domain(domain) => drop(self.domains.insert(domain)),
        }
        self
    }

    /// Lets a key make invitations by asking the service.
    #[must_use]
    pub fn operator(mut self, key: EndpointId) -> Self {
        self.operators.insert(key);
        self
    }

    /// Whether only those with an invitation may register.
    pub fn is_invited_only(&self) -> bool {
        !self.any && self.keys.is_empty() && self.domains.is_empty()
    }

    pub(crate) fn admits(&self, key: &EndpointId, user: &Name) -> bool {
        self.any || self.keys.contains(key) || self.domains.iter().any(|domain| domain.covers(user))
    }

    pub(crate) fn is_operator(&self, key: &EndpointId) -> bool {
        self.operators.contains(key)
    }
}

/// One entry of a list of those who may register: `any`, `@example.org`, or an endpoint id.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Rule {
    /// Everybody.
    Any,
    /// The holder of this key, any user name.
    Key(EndpointId),
    /// Everybody, user names of this domain.
    Domain(Domain),
}

impl FromStr for Rule {
    type Err = AdmissionError;

    fn from_str(text: &str) -> Result<Self, AdmissionError> {
        if text == "any" {
            return Ok(Self::Any);
        }
        if text.starts_with('@') {
            return text.parse().map(Self::Domain);
        }
        text.parse().map(Self::Key).map_err(|_| AdmissionError::Rule(text.to_owned()))
    }
}

/// The part of a name behind the `@`, in lower case. Names of its subdomains are not meant.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Domain(String);

impl Domain {
    /// Whether the name is of this domain.
    pub fn covers(&self, name: &Name) -> bool {
        name.domain() == self.0
    }

    /// As text, without `@`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Domain {
    type Err = AdmissionError;

    /// With or without `@` in front.
    fn from_str(text: &str) -> Result<Self, AdmissionError> {
        let domain = text.strip_prefix('@').unwrap_or(text);
        let name: Name =
            format!("x@{domain}").parse().map_err(|_| AdmissionError::Domain(text.to_owned()))?;
        Ok(Self(name.domain().to_owned()))
    }
}

impl TryFrom<String> for Domain {
    type Error = AdmissionError;

    fn try_from(text: String) -> Result<Self, AdmissionError> {
        text.parse()
    }
}

impl From<Domain> for String {
    fn from(domain: Domain) -> Self {
        domain.0
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Why a text does not say who may register.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AdmissionError {
    /// It is none of the three.
    #[error("{0:?} is neither `any` nor a domain as in @example.org nor an endpoint id")]
    Rule(String),
    /// It is no domain.
    #[error("{0:?} is not a domain as names have it; write it as in @example.org")]
    Domain(String),
}

/// What an invitation lets those do who redeem it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The domain of the names that they may register; every one if `None`.
    pub domain: Option<Domain>,
    /// How many keys may redeem it: 1 to [`MAX_INVITATION_USES`].
    pub uses: u16,
    /// For how long it counts: at most [`MAX_INVITATION_TIME`].
    pub valid: Duration,
}

/// What is kept of a code: its hash, so that who reads the store learns no codes.
pub type CodeHash = [u8; 32];

/// An invitation as a store keeps it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Invitation {
    /// As in [`Terms`].
    pub domain: Option<Domain>,
    /// Keys that may still redeem it.
    pub uses: u16,
    /// From then on nobody may.
    pub expires: UnixTime,
    /// The keys that did.
    pub used_by: Vec<EndpointId>,
}

impl Invitation {
    /// Takes one of the uses for a key. A key that has one already needs no further: its first answer may
    /// have been lost. False when none is left, or it has expired.
    pub fn redeem(&mut self, key: EndpointId, now: UnixTime) -> bool {
        if self.expires <= now {
            return false;
        }
        if self.used_by.contains(&key) {
            return true;
        }
        let Some(left) = self.uses.checked_sub(1) else {
            return false;
        };
        self.uses = left;
        self.used_by.push(key);
        true
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use whimbrel_base::SecretKey;

    use super::*;

    fn key(seed: u8) -> EndpointId {
        SecretKey::from_bytes(&[seed; 32]).id()
    }

    #[test]
    fn rules_are_read_and_mean_what_they_say() {
        let user: Name = "ada@example.org".parse().unwrap();
        let admits = |rule: &str, who| Admission::invited().allow(rule.parse().unwrap()).admits(&who, &user);
        assert!(!Admission::invited().admits(&key(1), &user));
        assert!(admits("any", key(1)));
        assert!(admits(&key(1).to_string(), key(1)));
        assert!(!admits(&key(1).to_string(), key(2)));
        assert!(admits("@Example.ORG", key(2)));
        for other in ["@example.com", "@mail.example.org", "@org", "@notexample.org"] {
            assert!(!admits(other, key(2)), "{other}");
        }
        for wrong in ["", "everybody", "ANY", "@", "@exa mple", "ada@example.org", "@a@b"] {
            assert!(wrong.parse::<Rule>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_invitation_is_used_once_by_each_key_and_ends() {
        let at = UnixTime::from_secs;
        let mut invitation = Invitation { domain: None, uses: 2, expires: at(10), used_by: vec![] };
        assert!(!invitation.redeem(key(1), at(10)));
        assert!(invitation.redeem(key(1), at(1)));
        assert!(invitation.redeem(key(1), at(2)), "the same key again");
        assert!(invitation.redeem(key(2), at(3)));
        assert!(!invitation.redeem(key(3), at(4)), "used up");
    }
}
