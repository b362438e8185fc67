//! What a user has, in one look-up, over each store.

use super::*;
use crate::readers::Reader;
use crate::registry::Publication;
use crate::store::RedbStore;

async fn names_of(registry: &Registry, peer: u8, now: UnixTime) -> Vec<String> {
    let (mut names, mut after) = (Vec::new(), None);
    // More pages than there can be.
    for _ in 0..50 {
        let page = registry.devices(&name(USER), after.as_ref(), key(peer).id(), now).await.unwrap();
        names.extend(page.found.iter().map(|found| found.record.record().name.to_string()));
        match page.more {
            Some(more) => after = Some(more),
            None => return names,
        }
    }
    panic!("no end: {names:?}");
}

/// The user (key 1), a laptop (key 2) with a service, a phone (key 3) shown to key 8 alone, and somebody
/// else.
async fn fill(registry: &Registry) {
    let (user, laptop, phone) = (key(1), key(2), key(3));
    registry.take(&record(&user, USER, 1), START).await.unwrap();
    let word = delegation(&user, LAPTOP, &laptop, START);
    registry.take(&delegated(&laptop, LAPTOP, 1, &word), START).await.unwrap();
    registry.take(&delegated(&laptop, SSH, 2, &word), START).await.unwrap();
    let text = "phone.user@example.org";
    let hidden = delegated(&phone, text, 1, &delegation(&user, text, &phone, START));
    let readers = Readers::Only(vec![Reader::Key(key(8).id())]);
    let publication = Publication { record: hidden.encode(), readers, may_be_new: &|| true };
    registry.register(phone.id(), publication, START).await.unwrap();
    // Names that begin or end alike.
    for (seed, text) in [(20, "auser@example.org"), (21, "user@example.orga"), (22, "laptop@example.org")] {
        registry.take(&record(&key(seed), text, 1), START).await.unwrap();
    }
}

#[tokio::test]
async fn all_that_a_user_has_is_found_by_those_who_may_read_it_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("names.redb");
    let open = || Registry::new(RedbStore::open(&file).unwrap(), Admission::any(), Limits::default());
    let in_file = open();
    fill(&in_file).await;
    drop(in_file);
    let in_memory = registry();
    fill(&in_memory).await;
    for registry in [in_memory, open()] {
        assert_eq!(names_of(&registry, 77, START).await, [LAPTOP, SSH, USER]);
        for reader in [8, 1, 3] {
            let names = names_of(&registry, reader, START).await;
            assert_eq!(names, [LAPTOP, "phone.user@example.org", SSH, USER], "{reader}");
        }
        // A revoked device, and all others once they have ended.
        registry.take(&revocation(&key(1), LAPTOP, 3), after(10)).await.unwrap();
        assert_eq!(names_of(&registry, 77, after(11)).await, [USER]);
        assert_eq!(names_of(&registry, 77, after(301)).await, [""; 0]);
    }
}

#[tokio::test]
async fn many_devices_come_in_several_answers() {
    let registry = registry();
    let user = key(1);
    registry.take(&record(&user, USER, 1), START).await.unwrap();
    for number in 0..100_u8 {
        let (key, text) = (SecretKey::from_bytes(&[number + 100; 32]), format!("d{number:03}.{USER}"));
        let word = delegation(&user, &text, &key, START);
        registry.take(&delegated(&key, &text, 1, &word), START).await.unwrap();
    }
    let first = registry.devices(&name(USER), None, key(77).id(), START).await.unwrap();
    assert!(first.found.len() <= 32 && first.more.is_some(), "{}", first.found.len());
    let names = names_of(&registry, 77, START).await;
    assert_eq!((names.len(), names.first().map(String::as_str)), (101, Some("d000.user@example.org")));
}
