//! Which keys have a name of a domain, and which record of a key is the newest.
use super::*;

async fn has_name_of(registry: &Registry, who: u8, domain: &str, now: UnixTime) -> bool {
    registry.has_name_of(key(who).id(), &domain.parse().unwrap(), now).await.unwrap()
}

#[tokio::test]
async fn a_user_has_a_name_of_the_domain_while_it_is_held_and_a_device_while_its_record_counts() {
    let registry = registry();
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    let word = delegation(&key(1), LAPTOP, &key(2), START);
    registry.take(&delegated(&key(2), LAPTOP, 1, &word), START).await.unwrap();
    for who in [1, 2] {
        assert!(has_name_of(&registry, who, "example.org", after(299)).await, "key {who}");
        assert!(!has_name_of(&registry, who, "example.net", after(299)).await, "key {who}");
    }
    assert!(!has_name_of(&registry, 3, "example.org", START).await);
    // Both records ended; the user's name stays the user's.
    assert!(has_name_of(&registry, 1, "example.org", after(300)).await);
    assert!(!has_name_of(&registry, 2, "example.org", after(300)).await);
    let lapses = after(300 + Limits::default().user_grace.as_secs());
    assert!(!has_name_of(&registry, 1, "example.org", lapses).await);
}

#[tokio::test]
async fn who_was_revoked_has_no_name_of_the_domain() {
    let registry = registry();
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    registry.revoke(key(1).id(), revocation(&key(1), USER, 2).encode(), after(1)).await.unwrap();
    assert!(!has_name_of(&registry, 1, "example.org", after(2)).await);
}

/// Names are looked at in their order: neither the first nor the last one has to be the newest.
#[tokio::test]
async fn of_the_names_of_a_key_the_newest_record_tells_where_it_is() {
    let newest = |sequences: [u64; 3]| async move {
        let registry = registry();
        for (text, sequence) in ["a@example.org", "b@example.org", "c@example.org"].iter().zip(sequences) {
            registry.take(&record(&key(1), text, sequence), START).await.unwrap();
        }
        registry.find(&key(1).id(), key(77).id(), START).await.unwrap().record.record().sequence
    };
    for sequences in [[1, 2, 3], [3, 2, 1], [1, 3, 2], [2, 1, 3]] {
        assert_eq!(newest(sequences).await, 3, "{sequences:?}");
    }
}
