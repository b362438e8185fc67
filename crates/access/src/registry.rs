//! Policies by name: ours, and those that a program adds.

use crate::{Module, Policy, PolicyError, PolicySpec, policies};

/// Policies by name. By default it has ours.
pub struct Registry {
    modules: Vec<Box<dyn Module>>,
}

impl Default for Registry {
    fn default() -> Self {
        let modules = policies::OURS.into_iter().map(|module| Box::new(module) as Box<dyn Module>);
        Self { modules: modules.collect() }
    }
}

impl Registry {
    /// Adds policies of another name.
    ///
    /// # Errors
    /// [`PolicyError::Twice`] if there are some of that name.
    pub fn add(&mut self, module: Box<dyn Module>) -> Result<(), PolicyError> {
        if self.modules().any(|other| other.name() == module.name()) {
            return Err(PolicyError::Twice(module.name().to_owned()));
        }
        self.modules.push(module);
        Ok(())
    }

    /// All modules: ours, then those that were added, in their order.
    pub fn modules(&self) -> impl Iterator<Item = &dyn Module> {
        self.modules.iter().map(AsRef::as_ref)
    }

    /// Makes a policy.
    ///
    /// # Errors
    /// [`PolicyError::Name`] if there is none of that name, [`PolicyError::Settings`] if its settings make no
    /// sense.
    pub fn build(&self, spec: &PolicySpec) -> Result<Box<dyn Policy>, PolicyError> {
        match self.modules().find(|module| module.name() == spec.name()) {
            Some(module) => module.make(spec.settings()),
            None => {
                let known: Vec<&str> = self.modules().map(|module| module.name()).collect();
                Err(PolicyError::Name { name: spec.name().to_owned(), known: known.join(" ") })
            }
        }
    }
}

/// Settings of our policies.
impl PolicySpec {
    /// Reads a policy of ours.
    ///
    /// # Errors
    /// [`PolicyError`] if the text is not the settings of a policy that exists, or they make no sense.
    pub fn from_toml(text: &str) -> Result<Self, PolicyError> {
        let spec: Self =
            toml::from_str(text).map_err(|error| PolicyError::Toml(error.message().to_owned()))?;
        spec.build()?;
        Ok(spec)
    }

    /// Makes the policy, which is one of ours.
    ///
    /// # Errors
    /// As [`Registry::build`].
    pub fn build(&self) -> Result<Box<dyn Policy>, PolicyError> {
        Registry::default().build(self)
    }
}

/// The names of our policies.
pub const NAMES: &[&str] = &{
    let mut names = [""; policies::OURS.len()];
    let mut n = 0;
    while n < names.len() {
        names[n] = policies::OURS[n].name;
        n += 1;
    }
    names
};
