//! Expiry, heartbeats, revocation and grace.
use super::*;

const GRACE: u64 = 365 * 86_400;

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

/// A machine that is there each day keeps its name, however long ago it published.
#[tokio::test]
async fn a_heartbeat_keeps_a_devices_name_for_its_owner() {
    const DAY: u64 = 86_400;
    let registry = registry();
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    let word = delegation(&key(1), LAPTOP, &key(2), START);
    registry.take(&delegated(&key(2), LAPTOP, 1, &word), START).await.unwrap();
    for beat in (1..=600).map(|n| n * 299) {
        registry.heartbeat(&name(LAPTOP), key(2).id(), after(beat)).await.unwrap();
    }
    let last = 600 * 299;
    let lapses = last + 300 + 30 * DAY;
    assert_eq!(registry.sweep(after(lapses - 1)).await, Ok(0));
    assert_eq!(registry.sweep(after(lapses)).await, Ok(1));
}

#[tokio::test]
async fn an_expired_name_stays_its_owners_for_the_grace_period() {
    let registry = registry();
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    let held = after(300 + GRACE - 1);
    let thief = record(&key(2), USER, held.as_millis());
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
    let alive = record(&key(100), "alive@example.org", after(GRACE).as_millis());
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

/// Whatever signs of life there are: a thief of the connection, or a service that plays them again, keeps no
/// record alive that its endpoint let end.
#[tokio::test]
async fn no_sign_of_life_keeps_a_record_beyond_its_own_end() {
    let registry = registry();
    let mut ending = unsigned(&key(1), USER, 1);
    ending.expires = after(400);
    let ending = SignedRecord::sign(ending, &key(1), None).unwrap();
    assert_eq!(registry.take(&ending, START).await, Ok(after(300)));
    let beat = async |secs| registry.heartbeat(&name(USER), key(1).id(), after(secs)).await;
    assert_eq!(beat(250).await, Ok(after(400)));
    assert_eq!(registry.take(&ending, after(399)).await, Ok(after(400)));
    assert!(registry.found(USER, after(399)).await.is_ok());
    assert_eq!(registry.found(USER, after(400)).await, Err(NamesError::Expired(name(USER))));
    let over = Err(NamesError::BadEnd { name: name(USER), end: after(400) });
    assert_eq!(registry.take(&ending, after(400)).await, over);
    assert_eq!(beat(400).await, Err(NamesError::Expired(name(USER))));
    // A new one brings it back.
    registry.take(&record(&key(1), USER, 2), after(401)).await.unwrap();
}

#[tokio::test]
async fn a_record_that_ends_far_in_the_future_is_refused() {
    let registry = registry();
    let mut endless = unsigned(&key(1), USER, 1);
    endless.expires = after(8 * 86_400 + 1);
    let endless = SignedRecord::sign(endless, &key(1), None).unwrap();
    let refused = registry.take(&endless, START).await.unwrap_err();
    assert_eq!(refused.code(), crate::ErrorCode::BadEnd);
}

/// What a publisher is told: a device's sign of life renews its user's lease, however old the user's record.
#[tokio::test]
async fn any_device_renews_the_lease_of_its_users_name() {
    let registry = registry();
    let (user, laptop, day) = (key(1), key(2), 86_400);
    let publish = async |record: &SignedRecord, now| {
        let record = record.encode();
        let readers = Readers::Public;
        let publication = Publication { record, readers, may_be_new: &|| true };
        let id = SignedRecord::decode(record).unwrap().record().id;
        registry.register(id, publication, now).await.unwrap().held_until
    };
    assert_eq!(publish(&record(&user, USER, 1), START).await, after(300 + GRACE));
    let word = delegation(&user, LAPTOP, &laptop, START);
    let of_day = |days: u64| delegated(&laptop, LAPTOP, after(days * day).as_millis(), &word);
    // The first soon after, and then once a day at most.
    assert_eq!(publish(&of_day(0), START).await, after(300 + GRACE));
    assert_eq!(publish(&of_day(200), after(200 * day)).await, after(200 * day + GRACE));
    // Heartbeats do too.
    let beat_at = after(202 * day);
    assert_eq!(publish(&of_day(202), beat_at).await, after(202 * day + GRACE));
    registry.heartbeat(&name(LAPTOP), laptop.id(), beat_at).await.unwrap();
    // The thief waits a year from then.
    let held = after(202 * day + GRACE - 1);
    assert_eq!(registry.sweep(held).await, Ok(1), "the laptop's name lapsed");
    let thief = record(&key(9), USER, held.as_millis());
    assert_eq!(registry.take(&thief, held).await, Err(NamesError::NameTaken(name(USER))));
}
