#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

const NOW: UnixTime = UnixTime::from_secs(1_700_000_000);

fn key(seed: u8) -> SecretKey {
    SecretKey::from_bytes(&[seed; 32])
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn after(seconds: u64) -> UnixTime {
    NOW.saturating_add(Duration::from_secs(seconds))
}

/// A device's of bob, for ada.
fn proposal() -> Proposal {
    let word = Delegation::sign(name("phone.bob@example.org"), key(3).id(), NOW, after(60), &key(2)).unwrap();
    Proposal {
        wished: Wished::Friends { from: name("bob@example.org") },
        to: name("ada@example.org"),
        owner: key(1).id(),
        by: key(3).id(),
        made: NOW,
        expires: after(600),
        word: Some(word),
    }
}

fn decision(about: ProposalId) -> Decision {
    Decision { about, accepted: true, by: key(1).id(), made: NOW, word: None, given: None }
}

#[test]
fn a_proposal_is_its_makers_and_each_changed_or_missing_byte_is_told() {
    let bytes = proposal().sign(&key(3)).unwrap();
    assert!(bytes.len() <= MAX_PROPOSAL_BYTES);
    assert_eq!(Proposal::read(&bytes), Ok(proposal()));
    assert_eq!(proposal().authority(), key(2).id());
    assert_eq!(proposal().sign(&key(9)), Err(ProposalError::Forged));
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        assert!(Proposal::read(&changed).is_err(), "{at}");
        assert!(Proposal::read(&bytes[..at]).is_err(), "{at}");
    }
    assert!(Proposal::read(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn nobody_proposes_in_the_name_of_a_user_without_that_users_word() {
    let refused = |change: &dyn Fn(&mut Proposal)| {
        let mut changed = proposal();
        change(&mut changed);
        changed.sign(&key(3))
    };
    let malformed = Err(ProposalError::Malformed);
    assert_eq!(refused(&|it| it.wished = Wished::Friends { from: name("eve@example.org") }), malformed);
    assert_eq!(refused(&|it| it.wished = Wished::Friends { from: name("x.bob@example.org") }), malformed);
    assert_eq!(refused(&|it| it.wished = Wished::Device { name: name("x.ada@example.org") }), malformed);
    assert_eq!(refused(&|it| it.to = name("laptop.ada@example.org")), malformed);
    assert_eq!(refused(&|it| it.owner = key(2).id()), malformed, "to oneself");
    assert_eq!(refused(&|it| it.expires = it.made), malformed);
    assert_eq!(refused(&|it| it.expires = after(7 * 86_400 + 1)), malformed);
    let other =
        Delegation::sign(name("phone.bob@example.org"), key(4).id(), NOW, after(60), &key(2)).unwrap();
    assert_eq!(refused(&|it| it.word = Some(other.clone())), malformed, "another device's");
    let service = name("web.phone.bob@example.org");
    let of_service = Delegation::sign(service, key(3).id(), NOW, after(60), &key(2)).unwrap();
    assert_eq!(refused(&|it| it.word = Some(of_service.clone())), malformed, "a service's");
    // A new device of ada, which has no word of anybody's, and one of somebody else.
    let device = |text: &str| Wished::Device { name: name(text) };
    let new = |text: &str| refused(&|it| (it.word, it.wished) = (None, device(text)));
    assert!(new("new.ada@example.org").is_ok());
    assert_eq!(new("new.bob@example.org"), malformed);
    assert_eq!(new("ssh.new.ada@example.org"), malformed);
}

#[test]
fn a_decision_is_about_one_proposal_and_by_those_who_were_asked() {
    let bytes = proposal().sign(&key(3)).unwrap();
    let id = ProposalId::of(&bytes);
    let read = |decision: Decision, by: u8| Decision::read(&decision.sign(&key(by)).unwrap()).unwrap();
    assert!(read(decision(id), 1).is_about(id, &proposal()));
    assert!(!decision(ProposalId::of(b"another")).is_about(id, &proposal()));
    // Signed with the wrong key; by somebody else; by a device of somebody else.
    assert_eq!(decision(id).sign(&key(9)), Err(ProposalError::Forged));
    let stranger = Decision { by: key(9).id(), ..decision(id) };
    assert!(!read(stranger, 9).is_about(id, &proposal()));
    let word = |text: &str, issuer: u8| {
        Delegation::sign(name(text), key(5).id(), NOW, after(60), &key(issuer)).unwrap()
    };
    let by_device = |word| Decision { by: key(5).id(), word: Some(word), ..decision(id) };
    assert!(read(by_device(word("desk.ada@example.org", 1)), 5).is_about(id, &proposal()));
    assert!(!read(by_device(word("desk.ada@example.org", 9)), 5).is_about(id, &proposal()));
    assert!(!read(by_device(word("desk.eve@example.org", 1)), 5).is_about(id, &proposal()));
    // A machine that was given a service's name alone is no device.
    assert!(!read(by_device(word("web.desk.ada@example.org", 1)), 5).is_about(id, &proposal()));
}

#[test]
fn a_new_device_is_given_the_name_that_it_asked_for_or_nothing() {
    let wished = Wished::Device { name: name("new.ada@example.org") };
    let new = Proposal { wished, by: key(6).id(), word: None, ..proposal() };
    let id = ProposalId::of(&new.sign(&key(6)).unwrap());
    let given = |text: &str, to: u8, issuer: u8| {
        Some(Delegation::sign(name(text), key(to).id(), NOW, after(60), &key(issuer)).unwrap())
    };
    let right = given("new.ada@example.org", 6, 1);
    assert!(Decision { given: right.clone(), ..decision(id) }.is_about(id, &new));
    for wrong in [
        None,
        given("other.ada@example.org", 6, 1),
        given("new.ada@example.org", 7, 1),
        given("new.ada@example.org", 6, 9),
    ] {
        assert!(!Decision { given: wrong.clone(), ..decision(id) }.is_about(id, &new), "{wrong:?}");
    }
    assert!(!Decision { given: right, accepted: false, ..decision(id) }.is_about(id, &new));
    assert!(Decision { accepted: false, ..decision(id) }.is_about(id, &new));
}

#[test]
fn the_longest_ones_fit() {
    let label = |letters: usize| "a".repeat(letters);
    let domain = format!("{}.{}.{}", label(63), label(63), label(61));
    let (from, to) = (name(&format!("{}@{domain}", label(61))), name(&format!("{}@{domain}", label(63))));
    let word = Delegation::sign(name(&format!("d.{from}")), key(3).id(), NOW, after(60), &key(2)).unwrap();
    let wished = Wished::Friends { from };
    let bytes = Proposal { wished, to, word: Some(word), ..proposal() }.sign(&key(3)).unwrap();
    assert!((900..=MAX_PROPOSAL_BYTES).contains(&bytes.len()), "{}", bytes.len());
}

#[test]
fn words_differ_with_the_proposal_and_are_six() {
    let (one, other) = (ProposalId::of(b"one"), ProposalId::of(b"other"));
    assert_ne!(one.words(), other.words());
    assert_eq!(one.words().split('-').count(), WORDS);
    assert_eq!(ProposalId::from_bytes([0; 32]).words(), ["abandon"; WORDS].join("-"));
    assert_eq!(ProposalId::from_bytes([255; 32]).words(), ["zoo"; WORDS].join("-"));
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..1400)) {
        let _ = Proposal::read(&bytes);
        let _ = Decision::read(&bytes);
    }
}
