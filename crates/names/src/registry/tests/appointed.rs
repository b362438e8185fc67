//! Delegations that an appointed device renews while the user's key is away, and those that it must not.
use whimbrel_base::Appointment;

use super::*;

const DAY: u64 = 86_400;
const DESK: &str = "desk.user@example.org";
const TABLET: &str = "tablet.user@example.org";

fn day(days: u64) -> UnixTime {
    after(days * DAY)
}

fn given(text: &str, to: &SecretKey, from: u64, days: u64) -> Delegation {
    Delegation::sign(name(text), to.id(), day(from), day(from + days), &key(1)).unwrap()
}

fn appointed(text: &str, to: &SecretKey) -> Appointment {
    Appointment::sign(name(text), to.id(), START, day(30), &key(1)).unwrap()
}

/// The user (key 1), whose laptop (key 2) has its name for a week, and whose desk (key 3) has its own for so
/// many days and is appointed for 30. Both have published.
struct Stage {
    registry: Registry,
    user: SecretKey,
    laptop: SecretKey,
    desk: SecretKey,
    word: Delegation,
    appointment: Appointment,
}

impl Stage {
    async fn new(days_of_desk: u64) -> Self {
        let (registry, user, laptop, desk) = (registry(), key(1), key(2), key(3));
        registry.take(&record(&user, USER, 1), START).await.unwrap();
        let word = given(LAPTOP, &laptop, 0, 7);
        registry.take(&delegated(&laptop, LAPTOP, 1, &word), START).await.unwrap();
        let desks = given(DESK, &desk, 0, days_of_desk);
        registry.take(&delegated(&desk, DESK, 1, &desks), START).await.unwrap();
        let appointment = appointed(DESK, &desk);
        Self { registry, user, laptop, desk, word, appointment }
    }

    /// What the desk signs for the laptop on this day, for a week.
    fn renewal(&self, from: u64) -> Delegation {
        self.word.renew(&self.appointment, day(from), day(from + 7), &self.desk).unwrap()
    }

    async fn renew(&self, word: &Delegation, by: &SecretKey, at: u64) -> Result<UnixTime, NamesError> {
        self.registry.renew(by.id(), &word.encode(), day(at)).await
    }

    async fn publish(&self, word: &Delegation, at: u64) -> Result<UnixTime, NamesError> {
        let record = delegated(&self.laptop, LAPTOP, day(at).as_millis(), word);
        self.registry.take(&record, day(at)).await
    }

    async fn revoke(&self, text: &str, at: u64) {
        let revocation = revocation(&self.user, text, day(at).as_millis());
        self.registry.revoke(self.user.id(), revocation.encode(), day(at)).await.unwrap();
    }
}

#[tokio::test]
async fn an_appointed_device_renews_while_the_users_key_is_away() {
    let stage = Stage::new(30).await;
    let renewed = stage.renewal(4);
    assert_eq!(stage.renew(&renewed, &stage.desk, 4).await, Ok(day(11)));
    let kept = stage.registry.renewal(&name(LAPTOP), stage.laptop.id(), day(5)).await;
    assert_eq!(kept, Ok(renewed.clone()));
    // The laptop goes on beyond the end of what the user's key made, and so do the services on it.
    stage.publish(&renewed, 10).await.unwrap();
    let service = delegated(&stage.laptop, SSH, day(10).as_millis(), &renewed);
    stage.registry.take(&service, day(10)).await.unwrap();
    assert_eq!(stage.registry.found(SSH, day(10)).await, Ok(service));
    // And not beyond the end of the renewal.
    let over = stage.publish(&renewed, 11).await.unwrap_err();
    assert_eq!(over.code(), crate::ErrorCode::DelegationExpired);
}

#[tokio::test]
async fn two_appointed_devices_keep_each_other_alive() {
    let stage = Stage::new(7).await;
    let (of_laptop, desks) = (appointed(LAPTOP, &stage.laptop), given(DESK, &stage.desk, 0, 7));
    let desk_until = |from: u64| desks.renew(&of_laptop, day(from), day(from + 7), &stage.laptop).unwrap();
    let publish_desk = async |from: u64, at: u64| {
        let word = desk_until(from);
        stage.renew(&word, &stage.laptop, from).await.unwrap();
        let record = delegated(&stage.desk, DESK, day(at).as_millis(), &word);
        stage.registry.take(&record, day(at)).await.unwrap();
    };
    for round in [4, 9, 14] {
        publish_desk(round, round + 1).await;
        let laptops = stage.renewal(round + 1);
        stage.renew(&laptops, &stage.desk, round + 1).await.unwrap();
        stage.publish(&laptops, round + 2).await.unwrap();
    }
    assert!(stage.registry.found(LAPTOP, day(16)).await.is_ok());
}

