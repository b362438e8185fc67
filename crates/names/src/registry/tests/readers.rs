//! To everybody but its readers a name looks like one that is not there.
use super::watching::silent;
use super::*;
use crate::readers::Reader;

const NOBODY: &str = "phone.user@example.org";

async fn publish(registry: &Registry, record: &SignedRecord, readers: Readers) {
    let publication = Publication { record: record.encode(), readers, may_be_new: &|| true };
    registry.register(record.record().id, publication, START).await.unwrap();
}

async fn reads(registry: &Registry, who: u8) -> bool {
    match registry.lookup(&name(LAPTOP), key(who).id(), START).await {
        Ok(_) => true,
        Err(NamesError::NotFound(_)) => false,
        Err(error) => panic!("{error}"),
    }
}

/// The user's key 1, and the laptop's key 2 with a record for these readers.
async fn with_laptop(readers: Readers) -> Registry {
    let registry = registry();
    registry.take(&record(&key(1), USER, 1), START).await.unwrap();
    let word = delegation(&key(1), LAPTOP, &key(2), START);
    publish(&registry, &delegated(&key(2), LAPTOP, 1, &word), readers).await;
    registry
}

#[tokio::test]
async fn only_named_readers_the_owner_and_its_user_read() {
    let registry = with_laptop(Readers::Only(vec![Reader::Key(key(5).id())])).await;
    for (who, may) in [(1, true), (2, true), (5, true), (6, false)] {
        assert_eq!(reads(&registry, who).await, may, "key {who}");
    }
    let registry = with_laptop(Readers::Only(vec![])).await;
    for (who, may) in [(1, true), (2, true), (5, false)] {
        assert_eq!(reads(&registry, who).await, may, "key {who}");
    }
    assert!(reads(&with_laptop(Readers::Public).await, 6).await);
}

#[tokio::test]
async fn a_user_reads_with_every_living_device_and_no_longer_with_a_lost_one() {
    let ben = "ben@example.org";
    let registry = with_laptop(Readers::Only(vec![Reader::User(name(ben))])).await;
    registry.take(&record(&key(5), ben, 1), START).await.unwrap();
    let tablet = "tablet.ben@example.org";
    let word = delegation(&key(5), tablet, &key(6), START);
    registry.take(&delegated(&key(6), tablet, 1, &word), START).await.unwrap();
    // One that says it is ben's, and one of another user.
    let claimed = delegation(&key(9), "pad.ben@example.org", &key(7), START);
    assert!(registry.take(&delegated(&key(7), "pad.ben@example.org", 1, &claimed), START).await.is_err());
    registry.take(&record(&key(8), "eve@example.org", 1), START).await.unwrap();
    for (who, may) in [(5, true), (6, true), (7, false), (8, false)] {
        assert_eq!(reads(&registry, who).await, may, "key {who}");
    }
    // A service on it that it publishes is of no use to it once the tablet was lost and ben took its name
    // back.
    registry.take(&delegated(&key(6), "web.tablet.ben@example.org", 1, &word), START).await.unwrap();
    registry.revoke(key(5).id(), revocation(&key(5), tablet, 2).encode(), after(1)).await.unwrap();
    assert!(!reads(&registry, 6).await);
}

/// A user is away for long at times; whose name lapsed is nobody's friend any more.
#[tokio::test]
async fn a_user_whose_record_ended_reads_until_the_name_lapses() {
    let ben = "ben@example.org";
    let registry = with_laptop(Readers::Only(vec![Reader::User(name(ben))])).await;
    registry.take(&record(&key(5), ben, 1), START).await.unwrap();
    let lapses = 300 + Limits::default().user_grace.as_secs();
    for (now, may) in [(301, true), (lapses - 1, true), (lapses, false)] {
        // The laptop is there all the time.
        let word = delegation(&key(1), LAPTOP, &key(2), after(now));
        let laptop = delegated(&key(2), LAPTOP, after(now).as_millis(), &word);
        let readers = Readers::Only(vec![Reader::User(name(ben))]);
        let publication = Publication { record: laptop.encode(), readers, may_be_new: &|| true };
        registry.register(key(2).id(), publication, after(now)).await.unwrap();
        let found = registry.lookup(&name(LAPTOP), key(5).id(), after(now)).await;
        assert_eq!(found.is_ok(), may, "after {now} s: {found:?}");
    }
}

