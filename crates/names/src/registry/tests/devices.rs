//! Devices and services belong to their user.
use super::*;
use crate::ErrorCode;

/// The user's key 1 has registered the user name; key 2 is the laptop's.
async fn with_user() -> (Registry, SecretKey, SecretKey) {
    let registry = registry();
    let (user, laptop) = (key(1), key(2));
    registry.take(&record(&user, USER, 1), START).await.unwrap();
    (registry, user, laptop)
}

#[tokio::test]
async fn device_name_needs_the_users_signature() {
    let (registry, user, laptop) = with_user().await;
    let refused = Err(NamesError::NotTheUsers { name: name(LAPTOP), user: name(USER) });
    assert_eq!(registry.take(&record(&laptop, LAPTOP, 1), START).await, refused);
    let strangers = delegation(&key(9), LAPTOP, &laptop, START);
    let signed = delegated(&laptop, LAPTOP, 1, &strangers);
    assert_eq!(registry.take(&signed, START).await, refused);

    let users = delegation(&user, LAPTOP, &laptop, START);
    let signed = delegated(&laptop, LAPTOP, 1, &users);
    registry.take(&signed, START).await.unwrap();
    assert_eq!(registry.found(LAPTOP, START).await, Ok(signed));
}

#[tokio::test]
async fn the_users_own_key_needs_no_delegation() {
    let (registry, user, _) = with_user().await;
    registry.take(&record(&user, LAPTOP, 1), START).await.unwrap();
    registry.take(&record(&user, SSH, 1), START).await.unwrap();
}

#[tokio::test]
async fn a_device_publishes_its_services() {
    let (registry, user, laptop) = with_user().await;
    let word = delegation(&user, LAPTOP, &laptop, START);
    registry.take(&delegated(&laptop, SSH, 1, &word), START).await.unwrap();
    // Another key does not, though the user signed for the laptop.
    let refused = registry.take(&record(&key(3), SSH, 2), START).await;
    assert_eq!(refused.unwrap_err().code(), ErrorCode::NotTheUsers);
    // It does with a word of its own, given later.
    let word = delegation(&user, SSH, &key(3), after(1));
    registry.take(&delegated(&key(3), SSH, 2, &word), after(1)).await.unwrap();
}

#[tokio::test]
async fn an_endpoint_does_not_take_the_name_of_a_group_that_counts() {
    let (registry, user, laptop) = with_user().await;
    let group = |sequence| {
        let record = unsigned(&user, LAPTOP, sequence);
        let record = Record { addrs: Vec::new(), ..record };
        SignedRecord::sign_group(record, [laptop.id().into()], &user, None).unwrap()
    };
    registry.take(&group(1), START).await.unwrap();
    let refused = Err(NamesError::StandsForGroup(name(LAPTOP)));
    assert_eq!(registry.take(&record(&user, LAPTOP, 2), START).await, refused);
    let word = delegation(&user, LAPTOP, &laptop, after(1));
    assert_eq!(registry.take(&delegated(&laptop, LAPTOP, 2, &word), after(1)).await, refused);
    // It may be changed, and withdrawn; then the name is an endpoint's as any other.
    registry.take(&group(2), START).await.unwrap();
    registry.take(&revocation(&user, LAPTOP, 3), START).await.unwrap();
    registry.take(&record(&user, LAPTOP, 4), START).await.unwrap();
}

#[tokio::test]
async fn an_unknown_user_has_no_devices() {
    let registry = registry();
    let word = delegation(&key(1), LAPTOP, &key(2), START);
    let refused = registry.take(&delegated(&key(2), LAPTOP, 1, &word), START).await;
    assert_eq!(refused, Err(NamesError::UserUnknown(name(USER))));
}

#[tokio::test]
async fn a_delegation_has_an_end_and_a_beginning() {
    let (registry, user, laptop) = with_user().await;
    let word = Delegation::sign(name(LAPTOP), laptop.id(), START, after(100), &user).unwrap();
    let signed = delegated(&laptop, LAPTOP, 1, &word);
    // The record counts no longer than the user's word.
    assert_eq!(registry.take(&signed, START).await, Ok(after(100)));
    let refused = registry.take(&signed, after(100)).await;
    let ended = NamesError::DelegationExpired { name: name(LAPTOP), ended: after(100) };
    assert_eq!(refused, Err(ended));
    assert!(registry.found(LAPTOP, after(100)).await.is_err());
    let early = delegation(&user, LAPTOP, &laptop, after(3600));
    let refused = registry.take(&delegated(&laptop, LAPTOP, 2, &early), START).await;
    assert_eq!(refused, Err(NamesError::DelegationTooEarly(name(LAPTOP))));
}

