//! Policies by name, their settings, and policies that a program adds.
#![allow(clippy::unwrap_used)]

use crate::support::{TWO, best, case, open};
use whimbrel_access::*;

fn error(text: &str) -> String {
    PolicySpec::from_toml(text).unwrap_err().to_string()
}

#[test]
fn policies_are_made_by_name_and_errors_say_what_there_is() {
    for name in NAMES {
        assert_eq!(PolicySpec::named(name).build().unwrap().name(), *name);
    }
    let registry = Registry::default();
    assert!(registry.modules().map(|module| module.name()).eq(NAMES.iter().copied()));
    assert!(registry.modules().all(|module| !module.about().is_empty()));
    assert!(error("name = \"best\"").starts_with("there is no policy `best`; there are: single round-robin"));
    assert!(error("path = 1").starts_with("policy settings: missing field `name`"));
}

#[test]
fn settings_that_make_no_sense_are_refused_by_the_policy_whose_they_are() {
    let refused = |name: &str, settings: &str, says: &str| {
        let told = error(&format!("name = \"{name}\"\n{settings}"));
        assert!(told.starts_with(&format!("policy {name}: ")) && told.contains(says), "{told}");
    };
    assert_eq!(
        error("name = \"single\"\npath = 0"),
        "policy single: path 0 is out of range; paths count from 1 to 8"
    );
    refused("round-robin", "path = 9", "path 9 is out of range");
    refused("single", "path = -1", "path -1 is out of range");
    refused("single", "path = \"two\"", "invalid type");
    refused("eaf", "path = 1", "path");
    refused("single", "margin = 0.1", "margin");
    refused("mptcp", "path = 1\nrandom = true", "leave one out");
    refused("threshold", "bytes = 0", "bytes = 0");
    refused("threshold", "bytes = -1", "-1");
    refused("energy", "patience = -1.0", "patience");
    refused("energy", "energy = [1.0, nan]", "energy");
    refused("energy", "energy = [1, 1, 1, 1, 1, 1, 1, 1, 1]", "at most 8");
    refused("whimbrel", "margin = 1.0", "margin = 1");
    refused("whimbrel", "margin = nan", "margin = NaN");
    refused("whimbrel", "bytes = 1", "bytes = 1");
    refused("whimbrel", "warm = 1", "invalid type");
    for sensible in [
        "name = \"single\"\npath = 8",
        "name = \"mptcp\"\nrandom = true",
        "name = \"energy\"\nenergy = [1, 5.5]\npatience = 0",
        "name = \"whimbrel\"\nmargin = 0\nbytes = 2\nwarm = false",
    ] {
        let spec = PolicySpec::from_toml(sensible).unwrap();
        assert_eq!(PolicySpec::from_toml(&toml::to_string(&spec).unwrap()).unwrap(), spec);
    }
}

#[test]
fn settings_reach_the_policy() {
    let large = case("size-received=1000000", &[(0.01, 1e6), (0.01, 1e6)]);
    let parts = |spec: PolicySpec| large.decide(spec.build().unwrap().as_mut()).parts().len();
    assert_eq!(parts(PolicySpec::named("whimbrel")), 2);
    assert_eq!(parts(PolicySpec::named("whimbrel").with("bytes", 1_000_001)), 0);
    let second = PolicySpec::named("single").on(2);
    assert_eq!((second.name(), second.path()), ("single", Some(2)));
    assert_eq!(best(&large.decide(second.build().unwrap().as_mut())), open(1));
}

/// Where it stays: on the path of its settings.
struct Stay(PathId);

impl Policy for Stay {
    fn name(&self) -> &str {
        "stay"
    }

    fn decide(&mut self, situation: &Situation<'_>, _: &mut dyn Forecast, decision: &mut Decision) {
        for choice in situation.openings(PathList::one(self.0)) {
            decision.append(choice, None, Reason::rule(Rule::Configured));
        }
    }
}

struct StayModule(&'static str);

impl Module for StayModule {
    fn name(&self) -> &str {
        self.0
    }

    fn about(&self) -> &str {
        "one path, whatever it costs"
    }

    fn make(&self, table: &toml::Table) -> Result<Box<dyn Policy>, PolicyError> {
        #[derive(serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Settings {
            at: u8,
        }
        let Settings { at } = settings(self.0, table)?;
        Ok(Box::new(Stay(PathId(at))))
    }
}

#[test]
fn a_program_adds_policies_of_its_own_under_names_of_their_own() {
    let mut registry = Registry::default();
    registry.add(Box::new(StayModule("stay"))).unwrap();
    assert_eq!(registry.modules().last().unwrap().name(), "stay");
    let mut stay = registry.build(&PolicySpec::named("stay").with("at", 1)).unwrap();
    assert_eq!(best(&case("size-received=1", &TWO).decide(stay.as_mut())), open(1));
    let refused = |spec: &PolicySpec| registry.build(spec).err().unwrap().to_string();
    assert_eq!(refused(&PolicySpec::named("stay")), "policy stay: missing field `at`");
    assert!(refused(&PolicySpec::named("stay").with("at", 1).with("speed", 1)).contains("speed"));
    assert!(refused(&PolicySpec::named("go")).ends_with("energy whimbrel stay"));
    for taken in ["stay", "eaf"] {
        let error = registry.add(Box::new(StayModule(taken))).unwrap_err();
        assert_eq!(error, PolicyError::Twice(taken.to_owned()));
    }
}
