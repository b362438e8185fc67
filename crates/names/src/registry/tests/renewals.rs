//! Delegations that are renewed for who has a name, and for nobody else.
use super::*;
use crate::store::{MAX_RENEWALS, RedbStore};

const DAY: u64 = 86_400;

fn week(user: &SecretKey, text: &str, to: &SecretKey, issued: UnixTime) -> Delegation {
    let expires = issued.saturating_add(Duration::from_secs(7 * DAY));
    Delegation::sign(name(text), to.id(), issued, expires, user).unwrap()
}

/// The user (key 1) and its laptop (key 2), which has published once.
async fn with_laptop(registry: Registry) -> (Registry, SecretKey, SecretKey) {
    let (user, laptop) = (key(1), key(2));
    registry.take(&record(&user, USER, 1), START).await.unwrap();
    let word = week(&user, LAPTOP, &laptop, START);
    registry.take(&delegated(&laptop, LAPTOP, 1, &word), START).await.unwrap();
    (registry, user, laptop)
}

#[tokio::test]
async fn a_renewed_delegation_is_for_its_device_alone_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let store = RedbStore::open(folder.path().join("names.redb")).unwrap();
        Registry::new(store, Admission::any(), Limits::default())
    };
    let (registry, user, laptop) = with_laptop(open()).await;
    assert_eq!(
        registry.renewal(&name(LAPTOP), laptop.id(), START).await,
        Err(NamesError::NotFound(name(LAPTOP)))
    );
    let word = week(&user, LAPTOP, &laptop, after(4 * DAY));
    let until = registry.renew(user.id(), &word.encode(), after(4 * DAY)).await;
    assert_eq!(until, Ok(after(11 * DAY)));
    drop(registry);
    let registry = open();
    assert_eq!(registry.renewal(&name(LAPTOP), laptop.id(), after(5 * DAY)).await, Ok(word.clone()));
    // Neither to others, nor beyond its end.
    for (peer, at) in [(key(9).id(), 5), (user.id(), 5), (laptop.id(), 11)] {
        let none = Err(NamesError::NotFound(name(LAPTOP)));
        assert_eq!(registry.renewal(&name(LAPTOP), peer, after(at * DAY)).await, none);
    }
    // The device goes on beyond the end of its first delegation.
    registry
        .take(&delegated(&laptop, LAPTOP, after(10 * DAY).as_millis(), &word), after(10 * DAY))
        .await
        .unwrap();
    registry.sweep(after(12 * DAY)).await.unwrap();
    assert_eq!(registry.store.renewed(&user.id(), &name(LAPTOP)).await, Ok(None));
}

#[tokio::test]
async fn only_the_users_key_renews() {
    let (registry, user, laptop) = with_laptop(registry()).await;
    let refused = Err(NamesError::NotTheUsers { name: name(LAPTOP), user: name(USER) });
    let word = week(&user, LAPTOP, &laptop, START);
    assert_eq!(registry.renew(laptop.id(), &word.encode(), START).await, refused);
    let strangers = week(&key(9), LAPTOP, &laptop, START);
    assert_eq!(registry.renew(key(9).id(), &strangers.encode(), START).await, refused);
    let mut forged = word.encode();
    *forged.last_mut().unwrap() ^= 1;
    let error = registry.renew(user.id(), &forged, START).await.unwrap_err();
    assert_eq!(error.code(), crate::ErrorCode::Forged);
    let error = registry.renew(user.id(), &word.encode(), after(7 * DAY)).await.unwrap_err();
    assert_eq!(error.code(), crate::ErrorCode::DelegationExpired);
    let error = registry.renew(user.id(), b"no delegation", START).await.unwrap_err();
    assert_eq!(error.code(), crate::ErrorCode::Malformed);
    assert!(registry.renewal(&name(LAPTOP), laptop.id(), START).await.is_err());
}

