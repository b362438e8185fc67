//! Who is let in: the entries of `--allow`.

use std::collections::HashSet;
use std::str::FromStr;
use std::sync::{Arc, PoisonError, RwLock};

use anyhow::Result;
use whimbrel_base::{EndpointId, Name};
use whimbrel_transport::{Allow, Resolver as _};

use crate::failure::Failure;
use crate::network::Network;
use crate::output;

pub(crate) const NOBODY: &str =
    "nobody would be let in; say who may connect with --allow ID, --allow NAME or --allow any";

/// One entry of `--allow`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Entry {
    Any,
    Id(EndpointId),
    Name(Name),
}

impl FromStr for Entry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "any" {
            return Ok(Self::Any);
        }
        if text.contains('@') {
            return text.parse().map(Self::Name).map_err(|error: whimbrel_base::NameError| error.to_string());
        }
        text.parse().map(Self::Id).map_err(|error: whimbrel_base::key::EndpointIdError| {
            format!("neither `any` nor a name (which has an '@') nor an endpoint id: {error}")
        })
    }
}

/// The keys that names stand for just now, one place a name.
type Named = Arc<RwLock<Vec<Option<EndpointId>>>>;

/// Turns the entries into a check that follows names as they change hands. Whoever is connected
/// already stays.
pub(crate) async fn allow(entries: &[Entry], network: &Network, quiet: bool) -> Result<Allow> {
    if entries.is_empty() {
        return Err(Failure::usage(NOBODY));
    }
    if entries.contains(&Entry::Any) {
        return Ok(Allow::Any);
    }
    let ids: HashSet<EndpointId> =
        entries.iter().filter_map(|entry| if let Entry::Id(id) = entry { Some(*id) } else { None }).collect();
    let names =
        entries.iter().filter_map(|entry| if let Entry::Name(name) = entry { Some(name) } else { None });
    let named: Named = Arc::default();
    for name in names {
        follow(name, network, &named, quiet).await?;
    }
    Ok(Allow::Check(Arc::new(move |peer| {
        let named = named.read().unwrap_or_else(PoisonError::into_inner);
        ids.contains(&peer) || named.contains(&Some(peer))
    })))
}

/// Looks a name up once, so that mistakes are told at the start, and then watches it.
async fn follow(name: &Name, network: &Network, named: &Named, quiet: bool) -> Result<()> {
    let resolver = network.resolver().map_err(|error| error.context(format!("cannot allow {name}")))?;
    let first = resolver.lookup_record(name).await;
    if let Err(error) = &first {
        output::note(quiet, format!("{name} in --allow lets nobody in yet: {error}"));
    }
    let place = {
        let mut named = named.write().unwrap_or_else(PoisonError::into_inner);
        named.push(first.ok().map(|record| record.record().id));
        named.len() - 1
    };
    let mut records = resolver.watch(name);
    let (named, name) = (named.clone(), name.clone());
    tokio::spawn(async move {
        while records.changed().await.is_ok() {
            let id = records.borrow_and_update().as_ref().map(|record| {
                let record = record.record();
                (!record.revoked).then_some(record.id)
            });
            // Nothing is known before the first answer.
            let Some(id) = id else { continue };
            tracing::info!(%name, ?id, "a name in --allow changed");
            if let Some(known) = named.write().unwrap_or_else(PoisonError::into_inner).get_mut(place) {
                *known = id;
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries() {
        assert_eq!("any".parse(), Ok(Entry::Any));
        let id = whimbrel_base::SecretKey::from_bytes(&[7; 32]).id();
        assert_eq!(id.to_string().parse(), Ok(Entry::Id(id)));
        assert!(matches!("Ada@example.org".parse(), Ok(Entry::Name(_))));
        for wrong in ["", "everybody", "a@", "any "] {
            assert!(wrong.parse::<Entry>().is_err(), "{wrong}");
        }
    }
}