/// The laptop was lost. The user gives its name to another key, or takes it back; the lost one can do
/// nothing.
#[tokio::test]
async fn a_lost_device_loses_its_name() {
    let (registry, user, lost) = with_user().await;
    let old = delegation(&user, LAPTOP, &lost, START);
    registry.take(&delegated(&lost, LAPTOP, 1, &old), START).await.unwrap();

    let new = delegation(&user, LAPTOP, &key(3), after(10));
    let signed = delegated(&key(3), LAPTOP, 2, &new);
    registry.take(&signed, after(10)).await.unwrap();
    let superseded = Err(NamesError::DelegationSuperseded(name(LAPTOP)));
    assert_eq!(registry.take(&delegated(&lost, LAPTOP, 3, &old), after(11)).await, superseded);
    assert_eq!(registry.found(LAPTOP, after(11)).await, Ok(signed));

    let withdrawn = revocation(&user, LAPTOP, 3);
    registry.revoke(user.id(), withdrawn.encode(), after(20)).await.unwrap();
    assert_eq!(registry.take(&delegated(&key(3), LAPTOP, 4, &new), after(21)).await, superseded);
    let again = delegation(&user, LAPTOP, &key(3), after(30));
    registry.take(&delegated(&key(3), LAPTOP, 4, &again), after(30)).await.unwrap();
}

/// A device's sign of life keeps the user's name, whose key may be in a drawer.
#[tokio::test]
async fn a_living_device_keeps_its_users_name() {
    let (registry, user, laptop) = with_user().await;
    let word = delegation(&user, LAPTOP, &laptop, START);
    let day = 86_400;
    for days in 0..100 {
        let now = after(days * day);
        let signed = delegated(&laptop, LAPTOP, now.as_millis(), &word);
        registry.take(&signed, now).await.unwrap();
        registry.sweep(now).await.unwrap();
    }
    let now = after(100 * day);
    assert_eq!(registry.found(USER, now).await, Err(NamesError::Expired(name(USER))));
    let taken = registry.take(&record(&key(9), USER, now.as_millis()), now).await;
    assert_eq!(taken, Err(NamesError::NameTaken(name(USER))));
}

#[tokio::test]
async fn a_revoked_device_loses_its_services_too() {
    let (registry, user, laptop) = with_user().await;
    let word = delegation(&user, LAPTOP, &laptop, START);
    let service = delegated(&laptop, SSH, 1, &word);
    registry.take(&service, START).await.unwrap();
    registry.take(&delegated(&laptop, LAPTOP, 1, &word), START).await.unwrap();
    // The user's own key withdraws the device's name.
    let revocation = Record::revocation(name(LAPTOP), user.id(), 2, START);
    let revocation = SignedRecord::sign(revocation, &user, None).unwrap();
    registry.revoke(user.id(), revocation.encode(), after(1)).await.unwrap();
    let superseded = Err(NamesError::DelegationSuperseded(name(SSH)));
    assert_eq!(registry.take(&delegated(&laptop, SSH, 2, &word), after(2)).await, superseded);
    assert_eq!(registry.heartbeat(&name(SSH), laptop.id(), after(2)).await, superseded);
    let found = registry.lookup(&name(SSH), key(77).id(), after(2)).await;
    assert_eq!(found, Err(NamesError::Revoked(name(SSH))));
    // A new word from the user gives them back.
    let word = delegation(&user, LAPTOP, &laptop, after(10));
    registry.take(&delegated(&laptop, LAPTOP, 3, &word), after(10)).await.unwrap();
    registry.take(&delegated(&laptop, SSH, 3, &word), after(10)).await.unwrap();
    registry.lookup(&name(SSH), key(77).id(), after(10)).await.unwrap();
}
