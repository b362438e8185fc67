//! Appointments that a user's key leaves, and that only the appointed key takes.
use whimbrel_base::Appointment;

use super::*;
use crate::ErrorCode;
use crate::error::AppointmentRefusal;
use crate::store::{MAX_APPOINTMENTS, RedbStore};

const DAY: u64 = 86_400;
const DESK: &str = "desk.user@example.org";

/// By this key for this one, from a day on and for so many.
fn appointed(text: &str, to: &SecretKey, user: &SecretKey, (from, days): (u64, u64)) -> Appointment {
    let (from, end) = (after(from * DAY), after((from + days) * DAY));
    Appointment::sign(name(text), to.id(), from, end, user).unwrap()
}

/// The user (key 1) is registered; the desk (key 3) has never been here.
async fn with_user(registry: Registry) -> (Registry, SecretKey, SecretKey) {
    let (user, desk) = (key(1), key(3));
    registry.take(&record(&user, USER, 1), START).await.unwrap();
    (registry, user, desk)
}

impl Registry {
    async fn leave(
        &self,
        appointment: &Appointment,
        by: &SecretKey,
        at: u64,
    ) -> Result<UnixTime, NamesError> {
        self.appoint(by.id(), &appointment.encode(), after(at * DAY)).await
    }

    /// With which code it refuses these bytes.
    async fn refuses(&self, by: &SecretKey, appointment: &[u8], at: u64) -> ErrorCode {
        self.appoint(by.id(), appointment, after(at * DAY)).await.unwrap_err().code()
    }

    async fn left(&self, text: &str, by: &SecretKey, at: u64) -> Option<Appointment> {
        match self.appointment(&name(text), by.id(), after(at * DAY)).await {
            Ok(appointment) => Some(appointment),
            Err(error) => {
                assert_eq!(error, NamesError::NotFound(name(text)));
                None
            }
        }
    }
}

#[tokio::test]
async fn an_appointment_waits_for_its_device_alone_until_it_ends_and_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let open = || {
        let store = RedbStore::open(folder.path().join("names.redb")).unwrap();
        Registry::new(store, Admission::any(), Limits::default())
    };
    let (registry, user, desk) = with_user(open()).await;
    assert_eq!(registry.left(DESK, &desk, 0).await, None);
    let appointment = appointed(DESK, &desk, &user, (0, 30));
    assert_eq!(registry.leave(&appointment, &user, 0).await, Ok(after(30 * DAY)));
    assert_eq!(registry.leave(&appointment, &user, 1).await, Ok(after(30 * DAY)), "the same once more");
    drop(registry);
    let registry = open();
    assert_eq!(registry.left(DESK, &desk, 29).await, Some(appointment));
    for (asks, text, at) in [(&key(9), DESK, 1), (&user, DESK, 1), (&desk, LAPTOP, 1), (&desk, DESK, 30)] {
        assert_eq!(registry.left(text, asks, at).await, None, "{text} on day {at}");
    }
    registry.sweep(after(30 * DAY)).await.unwrap();
    assert_eq!(registry.store.appointment(&user.id(), &name(DESK)).await, Ok(None));
}

#[tokio::test]
async fn a_newer_appointment_takes_the_place_of_an_older_and_not_the_other_way_round() {
    let (registry, user, desk) = with_user(registry()).await;
    let (older, newer) = (appointed(DESK, &desk, &user, (0, 90)), appointed(DESK, &key(4), &user, (5, 10)));
    registry.leave(&older, &user, 0).await.unwrap();
    registry.leave(&newer, &user, 5).await.unwrap();
    assert_eq!(registry.left(DESK, &desk, 5).await, None, "another key is appointed");
    assert_eq!(registry.left(DESK, &key(4), 5).await, Some(newer.clone()));
    let refused = Err(NamesError::from(AppointmentRefusal::Older(name(DESK))));
    assert_eq!(registry.leave(&older, &user, 6).await, refused);
    assert_eq!(registry.left(DESK, &key(4), 6).await, Some(newer));
}

