//! The groups whose records were signed with a key on this machine: a file beside the key. Commands that go
//! on running sign them anew before they end.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use whimbrel::{Endpoint, GroupError, GroupOptions};
use whimbrel_base::{Delegation, MAX_LIFETIME, Name, UnixTime};
use whimbrel_names::{ErrorCode, Readers};

use crate::failure::Failure;
use crate::ledger::Ledger;
use crate::readers;
use crate::who::Who;
use whimbrel_base::order;

/// The most groups that are remembered.
const MAX_GROUPS: usize = 256;

/// A group, and what its record is to say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct OwnGroup {
    pub(crate) name: Name,
    /// Who may look it up, as it was said; nobody stands for its members.
    readers: Vec<String>,
    /// When its record was signed last: unix seconds.
    signed: u64,
}

impl OwnGroup {
    /// When half of the record's time is over. A clock that was set back makes that at once.
    pub(crate) fn is_due_in(&self, now: UnixTime) -> Duration {
        let signed = UnixTime::from_secs(self.signed);
        if signed > now.saturating_add(MAX_LIFETIME) {
            return Duration::ZERO;
        }
        signed.saturating_add(MAX_LIFETIME / 2).since(now)
    }
}

/// What was done about a group.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// It has a new record.
    Renewed,
    /// The name service has no such group any more: it was revoked, or ran out, or the name is an endpoint's.
    Gone(String),
}

/// The groups of one key.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    ledger: Ledger<OwnGroup>,
}

impl Groups {
    /// Those beside the key file.
    pub(crate) fn beside(identity: &Path) -> Self {
        let advice = "change each group once (`whimbrel names group renew`): until then none is renewed";
        Self { ledger: Ledger::beside(identity, "groups", advice) }
    }

    pub(crate) fn all(&self) -> Result<Vec<OwnGroup>> {
        self.ledger.all()
    }

    /// Notes that a group's record was signed, and who may read it.
    pub(crate) fn signed(&self, name: &Name, readers: &[Who], now: UnixTime) -> Result<()> {
        let readers = readers.iter().map(ToString::to_string).collect();
        let group = OwnGroup { name: name.clone(), readers, signed: now.as_secs() };
        self.ledger.change(|groups| {
            groups.retain(|known| known.name != *name);
            if groups.len() >= MAX_GROUPS {
                bail!(
                    "{} has {MAX_GROUPS} groups, and no more are renewed; take out some",
                    self.ledger.file().display()
                );
            }
            groups.push(group);
            order::by(groups, |one, other| one.name.as_str().cmp(other.name.as_str()));
            Ok(())
        })
    }

    /// Renews a group, with the readers that it had. One that is gone is forgotten.
    ///
    /// # Errors
    /// When the name service cannot be asked or refuses, or the file cannot be used.
    pub(crate) async fn renew(
        &self,
        endpoint: &Endpoint,
        group: &OwnGroup,
        delegation: Option<Delegation>,
        now: UnixTime,
    ) -> Result<Renewal> {
        // An update would make a group that is not there.
        if let Err(error) = endpoint.group_members(&group.name).await {
            return match is_gone(&error) {
                true => self.forget(group).map(|()| Renewal::Gone(error.to_string())),
                false => Err(crate::failure::of_group(error)),
            };
        }
        let readers: Vec<Who> = group
            .readers
            .iter()
            .map(|text| text.parse())
            .collect::<Result<_, _>>()
            .map_err(Failure::usage)?;
        let mut options = GroupOptions::default();
        options.delegation = delegation;
        options.readers = read_by(&readers, &group.name)?;
        endpoint.update_group(&group.name, options, |_| {}).await.map_err(crate::failure::of_group)?;
        self.signed(&group.name, &readers, now)?;
        Ok(Renewal::Renewed)
    }

    fn forget(&self, group: &OwnGroup) -> Result<()> {
        self.ledger.change(|groups| {
            groups.retain(|known| known != group);
            Ok(())
        })
    }
}

fn is_gone(error: &GroupError) -> bool {
    match error {
        GroupError::NotAGroup(_) => true,
        GroupError::Names(error) => {
            matches!(error.code(), Some(ErrorCode::NotFound | ErrorCode::Expired | ErrorCode::Revoked))
        }
        _ => false,
    }
}

/// Who may look a group up; `None` for its members.
pub(crate) fn read_by(readers: &[Who], name: &Name) -> Result<Option<Readers>> {
    if readers.is_empty() {
        return Ok(None);
    }
    let of = readers::of(readers.iter().cloned(), name);
    of.map(Some).map_err(|error| Failure::usage(error.to_string()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_group_is_due_when_half_of_its_records_time_is_over() {
        let folder = tempfile::tempdir().unwrap();
        let groups = Groups::beside(&folder.path().join("identity"));
        let (name, start) = ("team.ada@example.org".parse().unwrap(), UnixTime::from_secs(1_700_000_000));
        groups.signed(&name, &["any".parse().unwrap()], start).unwrap();
        let group = groups.all().unwrap().remove(0);
        let after = |time| group.is_due_in(start.saturating_add(time));
        assert_eq!(after(Duration::ZERO), MAX_LIFETIME / 2);
        assert_eq!(after(MAX_LIFETIME / 2), Duration::ZERO);
        assert_eq!(after(MAX_LIFETIME * 2), Duration::ZERO);
        // Signed again, it is there once, with the readers that it has now.
        groups.signed(&name, &[], start.saturating_add(MAX_LIFETIME)).unwrap();
        let again = groups.all().unwrap();
        assert_eq!((again.len(), again[0].readers.len()), (1, 0));
        assert_eq!(again[0].is_due_in(start), MAX_LIFETIME * 3 / 2);
        groups.forget(&again[0]).unwrap();
        assert_eq!(groups.all().unwrap(), []);
    }

    #[test]
    fn the_number_of_groups_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let groups = Groups::beside(&folder.path().join("identity"));
        let signed = |number| {
            let name = format!("g{number}.ada@example.org").parse().unwrap();
            groups.signed(&name, &[], UnixTime::from_secs(1))
        };
        (0..MAX_GROUPS).for_each(|number| signed(number).unwrap());
        assert!(signed(MAX_GROUPS).is_err());
        signed(7).unwrap();
        assert_eq!(groups.all().unwrap().len(), MAX_GROUPS);
    }
}
