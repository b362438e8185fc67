//! `--readers`: who may look up what a command publishes.

use std::str::FromStr;

use anyhow::Result;
use whimbrel_base::{EndpointId, Name};
use whimbrel_names::{Reader, Readers};

use crate::failure::Failure;
use crate::network::Network;

/// One entry of `--readers`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Any,
    One(Reader),
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::Any);
        }
        if text.contains('@') {
            let name: Name = text.parse().map_err(|error: whimbrel_base::NameError| error.to_string())?;
            return Ok(Self::One(Reader::User(name.user())));
        }
        let id: EndpointId = text.parse().map_err(|error: whimbrel_base::key::EndpointIdError| {
            format!("neither `any` nor a name (which has an '@') nor an endpoint id: {error}")
        })?;
        Ok(Self::One(Reader::Key(id)))
    }
}

/// Who may look `name` up by these entries: everybody if there are none; otherwise they, and the devices of the
/// name's own user.
fn readers(entries: &[Entry], name: &Name) -> Readers {
    let mut readers = vec![Reader::User(name.user())];
    for entry in entries {
        match entry {
            Entry::Any => return Readers::Public,
            Entry::One(reader) if readers.contains(reader) => {}
            Entry::One(reader) => readers.push(reader.clone()),
        }
    }
    if entries.is_empty() { Readers::Public } else { Readers::Only(readers) }
}

/// Fails if the entries have no name to hold for, or no record could have so many readers.
pub(crate) fn check(entries: &[Entry], name: Option<&Name>) -> Result<()> {
    let Some(name) = name else {
        if entries.is_empty() {
            return Ok(());
        }
        return Err(Failure::usage("--readers is about the NAME to be reached under, and none is given"));
    };
    match readers(entries, name) {
        Readers::Only(readers) if readers.len() > whimbrel_names::readers::MAX_READERS => {
            Err(Failure::usage(format!(
                "--readers has {} readers with the name's own user, and {} are the limit; name users instead of \
                 their keys, or `any`",
                readers.len(),
                whimbrel_names::readers::MAX_READERS
            )))
        }
        _ => Ok(()),
    }
}

/// Sets who may look `name` up, before it is published.
pub(crate) fn set(entries: &[Entry], name: &Name, network: &Network) -> Result<()> {
    if network.has_names() {
        network.resolver()?.set_readers(name.clone(), readers(entries, name))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn named_readers_are_beside_the_names_own_user_and_any_is_everybody() {
        let name: Name = "web.ada@example.org".parse().unwrap();
        let user = |text: &str| Reader::User(text.parse().unwrap());
        let bob: Entry = "phone.bob@example.org".parse().unwrap();
        let only = Readers::Only(vec![user("ada@example.org"), user("bob@example.org")]);
        assert_eq!(readers(&[bob.clone(), bob.clone()], &name), only);
        assert_eq!(readers(&[bob.clone(), Entry::Any], &name), Readers::Public);
        assert_eq!(readers(&[], &name), Readers::Public);
        assert!(check(&[bob], None).is_err());
        assert!("bob".parse::<Entry>().is_err());
    }
}
