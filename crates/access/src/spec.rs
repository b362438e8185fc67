//! A policy by name with its settings, as TOML has it.

use serde::{Deserialize, Serialize};

/// A policy by name with its settings: `name = "single"`, `path = 2`.
///
/// Which settings there are, and which of their values make sense, is the policy's own affair: it is checked
/// when the policy is made.
///
/// ```
/// use whimbrel_access::PolicySpec;
///
/// let spec = PolicySpec::from_toml("name = \"whimbrel\"\nmargin = 0.1")?;
/// assert_eq!(spec, PolicySpec::named("whimbrel").with("margin", 0.1));
/// let error = PolicySpec::named("whimbrel").with("margin", 2.0).build().err();
/// assert!(error.is_some_and(|error| error.to_string().contains("margin")));
/// # Ok::<(), whimbrel_access::PolicyError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PolicySpec {
    name: String,
    #[serde(flatten)]
    settings: toml::Table,
}

impl PolicySpec {
    /// A policy with default settings.
    pub fn named(name: &str) -> Self {
        Self { name: name.to_owned(), settings: toml::Table::new() }
    }

    /// The same on or from this path, counted from 1.
    pub fn on(self, path: u8) -> Self {
        self.with("path", i64::from(path))
    }

    /// The same with this setting.
    pub fn with(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        self.settings.insert(key.to_owned(), value.into());
        self
    }

    /// The policy's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The settings, as they were given.
    pub fn settings(&self) -> &toml::Table {
        &self.settings
    }

    /// The path that it is on or starts from, counted from 1, if that is set and can be.
    pub fn path(&self) -> Option<u8> {
        self.settings.get("path")?.as_integer().and_then(|path| u8::try_from(path).ok())
    }
}