#[tokio::test]
async fn an_appointment_that_is_forged_or_a_strangers_is_refused_and_changes_nothing() {
    let (registry, user, desk) = with_user(registry()).await;
    let (mallory, good) = (key(9), appointed(DESK, &desk, &user, (0, 30)));
    registry.leave(&good, &user, 0).await.unwrap();
    let refused = Err(NamesError::from(AppointmentRefusal::NotTheUsers(name(DESK))));
    // By a key that is nobody's here, and by one that is another user's.
    let own = appointed(DESK, &desk, &mallory, (1, 30));
    assert_eq!(registry.leave(&own, &mallory, 1).await, refused);
    registry.take(&record(&mallory, "mallory@example.org", 1), START).await.unwrap();
    assert_eq!(registry.leave(&own, &mallory, 1).await, refused);
    // The user's own, told by another: by the device too.
    let newer = appointed(DESK, &desk, &user, (1, 30));
    for other in [&mallory, &desk] {
        assert_eq!(registry.leave(&newer, other, 1).await, refused);
    }
    // Of a user who is not registered it is said in the same words.
    let nobodys = appointed("desk.nobody@example.org", &desk, &mallory, (1, 30));
    let refused = Err(NamesError::from(AppointmentRefusal::NotTheUsers(name("desk.nobody@example.org"))));
    assert_eq!(registry.leave(&nobodys, &mallory, 1).await, refused);
    // With the user's key written into it.
    let mut bytes = own.encode();
    let issuer = 1 + 1 + DESK.len() + 32;
    bytes[issuer..issuer + 32].copy_from_slice(user.id().as_bytes());
    assert_eq!(registry.refuses(&mallory, &bytes, 1).await, ErrorCode::NotTheUsers);
    assert_eq!(registry.refuses(&user, &bytes, 1).await, ErrorCode::Forged);
    // Ended, ahead of the clock, and none at all.
    assert_eq!(registry.refuses(&user, &newer.encode(), 31).await, ErrorCode::BadEnd);
    assert_eq!(registry.refuses(&user, &newer.encode(), 0).await, ErrorCode::BadEnd);
    assert_eq!(registry.refuses(&user, b"none", 1).await, ErrorCode::Malformed);
    let long = vec![1; 100_000];
    assert_eq!(registry.refuses(&user, &long, 1).await, ErrorCode::Malformed);
    assert_eq!(registry.left(DESK, &desk, 2).await, Some(good));
}

#[tokio::test]
async fn the_appointment_of_a_device_that_was_taken_back_is_forgotten_and_stays_so() {
    let (registry, user, desk) = with_user(registry()).await;
    let word = delegation(&user, DESK, &desk, START);
    registry.take(&delegated(&desk, DESK, 1, &word), START).await.unwrap();
    let appointment = appointed(DESK, &desk, &user, (0, 30));
    let laptops = appointed(LAPTOP, &key(2), &user, (0, 30));
    registry.leave(&appointment, &user, 0).await.unwrap();
    registry.leave(&laptops, &user, 0).await.unwrap();
    // A device that withdraws its own name takes nothing back.
    let at = after(DAY);
    let by_itself = Record::revocation(name(DESK), desk.id(), at.as_millis(), at);
    let by_itself = SignedRecord::sign(by_itself, &desk, Some(word)).unwrap();
    registry.revoke(desk.id(), by_itself.encode(), at).await.unwrap();
    assert_eq!(registry.left(DESK, &desk, 1).await, Some(appointment));
    let revoked = revocation(&user, DESK, after(2 * DAY).as_millis());
    registry.revoke(user.id(), revoked.encode(), after(2 * DAY)).await.unwrap();
    assert_eq!(registry.left(DESK, &desk, 2).await, None);
    assert_eq!(registry.left(LAPTOP, &key(2), 2).await, Some(laptops));
    // Also where the same key is given the name anew.
    let anew = delegation(&user, DESK, &desk, after(3 * DAY));
    registry.take(&delegated(&desk, DESK, after(3 * DAY).as_millis(), &anew), after(3 * DAY)).await.unwrap();
    assert_eq!(registry.left(DESK, &desk, 3).await, None);
    assert_eq!(registry.store.appointment(&user.id(), &name(DESK)).await, Ok(None));
}

#[tokio::test]
async fn an_appointment_is_not_handed_out_once_another_key_has_the_name() {
    let (registry, user, desk) = with_user(registry()).await;
    registry.leave(&appointed(DESK, &desk, &user, (0, 30)), &user, 0).await.unwrap();
    let word = delegation(&user, DESK, &key(4), after(DAY));
    registry.take(&delegated(&key(4), DESK, after(DAY).as_millis(), &word), after(DAY)).await.unwrap();
    assert_eq!(registry.left(DESK, &desk, 1).await, None);
}

#[tokio::test]
async fn appointments_of_one_user_are_bounded_and_make_room_at_their_end() {
    let folder = tempfile::tempdir().unwrap();
    let embedded = RedbStore::open(folder.path().join("names.redb")).unwrap();
    for registry in [registry(), Registry::new(embedded, Admission::any(), Limits::default())] {
        let (registry, user, desk) = with_user(registry).await;
        let leave = async |number: usize, at: u64| {
            let text = format!("desk{number}.user@example.org");
            registry.leave(&appointed(&text, &desk, &user, (at, 7)), &user, at).await
        };
        for number in 0..MAX_APPOINTMENTS {
            leave(number, 0).await.unwrap();
        }
        let full = Err(NamesError::from(AppointmentRefusal::TooMany(MAX_APPOINTMENTS)));
        assert_eq!(leave(MAX_APPOINTMENTS, 1).await, full);
        leave(0, 1).await.unwrap();
        leave(MAX_APPOINTMENTS, 7).await.unwrap();
        // The first was made anew, and has a day more.
        assert!(registry.left("desk0.user@example.org", &desk, 7).await.is_some());
        assert_eq!(registry.store.appointment(&user.id(), &name("desk1.user@example.org")).await, Ok(None));
    }
}