/// A second machine has the user's key and has not heard of the revocation.
#[tokio::test]
async fn what_was_revoked_is_renewed_by_nobody_for_a_year() {
    let (registry, user, lost) = with_laptop(registry()).await;
    let before = week(&user, LAPTOP, &lost, after(10));
    registry.renew(user.id(), &before.encode(), after(10)).await.unwrap();
    let revoked = revocation(&user, LAPTOP, after(20).as_millis());
    registry.revoke(user.id(), revoked.encode(), after(20)).await.unwrap();
    let refused = NamesError::Revoked(name(LAPTOP));
    // What was renewed before is no longer handed out, nor does it move the name back.
    let kept = registry.renewal(&name(LAPTOP), lost.id(), after(30)).await;
    assert_eq!(kept, Err(refused.clone()));
    let superseded = Err(NamesError::DelegationSuperseded(name(LAPTOP)));
    let again = delegated(&lost, LAPTOP, after(31).as_millis(), &before);
    assert_eq!(registry.take(&again, after(31)).await, superseded);
    // Nor is a service of the device renewed.
    let service = week(&user, SSH, &lost, after(40));
    assert_eq!(registry.renew(user.id(), &service.encode(), after(40)).await, Err(refused.clone()));
    for days in [0, 3, 30, 60, 200, 364] {
        let now = after(30 + days * DAY);
        registry.sweep(now).await.unwrap();
        let word = week(&user, LAPTOP, &lost, now);
        assert_eq!(registry.renew(user.id(), &word.encode(), now).await, Err(refused.clone()), "{days}");
    }
    // Made by hand, a delegation counts, and can be renewed then.
    let late = |secs| after(364 * DAY + secs);
    let by_hand = week(&user, LAPTOP, &lost, late(50));
    registry.take(&delegated(&lost, LAPTOP, late(50).as_millis(), &by_hand), late(50)).await.unwrap();
    let word = week(&user, LAPTOP, &lost, late(60));
    registry.renew(user.id(), &word.encode(), late(60)).await.unwrap();
}

/// The user's clock is ahead of the service's.
#[tokio::test]
async fn a_renewal_that_was_made_ahead_of_the_services_clock_is_taken_back_too() {
    let (registry, user, lost) = with_laptop(registry()).await;
    let word = week(&user, LAPTOP, &lost, after(290));
    registry.renew(user.id(), &word.encode(), after(10)).await.unwrap();
    assert_eq!(registry.renewal(&name(LAPTOP), lost.id(), after(10)).await, Ok(word.clone()));
    let revoked = revocation(&user, LAPTOP, after(20).as_millis());
    registry.revoke(user.id(), revoked.encode(), after(20)).await.unwrap();
    for text in [LAPTOP, SSH] {
        let again = delegated(&lost, text, after(30).as_millis(), &word);
        let refused = Err(NamesError::DelegationSuperseded(name(text)));
        assert_eq!(registry.take(&again, after(30)).await, refused);
    }
}

#[tokio::test]
async fn a_name_that_was_given_to_another_key_is_not_renewed_for_the_first() {
    let (registry, user, first) = with_laptop(registry()).await;
    let second = key(3);
    let word = week(&user, LAPTOP, &second, after(10));
    registry.take(&delegated(&second, LAPTOP, 2, &word), after(10)).await.unwrap();
    let superseded = Err(NamesError::DelegationSuperseded(name(LAPTOP)));
    let old = week(&user, LAPTOP, &first, after(20));
    assert_eq!(registry.renew(user.id(), &old.encode(), after(20)).await, superseded);
    let new = week(&user, LAPTOP, &second, after(20));
    registry.renew(user.id(), &new.encode(), after(20)).await.unwrap();
}

/// A device that withdrew its name at its end comes back.
#[tokio::test]
async fn a_device_that_withdrew_its_own_name_is_renewed() {
    let (registry, user, laptop) = with_laptop(registry()).await;
    let word = week(&user, LAPTOP, &laptop, START);
    let withdrawn = Record::revocation(name(LAPTOP), laptop.id(), 2, START);
    let withdrawn = SignedRecord::sign(withdrawn, &laptop, Some(word)).unwrap();
    registry.revoke(laptop.id(), withdrawn.encode(), after(1)).await.unwrap();
    let word = week(&user, LAPTOP, &laptop, after(4 * DAY));
    registry.renew(user.id(), &word.encode(), after(4 * DAY)).await.unwrap();
    assert_eq!(registry.renewal(&name(LAPTOP), laptop.id(), after(4 * DAY)).await, Ok(word));
}

#[tokio::test]
async fn renewals_of_one_user_are_bounded_and_make_room_at_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let redb = RedbStore::open(folder.path().join("names.redb")).unwrap();
    let redb = Registry::new(redb, Admission::any(), Limits::default());
    for registry in [registry(), redb] {
        let (registry, user, laptop) = with_laptop(registry).await;
        let device = |number: usize| format!("d{number}.{USER}");
        let renew = async |number: usize, now: UnixTime| {
            let word = week(&user, &device(number), &laptop, now);
            registry.renew(user.id(), &word.encode(), now).await
        };
        for number in 0..MAX_RENEWALS {
            renew(number, START).await.unwrap();
        }
        renew(0, after(1)).await.unwrap();
        assert_eq!(renew(MAX_RENEWALS, after(1)).await, Err(NamesError::TooManyNames(64)));
        renew(MAX_RENEWALS, after(7 * DAY)).await.unwrap();
    }
}
