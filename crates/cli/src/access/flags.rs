//! What a command is told of who may connect.

use std::path::PathBuf;
use std::str::FromStr;

use anyhow::Result;
use clap::Args;
use whimbrel_base::Name;
use whimbrel_devices::Label;
use whimbrel_names::Pin;

use crate::failure::Failure;
use crate::who::Who;

const NOBODY: &str = "nobody would be let in; say who may connect with --allow ID, --allow NAME=ID, --allow any, or --ticket --secret";

/// Who may connect.
#[derive(Args, Clone, Debug)]
pub(crate) struct AllowFlags {
    /// Who may connect: an id, NAME=ID, a pinned NAME, `any`; repeatable
    #[arg(long, value_name = "ID|NAME=ID|any")]
    pub(super) allow: Vec<Entry>,
    /// A file of these; who is removed is cut off
    #[arg(long, value_name = "FILE")]
    pub(super) allow_from: Option<PathBuf>,
    /// Let in who has the ticket: it has a secret
    #[arg(long)]
    pub(super) secret: bool,
    /// Who may look NAME up: ids, users, `any` [default: who is let in]
    #[arg(long, value_name = "WHO,…", value_delimiter = ',')]
    pub(super) readers: Vec<Who>,
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
pub(super) enum Entry {
    Who(Who),
    /// A name, and the key that it stands for.
    Pinned(Pin),
    /// What the user calls a device or a friend.
    Called(Label),
}

/// What people write who mean `any`, or nobody. Too dangerous to be somebody's personal name.
const NO_LABELS: [&str; 9] =
    ["all", "any", "anybody", "anyone", "everybody", "everyone", "nobody", "none", "public"];

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
        let called = || text.parse::<Label>().ok().filter(|label| !NO_LABELS.contains(&label.as_str()));
        match text.parse() {
            Ok(who) => Ok(Self::Who(who)),
            Err(error) => called().map(Self::Called).ok_or(error),
        }
    }
}

/// Reads whatever somebody writes as an entry. For fuzzers.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_anything(text: &str) {
    let _ = text.parse::<Entry>();
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
        assert!(matches!("Desk".parse(), Ok(Entry::Called(label)) if label.as_str() == "desk"));
        for wrong in ["", "everybody", "all", "ANY", "a@", "any ", "ada@example.org=", "=x"] {
            assert!(wrong.parse::<Entry>().is_err(), "{wrong}");
        }
    }
}
