//! Devices that renew each other's delegations over real connections, while the user's key is away.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;
use std::time::Duration;

use crate::support::*;
use whimbrel_base::{Appointment, Delegation, Record, SecretKey, SignedRecord, next_sequence};
use whimbrel_names::protocol::{Request, Response};
use whimbrel_names::{ErrorCode, MemoryStore, NameResolver};

const HOUR: Duration = Duration::from_secs(3600);
const USER: &str = "anna@example.org";
const LAPTOP: &str = "laptop.anna@example.org";
const DESK: &str = "desk.anna@example.org";

/// What the user's key gives this key, for an hour.
fn given(to: &Host, name_of: &str, user: &Host) -> Delegation {
    let (from, to_id) = (now(), to.endpoint.id());
    Delegation::sign(name(name_of), to_id, from, from.saturating_add(HOUR), &user.key).unwrap()
}

async fn publish(host: &Host, names: &NameResolver, word: &Delegation) {
    let plain = record(word.name().as_str(), host, None).record().clone();
    let signed = SignedRecord::sign(plain, &host.key, Some(word.clone())).unwrap();
    names.publish_record(signed).await.unwrap();
}

async fn revoke(names: &Arc<NameResolver>, user: &Host, name_of: &str) {
    let sequence = next_sequence(None, now().as_millis()) + 1;
    let revocation = Record::revocation(name(name_of), user.endpoint.id(), sequence, now());
    names.revoke(SignedRecord::sign(revocation, &user.key, None).unwrap()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_is_renewed_by_an_appointed_one_until_that_one_is_revoked() {
    let net = Net(171);
    let service = service(net, MemoryStore::new()).await;
    let (user, users) = named_host(net, 1, 1, &service).await;
    let (laptop, laptops) = named_host(net, 2, 2, &service).await;
    let (desk, desks) = named_host(net, 3, 3, &service).await;
    let (_tablet, tablets) = named_host(net, 4, 4, &service).await;
    users.publish_record(record(USER, &user, None)).await.unwrap();
    let word = given(&laptop, LAPTOP, &user);
    publish(&laptop, &laptops, &word).await;
    publish(&desk, &desks, &given(&desk, DESK, &user)).await;
    let from = now();
    let end = from.saturating_add(24 * HOUR);
    let appointment = Appointment::sign(name(DESK), desk.endpoint.id(), from, end, &user.key).unwrap();

    // The desk finds what it renews in the laptop's record.
    let found = desks.lookup_record(&name(LAPTOP)).await.unwrap();
    assert_eq!(found.delegation(), Some(&word));
    let later = now().saturating_add(2 * HOUR);
    let renewed = word.renew(&appointment, now(), later, &desk.key).unwrap();
    assert_eq!(laptops.renewed(&word).await.unwrap(), None);
    let by_other = tablets.renew(&renewed).await.unwrap_err();
    assert_eq!(by_other.code(), Some(ErrorCode::NotTheUsers));
    desks.renew(&renewed).await.unwrap();
    assert_eq!(laptops.renewed(&word).await.unwrap(), Some(renewed.clone()));
    publish(&laptop, &laptops, &renewed).await;
    let found = tablets.lookup_record(&name(LAPTOP)).await.unwrap();
    assert_eq!((found.verify().is_ok(), found.authority()), (true, user.endpoint.id()));

    // Stolen: the user takes its name back.
    revoke(&users, &user, DESK).await;
    let again = word.renew(&appointment, now(), later.saturating_add(HOUR), &desk.key).unwrap();
    let refused = desks.renew(&again).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::NotAppointed));
    assert_eq!(laptops.renewed(&word).await.unwrap(), Some(renewed.clone()), "the one from before");
    // The laptop too: what was renewed for it is void at once.
    revoke(&users, &user, LAPTOP).await;
    let withheld = laptops.renewed(&word).await.unwrap_err();
    assert_eq!(withheld.code(), Some(ErrorCode::Revoked));
    let gone = tablets.lookup_record(&name(LAPTOP)).await.unwrap_err();
    assert_eq!(gone.code(), Some(ErrorCode::Revoked));
}

