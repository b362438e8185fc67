//! The keys that names in `--allow` stand for, and until when, as one instance tells them to another.

use std::collections::HashMap;

use anyhow::Result;
use whimbrel_base::{EndpointId, MAX_LIFETIME, Name, UnixTime};

use crate::access::NamedKey;

type Keys = Vec<(String, [u8; 32])>;
type Ends = Vec<(String, u64)>;

/// As they are written: all keys, and the ends of those that have one.
pub(super) fn written(followed: &HashMap<Name, NamedKey>) -> (Keys, Ends) {
    let keys = followed.iter().map(|(name, of)| (name.to_string(), *of.key.as_bytes())).collect();
    let ends = followed.iter().filter_map(|(name, of)| Some((name.to_string(), of.until?.as_secs())));
    (keys, ends.collect())
}

/// Reads them again. An older instance says no ends: then each key has a bounded one, until the name service
/// says more.
///
/// # Errors
/// When a name is none.
pub(super) fn read(keys: Keys, ends: Option<Ends>, now: UnixTime) -> Result<HashMap<Name, NamedKey>> {
    let is_told = ends.is_some();
    let ends: HashMap<String, u64> = ends.unwrap_or_default().into_iter().collect();
    let read = |(name, key): (String, [u8; 32])| {
        let end = ends.get(&name).copied().map(UnixTime::from_secs);
        let until = if is_told { end } else { Some(now.saturating_add(MAX_LIFETIME)) };
        Ok((name.parse()?, NamedKey { key: EndpointId::from_bytes(&key), until }))
    };
    keys.into_iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn keys_keep_their_ends_and_get_one_from_an_instance_that_says_none() {
        let now = UnixTime::from_secs(1_800_000_000);
        let key = |seed: u8| whimbrel_base::SecretKey::from_bytes(&[seed; 32]).id();
        let end = Some(UnixTime::from_secs(1_800_000_060));
        let followed: HashMap<Name, NamedKey> = [
            ("laptop.ada@example.org".parse().unwrap(), NamedKey { key: key(1), until: end }),
            ("web.bob@example.org".parse().unwrap(), NamedKey { key: key(2), until: None }),
        ]
        .into();
        let (keys, ends) = written(&followed);
        assert_eq!(read(keys.clone(), Some(ends), now).unwrap(), followed);
        let old = read(keys, None, now).unwrap();
        assert!(old.values().all(|of| of.until == Some(now.saturating_add(MAX_LIFETIME))), "{old:?}");
    }
}
