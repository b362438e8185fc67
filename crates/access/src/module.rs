//! What makes policies of a name, and why one can't be made.

use crate::Policy;
use serde::de::DeserializeOwned;

/// Makes policies of one name: what a plug-in adds to a [`Registry`](crate::Registry).
///
/// ```
/// use whimbrel_access::*;
///
/// /// Always the last path.
/// struct Last;
///
/// impl Policy for Last {
///     fn name(&self) -> &str {
///         "last"
///     }
///
///     fn decide(&mut self, situation: &Situation<'_>, _: &mut dyn Forecast, decision: &mut Decision) {
///         if let Some(path) = situation.usable().last() {
///             let choices = situation.openings(PathList::one(path));
///             choices.for_each(|choice| decision.append(choice, None, Reason::rule(Rule::Configured)));
///         }
///     }
/// }
///
/// struct LastModule;
///
/// impl Module for LastModule {
///     fn name(&self) -> &str {
///         "last"
///     }
///
///     fn about(&self) -> &str {
///         "the last path"
///     }
///
///     fn make(&self, table: &toml::Table) -> Result<Box<dyn Policy>, PolicyError> {
///         #[derive(serde::Deserialize)]
///         #[serde(deny_unknown_fields)]
///         struct Settings {}
///         settings::<Settings>(self.name(), table)?;
///         Ok(Box::new(Last))
///     }
/// }
///
/// let mut registry = Registry::default();
/// registry.add(Box::new(LastModule))?;
/// assert_eq!(registry.build(&PolicySpec::named("last"))?.name(), "last");
/// assert!(registry.build(&PolicySpec::named("last").with("speed", 1)).is_err());
/// # Ok::<(), PolicyError>(())
/// ```
pub trait Module: Send + Sync {
    /// The name of its policies, in settings.
    fn name(&self) -> &str;

    /// What they do, in a few words.
    fn about(&self) -> &str;

    /// Makes a policy from its settings, which are everything that stands beside its name.
    ///
    /// # Errors
    /// [`PolicyError::Settings`] if there is no such setting, or a value makes no sense.
    fn make(&self, table: &toml::Table) -> Result<Box<dyn Policy>, PolicyError>;
}

/// Why a policy can't be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No such name.
    #[error("there is no policy `{name}`; there are: {known}")]
    Name {
        /// The name.
        name: String,
        /// Those that there are.
        known: String,
    },
    /// A setting is unknown, or its value makes no sense.
    #[error("policy {name}: {what}")]
    Settings {
        /// The policy.
        name: String,
        /// What is wrong, and what would be right.
        what: String,
    },
    /// A module of this name is there already.
    #[error("there are two policies `{0}`: give one of them another name")]
    Twice(String),
    /// Not understood at all.
    #[error("policy settings: {0}")]
    Toml(String),
}

/// The settings of a policy out of their table.
///
/// # Errors
/// [`PolicyError::Settings`] if the table does not fit the type.
pub fn settings<S: DeserializeOwned>(name: &str, table: &toml::Table) -> Result<S, PolicyError> {
    table.clone().try_into().map_err(|error: toml::de::Error| PolicyError::Settings {
        name: name.to_owned(),
        what: error.message().to_owned(),
    })
}