#[tokio::test]
async fn a_device_that_the_user_did_not_appoint_renews_nothing() {
    let stage = Stage::new(30).await;
    let tablet = key(4);
    let tablets = given(TABLET, &tablet, 0, 30);
    stage.registry.take(&delegated(&tablet, TABLET, 1, &tablets), START).await.unwrap();
    let refused = Err(NamesError::NotTheUsers { name: name(LAPTOP), user: name(USER) });
    // What the desk signed, and what the user's key would have to sign.
    assert_eq!(stage.renew(&stage.renewal(4), &tablet, 4).await, refused);
    assert_eq!(stage.renew(&given(LAPTOP, &stage.laptop, 4, 7), &tablet, 4).await, refused);
    // An appointment that another key signed, with the user's key written into it.
    let by_other = Appointment::sign(name(TABLET), tablet.id(), START, day(30), &key(9)).unwrap();
    let mut appointment = by_other.encode();
    let issuer = 1 + 1 + TABLET.len() + 32;
    appointment[issuer..issuer + 32].copy_from_slice(stage.user.id().as_bytes());
    let (word, from, to) =
        (stage.word.encode(), day(4).as_secs().to_be_bytes(), day(11).as_secs().to_be_bytes());
    let parts: [&[u8]; 5] = [&[2], &word, &appointment, &from, &to];
    let content = parts.concat();
    let signature = tablet.sign(&[b"whimbrel renewal v1\0".as_slice(), content.as_slice()].concat());
    let forged = [content, signature.to_bytes().to_vec()].concat();
    let error = stage.registry.renew(tablet.id(), &forged, day(4)).await.unwrap_err();
    assert_eq!(error.code(), crate::ErrorCode::Forged);
    // A user of another key, with the same names.
    let stranger = key(9);
    let strangers = Delegation::sign(name(LAPTOP), stage.laptop.id(), START, day(7), &stranger).unwrap();
    let strangers = strangers.renew(&by_other, day(4), day(11), &tablet).unwrap();
    assert_eq!(stage.renew(&strangers, &tablet, 4).await, refused);
    let kept = stage.registry.renewal(&name(LAPTOP), stage.laptop.id(), day(4)).await;
    assert_eq!(kept, Err(NamesError::NotFound(name(LAPTOP))));
}

#[tokio::test]
async fn a_revoked_appointed_device_renews_nothing_from_then_on_also_dated_back() {
    let stage = Stage::new(30).await;
    let before = stage.renewal(4);
    stage.renew(&before, &stage.desk, 4).await.unwrap();
    stage.revoke(DESK, 5).await;
    let refused = Err(NamesError::NotAppointed(name(DESK)));
    assert_eq!(stage.renew(&stage.renewal(6), &stage.desk, 6).await, refused);
    // Dated before the revocation: the service did not see it then, from the desk or from the laptop.
    let dated_back = stage.word.renew(&stage.appointment, after(4 * DAY + 1), day(11), &stage.desk).unwrap();
    assert_eq!(stage.renew(&dated_back, &stage.desk, 6).await, refused);
    assert_eq!(stage.publish(&dated_back, 6).await, refused);
    // What was taken before counts until its end.
    stage.publish(&before, 6).await.unwrap();
    assert_eq!(stage.publish(&dated_back, 7).await, refused);
    assert!(stage.registry.heartbeat(&name(LAPTOP), stage.laptop.id(), day(6)).await.is_ok());
}

#[tokio::test]
async fn what_the_user_took_back_no_appointed_device_gives_again_nor_does_an_old_renewal() {
    let stage = Stage::new(30).await;
    let before = stage.renewal(4);
    stage.renew(&before, &stage.desk, 4).await.unwrap();
    stage.revoke(LAPTOP, 5).await;
    for renewal in [&before, &stage.renewal(6)] {
        let revoked = Err(NamesError::Revoked(name(LAPTOP)));
        assert_eq!(stage.renew(renewal, &stage.desk, 6).await, revoked);
        let superseded = Err(NamesError::DelegationSuperseded(name(LAPTOP)));
        assert_eq!(stage.publish(renewal, 6).await, superseded);
    }
    // The user gives the name to the same key anew: what was made from the old word stays void.
    let anew = given(LAPTOP, &stage.laptop, 7, 7);
    stage.publish(&anew, 7).await.unwrap();
    let superseded = Err(NamesError::DelegationSuperseded(name(LAPTOP)));
    for renewal in [&before, &stage.renewal(8)] {
        assert_eq!(stage.renew(renewal, &stage.desk, 8).await, superseded);
    }
    let renewed = anew.renew(&stage.appointment, day(10), day(17), &stage.desk).unwrap();
    assert_eq!(stage.renew(&renewed, &stage.desk, 10).await, Ok(day(17)));
}