#[tokio::test]
async fn a_watch_of_a_stranger_is_silent_and_a_readers_is_not() {
    let registry = with_laptop(Readers::Only(vec![Reader::Key(key(5).id())])).await;
    let watch = async |who: u8| registry.watch(&name(LAPTOP), key(who).id(), None, START).await.unwrap();
    let (mut reader, mut stranger) = (watch(5).await, watch(6).await);
    assert_eq!(reader.next().await.record().sequence, 1);
    let word = delegation(&key(1), LAPTOP, &key(2), START);
    let next = |sequence| delegated(&key(2), LAPTOP, sequence, &word);
    publish(&registry, &next(2), Readers::Only(vec![Reader::Key(key(5).id())])).await;
    assert_eq!(reader.next().await, next(2));
    assert!(silent(&mut stranger).await);
    assert_eq!(stranger.seen(), None);
    // The owner opens it, and closes it to everybody.
    publish(&registry, &next(3), Readers::Public).await;
    assert_eq!(stranger.next().await, next(3));
    publish(&registry, &next(4), Readers::Only(vec![])).await;
    assert!(silent(&mut stranger).await && silent(&mut reader).await);
}

#[tokio::test]
async fn a_watch_hears_of_a_record_that_its_peer_may_read_from_now_on() {
    let registry = with_laptop(Readers::Only(vec![])).await;
    let watch = async |who: u8| registry.watch(&name(LAPTOP), key(who).id(), None, START).await.unwrap();
    let (mut friend, mut stranger, mut owner) = (watch(5).await, watch(6).await, watch(1).await);
    assert!(silent(&mut friend).await);
    assert_eq!(owner.next().await.record().sequence, 1);
    let word = delegation(&key(1), LAPTOP, &key(2), START);
    let same = delegated(&key(2), LAPTOP, 1, &word);
    publish(&registry, &same, Readers::Only(vec![Reader::Key(key(5).id())])).await;
    assert_eq!(friend.next().await, same);
    assert!(silent(&mut stranger).await);
    assert!(silent(&mut owner).await, "a record is told once");
    // It is hidden again, and moves.
    publish(&registry, &same, Readers::Only(vec![])).await;
    publish(&registry, &delegated(&key(2), LAPTOP, 2, &word), Readers::Only(vec![])).await;
    assert!(silent(&mut friend).await);
    assert!(!reads(&registry, 5).await);
}

/// No request tells a stranger more about a hidden name than about one that nobody registered.
#[tokio::test]
async fn a_hidden_name_is_refused_to_strangers_as_one_that_is_not_there() {
    let registry = with_laptop(Readers::Only(vec![])).await;
    let eve = key(9);
    for text in [LAPTOP, NOBODY] {
        let missing = NamesError::NotFound(name(text));
        assert_eq!(registry.lookup(&name(text), eve.id(), START).await, Err(missing.clone()));
        // Also when it has expired.
        assert_eq!(registry.lookup(&name(text), eve.id(), after(9999)).await, Err(missing.clone()));
        assert_eq!(registry.heartbeat(&name(text), eve.id(), START).await, Err(missing));
        let user = name(USER);
        let refused = Err(NamesError::NotTheUsers { name: name(text), user });
        assert_eq!(registry.take(&record(&eve, text, 2), START).await, refused);
    }
}

#[tokio::test]
async fn who_withdraws_a_hidden_name_does_not_show_it() {
    let registry = with_laptop(Readers::Only(vec![Reader::Key(key(5).id())])).await;
    registry.revoke(key(1).id(), revocation(&key(1), LAPTOP, 2).encode(), START).await.unwrap();
    assert!(reads(&registry, 5).await);
    assert!(!reads(&registry, 6).await);
}
