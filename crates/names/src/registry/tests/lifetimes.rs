//! Expiry, heartbeats, revocation and grace.
use super::*;

const GRACE: u64 = 30 * 86_400;

#[tokio::test]
async fn expired_record_is_not_served() {
    let registry = registry();
    let signed = record(&key(1), USER, 1);
    registry.take(&signed, START).await.unwrap();
    let just_before = UnixTime::from_millis(after(300).as_millis() - 1);
    assert_eq!(registry.found(USER, just_before).await, Ok(signed));
    assert_eq!(registry.found(USER, after(300)).await, Err(NamesError::Expired(name(USER))));
    let mut watcher = registry.watch(&name(USER), key(5).id(), None, after(300)).await.unwrap();
    assert!(watching::silent(&mut watcher).await);
}

#[tokio::test]
async fn a_heartbeat_extends_a_records_life() {
    let registry = registry();
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    let beat = async |secs| registry.heartbeat(&name(USER), key(1).id(), after(secs)).await;
    assert_eq!(beat(200).await, Ok(after(500)));
    // Hardly later: not worth a write, and the answer says what counts.
    assert_eq!(beat(201).await, Ok(after(500)));
    assert_eq!(beat(499).await, Ok(after(799)));
    assert!(registry.found(USER, after(798)).await.is_ok());
    assert_eq!(beat(799).await, Err(NamesError::Expired(name(USER))));
    // The same record again brings it back.
    registry.take(&record(&key(1), USER, 1), after(800)).await.unwrap();
    assert_eq!(beat(900).await, Ok(after(1200)));
    let unknown = registry.heartbeat(&name("x@y"), key(1).id(), START).await;
    assert_eq!(unknown, Err(NamesError::NotFound(name("x@y"))));
}

#[tokio::test]
async fn an_expired_name_stays_its_owners_for_the_grace_period() {
    let registry = registry();
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    let thief = record(&key(2), USER, 2);
    let held = after(300 + GRACE - 1);
    assert_eq!(registry.sweep(held).await, Ok(0));
    assert_eq!(registry.take(&thief, held).await, Err(NamesError::NameTaken(name(USER))));
    // After that anybody may have it, whether or not it was swept.
    let lapsed = after(300 + GRACE);
    registry.clone().take(&thief, lapsed).await.unwrap();
    assert_eq!(registry.found(USER, lapsed).await, Ok(thief));
}

#[tokio::test]
async fn sweeping_removes_what_lapsed() {
    let registry = registry();
    let count = 600;
    for n in 0..count {
        let text = format!("user{n}@example.org");
        registry.take(&record(&key((n / 60 + 1) as u8), &text, 1), START).await.unwrap();
    }
    let alive = record(&key(100), "alive@example.org", 1);
    registry.take(&alive, after(GRACE)).await.unwrap();
    assert_eq!(registry.sweep(after(300 + GRACE)).await, Ok(count));
    assert_eq!(registry.sweep(after(300 + GRACE)).await, Ok(0));
    let lapsed = registry.found("user0@example.org", START).await;
    assert_eq!(lapsed, Err(NamesError::NotFound(name("user0@example.org"))));
    assert_eq!(registry.found("alive@example.org", after(GRACE)).await, Ok(alive));
}

#[tokio::test]
async fn a_revoked_name_says_so_and_stays_its_owners() {
    let registry = registry();
    let alice = key(1);
    let revoke =
        async |record: &SignedRecord| registry.revoke(record.record().id, record.encode(), START).await;
    let revoked = revocation(&alice, USER, 2);
    assert_eq!(revoke(&revoked).await, Err(NamesError::NotFound(name(USER))));
    registry.take(&record(&alice, USER, 1), START).await.unwrap();
    assert_eq!(revoke(&record(&alice, USER, 2)).await, Err(NamesError::NotARevocation(name(USER))));
    revoke(&revoked).await.unwrap();

    assert!(registry.found(USER, START).await.unwrap().record().revoked);
    let beat = registry.heartbeat(&name(USER), alice.id(), START).await;
    assert_eq!(beat, Err(NamesError::Revoked(name(USER))));
    let stale = Err(NamesError::Stale { name: name(USER), current: 2 });
    assert_eq!(registry.take(&record(&alice, USER, 1), START).await, stale);
    let taken = Err(NamesError::NameTaken(name(USER)));
    assert_eq!(registry.take(&record(&key(2), USER, 3), START).await, taken);
    let back = record(&alice, USER, 3);
    registry.take(&back, START).await.unwrap();
    assert_eq!(registry.found(USER, START).await, Ok(back));
}
