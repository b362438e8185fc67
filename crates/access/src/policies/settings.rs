//! Settings of policies: types of their own, which refuse what makes no sense.

use crate::{MAX_PATHS, PathId, Policy, PolicyError};
use serde::{Deserialize, de::DeserializeOwned};

/// The settings of one policy.
pub(super) trait Settings: DeserializeOwned {
    /// Makes the policy, or says which setting makes no sense, and what would.
    fn make(self) -> Result<Box<dyn Policy>, String>;
}

/// Makes a policy that has settings.
pub(super) fn with<S: Settings>(name: &str, table: &toml::Table) -> Result<Box<dyn Policy>, PolicyError> {
    let refused = |what| PolicyError::Settings { name: name.to_owned(), what };
    crate::settings::<S>(name, table)?.make().map_err(refused)
}

/// Makes a policy that has none.
pub(super) fn plain<P: Policy + Default + 'static>(
    name: &str,
    table: &toml::Table,
) -> Result<Box<dyn Policy>, PolicyError> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Nothing {}
    let Nothing {} = crate::settings(name, table)?;
    Ok(Box::new(P::default()))
}

/// A path in settings: counted from 1, and one that can exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub(super) struct PathNumber(pub(super) PathId);

impl Default for PathNumber {
    fn default() -> Self {
        Self(PathId(0))
    }
}

impl TryFrom<i64> for PathNumber {
    type Error = String;

    fn try_from(number: i64) -> Result<Self, String> {
        match u8::try_from(number) {
            Ok(path) if (1..=MAX_PATHS as u8).contains(&path) => Ok(Self(PathId(path - 1))),
            _ => Err(format!("path {number} is out of range; paths count from 1 to {MAX_PATHS}")),
        }
    }
}

/// Refuses with `what` unless it holds.
pub(super) fn sensible(holds: bool, what: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what()) }
}