#[tokio::test]
async fn a_device_that_published_a_service_alone_may_renew_until_its_name_is_taken_back() {
    let (stage, tablet) = (Stage::new(30).await, key(4));
    let (word, appointment) = (given(TABLET, &tablet, 0, 30), appointed(TABLET, &tablet));
    let service = delegated(&tablet, "web.tablet.user@example.org", 1, &word);
    stage.registry.take(&service, START).await.unwrap();
    let renew = |from: u64| stage.word.renew(&appointment, day(from), day(from + 7), &tablet).unwrap();
    assert_eq!(stage.renew(&renew(4), &tablet, 4).await, Ok(day(11)));
    // It never published the name of the device: the user's key does, to take it back.
    stage.registry.take(&record(&stage.user, TABLET, day(5).as_millis()), day(5)).await.unwrap();
    let refused = Err(NamesError::NotAppointed(name(TABLET)));
    assert_eq!(stage.renew(&renew(5), &tablet, 5).await, refused);
    stage.revoke(TABLET, 6).await;
    assert_eq!(stage.renew(&renew(6), &tablet, 6).await, refused);
}

#[tokio::test]
async fn a_device_that_published_a_service_of_late_may_renew_until_its_name_is_taken_back() {
    let stage = Stage::new(5).await;
    let word = given(DESK, &stage.desk, 4, 30);
    let service = delegated(&stage.desk, "web.desk.user@example.org", day(4).as_millis(), &word);
    stage.registry.take(&service, day(4)).await.unwrap();
    // Its own record has the delegation that ended on day 5.
    assert_eq!(stage.renew(&stage.renewal(6), &stage.desk, 6).await, Ok(day(13)));
    stage.revoke(DESK, 7).await;
    let refused = Err(NamesError::NotAppointed(name(DESK)));
    assert_eq!(stage.renew(&stage.renewal(8), &stage.desk, 8).await, refused);
}

#[tokio::test]
async fn an_older_renewal_that_comes_again_takes_no_time_away() {
    let stage = Stage::new(30).await;
    let (older, newer) = (stage.renewal(4), stage.renewal(8));
    stage.renew(&older, &stage.desk, 4).await.unwrap();
    stage.renew(&newer, &stage.desk, 8).await.unwrap();
    assert_eq!(stage.renew(&older, &stage.desk, 8).await, Ok(day(15)));
    let kept = stage.registry.renewal(&name(LAPTOP), stage.laptop.id(), day(8)).await;
    assert_eq!(kept, Ok(newer));
}

#[tokio::test]
async fn an_appointed_device_whose_own_name_ended_or_was_never_published_renews_nothing() {
    let stage = Stage::new(5).await;
    assert_eq!(stage.renew(&stage.renewal(4), &stage.desk, 4).await, Ok(day(11)));
    let refused = Err(NamesError::NotAppointed(name(DESK)));
    assert_eq!(stage.renew(&stage.renewal(5), &stage.desk, 5).await, refused);
    // Published by the user's key alone: the device never had it.
    let tablet = key(4);
    stage.registry.take(&record(&stage.user, TABLET, 2), START).await.unwrap();
    let appointment = appointed(TABLET, &tablet);
    let renewal = stage.word.renew(&appointment, day(4), day(11), &tablet).unwrap();
    let refused = Err(NamesError::NotAppointed(name(TABLET)));
    assert_eq!(stage.renew(&renewal, &tablet, 4).await, refused);
    let other = appointed("phone.user@example.org", &tablet);
    let renewal = stage.word.renew(&other, day(4), day(11), &tablet).unwrap();
    let refused = Err(NamesError::NotAppointed(name("phone.user@example.org")));
    assert_eq!(stage.renew(&renewal, &tablet, 4).await, refused);
}

#[tokio::test]
async fn a_service_with_a_key_of_its_own_is_renewed_too_until_it_or_its_device_is_taken_back() {
    const MAIL: &str = "mail.laptop.user@example.org";
    let (stage, ssh, mail) = (Stage::new(30).await, key(5), key(6));
    let words = [given(SSH, &ssh, 0, 7), given(MAIL, &mail, 0, 7)];
    let renewed = |number: usize, from: u64| {
        words[number].renew(&stage.appointment, day(from), day(from + 7), &stage.desk).unwrap()
    };
    for (number, (text, key)) in [(SSH, &ssh), (MAIL, &mail)].into_iter().enumerate() {
        stage.registry.take(&delegated(key, text, 1, &words[number]), START).await.unwrap();
        assert_eq!(stage.renew(&renewed(number, 4), &stage.desk, 4).await, Ok(day(11)));
        let kept = stage.registry.renewal(&name(text), key.id(), day(5)).await;
        assert_eq!(kept, Ok(renewed(number, 4)));
        let record = delegated(key, text, day(8).as_millis(), &renewed(number, 4));
        stage.registry.take(&record, day(8)).await.unwrap();
        assert_eq!(stage.registry.found(text, day(8)).await, Ok(record));
    }
    stage.revoke(SSH, 9).await;
    let revoked = Err(NamesError::Revoked(name(SSH)));
    assert_eq!(stage.renew(&renewed(0, 9), &stage.desk, 9).await, revoked);
    assert_eq!(stage.renew(&renewed(1, 9), &stage.desk, 9).await, Ok(day(16)));
    stage.revoke(LAPTOP, 10).await;
    let revoked = Err(NamesError::Revoked(name(LAPTOP)));
    assert_eq!(stage.renew(&renewed(1, 10), &stage.desk, 10).await, revoked);
}
