//! What is known in memory follows what the disk and the peers say.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use whimbrel_base::SecretKey;

use super::*;
use crate::durable::wire::envelope;

fn id(seed: u8) -> EndpointId {
    SecretKey::from_bytes(&[seed; 32]).id()
}

fn ledger() -> Ledger {
    let loaded =
        Loaded { store: 1, opening: 1, peers: Vec::new(), journals: Vec::new(), marks: BTreeMap::new() };
    Ledger::new(loaded, StateLimits::default())
}

fn link(ledger: &mut Ledger, peer: u8) -> u64 {
    ledger.add_link(ConnectionId::random(), id(peer)).unwrap().0
}

#[test]
fn connections_of_a_process_that_died_are_told_apart_by_the_opening_of_its_store() {
    let mut ledger = ledger();
    let (old, other, new) = (link(&mut ledger, 1), link(&mut ledger, 2), link(&mut ledger, 1));
    let beside = link(&mut ledger, 1);
    ledger.greeted(old, 7, 3);
    ledger.greeted(other, 7, 3);
    ledger.greeted(beside, 8, 1);
    assert!(ledger.carries(beside, id(1)) && !ledger.carries(new, id(1)));
    ledger.greeted(new, 7, 4);
    assert!(ledger.is_superseded(old));
    assert!([other, new, beside].iter().all(|link| !ledger.is_superseded(*link)));
    // One that was under way for long.
    let late = link(&mut ledger, 1);
    ledger.greeted(late, 7, 2);
    assert!(ledger.is_superseded(late) && ledger.carries(beside, id(1)));
    ledger.remove_link(beside);
    assert!(ledger.carries(new, id(1)));
}

#[test]
fn what_is_acknowledged_gives_its_room_back_once() {
    let mut ledger = ledger();
    let peer = Change::Peer { key: "desk".into(), target: None, id: Some(id(1)) };
    ledger.settle(&peer, &Done::Made);
    let journal = Change::Journal { peer: "desk".into(), label: "jobs".into(), id: 1 };
    ledger.settle(&journal, &Done::Opened(1));
    for number in 1..=3 {
        ledger.reserve(1, 10).unwrap();
        ledger.settle(
            &Change::Append { journal: 1, data: envelope(Stamp(number), b"it") },
            &Done::Appended(number),
        );
    }
    ledger.reserve(1, 10).unwrap();
    ledger.release(1, 10);
    assert_eq!(ledger.owed("desk"), Owed { messages: 3, bytes: 3 * 258 });
    for _ in 0..2 {
        ledger.acknowledged(1, 2, Some(Stamp(2)));
        assert_eq!(ledger.owed("desk").messages, 1);
        assert_eq!(ledger.trims(), [Change::Trim { journal: 1, acked: 2 }]);
    }
    ledger.settle(&Change::Trim { journal: 1, acked: 2 }, &Done::Made);
    assert!(ledger.trims().is_empty() && ledger.check(1).is_ok());
    // Older than what was said before.
    ledger.acknowledged(1, 1, Some(Stamp(9)));
    assert!(ledger.check(1).is_ok());
    ledger.acknowledged(1, 4, None);
    assert!(matches!(ledger.check(1), Err(StateError::OlderCopy { .. })));
    assert_eq!(ledger.contents(1), None);
}

#[test]
fn an_acknowledgement_of_another_message_with_the_same_number_is_told_apart() {
    let mut ledger = ledger();
    let journal = Change::Journal { peer: "desk".into(), label: "jobs".into(), id: 1 };
    ledger.settle(&journal, &Done::Opened(1));
    for number in 1..=2 {
        let data = envelope(Stamp(1), b"written now");
        ledger.settle(&Change::Append { journal: 1, data }, &Done::Appended(number));
    }
    ledger.acknowledged(1, 1, Some(Stamp(1)));
    assert!(ledger.check(1).is_ok());
    ledger.acknowledged(1, 2, Some(Stamp(3)));
    assert!(matches!(ledger.check(1), Err(StateError::OlderCopy { .. })));
}