/// For a day, by a key.
fn appointed(name_of: &str, to: &SecretKey, by: &SecretKey) -> Appointment {
    let from = now();
    Appointment::sign(name(name_of), to.id(), from, from.saturating_add(24 * HOUR), by).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_appointment_reaches_its_device_by_way_of_the_service_and_nobody_else() {
    let net = Net(172);
    let service = service(net, MemoryStore::new()).await;
    let (user, users) = named_host(net, 1, 1, &service).await;
    let (desk, desks) = named_host(net, 3, 3, &service).await;
    let (tablet, tablets) = named_host(net, 4, 4, &service).await;
    users.publish_record(record(USER, &user, None)).await.unwrap();
    let (desk_id, tablet_id) = (desk.endpoint.id(), tablet.endpoint.id());
    assert_eq!(desks.appointment(&name(DESK), desk_id).await, Ok(None));
    let appointment = appointed(DESK, &desk.key, &user.key);
    users.leave_appointment(&appointment).await.unwrap();
    assert_eq!(desks.appointment(&name(DESK), desk_id).await, Ok(Some(appointment)));
    assert_eq!(tablets.appointment(&name(DESK), tablet_id).await, Ok(None));
    // The user takes the name of the desk back: it is handed out no more.
    publish(&desk, &desks, &given(&desk, DESK, &user)).await;
    revoke(&users, &user, DESK).await;
    assert_eq!(desks.appointment(&name(DESK), desk_id).await, Ok(None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stranger_who_leaves_forged_appointments_in_a_flood_is_refused_and_harms_nobody() {
    let net = Net(173);
    let service = service(net, MemoryStore::new()).await;
    let (user, users) = named_host(net, 1, 1, &service).await;
    let (desk, desks) = named_host(net, 3, 3, &service).await;
    users.publish_record(record(USER, &user, None)).await.unwrap();
    let good = appointed(DESK, &desk.key, &user.key);
    users.leave_appointment(&good).await.unwrap();
    let mallory = host(net, 9, 9).await;
    let mut raw = Raw::connect(&mallory, &service).await;
    // Of the desk, and of any other device: by the stranger's own key, and with the user's written into them.
    for number in 0..100 {
        let text = if number == 0 { DESK.to_owned() } else { format!("desk{number}.anna@example.org") };
        let own = appointed(&text, &desk.key, &mallory.key).encode();
        let mut forged = own.clone();
        let issuer = 1 + 1 + text.len() + 32;
        forged[issuer..issuer + 32].copy_from_slice(user.endpoint.id().as_bytes());
        for appointment in [own, forged, good.encode()] {
            let Response::Error { code, message } = raw.ask(Request::Appoint { appointment }).await else {
                panic!("it was taken");
            };
            assert_eq!(code, ErrorCode::NotTheUsers.number());
            assert!(message.contains("only the key that anna@example.org is registered for"), "{message}");
            assert_eq!(message.lines().count(), 1);
        }
    }
    assert_eq!(desks.appointment(&name(DESK), desk.endpoint.id()).await, Ok(Some(good)));
    // Nothing of that took room: the user has all of it, and no more.
    let room = 16 - 1;
    for number in 0..room {
        let text = format!("desk{number}.anna@example.org");
        users.leave_appointment(&appointed(&text, &desk.key, &user.key)).await.unwrap();
    }
    let one_more = appointed("one-more.anna@example.org", &desk.key, &user.key);
    let full = users.leave_appointment(&one_more).await.unwrap_err();
    assert_eq!(full.code(), Some(ErrorCode::TooManyNames));
    assert!(full.to_string().contains("at most 16 appointed devices"), "{full}");
}
